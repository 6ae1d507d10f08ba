"""The operator contract finds what breaks it; Delayed and Virtual do what they say."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest

from flowrl import AskOperator, Batch, Context, Operator, Ref, from_actors, functions, run
from flowrl.errors import ActorDied
from flowrl.testing import Delayed, Virtual, check_operator, difference
from tests.engine.shards import Echo, counters


@dataclass
class Window(Operator[int, list[int]]):
    """The last n items, as soon as there are so many; a keeper of the contract."""

    n: int = 3

    def open(self) -> None:
        self._last: list[int] = []
        self._random = np.random.default_rng(0)

    def process(self, value: int, ctx: Context) -> Iterable[Any]:
        self._last = [*self._last, value][-self.n :]
        ctx.metrics.add("seen")
        if len(self._last) == self.n:
            yield self._last, self._random.integers(100)

    def finish(self, ctx: Context) -> Iterable[Any]:
        ctx.emit(("rest", self._last), sources=[ctx.item_id])
        return ()


@dataclass
class ByReference(Operator[Any, Any]):
    wants: ClassVar[Any] = "reference"

    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        yield value.then(Square())


@dataclass
class Square(Operator[Any, Any]):
    pure: ClassVar[bool] = True
    adds: ClassVar[frozenset[str]] = frozenset()

    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        yield value * value


@pytest.mark.parametrize(
    "op",
    [Window(), Window(1), ByReference(), Square(), functions.Gathered(2), functions.Tap(repr), functions.Flatten()],
    ids=repr,
)
def test_operators_that_keep_the_contract(op: Any) -> None:
    items: Any = [[1], [2, 3], [], [4]] if isinstance(op, functions.Flatten) else range(7)
    check_operator(op, items)
    check_operator(op, [])


def test_batches_and_callables_keep_the_contract() -> None:
    batches = [Batch({"x": np.full(3, float(i)), "y": np.arange(3)}) for i in range(3)]
    check_operator(functions.Function(lambda batch: batch.with_columns({"z": batch["x"] * np.nan})), batches)
    check_operator(functions.Filter(lambda batch, ctx: ctx.policy_version != 0), batches)


def test_ask_operators_are_checked_as_far_as_goes_without_actors() -> None:
    check_operator(Echo(counters(1)), [])
    with pytest.raises(AssertionError, match="calls_in_flight=0; it must be at least 1"):
        check_operator(Echo(counters(1), in_flight=0), [])


@dataclass
class Breaks(Operator[Any, Any]):
    """Breaks the contract in one way."""

    how: str
    settings: list[int] = field(default_factory=list)

    def open(self) -> None:
        self._count = 0
        self._lock: Any = threading.Lock() if self.how == "unpicklable state" else None
        self._closed = False

    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        self._count += 1
        if self.how == "field":
            self.settings.append(1)
        if self.how == "name":
            vars(self)["count"] = 1
        if self.how == "error" and self._count == 3:
            raise LookupError("no third")
        yield value + self._count

    def finish(self, ctx: Context) -> Iterable[Any]:
        yield self._count

    def close(self) -> None:
        assert not self._closed or self.how != "close", "closed already"
        self._closed = True

    def get_state(self) -> dict[str, Any]:
        if self.how == "no state":
            return {}
        if self.how == "list":
            return []  # type: ignore[return-value]
        if self.how == "saving disturbs":
            self._count = 0
        return super().get_state()


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("no state", r"restored from the state after 1 of 5 items, differs at item 1: results\[0\] is 12, not 13"),
        ("list", r"get_state after 0 items gave a list, not a dict"),
        ("saving disturbs", r"differs at item 1: results\[0\] is 12, not 13"),
        ("unpicklable state", r"the state after 0 items cannot be pickled: .*lock"),
        ("field", r"changed the field 'settings', which is configuration: value has 5 elements, not 0"),
        ("name", r"added count; run state has underscore names"),
        ("close", r"closed already"),
    ],
)
def test_what_breaks_the_contract_is_named(how: str, told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        check_operator(Breaks(how), range(10, 15))


def test_an_exception_of_the_operator_keeps_its_type_and_says_at_which_item() -> None:
    with pytest.raises(LookupError, match="no third") as caught:
        check_operator(Breaks("error"), range(5))
    assert "check_operator: Breaks(how='error', settings=[]), item 2" in "".join(caught.value.__notes__)


@dataclass
class Impure(Operator[Any, Any]):
    pure: ClassVar[bool] = True
    how: str

    def open(self) -> None:
        self._count = 0

    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        self._count += 1
        yield value + self._count * (self.how == "remembers")
        if self.how == "two":
            yield value

    def finish(self, ctx: Context) -> Iterable[Any]:
        return (self._count,) if self.how == "rest" else ()


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("two", "is marked pure, but gave 2 results for item 0, not one"),
        ("remembers", "given this item alone, though it is marked pure, differs at item 1"),
        ("rest", "is marked pure, but finish gave 1 results"),
    ],
)
def test_pure_means_one_result_from_the_item_alone(how: str, told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        check_operator(Impure(how), range(3))


@dataclass
class AddsNothing(Operator[Any, Any]):
    adds: ClassVar[frozenset[str]] = frozenset({"advantages"})

    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        yield value


@dataclass
class WritesInPlace(Operator[Any, Any]):
    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        value["x"][0] = 1.0
        yield value


def test_columns_that_are_promised_must_be_there_and_arrays_are_read_only() -> None:
    batch = Batch({"x": np.zeros(2)})
    with pytest.raises(AssertionError, match=r"AddsNothing.* adds advantages, but the result of item 0 lacks that"):
        check_operator(AddsNothing(), [batch])
    with pytest.raises(ValueError, match="read-only"):
        check_operator(WritesInPlace(), [batch])


@dataclass
class HandsOnAnother(functions.Filter):
    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        return ([*value],)


class NoLabel(Operator[Any, Any]):
    __repr__ = object.__repr__


class NotDecorated(Square):
    def __repr__(self) -> str:
        return "two\nlines"


@dataclass
class Unpicklable(Square):
    lock: Any = field(default_factory=threading.Lock, repr=False)


class SilentError(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@dataclass
class FailsToPickle(Square):
    def __reduce__(self) -> Any:
        raise SilentError


def test_labels_and_pickling() -> None:
    with pytest.raises(AssertionError, match=r"FailsToPickle.* cannot be pickled: SilentError: <its text cannot be"):
        check_operator(FailsToPickle(), [])
    with pytest.raises(AssertionError, match="repr of NoLabel is its label, and so must not hold an address"):
        check_operator(NoLabel(), [])
    with pytest.raises(AssertionError, match="must be one line"):
        check_operator(NotDecorated(), [])
    with pytest.raises(AssertionError, match=r"Unpicklable\(\) cannot be pickled: TypeError: .*lock"):
        check_operator(Unpicklable(), [])
    with pytest.raises(AssertionError, match="is no Operator"):
        check_operator(print, [])  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="hands its items on, but item 0 came out as another object"):
        check_operator(HandsOnAnother(bool), [[1]])


def test_the_context_that_is_given_is_used() -> None:
    @dataclass
    class Seed(Operator[Any, Any]):
        def process(self, value: Any, ctx: Context) -> Iterable[Any]:
            yield ctx.env_steps

    ctx = Context("other")
    ctx.env_steps = 7
    check_operator(Seed(), range(2), ctx=ctx)
    check_operator(Window(), range(2), ctx=ctx)
    assert {delta[0] for delta in ctx.metrics.take()} == {"other"}


# ------------------------------------------------------------------ difference


def _adder(n: int) -> Any:
    return lambda x: x + n


def _fail(text: str) -> None:
    raise AssertionError(text)


@pytest.mark.parametrize(
    ("a", "b", "told"),
    [
        (1, 1.0, "value is a int, not a float: 1, not 1.0"),
        ([1, [2]], [1, [3]], r"value\[1\]\[0\] is 2, not 3"),
        ((1,), (1, 2), "value has 1 elements, not 2"),
        ({"a": 1}, {"b": 1}, r"value has the keys \['a'\], not \['b'\]"),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, r"value\['a'\]\['b'\] is 1, not 2"),
        (np.array([[1.0, 2.0]]), np.array([[1.0, 3.0]]), r"value\[0, 1\] is .*2\.0.*, not .*3\.0"),
        (np.zeros(2), np.zeros(2, np.float32), r"value is float64\(2,\), not float32\(2,\)"),
        (Batch({"x": np.zeros(2)}), Batch({"x": np.array([0.0, 1.0])}), r"value\['x'\]\[1\] is"),
        (
            Batch({"x": np.zeros((2, 2))}),
            Batch({"x": np.zeros((2, 2))}, time_major=True),
            "is time-major and the other is not",
        ),
        (Window(1), Window(2), r"value\.n is 1, not 2"),
        (Ref.of(1), Ref.of(2), "value is 1, not 2"),
        ({1}, {2}, r"value is \{1\}, not \{2\}"),
        (len, print, "value is <built-in function len>"),
        (_adder, _fail, "value is _adder, not _fail"),
    ],
)
def test_difference_says_where(a: Any, b: Any, told: str) -> None:
    assert re.search(told, difference(a, b) or "")
    assert difference(a, a) is None


def test_nothing_differs() -> None:
    nan = float("nan")
    assert difference([nan, np.array([nan, 1])], [float("nan"), np.array([nan, 1])]) is None
    assert difference({"a": 1, "b": 2}, {"b": 2, "a": 1}) is None
    assert difference(_adder(2), _adder(2)) is None
    assert difference(_adder(2), _adder(3)) == "value's closure[0] is 2, not 3"
    assert difference(_Plain(1), _Plain(1)) is None
    assert difference(_Plain(1), _Plain(2)) == "value['x'] is 1, not 2"


class _Plain:
    def __init__(self, x: int):
        self.x = x


# ------------------------------------------------------------------ Delayed


def test_answers_are_seen_late_and_messages_keep_their_order() -> None:
    backend = Delayed(0, likely=0.05)
    with run(from_actors(counters(1), "next_item").gather_sync(), backend) as r:
        handle = r.actors["workers"][0]
        pending = [handle.ask("echo", i) for i in range(20)]
        handle.tell("hear", "last")
        assert not any(one.call.done for one in pending)
        assert pending[7].result() == 7
        assert not pending[19].call.done
        assert [value for _, value in handle.ask("memory").result()] == [*range(20), "last"]
        assert backend.now() > 0


def test_a_wait_with_a_limit_may_see_nothing() -> None:
    backend = Delayed(0, likely=0.01)
    with run(from_actors(counters(1), "next_item").gather_sync(), backend) as r:
        began = backend.now()
        with pytest.raises(TimeoutError, match=r"workers\[0\] has not answered 'echo' within 0.05 s"):
            r.actors["workers"][0].ask("echo", 1).result(timeout_s=0.05)
        assert backend.now() - began == pytest.approx(0.05)


def test_a_schedule_follows_from_its_seed() -> None:
    flow = from_actors(counters(3), "next_item").gather_async()
    runs = [run(flow, Delayed(seed)).step(40) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


class Noting(Delayed):
    """Notes in which order it shows the answers to pulls."""

    def __init__(self, seed: int, *, in_order: bool):
        super().__init__(seed, in_order=in_order)
        self.sent: list[Any] = []
        self.shown: list[int] = []

    def pull(self, actor: Any) -> Any:
        self.sent.append(super().pull(actor))
        return self.sent[-1]

    def poll(self, sent: Any, timeout_s: float | None) -> Any:
        seen = super().poll(sent, timeout_s)
        self.shown += [self.sent.index(one) for one in seen if one in self.sent]
        return seen


def test_answers_of_one_actor_are_seen_in_order_unless_asked_otherwise() -> None:
    flow = from_actors(counters(1), "next_item").gather_async(num_async=4)
    for in_order in (True, False):
        backend = Noting(1, in_order=in_order)
        assert run(flow, backend).step(30) == [(0, i) for i in range(1, 31)]  # a gather keeps its shard's order
        assert (backend.shown == sorted(backend.shown)) is in_order


@pytest.mark.parametrize("likely", [0.0, -1, 1.5])
def test_likely_is_a_probability(likely: float) -> None:
    with pytest.raises(ValueError, match="likely must be a probability above 0"):
        Delayed(likely=likely)


def test_a_killed_actor_answers_nothing_more() -> None:
    backend = Delayed(0)
    with run(from_actors(counters(2), "next_item").gather_sync(), backend) as r:
        r.step(2)
        killed = r.actors["workers"][1]
        pending = killed.ask("echo", 1)
        backend.kill(killed)
        with pytest.raises(ActorDied):
            pending.result()
        with pytest.raises(ValueError, match=r"workers\[1\] is not alive; alive are workers\[0\]"):
            backend.kill(killed)


def test_what_was_sent_the_answer_of_a_dead_actor_fails_as_it_did() -> None:
    backend = Delayed(0)
    with run(from_actors(counters(2), "next_item").gather_sync(), backend) as r:
        first, second = r.actors["workers"]
        lost = first.ask("echo", 1)
        backend.kill(first)
        with pytest.raises(ActorDied, match=r"the process of workers\[0\] was killed"):
            second.ask("echo", lost).result()


# ------------------------------------------------------------------ Virtual


def test_an_actor_works_on_one_message_at_a_time() -> None:
    backend = Virtual(lambda group, index, kind, n: float(n + 1) if kind == "ask" else 0.0)
    with run(from_actors(counters(2), "next_item").gather_sync(), backend) as r:
        first, second = r.actors["workers"]
        began = backend.now()
        pending = [first.ask("echo", i) for i in range(3)]
        beside = second.ask("echo", "beside")
        pending[0].result()
        assert backend.now() - began == 1.0
        pending[2].result()
        assert backend.now() - began == 6.0  # 1 + 2 + 3
        beside.result()
        assert backend.now() - began == 6.0
        backend.pass_time(4.0)
        first.ask("echo", 3).result()
        assert backend.now() - began == 14.0


def test_a_message_waits_for_the_answers_that_it_was_sent() -> None:
    backend = Virtual(lambda group, index, kind, n: 5.0 if index == 0 and kind == "ask" else 1.0)
    with run(from_actors(counters(2), "next_item").gather_sync(), backend) as r:
        first, second = r.actors["workers"]
        began = backend.now()
        assert second.ask("echo", first.ask("echo", 1)).result() == 1
        assert backend.now() - began == 6.0


def test_a_wait_with_a_limit_moves_the_clock_by_no_more() -> None:
    backend = Virtual(lambda group, index, kind, n: 5.0 if kind == "ask" else 0.0)
    with run(from_actors(counters(1), "next_item").gather_sync(), backend) as r:
        began = backend.now()
        pending = r.actors["workers"][0].ask("echo", 1)
        with pytest.raises(TimeoutError):
            pending.result(timeout_s=2.0)
        assert backend.now() - began == 2.0
        assert pending.result() == 1
        assert backend.now() - began == 5.0


def test_a_time_must_be_one() -> None:
    with pytest.raises(ValueError, match=r"takes\('workers', 0, 'start', 0\) must give seconds >= 0, got -1"):
        run(from_actors(counters(1), "next_item").gather_sync(), Virtual(lambda group, index, kind, n: -1))


def test_the_module_needs_neither_torch_nor_ray_nor_gymnasium() -> None:
    code = "import sys, flowrl.testing; assert not {'torch', 'ray', 'gymnasium'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_ask_operators_restore_their_state() -> None:
    @dataclass
    class Forgets(AskOperator[Any, Any]):
        def open(self) -> None:
            self._turn = 3

        def set_state(self, state: dict[str, Any]) -> None:
            self._turn = 0

    with pytest.raises(AssertionError, match=r"the state that was restored is another one .*\['_turn'\] is 0, not 3"):
        check_operator(Forgets(), [])
