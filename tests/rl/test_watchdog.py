"""Deadlines for environments in an actor's own process: on Ray the actor dies, and its death says why."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest

import flowrl
from flowrl import Raise, Restart, process
from flowrl.errors import ActorDied
from flowrl.operators import ParallelRollouts
from flowrl.rl import EnvOptions, MultiAgentWorker, PolicySpec, RolloutWorker
from flowrl.rl.crashes import read_crash
from flowrl.rl.replay_crash import replay_crash
from flowrl.rl.watchdog import Watchdog
from tests.rl.counting_envs import Counting
from tests.rl.test_agents_faults import Pair


class EndedError(Exception):
    """In place of the end of this process."""


def test_a_call_past_its_deadline_ends_the_process_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    ended = threading.Event()

    def end(reason: str) -> None:
        said.append(reason)
        ended.set()
        raise EndedError

    monkeypatch.setattr(process, "_last_words", said.append)
    monkeypatch.setattr(process, "end", end)
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    dog = Watchdog(0.05)
    dog.before = lambda call: f"the second one, in its {call}"
    with dog.watching("reset", "'Maze'"):
        pass
    with dog.watching("step", "'Maze'"):
        assert ended.wait(30)
    assert said == ["environment 'Maze' did not come back from step within 0.05 s: the second one, in its step"]
    dog.close()


class RaisesThenHangs(Counting):
    """Raises once, at its first step; then it waits at one until the gate opens."""

    raised = False
    gate = threading.Event()

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not RaisesThenHangs.raised:
            RaisesThenHangs.raised = True
            raise RuntimeError("the arm is stuck")
        assert RaisesThenHangs.gate.wait(30)
        return super().step(action)


@pytest.mark.parametrize("anew", ["a fault", "a saved state"])
def test_environments_made_anew_have_a_deadline_too(anew: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def end(reason: str) -> None:
        said.append(reason)
        RaisesThenHangs.gate.set()

    monkeypatch.setattr(process, "_last_words", said.append)
    monkeypatch.setattr(process, "end", end)
    monkeypatch.setattr(RaisesThenHangs, "raised", anew != "a fault")
    monkeypatch.setattr(RaisesThenHangs, "gate", threading.Event())
    options = EnvOptions(vector="sync", env_timeout_s=0.2, on_fault=Restart(1, backoff_s=0.0), crash_dir=None)
    worker = RolloutWorker(RaisesThenHangs, steps=4, env_options=options, seed=0)
    if anew == "a saved state":
        RaisesThenHangs.gate.set()
        worker.sample()
        assert worker.set_state(worker.get_state())
        assert not said
        RaisesThenHangs.gate.clear()
    worker.sample()
    worker.close()
    assert len(said) == 1
    assert "did not come back from step within 0.2 s" in said[0]


def test_only_an_actors_own_process_is_ended() -> None:
    assert not process.is_an_actors_own()
    with pytest.raises(ValueError, match=r"which is the driver's \(Local\): use EnvOptions\(vector='async'\)"):
        Watchdog(1.0)


def test_an_environment_that_hangs_in_a_worker_takes_it_along(ray_session: None, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    kwargs = {"what": "hang", "most": 1, "marks": str(marks)}
    options = EnvOptions(vector="sync", env_timeout_s=0.5, crash_dir=str(tmp_path))
    workers = flowrl.actors(
        RolloutWorker, "tests.rl.counting_envs:Mishap", steps=8, num_envs=2, env_kwargs=kwargs, env_options=options,
        count=1, name="workers",
    )  # fmt: skip
    died = r"workers\[0\] died: environment 'tests.rl.counting_envs:Mishap' did not come back from step within 0.5 s: "
    with (
        flowrl.run(ParallelRollouts(workers).gather_sync(on_failure=Raise()), flowrl.Ray(), seed=1) as run,
        pytest.raises(ActorDied, match=died + r"environment 0, seed \d+, at step 3 of its episode, action \d"),
    ):
        next(run)
    (path,) = tmp_path.glob("*.crash")
    (marks / "0").unlink()
    assert replay_crash(path, allow_import=True).reproduced


def test_environments_of_several_agents_leave_a_bundle_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_last_words", lambda reason: None)
    worker = MultiAgentWorker(
        Pair, {"default": PolicySpec()}, steps=4, env_options=EnvOptions(env_timeout_s=60, crash_dir=str(tmp_path))
    )
    worker.sample()
    dog = worker._watchdog
    assert dog is not None
    assert dog.before is not None
    assert re.fullmatch(r"environment 0, seed \d+, at step 4 of its episode", dog.before("step"))
    (path,) = tmp_path.glob("*.crash")
    assert len(read_crash(path).about["agents"]) == 4
    worker.close()
