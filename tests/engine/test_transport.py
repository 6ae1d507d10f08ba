"""How values travel: arrays apart, read-only; arguments wired; what cannot be pickled named."""

from __future__ import annotations

import functools
import gc
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl import Context, Operator, Ref
from flowrl.engine import transport
from flowrl.engine.failure import record_of
from flowrl.engine.pickling import own_copy, pickled
from flowrl.engine.transport import (
    INLINE_BYTES,
    DependencyFailed,
    item_of,
    pack,
    pack_call,
    packed_if_small,
    packed_operator,
    unpack,
    unpack_call,
)
from flowrl.errors import OperatorError, RemoteError, RemoteTraceback, StartError, add_note

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
)


@given(plain)
def test_values_come_back(value: Any) -> None:
    assert unpack(pack(value)) == value


@given(st.lists(st.tuples(st.integers(0, 50), st.sampled_from(["f4", "f8", "i8", "b1"])), max_size=4))
def test_arrays_come_back_read_only_and_apart(shapes: list[tuple[int, str]]) -> None:
    arrays = [np.arange(n).astype(dtype) for n, dtype in shapes]
    packed = pack(arrays)
    for before, after in zip(arrays, unpack(packed), strict=True):
        np.testing.assert_array_equal(before, after)
        assert before.dtype == after.dtype
        assert not after.flags.writeable or after.size == 0
    assert sum(map(len, packed[1])) == sum(a.nbytes for a in arrays)


def test_small_values_ride_and_large_ones_do_not() -> None:
    small, large = np.zeros(10), np.zeros(INLINE_BYTES)
    assert np.array_equal(unpack(packed_if_small([small]))[0], small)
    assert packed_if_small([large]) is None
    assert packed_if_small(["x" * INLINE_BYTES]) is None
    assert unpack(packed_if_small([lambda: 5]))[0]() == 5  # by value, where pickle cannot


def test_arguments_are_wired_and_arrive_as_values() -> None:
    joined = Ref.concat([Ref.of(Joinable([3])), Ref.of(Joinable([4]))])
    packed, payloads = pack_call((1, Ref.of([2]), np.ones(2)), {"k": joined}, "x")
    assert payloads == []
    args, kwargs = unpack_call(packed, payloads, [])
    assert args[:2] == (1, [2])
    assert args[2].tolist() == [1, 1]
    assert kwargs["k"].items == [3, 4]


class Joinable:
    """Can be joined."""

    def __init__(self, items: list[int]):
        self.items = items

    @staticmethod
    def concat(items: list[Joinable]) -> Joinable:
        return Joinable([entry for item in items for entry in item.items])


def test_an_argument_that_is_a_failure_says_so() -> None:
    record = record_of(ValueError("first"))
    with pytest.raises(DependencyFailed, match="first"):
        item_of(record, 0)
    with pytest.raises(ValueError, match="this answer published nothing"):
        item_of(([1], None), "published")


@dataclass
class Double(Operator[int, int]):
    """Pure."""

    pure: ClassVar[bool] = True

    def process(self, value: int, ctx: Context) -> Iterable[int]:
        yield value * 2


def test_a_deferred_operator_is_packed_once_and_forgotten_with_it() -> None:
    op = Double()
    ref = Ref.of(4).then(op)
    packed, _ = pack_call((ref,), {}, "x")
    assert packed_operator(op) is packed_operator(op)
    assert unpack_call(packed, [], [])[0] == (8,)
    assert vars(op) == {}  # its configuration is not touched
    before = len(transport._packed)
    del op, ref
    gc.collect()
    assert len(transport._packed) < before


class Holder:
    """Holds something."""

    def __init__(self, what: Any):
        self.what = what


@dataclass
class Config:
    """Holds something in a field."""

    inner: Any


LOCK = threading.Lock()


def global_lock() -> Any:
    return LOCK


def default_lock(x: Any = LOCK) -> Any:
    return x


def closure(what: Any) -> Any:
    return lambda: what


def by_value(function: Any) -> Any:
    """As a function of a script or notebook is: pickled by value."""
    function.__module__ = "__main__"
    return function


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [1, LOCK]}, r"dict\['a'\]\[1\] is a lock"),
        (Holder({"k": (LOCK,)}), r"Holder.what\['k'\]\[0\] is a lock"),
        (Config(Holder(LOCK)), r"Config.inner.what is a lock"),
        (closure(LOCK), r"<lambda>.<closure what> is a lock"),
        (closure(closure(LOCK)), r"<closure what>.<closure what> is a lock"),
        (functools.partial(max, LOCK), r"partial.args\[0\] is a lock"),
        (functools.partial(max, key=LOCK), r"partial.keywords\['key'\] is a lock"),
        (by_value(global_lock), r"global_lock.<global LOCK> is a lock"),
        (by_value(default_lock), r"default_lock.<default 0> is a lock"),
        (Holder(LOCK).__init__, r"__self__.what is a lock"),
    ],
)
def test_the_path_to_what_cannot_be_pickled(value: Any, path: str) -> None:
    with pytest.raises(StartError, match=f"the owner cannot be sent to an actor: .*{path}, which cannot be pickled"):
        pickled(value, "the owner")


def test_a_local_class_whose_method_closes_over_a_lock() -> None:
    lock = threading.Lock()

    class Local(Operator[int, int]):
        def process(self, value: int, ctx: Context) -> Any:
            yield lock

    told = r"node 'n' \(defined at f:1\) cannot be sent to an actor: .*process.<closure lock> is a lock"
    with pytest.raises(StartError, match=told):
        own_copy(Local(), "n", "f:1")


class PickyError(Exception):
    """Cannot be rebuilt from its arguments, and has state."""

    def __init__(self, code: int, *, where: str):
        super().__init__(f"code {code} at {where}")
        self.code, self.where = code, where


@pytest.mark.parametrize(
    "error",
    [
        PickyError(3, where="here"),
        FileNotFoundError(2, "No such file", "/x"),
        KeyError("k"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        ExceptionGroup("several", [ValueError("a"), TypeError("b")]),
        ImportError("no", name="n", path="p"),
    ],
)
def test_exceptions_come_back_as_they_were(error: Exception) -> None:
    error.add_note("a note")
    again = record_of(error).exception()
    assert type(again) is type(error)
    assert (str(again), again.args) == (str(error), error.args) or isinstance(error, ExceptionGroup)
    assert again.__notes__ == ["a note"]
    assert {k: v for k, v in vars(again).items() if k != "__notes__"} == {
        k: v for k, v in vars(error).items() if k != "__notes__"
    }


class NoTextError(Exception):
    """Its text cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_an_exception_without_text_is_told_all_the_same() -> None:
    assert isinstance(record_of(NoTextError()).exception(), RemoteError)
    assert "NoTextError: <its text cannot be made>" in str(record_of(NoTextError()).exception())


class QuitsError(Exception):
    """Ends the process wherever it is looked at."""

    def __reduce__(self) -> Any:
        raise SystemExit(3)

    def __str__(self) -> str:
        raise SystemExit(4)

    __repr__ = __str__


class QuitsOnArrivalError(Exception):
    """Ends the process where it arrives, though not where it is checked."""

    here: ClassVar[bool] = True

    def __setstate__(self, state: Any) -> None:
        if not QuitsOnArrivalError.here:
            raise SystemExit(5)


def test_an_exception_that_would_end_the_process_is_only_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    again = record_of(QuitsError()).exception()
    assert type(again) is RemoteError
    assert "QuitsError: <its text cannot be made>" in str(again)
    error = QuitsOnArrivalError("x")
    error.code = 1  # type: ignore[attr-defined]  # without state there is no __setstate__
    record = record_of(error)
    assert type(record.exception()) is QuitsOnArrivalError
    monkeypatch.setattr(QuitsOnArrivalError, "here", False)
    assert type(record.exception()) is RemoteError


@dataclass(frozen=True)
class FrozenError(Exception):
    """A frozen dataclass, as an exception."""

    code: int
    where: str = "here"


class SealedError(Exception):
    """Takes no attribute, and no note its own way."""

    def __setattr__(self, name: str, value: Any) -> None:
        raise RuntimeError("sealed")

    def add_note(self, note: str) -> None:
        raise RuntimeError("no notes")


class OddNotesError(Exception):
    """Its notes are a text."""

    def __init__(self, text: str):
        super().__init__(text)
        self.__notes__ = "odd"  # type: ignore[assignment]


class NoNotesError(Exception):
    """Has no place for notes at all."""

    __notes__ = property(lambda self: ())  # type: ignore[assignment]


@pytest.mark.parametrize("error", [FrozenError(3), FrozenError(code=3), SealedError("x"), OddNotesError("x")])
def test_exceptions_that_refuse_attributes_come_back_and_take_a_note(error: Exception) -> None:
    again = record_of(error).exception()
    assert type(again) is type(error)
    assert (again.args, str(again), repr(again)) == (error.args, str(error), repr(error))
    assert isinstance(again.__cause__, RemoteTraceback)
    before = ["odd"] if isinstance(error, OddNotesError) else []
    add_note(again, "a note")
    add_note(again, "one more")
    assert again.__notes__ == [*before, "a note", "one more"]


def test_an_exception_without_a_place_for_notes_is_told_in_another() -> None:
    error = NoNotesError()
    with pytest.raises(OperatorError, match=r"^NoNotesError: NoNotesError\(\); a note$") as caught:
        add_note(error, "a note")
    assert caught.value.__cause__ is error


def test_an_exception_without_text_is_told_by_its_repr() -> None:
    assert record_of(FrozenError(code=3)).message == "FrozenError(code=3, where='here')"
    assert record_of(ValueError("x")).message == "x"
