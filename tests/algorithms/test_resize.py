"""Algorithms whose groups are resized while they train: workers learn the newest weights, replay shards fill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import flowrl
from flowrl import Local, Run
from flowrl.algorithms import (
    A3CConfig,
    ApexConfig,
    DDPPOConfig,
    DQNConfig,
    IMPALAConfig,
    LeaguePlayConfig,
    PPOAndDQNConfig,
    PPOConfig,
)
from flowrl.errors import GraphError
from flowrl.testing import Delayed, difference
from flowrl.training import Progress

SMALL: dict[str, Any] = {"num_workers": 2, "envs_per_worker": 2, "unroll": 8}
STORED: dict[str, Any] = {"min_size": 32, "batch": 8, "batches": 2}
ALGORITHMS: dict[str, Any] = {
    "ppo": lambda: PPOConfig(**SMALL, batch_steps=32, epochs=1),
    "ppo normalized": lambda: PPOConfig(**SMALL, batch_steps=32, epochs=1, normalize_rewards=True),
    "a3c": lambda: A3CConfig(**SMALL),
    "impala": lambda: IMPALAConfig(**SMALL, batch_steps=32),
    "apex": lambda: ApexConfig(**SMALL, **STORED, replay_shards=2),
    "dqn": lambda: DQNConfig(**SMALL, **STORED),
    "ppo_and_dqn": lambda: PPOAndDQNConfig(
        env="tests.rl.test_agents_faults:Pair", dqn_agents=("right",), **SMALL, ppo=PPOConfig(batch_steps=32, epochs=1),
        dqn=DQNConfig(**STORED),
    ),
}  # fmt: skip
pytestmark = pytest.mark.timeout(120)


def versions(r: Run[Any]) -> list[Any]:
    """With which weights each worker acts, after what it was told rode in."""
    return [state["version"] for state in (handle.ask("get_state").result() for handle in r.actors["workers"])]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_workers_come_and_go_in_the_middle_of_a_training(algorithm: str) -> None:
    with flowrl.run(ALGORITHMS[algorithm]().graph(), Delayed(1), seed=0) as r:
        r.step(3)
        before = r.stats()
        r.resize("workers", 4)
        if algorithm != "ppo_and_dqn":
            told = versions(r)
            assert told[2] == told[3] >= max(told[:2])  # nobody has newer ones than those that have just come
        r.step(6)
        r.resize("workers", 1)
        r.step(3)
        after = r.stats()
        assert after.lost_calls == 0
        assert after.env_steps >= before.env_steps
        assert after.groups["workers"].count == len(r.actors["workers"]) == 1
        assert after.groups["workers"].calls > before.groups["workers"].calls


def test_an_observer_of_a_training_resizes_it(tmp_path: Path) -> None:
    sizes: list[int] = []

    def observe(progress: Progress) -> None:
        if progress.summary.iteration == 2:
            progress.run.resize("workers", 3)
        sizes.append(progress.run.stats().groups["workers"].count)

    config = ALGORITHMS["ppo"]()
    out = tmp_path / "run"
    flowrl.train(config, total_steps=150, out=out, backend=Local(), seed=0, observe=observe, checkpoint_every=50)
    assert sizes[:3] == [2, 3, 3]
    sizes.clear()
    flowrl.train(config, total_steps=250, backend=Local(), resume=out, observe=observe)
    assert set(sizes) == {3}  # it goes on with as many


def test_epsilons_are_spread_over_those_that_there_are() -> None:
    cfg = ApexConfig(**SMALL, **STORED)
    with flowrl.run(cfg.graph(), Local(), seed=0) as r:
        r.step(2)
        r.resize("workers", 3)
        r.step(40)
        told = [handle.ask("get_state").result()["epsilon"] for handle in r.actors["workers"]]
        flat = [float(value) for of_worker in told for value in of_worker]
        first, last = flat[0], flat[-1]
        assert flat == pytest.approx([first ** (1 + 7 * i / 5) for i in range(6)])
        assert last == pytest.approx(first**8)


def test_replay_shards_come_and_go_in_the_middle_of_a_training() -> None:
    with flowrl.run(ApexConfig(**SMALL, **STORED, replay_shards=2).graph(), Delayed(2), seed=0) as r:
        r.step(5)
        r.resize("replay", 3)
        r.step(30)
        lost = r.resize("replay", 1)
        assert lost.lost_rows > 0
        r.step(20)
        metrics = r.stats().metrics["replay"]
        assert metrics["rows"] > 0
        assert metrics["rows_lost"] >= lost.lost_rows


def test_a_resized_training_is_the_same_again_and_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    def figures(r: Run[Any], n: int) -> list[Any]:
        found = [summary.as_dict() for summary in r.step(n)]
        for summary in found:
            del summary["time_s"], summary["env_steps_per_s"]
        return found

    def trained(backend: Any) -> list[Any]:
        with flowrl.run(ALGORITHMS["ppo"]().graph(), backend, seed=3) as r:
            got = figures(r, 2)
            r.resize("workers", 4)
            got += figures(r, 3)
            r.resize("workers", 3)
            saved.append(r.save(tmp_path / str(len(saved))))
            return got + figures(r, 3)

    saved: list[Any] = []
    once, again = trained(Local()), trained(Delayed(7))
    assert difference(once, again) is None  # timing cannot change it
    with flowrl.run(ALGORITHMS["ppo"]().graph(), Local(), resume=saved[0], trust_pickles=True) as r:
        assert len(r.actors["workers"]) == 3
        assert difference(figures(r, 3), once[5:]) is None


@pytest.mark.parametrize(
    ("config", "group", "why"),
    [
        (lambda: PPOConfig(**SMALL), "learner", "TrainOneStep asks its actors, and counts on their number"),
        (lambda: IMPALAConfig(**SMALL, learners=2), "learner", "TrainOneStep asks its actors"),
        (lambda: DDPPOConfig(**SMALL), "workers", "TrainOneStep asks its actors"),
        (lambda: LeaguePlayConfig(num_workers=1, envs_per_worker=1, unroll=8), "league", "it is only asked"),
    ],
)
def test_groups_whose_number_is_fixed_say_why(config: Any, group: str, why: str) -> None:
    with flowrl.run(config().graph(), Local(), seed=0) as r:
        with pytest.raises(GraphError, match=rf"group '{group}' keeps its \d actor\(s\): .*{why}.* save the run and"):
            r.resize(group, 3)
        assert not r.closed
