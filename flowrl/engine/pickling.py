"""Copies of operators for a run, and errors that name what cannot be pickled."""

from __future__ import annotations

import copy
import dataclasses
import io
import pickle
import types
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import cloudpickle

from flowrl.errors import StartError, text_of
from flowrl.functions import Filter, Function, Tap
from flowrl.handles import Pending
from flowrl.ref import Ref


def own_copy(op: Any, node: str, where: str) -> Any:
    """The operator as a run of its own works on it: a pickled copy; plain callables are shared.

    Raises:
        StartError: it cannot be pickled; names the attribute path.
    """
    if isinstance(op, Function | Filter | Tap):
        return copy.copy(op)
    return copied(op, f"node {node!r} (defined at {where})")


def copied(value: Any, owner: str) -> Any:
    """A pickled copy for this process: functions and classes are shared, so that breakpoints and source lines hold.

    Cloudpickle makes those of a script or notebook anew, without their file.

    Raises:
        StartError: it cannot be pickled; names the owner and the attribute path.
    """
    packed = pickled(value, owner)
    shared: list[Any] = []
    buffer = io.BytesIO()
    try:
        _Sharing(buffer, shared).dump(value)
        buffer.seek(0)
        return _Shared(buffer, shared).load()
    except Exception:  # what cloudpickle alone knows how to pickle
        return pickle.loads(packed)


class _Sharing(pickle.Pickler):
    """Pickles by value what is data, and hands functions, classes and modules on as they are."""

    def __init__(self, file: io.BytesIO, shared: list[Any]):
        super().__init__(file, 5)
        self._shared_objects = shared

    def persistent_id(self, obj: Any) -> int | None:
        if isinstance(obj, types.FunctionType | type | types.ModuleType):
            self._shared_objects.append(obj)
            return len(self._shared_objects) - 1
        return None


class _Shared(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, shared: list[Any]):
        super().__init__(file)
        self._shared_objects = shared

    def persistent_load(self, pid: int) -> Any:
        return self._shared_objects[pid]


class Handed:
    """An object inside a message to a host in this process; it arrives as the very object, once."""

    _on_their_way: ClassVar[dict[int, Any]] = {}

    def __init__(self, value: Any):
        self._value = value

    def __reduce__(self) -> tuple[Any, ...]:
        self._on_their_way[id(self._value)] = self._value
        return (_handed, (id(self._value),))


def _handed(key: int) -> Any:
    return Handed._on_their_way.pop(key)


def pickled(value: Any, owner: str) -> bytes:
    """The value by cloudpickle.

    Raises:
        StartError: it cannot be pickled; names the owner and the attribute path.
    """
    try:
        return cloudpickle.dumps(value, 5)
    except Exception as error:
        raise StartError(
            f"{owner} cannot be sent to an actor: {why_not_pickled(value, _root(value), error)}"
        ) from error


def why_not_pickled(value: Any, name: str, error: BaseException) -> str:
    """What part of a value cannot be pickled, by its path from `name`, and what to do."""
    path, culprit = _culprit(value, name)
    if isinstance(culprit, Ref | Pending):
        kind = type(culprit).__name__
        return (
            f"{path} is a {kind} inside another value; pass it as an argument of its own, where it arrives as its value"
        )
    return (
        f"{path or 'it'} is a {type(culprit).__name__}, which cannot be pickled ({text_of(error)}); "
        "make it inside open() or inside the actor instead of holding it"
    )


def _root(value: Any) -> str:
    return getattr(value, "__name__", None) or type(value).__name__


def _culprit(value: Any, path: str, depth: int = 8) -> tuple[str, Any]:
    if depth > 0:
        for step, child in _children(value):
            try:
                cloudpickle.dumps(child, 5)
            except KeyboardInterrupt:
                raise
            except BaseException:
                return _culprit(child, path + step, depth - 1)
    return path, value


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, child in value.items():
            yield f"[{key!r}]", child
    elif isinstance(value, list | tuple | set | frozenset):
        for i, child in enumerate(value):
            yield f"[{i}]", child
    elif isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
            yield f".<closure {name}>", cell.cell_contents
        for name in value.__code__.co_names:
            if name in value.__globals__ and not isinstance(value.__globals__[name], types.ModuleType):
                yield f".<global {name}>", value.__globals__[name]
        for name, default in (value.__kwdefaults__ or {}).items():
            yield f".<default {name}>", default
        for i, default in enumerate(value.__defaults__ or ()):
            yield f".<default {i}>", default
    elif isinstance(value, type):  # pickled by value: a class of a function, a script or a notebook
        for name, child in vars(value).items():
            if isinstance(child, types.FunctionType):
                yield f".{name}", child
    elif isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
    elif hasattr(value, "func") and hasattr(value, "keywords"):
        yield ".func", value.func
        yield ".args", value.args
        yield ".keywords", value.keywords
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for entry in dataclasses.fields(value):
            yield f".{entry.name}", getattr(value, entry.name)
        yield "", type(value)
    elif hasattr(value, "__dict__"):
        for name, child in vars(value).items():
            yield f".{name}", child
        yield "", type(value)
