"""Errors keep their type and say where they come from, on both backends; none ends a stream silently."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import flowrl
from flowrl import Answer, AskOperator, Batch, Context, EndOfStream, Flow, Operator, OperatorError, RemoteError
from flowrl.backends.protocol import Backend
from flowrl.errors import FlowError, RemoteTraceback
from flowrl.handles import ActorGroup, Pending
from flowrl.metrics import Sum

HERE = __file__


class OutOfFuelError(Exception):
    """Two constructor arguments, of which the message has neither alone."""

    def __init__(self, litres: float, station: str):
        super().__init__(f"{litres} l left at {station}")
        self.litres, self.station = litres, station


class LockedError(Exception):
    """Cannot be pickled."""

    def __init__(self, text: str):
        super().__init__(text)
        self.lock = threading.Lock()


class Counter:
    """Counts 1, 2, 3, …; at `fails` it raises what `make` makes."""

    def __init__(self, fails: int = 0, make: Callable[[], BaseException] = ValueError):
        self.fails, self.make, self.count = fails, make, 0

    def sample(self) -> int:
        self.count += 1
        if self.count == self.fails:
            raise self.make()
        return self.count

    def versioned(self) -> Answer[int]:
        return Answer(self.sample(), policy_version=7)

    def boom(self, value: Any) -> None:
        raise OutOfFuelError(0.5, f"pump {value}")


def counters(count: int = 1, **kwargs: Any) -> ActorGroup[Counter]:
    return flowrl.actors(Counter, count=count, name="counters", **kwargs)


def refuse_two(x: int) -> int:
    if x == 2:
        raise OutOfFuelError(1.5, "Ulm")
    return x


def line_of(text: str) -> int:
    """The number of the line of this file that ends with `text` in a comment."""
    with open(HERE) as lines:
        return next(i for i, line in enumerate(lines, 1) if line.rstrip().endswith(f"# {text}"))


def failure_of(flow: Flow[Any], backend: Backend, n: int = 10, kind: type[BaseException] = Exception) -> BaseException:
    """What the run raises; it is closed afterwards."""
    run = flowrl.run(flow, backend, seed=0)
    with pytest.raises(kind) as caught:
        run.step(n)
    assert run.closed
    with pytest.raises(FlowError, match=f"this run is closed \\(it was stopped by {type(caught.value).__name__}\\)"):
        next(run)
    return caught.value


def note_of(error: BaseException) -> str:
    return "\n".join(error.__notes__)


def test_a_lambda_on_the_driver(backend: Backend) -> None:
    source = flowrl.from_actors(counters(), "versioned").gather_sync()
    flow = source.for_each(lambda x: 1 // (x - 2), name="divide")  # here 1
    error = failure_of(flow, backend)
    assert type(error) is ZeroDivisionError
    note = note_of(error)
    assert "in node 'divide'" in note
    assert f"{HERE}:{line_of('here 1')}" in note
    assert "path from_actors → gather_sync → divide" in note
    assert "item 1" in note
    assert "shard counters[0]" in note
    assert "policy version 7" in note


def test_a_lambda_in_a_shard(backend: Backend) -> None:
    source = flowrl.from_actors(counters(2), "versioned")
    shards = source.for_each(lambda x: 1 // (x - 2), name="divide")  # here 2
    flow = shards.gather_sync()
    error = failure_of(flow, backend)
    assert type(error) is ZeroDivisionError
    note = note_of(error)
    assert "in node 'divide'" in note
    assert f"{HERE}:{line_of('here 2')}" in note
    assert "path from_actors → divide" in note
    assert "item 1" in note
    assert "shard counters[" in note  # of the two, the one whose answer came first
    assert "policy version 7" in note
    assert isinstance(error.__cause__, RemoteTraceback)
    assert "ZeroDivisionError" in str(error.__cause__)
    assert "lambda" in str(error.__cause__)


@pytest.mark.parametrize("parallel", [False, True])
def test_two_constructor_arguments_keep_type_and_attributes(local: Backend, parallel: bool) -> None:
    source = flowrl.from_actors(counters(), "sample")
    flow = source.for_each(refuse_two).gather_sync() if parallel else source.gather_sync().for_each(refuse_two)
    error = failure_of(flow, local)
    assert type(error) is OutOfFuelError
    assert (error.litres, error.station, str(error)) == (1.5, "Ulm", "1.5 l left at Ulm")
    assert "in node 'refuse_two'" in note_of(error)


@dataclass
class RefuseTwo(Operator[int, int]):
    """Raises at 2."""

    def process(self, value: int, ctx: Context) -> Iterable[int]:
        yield refuse_two(value)


@pytest.mark.parametrize("parallel", [False, True])
def test_an_operator(local: Backend, parallel: bool) -> None:
    source = flowrl.from_actors(counters(), "sample")
    flow = source.for_each(RefuseTwo()).gather_async() if parallel else source.gather_async().for_each(RefuseTwo())
    error = failure_of(flow, local)
    assert type(error) is OutOfFuelError
    assert "in node 'RefuseTwo'" in note_of(error)
    assert "item 1" in note_of(error)


def test_a_source_method(backend: Backend) -> None:
    group = counters(2, fails=3, make=lambda: OutOfFuelError(0, "env 5"))
    error = failure_of(flowrl.from_actors(group, "sample").gather_async(), backend)
    assert type(error) is OutOfFuelError
    assert "in node 'from_actors'" in note_of(error)
    assert "item 2" in note_of(error)
    assert "shard counters[" in note_of(error)
    assert "in sample" in str(error.__cause__)  # the frame of the actor's method


class Broken:
    """Its constructor raises."""

    def __init__(self) -> None:
        raise OutOfFuelError(3, "start")

    def sample(self) -> int:
        return 1


def test_a_constructor(backend: Backend) -> None:
    flow = flowrl.from_actors(flowrl.actors(Broken, count=2, name="broken"), "sample").gather_sync()
    with pytest.raises(OutOfFuelError, match="3 l left at start") as caught:
        flowrl.run(flow, backend)
    assert "in node 'broken'" in note_of(caught.value)
    assert "shard broken[" in note_of(caught.value)


def test_an_exception_that_cannot_be_pickled(backend: Backend) -> None:
    def locked(x: int) -> int:
        raise LockedError("held")

    source = flowrl.from_actors(counters(), "sample")
    remote = failure_of(source.for_each(locked).gather_sync(), backend)
    assert type(remote) is RemoteError
    assert "LockedError: held" in str(remote)
    assert "in locked" in str(remote.__cause__)  # the frame that raised
    assert type(failure_of(source.gather_sync().for_each(locked), backend)) is LockedError


def test_fields_in_c_travel(local: Backend) -> None:
    def missing(x: int) -> int:
        raise FileNotFoundError(2, "No such file or directory", "/nowhere/x")

    error = failure_of(flowrl.from_actors(counters(), "sample").for_each(missing).gather_sync(), local)
    assert type(error) is FileNotFoundError
    assert error.filename == "/nowhere/x"


@pytest.mark.parametrize(
    ("make", "parallel"),
    [(StopIteration, False), (SystemExit, True), (GeneratorExit, False), (EndOfStream, True)],
)
def test_what_would_end_a_stream_silently(backend: Backend, make: type[BaseException], parallel: bool) -> None:
    def end(x: int) -> int:
        raise make("now")

    source = flowrl.from_actors(counters(), "sample")
    flow = source.for_each(end).gather_sync() if parallel else source.gather_sync().for_each(end)
    error = failure_of(flow, backend, kind=OperatorError)
    assert make.__name__ in str(error)
    assert "in node 'end'" in note_of(error)


@pytest.mark.parametrize("make", [StopIteration, SystemExit])
def test_a_source_method_that_would_end_silently(backend: Backend, make: type[BaseException]) -> None:
    flow = flowrl.from_actors(counters(fails=2, make=make), "sample").gather_sync()
    assert make.__name__ in str(failure_of(flow, backend, kind=OperatorError))


@dataclass
class StopsInside(Operator[int, int]):
    """A generator in which next() runs out."""

    def process(self, value: int, ctx: Context) -> Iterator[int]:
        yield next(iter(()))


def test_stop_iteration_inside_a_generator(local: Backend) -> None:
    flow = flowrl.from_actors(counters(), "sample").gather_sync().for_each(StopsInside())
    assert "raised StopIteration" in str(failure_of(flow, local, kind=OperatorError))


def test_a_keyboard_interrupt_in_an_actor_stops_the_run(backend: Backend) -> None:
    flow = flowrl.from_actors(counters(fails=2, make=KeyboardInterrupt), "sample").gather_sync()
    error = failure_of(flow, backend, kind=KeyboardInterrupt)
    assert "shard counters[0]" in note_of(error)


@dataclass
class AddThenFail(Operator[Any, Any]):
    """Pure, so it is deferred to where the item arrives."""

    pure: ClassVar[bool] = True
    make: type[BaseException] = OutOfFuelError

    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        raise self.make(2, "deferred")


@dataclass
class Show(AskOperator[Any, Any]):
    """Asks an actor with each item."""

    to: ActorGroup[Any]
    method: str = "take"

    def ask(self, value: Any, ctx: Context) -> Pending[Any]:
        return ctx.actors(self.to)[0].ask(self.method, value)


class Taker:
    """Takes values."""

    def take(self, value: Any) -> Any:
        return value


def test_a_deferred_operator_is_named_where_the_item_arrives(backend: Backend) -> None:
    taker = flowrl.actor(Taker, name="taker")
    source = flowrl.from_actors(counters(), "sample").gather_sync()
    deferred = source.for_each(AddThenFail())  # here 3
    flow = deferred.for_each(Show(taker))
    error = failure_of(flow, backend)
    assert type(error) is OutOfFuelError
    assert f"in the deferred node 'AddThenFail', defined at {HERE}:{line_of('here 3')}" in note_of(error)
    assert "in node 'Show'" in note_of(error)
    assert "shard taker[0]" in note_of(error)


def test_a_deferred_operator_is_named_where_the_driver_fetches(local: Backend) -> None:
    flow = flowrl.from_actors(counters(), "sample").gather_sync().for_each(AddThenFail())
    assert "in the deferred node 'AddThenFail'" in note_of(failure_of(flow, local))


@dataclass
class PureStop(Operator[Any, Any]):
    """Pure, and raises StopIteration."""

    pure: ClassVar[bool] = True

    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        raise StopIteration


def test_stop_iteration_of_a_deferred_operator_does_not_end_the_run(local: Backend) -> None:
    flow = flowrl.from_actors(counters(), "sample").gather_sync().for_each(PureStop())
    assert "StopIteration" in str(failure_of(flow, local, kind=OperatorError))


@dataclass
class Returns(Operator[Any, Any]):
    """Returns where it should yield."""

    what: Any

    def process(self, value: Any, ctx: Context) -> Any:
        return self.what


@pytest.mark.parametrize(
    ("what", "told"),
    [
        (None, "Returns.process returned None; it must yield its results"),
        ("text", "Returns.process returned a str; write `yield value` instead of `return value`"),
        (np.zeros(3), "returned a ndarray; write `yield value`"),
        (Batch({"obs": np.zeros((2, 1))}), "returned a Batch; write `yield value`"),
    ],
)
def test_returning_instead_of_yielding(what: Any, told: str) -> None:
    source = flowrl.from_actors(counters(), "sample")
    for flow in (source.gather_sync().for_each(Returns(what)), source.for_each(Returns(what)).gather_sync()):
        error = failure_of(flow, flowrl.Local(), kind=TypeError)
        assert told in str(error)
        assert "in node 'Returns'" in note_of(error)


@dataclass
class NoOpen(Operator[Any, Any]):
    """Its open() raises."""

    def open(self) -> None:
        raise OutOfFuelError(4, "open")

    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        yield value


@pytest.mark.parametrize("parallel", [False, True])
def test_an_operator_that_does_not_open(local: Backend, parallel: bool) -> None:
    source = flowrl.from_actors(counters(), "sample")
    flow = source.for_each(NoOpen()).gather_sync() if parallel else source.gather_sync().for_each(NoOpen())
    with pytest.raises(OutOfFuelError, match="4 l left at open") as caught:
        flowrl.run(flow, local)
    assert "in node 'NoOpen'" in note_of(caught.value)
    assert "test_errors.py:" in note_of(caught.value)


@dataclass
class GreetsBadly(Operator[Any, Any]):
    """Its actor_started raises."""

    def actor_started(self, handle: Any, ctx: Context) -> None:
        raise OutOfFuelError(5, handle.name)

    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        yield value


def test_an_operator_that_greets_badly(local: Backend) -> None:
    flow = flowrl.from_actors(counters(), "sample").gather_sync().for_each(GreetsBadly())
    with pytest.raises(OutOfFuelError, match=r"5 l left at counters\[0\]") as caught:
        flowrl.run(flow, local)
    assert "in node 'GreetsBadly'" in note_of(caught.value)


class BadMetrics:
    """Answers with a metric that is no number, or that changes its rule."""

    def __init__(self) -> None:
        self.count = 0

    def lock(self) -> Answer[int]:
        return Answer(1, metrics={"lock": threading.Lock()})

    def changing(self) -> Answer[int]:
        self.count += 1
        return Answer(1, metrics={"n": Sum(1) if self.count == 1 else 1.0})


def test_a_metric_that_is_no_number(backend: Backend) -> None:
    flow = flowrl.from_actors(flowrl.actor(BadMetrics, name="bad"), "lock").gather_sync()
    error = failure_of(flow, backend, kind=TypeError)
    assert "shard bad[0]" in note_of(error)


def test_a_metric_that_changes_its_rule(local: Backend) -> None:
    flow = flowrl.from_actors(flowrl.actor(BadMetrics, name="bad"), "changing").gather_sync()
    error = failure_of(flow, local, kind=ValueError)
    assert "metric 'n' of node 'from_actors' was recorded as sum and now as last" in str(error)
    assert "shard bad[0]" in note_of(error)


def test_an_ask_by_hand_raises_where_it_is_awaited(backend: Backend) -> None:
    with flowrl.run(flowrl.from_actors(counters(), "sample").gather_sync(), backend) as run:
        pending = run.actors["counters"][0].ask("boom", 3)
        with pytest.raises(OutOfFuelError, match=r"0.5 l left at pump 3") as caught:
            pending.result()
        assert "in node 'run.actors'" in note_of(caught.value)
        assert run.step(2) == [1, 2]  # an ask by hand is the caller's affair: the run goes on


def test_a_missing_method_is_named(local: Backend) -> None:
    taker = flowrl.actor(Taker, name="taker")
    flow = flowrl.from_actors(counters(), "sample").gather_sync().for_each(Show(taker, "taek"))
    assert "taek" in str(failure_of(flow, local, kind=AttributeError))


@dataclass(frozen=True)
class FrozenError(Exception):
    """Refuses attributes, notes among them."""

    code: int


class QuitsError(Exception):
    """Would end the process that looks at it."""

    def __reduce__(self) -> Any:
        raise SystemExit(3)

    __str__ = __repr__ = __reduce__


@pytest.mark.parametrize("parallel", [False, True])
def test_an_exception_that_refuses_attributes_keeps_its_type(local: Backend, parallel: bool) -> None:
    def refuse(x: int) -> int:
        raise FrozenError(x)

    source = flowrl.from_actors(counters(), "sample")
    flow = source.for_each(refuse).gather_sync() if parallel else source.gather_sync().for_each(refuse)
    error = failure_of(flow, local, kind=FrozenError)
    assert isinstance(error, FrozenError)
    assert error.code == 1
    assert "in node 'refuse'" in note_of(error)


def test_an_exception_of_an_actor_that_would_end_its_process(backend: Backend) -> None:
    flow = flowrl.from_actors(counters(fails=1, make=QuitsError), "sample").gather_sync()
    error = failure_of(flow, backend, kind=RemoteError)
    assert "QuitsError: <its text cannot be made>" in str(error)
    assert "in node 'from_actors'" in note_of(error)


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize(("name", "policy"), [(3, None), (["a"], None), ("a", ["p"]), ("a", 1)])
def test_an_odd_metric_is_told_with_its_node(local: Backend, parallel: bool, name: Any, policy: Any) -> None:
    @dataclass
    class Odd(Operator[int, int]):
        """Records under it."""

        def process(self, value: int, ctx: Context) -> Iterable[int]:
            ctx.metrics.add(name, policy=policy)
            yield value

    source = flowrl.from_actors(counters(), "sample")
    flow = source.for_each(Odd()).gather_sync() if parallel else source.gather_sync().for_each(Odd())
    error = failure_of(flow, local, kind=TypeError)
    assert "must be a string" in str(error)
    assert "in node 'Odd'" in note_of(error)


class Wrong:
    """Answers metrics that are none."""

    def sample(self) -> Answer[int]:
        return Answer(1, metrics={"loss": [1, 2]})


def test_a_wrong_metric_of_an_answer_is_told_with_its_node(local: Backend) -> None:
    flow = flowrl.from_actors(flowrl.actor(Wrong, name="wrong"), "sample").gather_sync()
    error = failure_of(flow, local, kind=TypeError)
    assert str(error).startswith("metric 'loss' must be a number, or a rule of flowrl.metrics")
    assert "in node 'from_actors'" in note_of(error)
