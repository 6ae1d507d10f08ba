"""Staleness: how old what is trained on is, how often it is used, and the bound on its age."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowrl
from flowrl import Answer, Batch, Info, Local
from flowrl.metrics import Sum
from flowrl.operators import ConcatBatches, SendWeights, TrainOneStep
from flowrl.operators.staleness import WINDOW, Age, Staleness, rows_by_age
from flowrl.operators.training import TrainInfo
from flowrl.testing import Delayed, Virtual


class Worker:
    """Answers batches of four rows, which hold the version of its weights."""

    def __init__(self) -> None:
        self.version = -1

    def sample(self) -> Answer[Batch]:
        return Answer(Batch({"version": np.full(4, self.version)}), policy_version=self.version)

    def set_weights(self, flat: Any, version: int) -> None:
        self.version = version

    def spaces(self) -> dict[str, str]:
        return {"default": "spaces"}


class Learner:
    """Has seen how far behind the rows were that it trained on."""

    def __init__(self) -> None:
        self.version, self.lags = 0, []

    def build(self, spaces: Any) -> Answer[None]:
        return Answer(None, policy_version=0, published=np.zeros(1, np.float32))

    def train(self, batch: Batch, *, epochs: int, minibatch: int | None, env_steps: int) -> Answer[None]:
        self.lags.append(sorted((self.version - batch["version"]).tolist()))
        self.version += 1
        metrics = {("default", "trained_steps"): Sum(epochs * len(batch["version"]))}
        return Answer(None, metrics, self.version, np.zeros(1, np.float32))

    def seen(self) -> list[list[int]]:
        return self.lags


def graph(workers: int, batch: int = 4, num_async: int = 2, to: str = "origin", **training: Any) -> Any:
    group = flowrl.actors(Worker, count=workers, name="workers")
    learner = flowrl.actor(Learner, name="learner")
    return (
        flowrl.from_actors(group, "sample")
        .gather_async(num_async=num_async)
        .for_each(ConcatBatches(min_steps=batch))
        .for_each(TrainOneStep(learner, **training))
        .for_each(SendWeights(learner, to=group if to == "workers" else "origin"))
    )


def straggling(group: str, index: int, kind: str, number: int) -> float:
    """One worker of several is slow; the learner is quick."""
    return 12.0 if (group, index, kind) == ("workers", 0, "pull") else 1.0 if group == "workers" else 0.25


def slow_learner(group: str, index: int, kind: str, number: int) -> float:
    """A learner ten times slower than its workers."""
    return 10.0 if group == "learner" and kind == "ask" else 1.0


def test_ages_by_hand():
    # 10 rows of age 0, 9 of age 1, 1 of age 7: half of 20 is reached at 0, 19 of 20 at 1.
    assert Age.of({7: 1, 0: 10, 1: 9}) == Age(0, 1, 7)
    assert Age.of({0: 9, 1: 9, 7: 2}) == Age(1, 7, 7)
    assert Age.of({3: 1}) == Age(3, 3, 3)
    assert Age.of({}) is None
    parts = [Info(5, 5, 2), Info(3, 6, 4), Info(9, 9, None), Info(1, 1, 2)]
    assert rows_by_age(parts, 4) == {2: 6, 0: 6}


@given(st.dictionaries(st.integers(0, 9), st.integers(1, 20), min_size=1))
def test_percentiles_are_the_smallest_ages_that_enough_rows_do_not_exceed(rows):
    ages = [age for age, count in sorted(rows.items()) for _ in range(count)]
    for share, found in ((Fraction(1, 2), Age.of(rows).p50), (Fraction(19, 20), Age.of(rows).p95)):
        assert Fraction(sum(age <= found for age in ages), len(ages)) >= share
        assert Fraction(sum(age < found for age in ages), len(ages)) < share


def test_figures_are_of_the_newest_trainings():
    staleness = Staleness()
    assert (staleness.age, staleness.reuse) == (None, None)
    staleness.trained(Counter({50: 8}), 8, 8)
    assert (staleness.age, staleness.reuse) == (Age(50, 50, 50), 1.0)
    for k in range(WINDOW):
        staleness.trained(Counter({1: 4}), 12, 8 + 4 * (k + 1))
    assert (staleness.age, staleness.reuse) == (Age(1, 1, 1), 3.0)
    again = Staleness()
    again.set_state(staleness.get_state())
    for one in (staleness, again):
        one.trained(Counter({2: 900}), 0, 408)
    assert (again.age, again.reuse) == (staleness.age, staleness.reuse) == (Age(2, 2, 2), 3 * 99 / 99)


def test_a_train_step_says_how_old_and_how_often():
    with flowrl.run(graph(1, num_async=1, epochs=3), Local()) as run:
        infos: list[TrainInfo] = run.step(4)
        # Each fragment is asked for behind the weights of the one before.
        assert [(info.age, info.sample_reuse) for info in infos] == [(Age(0, 0, 0), 3.0)] * 4
    with flowrl.run(graph(1, num_async=3), Local()) as run:
        infos = run.step(5)
        lags = run.actors["learner"][0].ask("seen").result()
        # Three are out when the first is trained on: the second is one behind, the third two, and so it stays.
        assert [info.age.oldest for info in infos] == [lag[-1] for lag in lags[:5]] == [0, 1, 2, 2, 2]
        table = run.stats().metrics["TrainOneStep"]
        assert (table["policy_age_p50"], table["policy_age_p95"]) == (2, 2)
        assert table["sample_reuse"] == pytest.approx(20 / (20 + 8))


def test_a_batch_of_several_fragments_has_the_ages_of_all():
    with flowrl.run(graph(2, batch=8, num_async=1), Virtual(straggling)) as run:
        infos = run.step(12)
        lags = run.actors["learner"][0].ask("seen").result()[:12]
    for info, lag in zip(infos, lags, strict=True):
        assert info.age == Age.of(Counter(lag))
    assert max(info.age.p95 for info in infos) > 2


def test_what_is_older_than_the_bound_is_dropped_and_counted():
    with flowrl.run(graph(3, max_policy_lag=2), Virtual(straggling)) as run:
        run.step(60)
        lags = run.actors["learner"][0].ask("seen").result()
        table = run.stats().metrics["TrainOneStep"]
        made = run.stats().env_steps
        # Whom the dropped came from gets newer weights all the same, with the next result.
        assert run.actors["workers"][0].ask(lambda worker: worker.version).result() > 12
    assert max(lag[-1] for lag in lags) == 2
    assert table["dropped_items"] >= 1
    assert table["dropped_steps"] == 4 * table["dropped_items"]
    assert table["sample_reuse"] < 1
    assert sum(map(len, lags)) + table["dropped_steps"] <= made
    with flowrl.run(graph(3), Virtual(straggling)) as run:
        run.step(60)
        assert max(lag[-1] for lag in run.actors["learner"][0].ask("seen").result()) > 2


def test_the_rest_of_a_batch_is_trained_on():
    with flowrl.run(graph(3, batch=12, num_async=1, to="workers", max_policy_lag=1), Virtual(straggling)) as run:
        run.step(20)
        lags = run.actors["learner"][0].ask("seen").result()
        table = run.stats().metrics["TrainOneStep"]
    assert {len(lag) for lag in lags} == {8, 12}
    assert max(lag[-1] for lag in lags) <= 1
    assert table["dropped_items"] == sum(len(lag) == 8 for lag in lags[:20])


@pytest.mark.parametrize("bound", [0, 1, 3])
@pytest.mark.parametrize("in_flight", [1, 2])
def test_the_bound_holds_under_a_slow_learner(bound, in_flight):
    flow = graph(2, num_async=3, in_flight=in_flight, max_policy_lag=bound)
    with flowrl.run(flow, Virtual(slow_learner)) as run:
        infos = run.step(30)
        lags = run.actors["learner"][0].ask("seen").result()
    assert max(lag[-1] for lag in lags) <= bound
    assert [info.age for info in infos] == [Age.of(Counter(lag)) for lag in lags[:30]]


@pytest.mark.parametrize("seed", range(8))
def test_the_bound_holds_on_any_schedule_and_nothing_else_is_dropped(seed):
    flow = graph(3, batch=8, in_flight=2, max_policy_lag=2)
    with flowrl.run(flow, Delayed(seed, likely=0.3)) as run:
        run.step(40)
        lags = run.actors["learner"][0].ask("seen").result()
    assert max(lag[-1] for lag in lags) <= 2
    flow = graph(3, batch=8, in_flight=2, max_policy_lag=1_000)
    with flowrl.run(flow, Delayed(seed, likely=0.3)) as run:
        run.step(40)
        assert "dropped_items" not in run.stats().metrics["TrainOneStep"]


def test_what_the_bound_may_be():
    learner = flowrl.actor(Learner, name="learner")
    with pytest.raises(ValueError, match="max_policy_lag must be at least 0, got -1"):
        TrainOneStep(learner, max_policy_lag=-1)
    assert "max_policy_lag=3" in graph(1, max_policy_lag=3).explain()
    assert "max_policy_lag" not in graph(1).explain()
