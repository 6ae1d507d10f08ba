"""Payloads go from actor to actor; the driver holds references."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import psutil
import pytest

import flowrl
from flowrl import Answer, AskOperator, Context, Operator, Ref
from flowrl.backends.protocol import Backend
from flowrl.errors import FlowError
from flowrl.handles import ActorGroup, Pending

MB = 2**20


class Rows:
    """A list of arrays that can be joined, and says its size."""

    def __init__(self, rows: np.ndarray):
        self.rows = rows

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes

    @staticmethod
    def concat(items: list[Rows]) -> Rows:
        return Rows(np.concatenate([item.rows for item in items]))


class Maker:
    """Makes rows of one number, as many bytes as it was told."""

    def __init__(self, nbytes: int, *, index: int = 0):
        self.nbytes, self.count, self.index = nbytes, 0, index

    def make(self) -> Rows:
        self.count += 1
        return Rows(np.full(self.nbytes // 8, float(self.count + 10 * self.index)))


class Taker:
    """Sums what it gets, and publishes."""

    def total(self, rows: Rows) -> Answer[float]:
        return Answer(float(rows.rows.mean()), policy_version=int(rows.rows[0]), published=rows.rows[:2])

    def writes(self, rows: Rows) -> None:
        rows.rows[0] = 1

    def same(self, rows: Rows) -> Rows:
        return rows


@dataclass
class Train(AskOperator[Any, Any]):
    """Sends the reference on."""

    taker: ActorGroup[Taker]
    method: str = "total"

    def ask(self, value: Ref[Any], ctx: Context) -> Pending[Any]:
        return ctx.actors(self.taker)[0].ask(self.method, value)


@dataclass
class Pairs(Operator[Any, Any]):
    """Joins two references into one."""

    wants: ClassVar[str] = "reference"  # type: ignore[assignment]

    def open(self) -> None:
        self._held: list[Ref[Any]] = []

    def process(self, value: Ref[Any], ctx: Context) -> Iterable[Ref[Any]]:
        self._held.append(value)
        if len(self._held) == 2:
            held, self._held = self._held, []
            yield Ref.concat(held)


def makers(nbytes: int, count: int = 1) -> flowrl.Flow[Rows]:
    return flowrl.from_actors(flowrl.actors(Maker, nbytes, count=count, name="makers"), "make").gather_sync()


def test_large_payloads_do_not_pass_through_the_driver(ray_session: None) -> None:
    """Four of 50 MB: the driver's own memory (what it does not share with the object store) stays where it was."""
    taker = flowrl.actor(Taker, name="taker")
    with flowrl.run(makers(50 * MB).for_each(Train(taker)), flowrl.Ray()) as run:
        assert run.step(1) == [1.0]
        before = psutil.Process().memory_full_info().uss
        assert run.step(4) == [2.0, 3.0, 4.0, 5.0]
        assert psutil.Process().memory_full_info().uss - before < 10 * MB
        assert run.stats().nodes["gather_sync"].bytes == 5 * 50 * MB  # of which it knows


def test_small_ones_ride_along(backend: Backend) -> None:
    with flowrl.run(makers(800), backend) as run:
        assert next(run).rows[0] == 1.0
        (call,) = [item._tree.payload for item in [run._engine.root.pull().ref]]
        assert call.record.inline is not None
    with flowrl.run(makers(80_000), backend) as run:
        call = run._engine.root.pull().ref._tree.payload
        assert call.record.inline is None
        assert call.infos[0].nbytes == 80_000


@pytest.mark.parametrize("nbytes", [800, 80_000])
def test_joined_references_are_joined_where_they_arrive(backend: Backend, nbytes: int) -> None:
    taker = flowrl.actor(Taker, name="taker")
    with flowrl.run(makers(nbytes, 2).for_each(Pairs()).for_each(Train(taker)), backend) as run:
        assert run.step(2) == [(1 + 11) / 2, (2 + 12) / 2]
    with flowrl.run(makers(nbytes, 2).for_each(Pairs()), backend) as run:
        assert next(run).rows.shape == (2 * nbytes // 8,)  # on the driver too


def test_published_values_are_there_beside_a_small_answer(backend: Backend) -> None:
    taker = flowrl.actor(Taker, name="taker")

    def newest(value: float, ctx: Context) -> Any:
        (handle,) = ctx.actors(taker)
        found = ctx.published(handle)
        assert found is not None
        version, ref = found
        return version, ref.get().tolist()

    with flowrl.run(makers(800).for_each(Train(taker)).for_each(newest), backend) as run:
        assert run.step(2) == [(1, [1.0, 1.0]), (2, [2.0, 2.0])]


def test_what_arrives_is_read_only(backend: Backend) -> None:
    for nbytes in (800, 80_000):
        with flowrl.run(makers(nbytes), backend) as run:
            rows = next(run).rows
            with pytest.raises(ValueError, match="read-only"):
                rows[0] = 5
        taker = flowrl.actor(Taker, name="taker")
        flow = makers(nbytes).for_each(Train(taker, "writes"))
        with flowrl.run(flow, backend) as run, pytest.raises(ValueError, match="read-only"):
            next(run)


def test_without_isolation_it_is_the_object_itself() -> None:
    seen: list[Any] = []
    taker = flowrl.actor(Taker, name="taker")
    flow = makers(80_000).tap(seen.append).for_each(Train(taker, "same"))
    with flowrl.run(flow, flowrl.Local(isolate=False)) as run:
        assert next(run).rows is seen[0].rows


def test_a_value_must_be_fetched_before_the_run_closes(backend: Backend) -> None:
    run = flowrl.run(makers(80_000).for_each(Pairs(), name="pairs"), backend)
    ref = run._engine.next_item().ref
    assert ref.info.nbytes == 160_000
    run.close()
    with pytest.raises(FlowError, match="the run that holds this item is closed; fetch its value before"):
        ref.get()


def test_a_deferred_operator_is_applied_where_the_item_arrives(backend: Backend) -> None:
    @dataclass
    class Scale(Operator[Rows, Rows]):
        """Pure."""

        pure: ClassVar[bool] = True
        by: float = 2.0

        def process(self, value: Rows, ctx: Context) -> Iterable[Rows]:
            ctx.metrics.add("scaled", 1)
            yield Rows(value.rows * self.by)

    taker = flowrl.actor(Taker, name="taker")
    scale = Scale(3.0)
    flow = makers(80_000).for_each(scale).for_each(Scale(2.0)).for_each(Train(taker))
    with flowrl.run(flow, backend) as run:
        assert run.step(3) == [6.0, 12.0, 18.0]
        metrics = run.stats().metrics
        assert metrics["Scale"]["scaled"] == metrics["Scale-2"]["scaled"] == 3  # each once, wherever it was
    assert vars(scale) == {"by": 3.0}
