"""What is known before a run: columns along the edges, and one item through the graph for its shapes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import flowrl
from flowrl import AskOperator, Batch, Context, Flow, Local, Operator, ParallelFlow, Ref
from flowrl.errors import GraphError
from flowrl.handles import ActorGroup, Pending


class Rows:
    """Gives batches of the columns that it was told."""

    opened = 0

    def __init__(self, *columns: str):
        type(self).opened += 1
        self.columns = columns

    @staticmethod
    def batch_columns(*columns: str) -> tuple[str, ...]:
        return columns

    def sample(self) -> Batch:
        return Batch({name: np.zeros((4, 2), np.float32) for name in self.columns})


@dataclass
class Adds(Operator[Batch, Batch]):
    """Adds advantages from values."""

    needs: ClassVar[frozenset[str]] = frozenset({"values"})
    adds: ClassVar[frozenset[str]] = frozenset({"advantages"})

    def process(self, value: Batch, ctx: Context) -> Iterable[Batch]:
        yield value.with_columns(advantages=value["values"])


@dataclass
class Needs(Operator[Batch, Batch]):
    """Needs advantages."""

    needs: ClassVar[frozenset[str]] = frozenset({"advantages", "obs"})

    def process(self, value: Batch, ctx: Context) -> Iterable[Batch]:
        yield value


def rows(*columns: str, name: str = "rows", count: int = 3) -> ParallelFlow[Batch]:
    return flowrl.from_actors(flowrl.actors(Rows, *columns, count=count, name=name), "sample")


def wrong(flow: Flow[Any]) -> str:
    with pytest.raises(GraphError) as caught:
        flowrl.run(flow, Local())
    return str(caught.value)


def test_a_column_that_nobody_adds_is_named_with_who_needs_it() -> None:
    opened = Rows.opened
    told = wrong(rows("obs", "rewards").gather_sync().for_each(Needs()))
    assert told.startswith(f"node 'Needs' (defined at {__file__}:")
    assert "needs the columns advantages, which nobody on its path adds: from_actors → gather_sync → Needs" in told
    assert "'from_actors' gives obs, rewards. Put an operator that adds them before it" in told
    assert Rows.opened == opened  # nothing was started


def test_it_is_found_in_shards_and_behind_filters_too() -> None:
    assert "node 'Adds'" in wrong(rows("obs").filter(bool).for_each(Adds()).gather_sync())
    assert "node 'Needs'" in wrong(rows("obs", "values").gather_async().tap(print).filter(bool).for_each(Needs()))


def test_a_branch_and_a_join() -> None:
    """Through a union go the columns that all of its emitted branches have."""
    both = rows("obs", "values").for_each(Adds()).union(rows("obs", "values", name="others"))
    assert "needs the columns advantages" in wrong(both.gather_sync().for_each(Needs()))
    one, other = rows("obs", "values").for_each(Adds()).gather_sync().duplicate(2)
    with flowrl.run(one.for_each(Needs()), Local()) as run:
        assert run.seed >= 0
    assert other is not one


def test_what_is_added_is_there() -> None:
    for flow in (
        rows("obs", "values").for_each(Adds()).for_each(Needs()).gather_sync(),
        rows("obs", "values").gather_sync().for_each(Adds()).filter(bool).for_each(Needs()),
    ):
        flowrl.run(flow, Local()).close()


def test_what_cannot_be_known_is_no_error() -> None:
    """A plain callable may make anything of a batch; a source may not say what it gives."""
    flowrl.run(rows("obs").gather_sync().for_each(lambda batch: batch).for_each(Needs()), Local()).close()
    flowrl.run(flowrl.from_items([1], num_shards=1).gather_sync().for_each(Needs()), Local()).close()


@dataclass
class Train(AskOperator[Any, Any]):
    """Asks for the number of rows."""

    learner: ActorGroup[Any]

    def ask(self, value: Ref[Any], ctx: Context) -> Pending[Any]:
        return ctx.actors(self.learner)[0].ask("count", value)


class Learner:
    """Counts rows."""

    closed = 0

    def count(self, batch: Batch) -> dict[str, int]:
        return {"rows": len(batch["obs"])}

    def close(self) -> None:
        type(self).closed += 1


def test_check_sends_one_item_through_everything_with_one_actor_of_each() -> None:
    learner = flowrl.actor(Learner, name="learner")
    flow = rows("obs", "values").for_each(Adds()).gather_sync().for_each(Train(learner)).batch(1)
    opened, closed = Rows.opened, Learner.closed
    report = flow.check()
    assert Rows.opened == opened + 1  # of three
    assert Learner.closed == closed + 1
    assert report.item == [{"rows": 4}]
    assert not report.ended
    shapes = {edge.node: edge.shape for edge in report.edges}
    assert list(shapes) == ["from_actors", "Adds", "gather_sync", "Train", "batch"]
    assert shapes["from_actors"] == "Batch(4,): obs f32[2], values f32[2]"
    assert shapes["Adds"] == "Batch(4,): obs f32[2], values f32[2], advantages f32[2]"
    assert shapes["Train"] == "dict with rows"
    assert shapes["gather_sync"] == "as above"
    text = str(report)
    assert all(edge.node in text and edge.shape in text for edge in report.edges)
    assert all(edge.where.startswith(__file__) for edge in report.edges)


def test_check_raises_what_a_run_would() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        flowrl.from_items([0], num_shards=1).gather_sync().for_each(lambda x: 1 // x).check()
    assert "in node 'lambda'" in caught.value.__notes__[0]
    with pytest.raises(GraphError, match="needs the columns"):
        rows("obs").gather_sync().for_each(Needs()).check()


def test_check_of_a_flow_that_has_no_item() -> None:
    report = flowrl.from_items([1], num_shards=1).gather_sync().filter(lambda x: x > 5).check()
    assert report.ended
    assert report.item is None
    assert str(report).endswith("the flow ended before its first item")
    assert {edge.node: edge.shape for edge in report.edges}["filter"] == "nothing came"


def test_check_of_references() -> None:
    @dataclass
    class Same(Operator[Any, Any]):
        """Hands the reference on."""

        wants: ClassVar[Any] = "reference"

        def process(self, value: Ref[Any], ctx: Context) -> Iterable[Ref[Any]]:
            yield value

    report = rows("obs").gather_sync().for_each(Same()).check()
    assert isinstance(report.item, Batch)
    assert report.item["obs"].shape == (4, 2)
