"""Every algorithm and every fault: each ends as docs/reliability.md promises, by default and with a policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import flowrl
from flowrl import Restart
from flowrl.algorithms import A3CConfig, ApexConfig, DQNConfig, IMPALAConfig, PPOAndDQNConfig, PPOConfig
from flowrl.errors import ActorDied
from flowrl.rl import EnvOptions
from flowrl.testing import Delayed
from tests.rl.counting_envs import TwoArgumentsError
from tests.rl.test_agents_faults import Pair

AGAIN = Restart(3, backoff_s=0.0)
SMALL: dict[str, Any] = {"num_workers": 2, "envs_per_worker": 2, "unroll": 8}
STORED: dict[str, Any] = {"min_size": 32, "batch": 8, "batches": 2}
MISHAP = "tests.rl.counting_envs:Mishap"
PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
ALGORITHMS: dict[str, Any] = {
    "ppo": lambda **more: PPOConfig(**SMALL, batch_steps=32, epochs=1, **more),
    "a3c": lambda **more: A3CConfig(**SMALL, **more),
    "impala": lambda **more: IMPALAConfig(**SMALL, batch_steps=32, **more),
    "apex": lambda **more: ApexConfig(**{**SMALL, **STORED}, replay_shards=2, **more),
    "dqn": lambda **more: DQNConfig(**{**SMALL, **STORED}, **more),
}
STORING = ("apex", "dqn", "ppo_and_dqn")
FAULTS = {"raises": TwoArgumentsError, "hangs": TimeoutError, "NaN": FloatingPointError}
DEATHS = {"worker killed": "workers[0]", "learner killed": "learner[0]", "replay shard killed": "replay[0]"}
pytestmark = pytest.mark.timeout(90)


def pair_of(
    learner: dict[str, Any], shard: dict[str, Any], env: str = "tests.rl.test_agents_faults:Pair", **more: Any
) -> PPOAndDQNConfig:
    return PPOAndDQNConfig(
        env=env, dqn_agents=("right",), **SMALL,
        ppo=PPOConfig(batch_steps=32, epochs=1, **learner), dqn=DQNConfig(**STORED, **learner, **shard), **more,
    )  # fmt: skip


def config_of(algorithm: str, fault: str, folder: Path, *, outlived: bool, most: int) -> Any:
    """The algorithm, with an environment that fails as is said; `most`: how often, over all of its copies."""
    folder.joinpath("marks").mkdir(exist_ok=True)
    what = {"raises": "raise", "hangs": "hang", "NaN": "nan"}.get(fault, "none")
    options: dict[str, Any] = {"crash_dir": str(folder)} | ({"on_fault": AGAIN} if outlived else {})
    if fault == "hangs":
        options["env_timeout_s"] = 1.0
    learner = {"on_learner_failure": AGAIN} if outlived else {}
    shard = {"on_shard_failure": AGAIN} if outlived else {}
    if algorithm == "ppo_and_dqn":
        Pair.mishaps = most if what in ("raise", "nan") else 0
        return pair_of(learner, shard, env_kwargs={"what": what}, env_options=EnvOptions(**options))
    kwargs = {"what": what, "most": most, "marks": str(folder / "marks")}
    stored = shard if algorithm in STORING else {}
    made = ALGORITHMS[algorithm]
    return made(env=MISHAP, env_kwargs=kwargs, env_options=EnvOptions(**options), **learner, **stored)


def until(run: flowrl.Run[Any], group: str, metric: str, limit: int = 400) -> float:
    """Steps until a metric of a node or group shows; what it is then."""
    for _ in range(limit):
        run.step(1)
        found = run.stats().metrics.get(group, {}).get(metric, 0.0)
        if found:
            return found
    raise AssertionError(f"{group} has no {metric} after {limit} steps")


def goes_on(run: flowrl.Run[Any], limit: int = 200) -> None:
    """Steps until more experience was made, and trained on."""
    before = run.stats().env_steps
    for _ in range(limit):
        run.step(1)
        if run.stats().env_steps >= before + 64:
            return
    raise AssertionError(f"no more than {run.stats().env_steps - before} env steps in {limit} items")


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "ppo_and_dqn"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_an_environment(algorithm: str, fault: str, tmp_path: Path) -> None:
    if algorithm == "ppo_and_dqn" and fault == "hangs":  # of several agents: only where their actor can be ended
        flow = config_of(algorithm, fault, tmp_path, outlived=False, most=1).graph()
        with pytest.raises(ValueError, match="env_timeout_s=1 cannot end an environment that hangs in this very proc"):
            flowrl.run(flow, flowrl.Local(), seed=1)
        return
    flow = config_of(algorithm, fault, tmp_path, outlived=False, most=1).graph()
    run = flowrl.run(flow, flowrl.Local(), seed=1)
    with pytest.raises(FAULTS[fault]) as caught:
        run.step(50)
    assert run.closed
    assert any("environment " in note for note in caught.value.__notes__)
    assert list(tmp_path.glob("*.crash"))
    for mark in tmp_path.joinpath("marks").iterdir():
        mark.unlink()
    flow = config_of(algorithm, fault, tmp_path, outlived=True, most=2).graph()
    with flowrl.run(flow, flowrl.Local(), seed=1) as run:
        assert until(run, "ParallelRollouts", "env_restarts") >= 1
        goes_on(run)


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "ppo_and_dqn"])
@pytest.mark.parametrize("fault", DEATHS)
def test_a_death(algorithm: str, fault: str, tmp_path: Path) -> None:
    if fault == "replay shard killed" and algorithm not in STORING:
        return  # there is none
    group = DEATHS[fault].split("[")[0]
    if algorithm == "ppo_and_dqn" and group == "learner":
        group = "ppo_learner"

    at = 6 if group == "ppo_learner" else 15  # of its messages; most items of the mix are the other learner's

    def backend() -> Delayed:
        return Delayed(0, die=lambda actor, n: actor == f"{group}[0]" and n == at)

    flow = config_of(algorithm, fault, tmp_path, outlived=True, most=0).graph()
    with flowrl.run(flow, backend(), seed=1) as run:
        assert until(run, group, "restarts") == 1
        goes_on(run)
    flow = config_of(algorithm, fault, tmp_path, outlived=False, most=0).graph()
    with flowrl.run(flow, backend(), seed=1) as run:
        if group == "workers":
            assert until(run, group, "restarts") == 1
        elif group == "replay" and algorithm == "apex":  # it has two
            assert until(run, group, "shards_lost") == 1
            run.step(10)
        else:
            with pytest.raises(ActorDied, match=rf"{group}\[0\]"):
                run.step(400)


@pytest.mark.parametrize("algorithm", ["ppo", "a3c", "impala", "apex"])
def test_a_learner_that_is_up_before_any_worker_knows_its_spaces(algorithm: str) -> None:
    backend = Delayed(0)
    made = ALGORITHMS[algorithm]
    flow = made(on_worker_failure=Restart(3, backoff_s=1.0), on_learner_failure=AGAIN).graph()
    with flowrl.run(flow, backend, seed=1) as run:
        run.step(3)
        for handle in (*run.actors["learner"], *run.actors["workers"]):
            backend.kill(handle)
        assert until(run, "workers", "restarts") >= 1
        goes_on(run)
        stats = run.stats()
    assert stats.metrics["learner"]["restarts"] == 1
    assert stats.groups["learner"].deaths == 1


def test_the_page_says_so() -> None:
    rows = [line.strip("|").split("|") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    table = {cells[0].strip().strip("`"): [cell.strip() for cell in cells[1:]] for cells in rows if len(cells) == 7}
    assert sorted(table) == sorted([*ALGORITHMS, "ppo_and_dqn"])
    for algorithm, cells in table.items():
        assert (cells[5] == "—") == (algorithm not in STORING)
        assert all(" / " in cell for cell in cells[:5])
