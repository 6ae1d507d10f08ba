"""SetEpsilon: workers hear of an ε that has changed, before the pull that it is for; Ape-X's spread."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl import Batch, Local
from flowrl.operators import SetEpsilon
from flowrl.rl.schedules import Linear


class Worker:
    """Four steps a sample; gives the ε of each of its environments."""

    def __init__(self, *, num_envs: int = 2):
        self.epsilon: Any = None
        self.heard: list[Any] = []
        self.num_envs = num_envs

    def sample(self) -> Batch:
        assert self.epsilon is not None
        return Batch({"epsilon": np.full(4, self.epsilon)})

    def set_epsilon(self, value: Any, policy: str | None = None) -> None:
        self.epsilon = value if np.ndim(value) == 0 else value[0]
        self.heard.append((np.asarray(value).tolist(), policy))

    def history(self) -> list[Any]:
        return self.heard


def run_of(count: int, *args: Any, steps: int = 6, num_envs: int = 2, **kwargs: Any) -> tuple[list[Any], list[Any]]:
    workers = flowrl.actors(Worker, num_envs=num_envs, count=count, name="workers")
    flow = flowrl.from_actors(workers, "sample").gather_sync().for_each(SetEpsilon(workers, *args, **kwargs))
    with flowrl.run(flow, Local()) as run:
        used = [float(batch["epsilon"][0]) for batch in run.step(steps)]
        return used, [handle.ask("history").result() for handle in run.actors["workers"]]


def test_a_number_is_told_once() -> None:
    used, heard = run_of(2, 0.25)
    assert used == [0.25] * 6
    assert heard == [[(0.25, None)]] * 2


def test_a_schedule_is_told_as_the_steps_of_the_run_pass() -> None:
    used, heard = run_of(1, Linear(1.0, 0.5, 10), policy="red")
    assert used == pytest.approx([1.0, 0.8, 0.6, 0.5, 0.5, 0.5])
    assert [value for value, _ in heard[0]] == pytest.approx([1.0, 0.8, 0.6, 0.5])  # the last one once
    assert {policy for _, policy in heard[0]} == {"red"}


def test_each_worker_hears_of_it_with_its_own_item() -> None:
    used, heard = run_of(2, Linear(1.0, 0.5, 10), steps=8)  # 8 steps a round
    assert used == pytest.approx([1.0, 1.0, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5])
    assert [len(each) for each in heard] == [3, 3]


def test_ape_x_spreads_it_over_the_environments_of_all_workers() -> None:
    _, heard = run_of(2, 0.4, per_env=7, num_envs=4, steps=2)
    told = [entry for each in heard for entry in each]
    assert len(told) == 2
    expected = [0.4 ** (1 + 7 * i / 7) for i in range(8)]  # α = 7 and N - 1 = 7 cancel
    assert [value for values, _ in told for value in values] == pytest.approx(expected)
    assert expected[0] == 0.4


def test_one_environment_gets_the_base() -> None:
    _, heard = run_of(1, 0.4, per_env=7.0, num_envs=1, steps=2)
    assert heard == [[([0.4], None)]]


def test_an_item_of_no_worker_tells_them_all() -> None:
    workers = flowrl.actors(Worker, count=2, name="workers")
    flow = flowrl.from_iterable(lambda: [1, 2]).for_each(SetEpsilon(workers, 0.5))
    with flowrl.run(flow, Local()) as run:
        assert run.step(5) == [1, 2]
        assert [len(handle.ask("history").result()) for handle in run.actors["workers"]] == [1, 1]


def test_what_it_refuses() -> None:
    workers = flowrl.actors(Worker, count=2, name="workers")
    with pytest.raises(ValueError, match=r"epsilon must be from 0 to 1, got 1\.5 at env_steps=0"):
        SetEpsilon(workers, 1.5)
    with pytest.raises(
        ValueError, match="epsilon must be a number, or a function of the run's environment steps, got 'x'"
    ):
        SetEpsilon(workers, "x")  # type: ignore[arg-type]
    with pytest.raises(
        flowrl.GraphError, match=r"SetEpsilon needs a group made by flowrl.actors\(RolloutWorker, ...\), g"
    ):
        SetEpsilon(None, 0.5)  # type: ignore[arg-type]
    with pytest.raises(flowrl.GraphError, match=r"SetEpsilon: dict \(group 'no'\) has no method set_epsilon"):
        SetEpsilon(flowrl.actor(dict, name="no"), 0.5)
    with pytest.raises(ValueError, match="per_env must be at least 0, got -1"):
        SetEpsilon(workers, 0.4, per_env=-1)
    with pytest.raises(ValueError, match="per_env needs workers with a parameter num_envs, group plain: 2"):
        SetEpsilon(flowrl.actors(Plain, count=2, name="plain"), 0.4, per_env=7)
    with pytest.raises(ValueError, match=r"epsilon must be from 0 to 1, got 1\.5 at env_steps=8"):
        run_of(1, lambda steps: 0.5 if steps < 8 else 1.5)
    assert repr(SetEpsilon(workers, Linear(1.0, 0.1, 5))).startswith("SetEpsilon(workers, Linear(start=1.0")


class Plain:
    """A worker of nobody knows how many environments."""

    def set_epsilon(self, value: float) -> None: ...
