"""Provenance of an operator's results, and errors that name the node and the item."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from flowrl import Context, Operator
from flowrl.engine.failure import InNode
from flowrl.engine.stage import Stage
from flowrl.functions import Filter, Gathered
from flowrl.handles import ActorHandle
from flowrl.operator import ItemId

A, B, C = (ActorHandle("workers", i) for i in range(3))


def opened(op: Operator[Any, Any]) -> Stage:
    stage = Stage("node", op, Context("node"))
    stage.open()
    return stage


def test_origins_are_those_of_the_inputs_since_the_previous_output_with_the_oldest_version() -> None:
    stage = opened(Gathered(3))
    assert stage.push("a", (A,), 7) == []
    assert stage.push("b", (B,), 5) == []
    assert stage.push("c", (A,), 6) == [(["a", "b", "c"], (A, B), 5)]
    assert stage.push("d", (C,), 9) == []
    assert stage.finish() == [(["d"], (C,), 9)]
    assert stage.finished
    assert (stage.number, stage.made) == (4, 2)


def test_inputs_without_origin_or_version_say_nothing() -> None:
    stage = opened(Gathered(2))
    stage.push("a", (), None)
    assert stage.push("b", (A,), 3) == [(["a", "b"], (A,), 3)]
    stage.push("c", (B,), 4)
    assert stage.push("d", (), None) == [(["c", "d"], (B,), 4)]


@dataclass
class TwoEach(Operator[Any, Any]):
    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        yield value, 1
        yield value, 2


def test_several_results_of_one_input_all_stem_from_it() -> None:
    assert opened(TwoEach()).push("a", (A,), 1) == [(("a", 1), (A,), 1), (("a", 2), (A,), 1)]


@dataclass
class HoldsEvenBack(Operator[int, Any]):
    """Odd items go out at once; even ones when the next odd item comes, after it and with their own provenance."""

    def open(self) -> None:
        self._held: list[tuple[int, ItemId]] = []

    def process(self, value: int, ctx: Context) -> Iterable[Any]:
        if value % 2 == 0:
            self._held.append((value, ctx.item_id))
            return ()
        ctx.emit(("odd", value), sources=[ctx.item_id])
        for held, item in self._held:
            ctx.emit(("even", held), sources=[item])
        self._held = []
        return ()

    def finish(self, ctx: Context) -> Iterable[Any]:
        if self._held:
            ctx.emit([value for value, _ in self._held], sources=[item for _, item in self._held])
        return ()


def test_emit_gives_exact_provenance() -> None:
    stage = opened(HoldsEvenBack())
    assert stage.push(2, (A,), 1) == []
    assert stage.push(4, (B,), 3) == []
    assert stage.push(5, (C,), 9) == [(("odd", 5), (C,), 9), (("even", 2), (A,), 1), (("even", 4), (B,), 3)]
    stage.push(6, (B,), 8)
    stage.push(8, (A,), 7)
    assert stage.finish() == [([6, 8], (B, A), 7)]


@dataclass
class Mixed(Operator[Any, Any]):
    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        yield "first"
        ctx.emit("second", sources=[ItemId(0, (B,), 2)])
        yield "third"
        yield "fourth"
        ctx.emit("fifth", sources=[])


def test_yielded_and_emitted_results_keep_the_order_in_which_they_were_given() -> None:
    assert opened(Mixed()).push("a", (A,), 1) == [
        ("first", (A,), 1),
        ("second", (B,), 2),
        ("third", (A,), 1),
        ("fourth", (A,), 1),
        ("fifth", (), None),
    ]


def test_what_a_filter_dropped_is_no_part_of_what_it_lets_pass() -> None:
    stage = opened(Filter(lambda value: value > 0))
    assert stage.push(-1, (A,), 1) == []
    assert stage.push(1, (B,), 8) == [(1, (B,), 8)]


@dataclass
class Fails(Operator[Any, Any]):
    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        raise ZeroDivisionError(value)

    def finish(self, ctx: Context) -> Iterable[Any]:
        raise ZeroDivisionError("at the end")


def test_an_error_says_which_node_and_item() -> None:
    stage = opened(Fails())
    with pytest.raises(InNode) as caught:
        stage.push("x", (A,), 4)
    assert (caught.value.node, caught.value.item) == ("node", ItemId(0, (A,), 4))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(InNode) as at_the_end:
        stage.finish()
    assert at_the_end.value.item.number == 1


@dataclass
class ReturnsNothing(Operator[Any, Any]):
    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        return None  # type: ignore[return-value]

    def finish(self, ctx: Context) -> Iterable[Any]:
        return "rest"


def test_a_result_that_is_returned_instead_of_yielded_is_refused() -> None:
    stage = opened(ReturnsNothing())
    with pytest.raises(InNode) as caught:
        stage.push("x", (), None)
    assert "must yield its results" in str(caught.value.__cause__)
    with pytest.raises(InNode) as at_the_end:
        stage.finish()
    assert "ReturnsNothing.finish returned a str; write `yield value`" in str(at_the_end.value.__cause__)
