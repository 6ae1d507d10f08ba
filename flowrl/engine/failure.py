"""Exceptions on their way from an actor to the driver: recorded there, raised here with their own type."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass
from typing import Any

import cloudpickle

from flowrl.errors import EndOfStream, OperatorError, RemoteError, RemoteTraceback, text_of
from flowrl.operator import ItemId


class InNode(Exception):  # noqa: N818
    """Carries an exception (its cause) from a stage up to the run, with the node and the item."""

    def __init__(self, node: str, item: ItemId):
        super().__init__(node)
        self.node, self.item = node, item


@dataclass(frozen=True)
class ErrorRecord:
    """A failure as it travels: the exception where it can be pickled, its text in any case."""

    type_name: str
    message: str
    traceback: str
    pickled: bytes | None
    node: str | None = None
    item: int | None = None
    policy_version: int | None = None

    def exception(self) -> BaseException:
        """The exception to raise: of its own type if that travels, else RemoteError; its cause: the remote text."""
        error: BaseException | None = None
        if self.pickled is not None:
            try:
                error = _rebuilt(self.pickled)
            except KeyboardInterrupt:
                raise
            except BaseException:  # the class's own code runs here, on the driver
                error = None
        if error is None:
            error = RemoteError(f"{self.type_name}: {self.message} (an exception of this type cannot be pickled)")
        # Not by assignment: a frozen dataclass refuses it.
        BaseException.__setattr__(error, "__cause__", RemoteTraceback(self.traceback))
        return error


def record_of(error: BaseException) -> ErrorRecord:
    """The record of an exception; an InNode gives the place of its cause. Never raises, whatever the exception does."""
    try:
        return _record_of(error)
    except BaseException:
        kind = type(error.__cause__ if isinstance(error, InNode) else error).__qualname__
        return ErrorRecord(kind, "<nothing more can be told of it>", "", None)


def _record_of(error: BaseException) -> ErrorRecord:
    node: str | None = None
    item = ItemId(-1)
    if isinstance(error, InNode):
        node, item = error.node, error.item
        assert error.__cause__ is not None
        error = error.__cause__
    text = "".join(traceback.format_exception(error))
    error = travelling(error)
    return ErrorRecord(
        type_name=type(error).__qualname__,
        message=text_of(error),
        traceback=text,
        pickled=_pickled(error),
        node=node,
        item=item.number if item.number >= 0 else None,
        policy_version=item.policy_version,
    )


def travelling(error: BaseException) -> BaseException:
    """The same exception, or an OperatorError for one that would end a stream or a process silently."""
    stop = error.__cause__ if isinstance(error, RuntimeError) and isinstance(error.__cause__, StopIteration) else error
    if isinstance(stop, StopIteration | StopAsyncIteration | EndOfStream):
        kind = type(stop).__name__
        told = OperatorError(
            f"raised {kind}, which would have ended the stream silently; only a source's method ends it"
        )
    elif isinstance(error, Exception | KeyboardInterrupt):
        return error  # a KeyboardInterrupt too: it ends a run, as it would end a loop
    else:
        told = OperatorError(
            f"raised {type(error).__name__}({_argument(error)}), which must not end the process of a run"
        )
    told.__cause__ = error
    return told


def _argument(error: BaseException) -> str:
    return text_of(error) if error.args else ""


def _pickled(error: BaseException) -> bytes | None:
    try:  # pickle's own way knows of fields in C, such as a file's name
        packed = cloudpickle.dumps(error, 5)
        again = pickle.loads(packed)
        if type(again) is type(error) and again.args == error.args and str(again) == str(error):
            notes = getattr(error, "__notes__", None)
            if getattr(again, "__notes__", None) == notes:
                return packed
    except BaseException:
        packed = b""  # it calls the class with `args`, and a constructor with other parameters refuses them
    try:
        packed = cloudpickle.dumps((type(error), error.args, error.__dict__), 5)
        _rebuilt(packed)
    except BaseException:  # a __reduce__ or __str__ may raise even SystemExit
        return None
    return packed


def _rebuilt(packed: bytes) -> BaseException:
    loaded = pickle.loads(packed)
    if isinstance(loaded, BaseException):
        return loaded
    kind, args, state = loaded
    error: Any = kind.__new__(kind, *args)
    if not isinstance(error, BaseException):
        raise TypeError(f"{kind!r} does not make exceptions")
    BaseException.__setattr__(error, "args", args)
    error.__dict__.update(state)
    str(error)
    return error
