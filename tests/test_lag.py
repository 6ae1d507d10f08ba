"""The worst lags: by hand, and against what a run on Local really has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

from flowrl import (
    Flow,
    Local,
    actor,
    actors,
    from_actors,
    from_items,
    from_iterable,
    graph,
    run,
)
from flowrl.lag import Lag, worst_lags
from flowrl.operators import ConcatBatches, TrainOneStep, Union
from tests.drawn_graphs import Keeper, Mark, Same, Worker, flows


def lags(flow: Flow[Any]) -> list[Lag]:
    return worst_lags(flow.node, graph.names_of(flow.node))


def chain(shards: int, in_flight: int, batch: int) -> Flow[Any]:
    workers, keeper = actors(Worker, count=shards, name="workers"), actor(Keeper, name="keeper")
    items = from_actors(workers, "sample").gather_sync()
    return (items.batch(batch) if batch > 1 else items).for_each(Same(keeper, in_flight)).for_each(Mark(workers))


@pytest.mark.parametrize(
    ("shards", "in_flight", "batch", "expected"),
    [(2, 1, 1, 0), (1, 3, 1, 2), (2, 2, 1, 2), (2, 3, 1, 2), (2, 4, 1, 4), (3, 3, 2, 6), (4, 2, 3, 4), (3, 1, 5, 0)],
)
def test_lag_of_a_sync_gather_is_what_the_windows_hold_in_whole_rounds(
    shards: int, in_flight: int, batch: int, expected: int
) -> None:
    (lag,) = lags(chain(shards, in_flight, batch))
    assert (lag.items, lag.unit, lag.others) == (expected, "item", {})


def late(flow: Flow[Any], shards: int, rounds: bool, items: int = 40) -> int:
    """How many items a run made, at worst, after a message of item i was sent and that do not know of it."""
    with run(flow, Local(), seed=0) as running:
        stamps = [mark for _, (_, mark) in zip(range(items), running, strict=False)]
    worst = 0
    for i in range(items // 2):
        after = shards * (i // shards + 1) if rounds else i + 1
        worst = max(worst, sum(mark < i for mark in stamps[after:]))
    return worst


@pytest.mark.parametrize("shards", [1, 2, 3])
@pytest.mark.parametrize("in_flight", [1, 2, 3, 4])
def test_the_lag_of_a_sync_gather_is_what_a_run_has(shards: int, in_flight: int) -> None:
    flow = chain(shards, in_flight, 1)
    assert late(flow, shards, rounds=True) == lags(flow)[0].items


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("num_async", [1, 3])
@pytest.mark.parametrize("in_flight", [1, 2])
def test_the_lag_of_an_async_gather_is_what_a_run_has(shards: int, num_async: int, in_flight: int) -> None:
    workers, keeper = actors(Worker, count=shards, name="workers"), actor(Keeper, name="keeper")
    flow = from_actors(workers, "sample").gather_async(num_async=num_async)
    flow = flow.for_each(Same(keeper, in_flight)).for_each(Mark(workers))
    assert lags(flow)[0].items == num_async * shards - 1 + in_flight - 1
    assert late(flow, shards, rounds=False) == lags(flow)[0].items


@pytest.mark.parametrize(("weight", "really"), [(1, 0), (np.int64(2), 2), (9, 2)])
def test_a_run_with_a_duplicate_stays_within_the_worst_lag(weight: int, really: int) -> None:
    workers = actors(Worker, count=1, name="workers")
    slow, fast = from_actors(workers, "sample").gather_sync().duplicate(2, max_lag=3)
    slow = slow.for_each(Mark(workers))
    flow = Union([fast, slow], weights=[weight, 1], emit=[slow])
    assert lags(flow)[0].items == 3
    assert late(flow, 1, rounds=True) == really  # the slow branch has taken one of the three


def test_only_branches_that_the_run_reaches_add_to_the_lag() -> None:
    one, other = from_items([1], num_shards=1).gather_sync().duplicate(2, max_lag=5)
    assert lags(one)[0].items == 0
    assert lags(Union([one, other]))[0].items == 5


def test_nested_duplicates_and_windows_add_up_along_the_worst_path() -> None:
    keeper = actor(Keeper, name="keeper")
    one, other = from_items([1], num_shards=1).gather_sync().for_each(Same(keeper, 2)).duplicate(2, max_lag=5)
    inner, outer = other.batch(3).duplicate(2, max_lag=7)
    flow = Union([one.for_each(Same(keeper, 9)), inner, outer.for_each(Same(keeper, 4))])
    lag = lags(flow)[0]
    assert lag.items == 1 + 5 + 3 * (7 + 3)
    assert lag.why == (
        "gather_sync asks for whole rounds of 1; Same in_flight=2; duplicate max_lag=5; duplicate-2 max_lag=7; "
        "Same-3 in_flight=4"
    )


def test_the_lag_behind_a_branch_that_is_not_emitted_ends_at_its_union() -> None:
    keeper = actor(Keeper, name="keeper")
    a, b = from_items([1], num_shards=1).gather_sync(), from_items([2], num_shards=1).gather_sync()
    flow = Union([a, b], emit=[b]).for_each(Same(keeper, 4))
    assert [lag.items for lag in lags(flow)] == [0, 3]


def test_items_of_an_operator_that_joins_unknown_numbers_are_named_apart() -> None:
    workers, learner = actors(Worker, count=2, name="workers"), actor(Keeper, name="learner")
    items = from_actors(workers, "sample").gather_sync().for_each(ConcatBatches(10))
    (lag,) = lags(items.for_each(TrainOneStep(learner, in_flight=3)))
    assert (lag.items, lag.others) == (1, {"ConcatBatches": 2})
    assert str(lag).startswith("worst lag of from_actors: 1 item and 2 results of ConcatBatches (gather_sync asks for")


def test_where_items_are_dropped_the_lag_counts_a_started_round() -> None:
    keeper = actor(Keeper, name="keeper")
    flow = from_items(range(9), num_shards=3).gather_sync().filter(bool).for_each(Same(keeper, 2))
    assert lags(flow)[0].items == 1 + 3 - 1


def test_where_a_step_gives_several_results_the_lag_counts_answers() -> None:
    (lag,) = lags(from_items([[1, 2]], num_shards=1).flatten().gather_sync())
    assert str(lag) == (
        "worst lag of from_items: 0 answers (a message sent while consuming round k precedes the next answer of each "
        "shard; an answer holds all results of one step)"
    )


def test_an_iterable_of_the_driver_lags_by_what_is_held() -> None:
    keeper = actor(Keeper, name="keeper")
    assert str(lags(from_iterable(list))[0]) == "worst lag of from_iterable: 0 items (made when it is pulled)"
    assert lags(from_iterable(list).for_each(Same(keeper, 2)))[0].items == 1


@given(flows())
def test_every_source_of_a_graph_has_a_lag(flow: Flow[Any]) -> None:
    sources = [node for node in graph.walk(flow.node) if isinstance(node, graph.Gather | graph.Iterate | graph.Replay)]
    assert len(lags(flow)) == len(sources)
    assert all(lag.items >= 0 for lag in lags(flow))
