"""Where a graph branches and joins: duplicate with its bound, Union in turns or as ready."""

from __future__ import annotations

from collections import Counter as Tally
from typing import Any

import pytest

from flowrl import Flow, FlowStalled, Local, from_actors, from_iterable, run
from flowrl.engine.branches import BranchCursor, DuplicateCursor
from flowrl.operators import Union
from flowrl.testing import Delayed, Virtual
from tests.engine.shards import Echo, counters


def numbers(n: int = 10**9, step: int = 1) -> Flow[int]:
    return from_iterable(lambda: iter(range(0, n * step, step)))


# ------------------------------------------------------------------ Union in turns


def test_turns() -> None:
    flow = Union([numbers(3), numbers(5, 10)])
    assert list(run(flow, Local())) == [0, 0, 1, 10, 2, 20, 30, 40]


def test_weights_are_items_a_turn() -> None:
    flow = Union([numbers(5), numbers(3, 10)], weights=[2, 1])
    assert list(run(flow, Local())) == [0, 1, 0, 2, 3, 10, 4, 20]


def test_only_the_branches_in_emit_come_out_and_the_others_still_run() -> None:
    seen: list[int] = []
    out, quiet = numbers(3), numbers(100, 10).tap(seen.append)
    assert list(run(Union([out, quiet], emit=[out]), Local())) == [0, 1, 2]
    assert seen == [0, 10, 20]


def test_a_union_ends_with_its_last_emitted_branch_and_closes_the_others() -> None:
    closed: list[str] = []

    def endless() -> Any:
        try:
            while True:
                yield -1
        finally:
            closed.append("endless")

    a, b, quiet = numbers(2), numbers(4, 10), from_iterable(endless)
    with run(Union([quiet, a, b], emit=[a, b]), Local()) as r:
        assert list(r) == [0, 0, 1, 10, 20, 30]
        assert closed == ["endless"]


def test_a_quiet_branch_that_ends_does_not_end_the_union() -> None:
    out, quiet = numbers(4), numbers(1)
    assert list(run(Union([out, quiet], emit=[out]), Local())) == [0, 1, 2, 3]


def test_a_branch_that_waits_for_an_answer_keeps_its_turn() -> None:
    slow = numbers(4).for_each(Echo(counters(1, "slow")))
    fast = numbers(4, 10)
    for backend in (Local(), Delayed(0, likely=0.1)):
        assert list(run(Union([slow, fast]), backend)) == [0, 0, 1, 10, 2, 20, 3, 30]


def test_a_branch_that_waits_keeps_its_turn_also_in_a_graph_that_depends_on_timing() -> None:
    slow = from_actors(counters(1, "slow", limit=4), "next_item").gather_async(num_async=1)
    fast = numbers(4, 10)
    assert list(run(Union([slow, fast]), Delayed(0, likely=0.1))) == [(0, 1), 0, (0, 2), 10, (0, 3), 20, (0, 4), 30]


# ------------------------------------------------------------------ Union as ready


def test_an_async_union_gives_what_is_ready() -> None:
    backend = Virtual(lambda group, index, kind, n: {"slow": 10.0, "fast": 1.0}[group] if kind == "pull" else 0.0)
    slow = from_actors(counters(1, "slow"), "next_item").gather_async(num_async=1).for_each(lambda item: "slow")
    fast = from_actors(counters(1, "fast"), "next_item").gather_async(num_async=1).for_each(lambda item: "fast")
    with run(Union([slow, fast], mode="async"), backend) as r:
        began = backend.now()
        assert Tally(r.step(110)) == {"fast": 100, "slow": 10}
        assert backend.now() - began == 100.0


def test_an_async_union_gives_every_item_once_in_the_order_of_its_branch() -> None:
    for seed in range(5):
        branches = [
            from_actors(counters(1, name, limit=n), "next_item").gather_async(num_async=2).for_each(_named(name))
            for name, n in (("a", 7), ("b", 3), ("c", 0))
        ]
        items = list(run(Union(branches, mode="async"), Delayed(seed, likely=0.3)))
        assert [step for name, step in items if name == "a"] == list(range(1, 8))
        assert [step for name, step in items if name == "b"] == [1, 2, 3]
        assert len(items) == 10


def _named(name: str) -> Any:
    return lambda item: (name, item[1])


# ------------------------------------------------------------------ duplicate


def test_every_branch_gets_every_item_and_the_same_objects() -> None:
    a, b = from_iterable(lambda: iter([[1], [2]])).duplicate(2)
    first, second, third, fourth = run(Union([a, b]), Local())
    assert [first, third] == [[1], [2]]
    assert first is second
    assert third is fourth


@pytest.mark.parametrize("max_lag", [1, 2, 5])
def test_no_branch_runs_more_than_max_lag_ahead(max_lag: int) -> None:
    pulled: list[int] = []
    seen: list[int] = []
    a, b = numbers().tap(pulled.append).duplicate(2, max_lag=max_lag)
    quick, slow = a.filter(lambda x: False), b.tap(seen.append)  # quick gives nothing, so it pulls until it is blocked
    with run(Union([quick, slow]), Local()) as r:
        for _ in range(20):
            next(r)
            assert len(pulled) - len(seen) <= max_lag
        assert seen == list(range(20))
        assert r.stats().nodes["branch[0]"].items == len(pulled)


def test_a_blocked_branch_passes_its_turn() -> None:
    a, b = numbers(6).duplicate(2, max_lag=1)
    flow = Union([a.for_each(lambda x: ("a", x)), b.for_each(lambda x: ("b", x))], weights=[3, 1])
    items = list(run(flow, Local()))
    assert items[:6] == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    assert len(items) == 12


def test_drop_oldest_never_blocks_and_counts_what_it_dropped() -> None:
    a, b = numbers(10).duplicate(2, max_lag=3, overflow="drop_oldest")
    flow = Union([a.batch(10).for_each(lambda x: ("a", x)), b.for_each(lambda x: ("b", x))])
    with run(flow, Local()) as r:
        assert list(r) == [("a", list(range(10))), ("b", 7), ("b", 8), ("b", 9)]
        assert r.stats().metrics["duplicate"]["dropped"] == 7


def test_only_branches_that_the_run_reaches_count() -> None:
    a, _, _ = numbers(50).duplicate(3, max_lag=1)
    assert list(run(a, Local())) == list(range(50))


def test_a_branch_that_ended_no_longer_counts() -> None:
    a, b = numbers(50).duplicate(2, max_lag=2)
    assert list(run(Union([a, b.take(3)]), Local())) == [0, 0, 1, 1, 2, 2, *range(3, 50)]


def test_a_duplicate_closes_its_upstream_with_its_last_branch() -> None:
    closed: list[str] = []

    def endless() -> Any:
        try:
            while True:
                yield 0
        finally:
            closed.append("endless")

    a, b = from_iterable(endless).duplicate(2)
    with run(Union([a.take(2), b.take(4)]), Local()) as r:
        assert r.step(5) == [0] * 5
        assert closed == []
        assert r.step(5) == [0]
        assert closed == ["endless"]


def test_the_end_reaches_each_branch_after_its_last_item() -> None:
    a, b = numbers(3).duplicate(2, max_lag=8)
    ahead, behind = a.batch(5), b
    assert list(run(Union([ahead, behind]), Local())) == [[0, 1, 2], 0, 1, 2]


# ------------------------------------------------------------------ stalls


def test_a_stall_names_the_bound_and_the_branch_that_nobody_drains() -> None:
    a, b = numbers().duplicate(2, max_lag=4)
    with run(Union([a, b]), Local()) as r:
        shared = next(cursor for cursor in r._engine.cursors if isinstance(cursor, DuplicateCursor))
        BranchCursor("forgotten", r._engine, shared)  # no graph can forget one; a bug of the engine could
        told = r"duplicate \(max_lag=4\) waits for forgotten, which nobody drains\. Raise max_lag, .*drop_oldest"
        with pytest.raises(FlowStalled, match=told):
            r.step(100)
