"""Faults of environments with several agents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from flowrl.failures import Restart
from flowrl.metrics import Sum
from flowrl.rl import EnvOptions, MultiAgentWorker, PolicySpec
from flowrl.rl.crashes import read_crash
from flowrl.rl.replay_crash import replay_crash
from tests.rl.counting_envs import TwoArgumentsError

PAIR = "tests.rl.test_agents_faults:Pair"


class Pair:
    """Two agents who walk at random for five steps; goes wrong at step `at` of the first episodes of its process."""

    possible_agents = ("left", "right")
    mishaps = 0  # left, of all of them

    def __init__(self, what: str = "none", at: int = 3):
        if what == "constructor" and Pair.mishaps > 0:
            Pair.mishaps -= 1
            raise ConnectionError("no licence")
        self.what, self.at, self.taken = what, at, 0
        self.rng = np.random.default_rng(0)

    def observation_space(self, agent: str) -> Box:
        return Box(-100, 100, (2,), np.float32)

    def action_space(self, agent: str) -> Discrete:
        return Discrete(3)

    def _obs(self) -> dict[str, Any]:
        obs = self.rng.normal(size=2).astype(np.float32)
        if self.taken == self.at and Pair.mishaps > 0 and self.what != "constructor":
            Pair.mishaps -= 1
            if self.what == "raise":
                raise TwoArgumentsError("the arm is stuck", self.taken)
            if self.what == "nan":
                obs[1] = np.nan
            if self.what == "shape":
                obs = obs[:1]
            if self.what == "inf":
                return {"left": obs, "right": obs, "bad": obs}
        return {"left": obs, "right": obs}

    def reset(self, *, seed: int) -> tuple[Any, Any]:
        self.rng, self.taken = np.random.default_rng(seed), 0
        return self._obs(), {}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        assert sorted(actions) == ["left", "right"]
        self.taken += 1
        obs = self._obs()
        reward = float("inf") if obs.pop("bad", None) is not None else float(actions["left"])
        over = self.taken >= 5
        return obs, {"left": reward, "right": 0.0}, {"__all__": over}, {"__all__": False}, {}


def worker_of(what: str, folder: Path, *, mishaps: int, at: int = 3, **options: Any) -> MultiAgentWorker:
    Pair.mishaps = mishaps if what != "constructor" else 0
    return MultiAgentWorker(
        PAIR, {"default": PolicySpec()}, steps=8, num_envs=2, env_kwargs={"what": what, "at": at}, seed=3,
        env_options=EnvOptions(crash_dir=str(folder), **options),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("what", "kind"),
    [("raise", TwoArgumentsError), ("nan", FloatingPointError), ("inf", FloatingPointError), ("shape", ValueError)],
)
def test_a_fault_is_raised_with_its_place_and_can_be_played_again(what: str, kind: type, tmp_path: Path) -> None:
    worker = worker_of(what, tmp_path, mishaps=1)
    with pytest.raises(kind) as caught:
        worker.sample()
    notes = "\n".join(caught.value.__notes__)
    assert "environment 0 had the seed " in notes
    assert "in worker 0 of 1, environment 'tests.rl.test_agents_faults:Pair' (one of its 2)" in notes
    (path,) = tmp_path.glob("*.crash")
    crash = read_crash(path)
    assert (crash.about["environment"], crash.about["step"], len(crash.about["agents"])) == (0, 3, 3)
    Pair.mishaps = 1
    result = replay_crash(path, allow_import=True)
    assert result.reproduced, result.said


def test_a_fault_at_the_reset(tmp_path: Path) -> None:
    worker = worker_of("raise", tmp_path, mishaps=1, at=0)
    with pytest.raises(TwoArgumentsError) as caught:
        worker.sample()
    assert caught.value.__notes__[0] == "in reset of environment 0, episode 0"
    (path,) = tmp_path.glob("*.crash")
    Pair.mishaps = 1
    assert replay_crash(path, allow_import=True).reproduced


@pytest.mark.parametrize("what", ["raise", "nan", "inf", "shape"])
def test_a_restart_drops_the_fragment_whole_and_is_counted(what: str, tmp_path: Path) -> None:
    worker = worker_of(what, tmp_path, mishaps=2, on_fault=Restart(3, backoff_s=0))
    answer = worker.sample()
    batch = answer.payload["default"]
    # Both environments have given NaN before the policy sees it.
    assert answer.metrics["env_restarts"] == Sum(1 if what == "nan" else 2)
    assert answer.env_steps is None
    assert answer.payload.env_steps == 16
    assert np.isfinite(batch["obs"]).all()
    assert "env_restarts" not in worker.sample().metrics


def test_restarts_have_a_bound_and_a_constructor_is_tried_again(tmp_path: Path) -> None:
    worker = worker_of("raise", tmp_path, mishaps=9, on_fault=Restart(2, backoff_s=0))
    with pytest.raises(TwoArgumentsError) as caught:
        worker.sample()
    assert any(note.startswith("after 2 restarts in a row") for note in caught.value.__notes__)
    worker = worker_of("constructor", tmp_path, mishaps=0, on_fault=Restart(2, backoff_s=0))
    Pair.mishaps = 2
    worker._make_anew(1)
    assert worker.sample().metrics["env_restarts"] == Sum(2)
    Pair.mishaps = 3
    with pytest.raises(ConnectionError, match="no licence"):
        worker._make_anew(1)


def test_options_for_one_agent_and_timeouts_in_the_drivers_process_are_refused() -> None:
    with pytest.raises(ValueError, match=r"EnvOptions\(frame_stack=2\) is for environments of one agent; those of sev"):
        MultiAgentWorker(PAIR, {"default": PolicySpec()}, env_options=EnvOptions(frame_stack=2))
    with pytest.raises(ValueError, match="env_timeout_s=1 cannot end an environment that hangs in this very process"):
        MultiAgentWorker(PAIR, {"default": PolicySpec()}, env_options=EnvOptions(env_timeout_s=1))
