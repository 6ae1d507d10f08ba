"""One item through a graph in this process: the shapes at its edges, and the errors that a run would meet."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import flowrl
from flowrl import AskOperator, Batch, Context, Operator, ParallelFlow, Ref
from flowrl.errors import GraphError
from flowrl.handles import ActorGroup, Pending
from flowrl.operators import ConcatBatches, Union
from tests.test_checks import Adds, Needs, Rows, rows

HERE = Path(__file__).parent


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
    assert shapes["gather_sync"] == shapes["Adds"]
    text = str(report)
    assert (
        text
        == """\
from_actors  Batch(4,): obs f32[2], values f32[2]
Adds         as from_actors + advantages f32[2]
gather_sync  as Adds
Train        dict with rows
batch        list of 1 × dict"""
    )
    assert all(edge.where.startswith(str(HERE)) for edge in report.edges)
    assert [edge.upstream for edge in report.edges] == [(), ("from_actors",), ("Adds",), ("gather_sync",), ("Train",)]


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
    assert [edge.shape for edge in report.edges] == ["Batch(4,): obs f32[2]"] * 3


class Timed:
    """Time-major batches of eight steps."""

    def sample(self) -> Batch:
        columns = {f"column_{i}": np.zeros((4, 2, 3), np.float32) for i in range(14)}
        return Batch({**columns, "valid": np.ones((4, 2), np.bool_)}, time_major=True)


def timed(count: int = 1) -> ParallelFlow[Batch]:
    return flowrl.from_actors(flowrl.actors(Timed, count=count, name="timed"), "sample")


def test_all_columns_are_shown_also_of_joined_references() -> None:
    report = timed().gather_sync().for_each(ConcatBatches(min_steps=20)).check()
    columns = ", ".join([f"column_{i} f32[3]" for i in range(14)] + ["valid bool"])
    assert [edge.shape for edge in report.edges] == [f"Batch(4, 2): {columns}"] * 2 + [f"Batch(4, 6): {columns}"]
    first, *rest = str(report).split("\n")
    assert first == ("from_actors    Batch(4, 2): column_0 f32[3], column_1 f32[3], column_2 f32[3], column_3 f32[3],")
    assert rest[-2:] == ["gather_sync    as from_actors", "ConcatBatches  Batch(4, 6): the columns of gather_sync"]
    assert max(map(len, rest)) <= 100
    assert [line.split(" f32")[0].split()[0] for line in rest[:-2]] == ["column_4", "column_9", "column_13"]


def test_a_name_out_of_all_proportion_pushes_only_its_own_line() -> None:
    name = "x" * 60
    lines = str(timed().gather_sync().for_each(len, name=name).check()).splitlines()
    assert lines[-1] == f"{name}  int"
    assert lines[-2].startswith(f"{'gather_sync':40}  as from_actors")


def test_every_branch_of_a_union_is_tried() -> None:
    one, other, third = timed().gather_sync().duplicate(3)
    wide = Union([one, other.for_each(len), third.filter(lambda batch: False)], weights=(2, 1, 1))
    shapes = {edge.node: edge.shape for edge in wide.check().edges}
    assert shapes["len"] == "int"
    assert shapes["branch[2]"].startswith("Batch(4, 2): ")
    assert shapes["filter"] == "nothing came"
    failing = Union([timed().named("a").gather_sync(), timed().named("b").gather_sync().for_each(lambda x: 1 / 0)])
    with pytest.raises(ZeroDivisionError) as caught:
        failing.check()
    assert "in node 'lambda'" in caught.value.__notes__[0]


def test_shards_side_by_side_show_what_passes() -> None:
    empty, numbers = flowrl.from_items([], num_shards=1), flowrl.from_items([1, 2, 3], num_shards=2)
    report = empty.union(numbers).check()
    assert [(edge.node, edge.shape) for edge in report.edges] == [
        ("from_items", "nothing came"),
        ("from_items-2", "int"),
        ("union", "int"),
    ]
    assert str(report).splitlines()[-1].split() == ["union", "as", "from_items-2"]


def test_a_branchs_weight_does_not_make_a_check_longer() -> None:
    seen: list[int] = []
    heavy = flowrl.from_iterable(itertools.count).tap(seen.append)
    report = Union([heavy, flowrl.from_iterable(lambda: "a")], weights=[10**9, 1]).check()
    assert [edge.shape for edge in report.edges] == ["int", "int", "str", "int"]
    assert len(seen) <= 2


def test_check_of_a_deferred_operator_that_fails() -> None:
    @dataclass
    class Half(Operator[Any, Any]):
        """Fails where it is applied."""

        pure: ClassVar[bool] = True

        def process(self, value: Any, ctx: Context) -> Iterable[Any]:
            raise LookupError("no half")

    with pytest.raises(LookupError, match="no half") as caught:
        timed().gather_sync().for_each(Half()).check()
    assert any("in node 'Half'" in note for note in caught.value.__notes__)


def test_check_of_a_flow_that_is_not_gathered() -> None:
    opened = Rows.opened
    report = rows("obs", "values").for_each(Adds()).check()
    assert Rows.opened == opened + 1
    assert [edge.node for edge in report.edges] == ["from_actors", "Adds"]
    assert sorted(report.item) == ["advantages", "obs", "values"]
    assert str(report).endswith("Adds         as from_actors + advantages f32[2]")
    with pytest.raises(GraphError, match=r"node 'Needs' .* needs the columns advantages"):
        rows("obs").for_each(Needs()).check()
    both = rows("obs").union(timed().for_each(len))
    assert [edge.node for edge in both.check().edges] == ["from_actors", "from_actors-2", "len", "union"]
