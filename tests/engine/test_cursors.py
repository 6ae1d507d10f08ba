"""Cursors of single flows: operators, asks with a window, take, iterables, and how deep a chain may be."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from flowrl import AskOperator, Context, Flow, Local, Operator, Pending, Ref, Restart, from_actors, from_items, run
from flowrl import from_iterable as iterable
from flowrl.errors import ActorDied, EndOfStream, GraphError, OperatorError
from flowrl.handles import ActorGroup
from flowrl.testing import Delayed, Virtual
from tests.engine.shards import Counter, Echo, TellOrigin, counters


def numbers(n: int = 10**9) -> Flow[int]:
    return iterable(lambda: iter(range(n)))


# ------------------------------------------------------------------ operators


def test_a_chain_on_the_driver() -> None:
    flow = numbers(10).filter(lambda x: x % 2).for_each(lambda x: [x] * x).flatten().batch(4)
    assert list(run(flow, Local())) == [[1, 3, 3, 3], [5, 5, 5, 5], [5, 7, 7, 7], [7, 7, 7, 7], [9] * 4, [9] * 4, [9]]


@pytest.mark.parametrize("error", [StopIteration, EndOfStream])
def test_an_iterable_that_cannot_be_made_is_no_empty_one(error: type[Exception]) -> None:
    def make() -> Iterator[int]:
        raise error("nothing to open")

    with pytest.raises(OperatorError, match="would have ended the stream silently") as caught:
        list(run(iterable(make), Local()))
    assert "in node 'from_iterable'" in "".join(caught.value.__notes__)


def test_what_batch_holds_comes_out_at_the_end_and_only_once() -> None:
    with run(numbers(5).batch(2), Local()) as r:
        assert list(r) == [[0, 1], [2, 3], [4]]
        assert list(r) == []


def test_nothing_is_pulled_before_it_is_wanted() -> None:
    made: list[int] = []
    with run(numbers().tap(made.append).batch(3), Local()) as r:
        assert made == []
        assert next(r) == [0, 1, 2]
        assert made == [0, 1, 2]


def test_a_flow_runs_any_number_of_times_from_the_start() -> None:
    flow = numbers(6).batch(4)
    first, second = run(flow, Local()), run(flow, Local())
    assert [next(first), next(second), next(first), next(second)] == [[0, 1, 2, 3], [0, 1, 2, 3], [4, 5], [4, 5]]


@dataclass
class Origins(Operator[Any, Any]):
    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        yield value, [handle.index for handle in ctx.origins], ctx.item_id.number


def test_an_item_knows_the_shards_that_it_came_from() -> None:
    flow = from_items(range(6), num_shards=3).gather_sync().filter(lambda x: x != 1).batch(2).for_each(Origins())
    assert list(run(flow, Local())) == [([0, 2], [0, 2], 0), ([3, 4], [0, 1], 1), ([5], [2], 2)]
    assert list(run(numbers(1).for_each(Origins()), Local())) == [(0, [], 0)]


def test_zip_with_source_actor_names_the_origins_where_there_are_several() -> None:
    flow = from_items(range(4), num_shards=2).gather_sync()
    assert [(h.index, x) for h, x in run(flow.zip_with_source_actor(), Local())] == [(0, 0), (1, 1), (0, 2), (1, 3)]
    with pytest.raises(ValueError, match=r"came from from_items-shards\[0\], from_items-shards\[1\]"):
        next(run(flow.batch(2).zip_with_source_actor(), Local()))


@dataclass
class Doubled(Operator[int, int]):
    pure: ClassVar[bool] = True

    def process(self, value: int, ctx: Context) -> Iterable[int]:
        ctx.metrics.add("doubled")
        yield value * 2


@dataclass
class Doubtful(Operator[int, int]):
    pure: ClassVar[bool] = True

    def process(self, value: int, ctx: Context) -> Iterable[int]:
        return () if value == 3 else (value,)


def test_a_pure_operator_is_applied_where_the_item_arrives() -> None:
    helpers = counters(1, "helpers")
    flow = from_items([1, 2], num_shards=1).gather_sync().for_each(Doubled()).for_each(Doubled())
    with run(flow.for_each(Echo(helpers)), Local()) as r:
        assert list(r) == [4, 8]
        assert [value for _, value in r.actors["helpers"][0].ask("memory").result()] == [4, 8]
        assert r.stats().metrics["Doubled"]["doubled"] == 2
        assert r.stats().metrics["Doubled-2"]["doubled"] == 2
    assert list(run(flow, Local())) == [4, 8]


def test_an_error_of_a_deferred_operator_names_it() -> None:
    flow = from_items([1, 3], num_shards=1).gather_sync().for_each(Doubtful())
    for tail in (flow, flow.for_each(Echo(counters(1, "helpers")))):
        with pytest.raises(ValueError, match="deferred node 'Doubtful' is marked pure, so it must give exactly one"):
            list(run(tail, Local()))


@dataclass
class Look(Operator[Any, Any]):
    wants: ClassVar[Any] = "reference"
    seen: ClassVar[list[Any]] = []

    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        self.seen.append(value)
        yield value


def test_filter_and_tap_hand_the_very_reference_on() -> None:
    Look.seen.clear()
    flow = from_items([5, 6], num_shards=1).gather_sync().for_each(Look())
    assert list(run(flow.filter(lambda x: x > 5).tap(lambda x: None).for_each(Look()), Local())) == [6]
    first, second, again = Look.seen
    assert isinstance(first, Ref)
    assert again is second


# ------------------------------------------------------------------ take, iterables


def closing(log: list[str]) -> Iterator[int]:
    try:
        yield from range(100)
    finally:
        log.append("closed")


def test_take_closes_its_upstream_with_its_last_item() -> None:
    log: list[str] = []
    with run(iterable(lambda: closing(log)).take(2), Local()) as r:
        assert next(r) == 0
        assert log == []
        assert next(r) == 1
        assert log == ["closed"]
        assert list(r) == []


def test_take_of_nothing_pulls_nothing() -> None:
    log: list[str] = []
    assert list(run(iterable(lambda: closing(log)).take(0), Local())) == []
    assert log == []


def test_take_of_more_than_there_is_ends_with_it() -> None:
    assert list(run(numbers(3).take(5), Local())) == [0, 1, 2]


def test_take_asks_no_shard_for_more() -> None:
    with run(from_actors(counters(2), "next_item").gather_sync().take(2), Local()) as r:
        assert list(r) == [(0, 1), (1, 1)]
        assert r.stats().nodes["gather_sync"].messages == 2


# ------------------------------------------------------------------ asks


@dataclass
class Logged(AskOperator[Any, Any]):
    """Notes when an item is asked."""

    group: ActorGroup[Counter]
    in_flight: int
    log: ClassVar[list[Any]] = []

    def ask(self, value: Any, ctx: Context) -> Pending[Any]:
        self.log.append("asked")
        return ctx.actors(self.group)[0].ask("echo", value)

    def finish(self, ctx: Context) -> Iterable[Any]:
        yield "the rest"


def test_the_window_is_filled_before_its_head_comes_out() -> None:
    Logged.log.clear()
    with run(numbers(5).for_each(Logged(counters(1), 3)), Delayed(0)) as r:
        counts = []
        items = []
        for item in r:
            items.append(item)
            counts.append(len(Logged.log))
    assert items == [0, 1, 2, 3, 4, "the rest"]
    assert counts == [3, 4, 5, 5, 5, 5]


def test_answers_keep_the_order_of_the_items_however_long_they_take() -> None:
    backend = Virtual(lambda group, index, kind, n: [5.0, 1.0, 3.0][index] if kind == "ask" else 0.0)

    @dataclass
    class InTurn(AskOperator[int, int]):
        group: ActorGroup[Counter]
        in_flight: int = 3

        def open(self) -> None:
            self._turn = 0

        def ask(self, value: Any, ctx: Context) -> Pending[int]:
            self._turn += 1
            return ctx.actors(self.group)[(self._turn - 1) % 3].ask("echo", value)

    with run(numbers(6).for_each(InTurn(counters(3))), backend) as r:
        began = backend.now()
        assert list(r) == [0, 1, 2, 3, 4, 5]
        assert backend.now() - began == 10.0  # the slowest works twice, the others beside it


def test_asks_in_flight_overlap_a_round_with_the_learning_on_it() -> None:
    def seconds_for(in_flight: int) -> float:
        backend = Virtual(lambda group, index, kind, n: {"pull": 2.0, "ask": 2.0}.get(kind, 0.0))
        flow = from_actors(counters(2), "next_item").gather_sync().batch(2)
        with run(flow.for_each(Echo(counters(1, "learner"), in_flight)), backend) as r:
            began = backend.now()
            r.step(10)
            return backend.now() - began

    assert seconds_for(1) == 40.0
    assert seconds_for(2) == pytest.approx(22.0 + 2.0, abs=2.0)


@dataclass
class Wrong(AskOperator[Any, Any]):
    emits: bool
    group: ActorGroup[Counter]

    def ask(self, value: Any, ctx: Context) -> Any:
        if self.emits:
            ctx.emit(value, sources=[ctx.item_id])
            return ctx.actors(self.group)[0].ask("echo", value)
        return value


@pytest.mark.parametrize(
    ("emits", "told"),
    [(False, r"ask must return handle\.ask\(\.\.\.\), it returned Ref"), (True, r"ask used ctx\.emit")],
)
def test_an_ask_gives_one_pending(emits: bool, told: str) -> None:
    with pytest.raises(TypeError, match=told) as caught:
        next(run(numbers().for_each(Wrong(emits, counters(1))), Local()))
    assert "in node 'Wrong'" in "".join(caught.value.__notes__)


def test_an_ask_is_awaited_also_while_another_actor_starts_again() -> None:
    """A shard dies of what it was told, while the driver waits for somebody else."""
    for seed in range(20):
        workers, helpers = counters(2, limit=20), counters(1, "helpers")
        source = from_actors(workers, "next_item").gather_sync(on_failure=Restart(3, backoff_s=0.05))
        flow = source.for_each(TellOrigin()).for_each(Echo(helpers))
        with run(flow, Delayed(seed, die=lambda name, n: name == "workers[0]" and n in (4, 9))) as r:
            items = list(r)
            assert [step for index, step in items if index == 1] == list(range(1, 21))
            assert [step for index, step in items if index == 0][-20:] == list(range(1, 21))
            assert r.stats().groups["workers"].deaths == 2


def test_an_asked_actor_that_dies_ends_the_run() -> None:
    flow = numbers().for_each(Echo(counters(1, "helpers"), in_flight=2))
    with run(flow, Delayed(0, die=lambda name, n: n == 5)) as r, pytest.raises(ActorDied, match=r"helpers\[0\] died"):
        list(r)


# ------------------------------------------------------------------ depth


def chain(flow: Flow[int], n: int) -> Flow[int]:
    for _ in range(n):
        flow = flow.for_each(lambda x: x + 1)
    return flow


def test_a_chain_too_long_for_pythons_stack_is_refused_at_the_start() -> None:
    with pytest.raises(GraphError, match=r"recursion limit of \d+: join operators .* sys\.setrecursionlimit\(2301\)"):
        run(chain(numbers(3), 2000), Local())


def test_a_long_chain_runs_with_the_limit_that_the_error_names() -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(2301)
    try:
        assert list(run(chain(numbers(3), 2000), Local())) == [2000, 2001, 2002]
    finally:
        sys.setrecursionlimit(limit)


def test_a_chain_of_600_runs_as_it_is() -> None:
    assert next(run(chain(numbers(), 600), Local())) == 600


def test_a_chain_in_the_shards_may_be_of_any_length() -> None:
    flow: Any = from_items([1], num_shards=1)
    for _ in range(2000):
        flow = flow.for_each(lambda x: x + 1)
    assert list(run(flow.gather_sync(), Local())) == [2001]
