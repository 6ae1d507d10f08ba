"""How values travel: pickle 5 with buffers apart, so that arrays arrive read-only on every backend."""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import cloudpickle
import numpy as np

from flowrl.engine.failure import ErrorRecord
from flowrl.engine.pickling import why_not_pickled
from flowrl.handles import Pending
from flowrl.metrics import Delta
from flowrl.operator import Operator
from flowrl.ref import Joined, Leaf, Ref, Then, apply_deferred, join

INLINE_BYTES = 8192  # an answer up to this size rides in its record and never enters the object store

Packed = tuple[bytes | None, tuple[Any, ...]]  # pickled, with its buffers; or None, and the things as they are
_UNCHANGING = (type(None), bool, int, float)  # exact types of which a copy is the thing itself
_PLAIN = (int, float, str, bool, bytes, type(None), np.ndarray, np.generic)


def pack(value: Any) -> Packed:
    """The value as bytes, arrays apart from the rest; cloudpickle where pickle will not do."""
    buffers: list[pickle.PickleBuffer] = []
    try:
        inband = pickle.dumps(value, 5, buffer_callback=buffers.append)
    except Exception:
        buffers.clear()
        inband = cloudpickle.dumps(value, 5, buffer_callback=buffers.append)
    return inband, tuple(bytes(buffer.raw()) for buffer in buffers)


def pack_by_value(value: Any) -> Packed:
    """As pack, for a receiver in another process: classes and functions of a script or notebook go along."""
    buffers: list[pickle.PickleBuffer] = []
    inband = cloudpickle.dumps(value, 5, buffer_callback=buffers.append)
    return inband, tuple(bytes(buffer.raw()) for buffer in buffers)


def unpack(packed: Packed) -> Any:
    """The value again; its arrays are read-only views of the packed bytes."""
    inband = packed[0]
    return packed[1] if inband is None else pickle.loads(inband, buffers=packed[1])


def packed_if_small(value: Any, what: str = "result") -> Packed | None:
    """The packed value if it is small enough to ride in a record, else None; a large array is not copied to find out.

    Raises:
        TypeError: it cannot be pickled; names the attribute path from `what`.
    """
    if type(value) is list and len(value) == 1 and type(value[0]) in _UNCHANGING:
        return None, (value[0],)
    buffers: list[pickle.PickleBuffer] = []
    try:
        inband = pickle.dumps(value, 5, buffer_callback=buffers.append)
    except Exception:
        buffers.clear()
        try:
            inband = cloudpickle.dumps(value, 5, buffer_callback=buffers.append)
        except Exception as error:
            raise TypeError(
                f"the {what} cannot be sent from its actor: {why_not_pickled(value, what, error)}"
            ) from error
    if len(inband) + sum(buffer.raw().nbytes for buffer in buffers) > INLINE_BYTES:
        return None
    return inband, tuple(bytes(buffer.raw()) for buffer in buffers)


class WireRef:
    """A Ref among the arguments of a message: its tree, with the places of its payloads among the message's."""

    __slots__ = ("tree",)

    def __init__(self, tree: Any):
        self.tree = tree

    def __reduce__(self) -> tuple[Any, ...]:
        return (WireRef, (self.tree,))


def pack_call(args: Sequence[Any], kwargs: Mapping[str, Any], what: str) -> tuple[Packed, list[Any]]:
    """The arguments of a call, and the payloads that must travel beside it; Refs and Pendings only at top level.

    Raises:
        TypeError: an argument cannot be pickled; names `what`, and the attribute path.
    """
    payloads: list[Any] = []
    wired = [_wire(arg, payloads) for arg in args]
    wired_kwargs = {key: _wire(arg, payloads) for key, arg in kwargs.items()}
    plain = all(map(_is_plain, wired)) and all(map(_is_plain, wired_kwargs.values()))
    whole = (tuple(wired), wired_kwargs)
    try:
        return (pack(whole) if plain else pack_by_value(whole)), payloads
    except Exception as error:
        told = why_not_pickled({"args": args, "kwargs": kwargs}, "", error)
        raise TypeError(f"{what}: an argument cannot be sent: {told}") from error


def unpack_call(packed: Packed, payloads: Sequence[Any], deltas: list[Delta]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments as values; metrics of deferred operators go to `deltas`.

    Raises:
        DependencyFailed: a payload is the record of a failure.
        DependencyGone: the actor that was to answer it has died.
    """
    args, kwargs = unpack(packed)
    found = tuple(_unwire(arg.tree, payloads, deltas) if type(arg) is WireRef else arg for arg in args)
    return found, {k: _unwire(a.tree, payloads, deltas) if type(a) is WireRef else a for k, a in kwargs.items()}


class DependencyFailed(Exception):  # noqa: N818
    """An argument of this call is the answer of a call that failed; carries that call's record."""

    def __init__(self, record: ErrorRecord):
        super().__init__(record.message)
        self.record = record


class Gone:
    """In place of a payload: its call died with the actor that was to answer."""

    __slots__ = ("reason",)

    def __init__(self, reason: str):
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return (Gone, (self.reason,))


class DependencyGone(Exception):  # noqa: N818
    """An argument of this call is the answer of a call that died with its actor."""


def item_of(payload: Any, slot: int | str) -> Any:
    """One item, or the published weights, of an answer's payload."""
    if isinstance(payload, Gone):
        raise DependencyGone(payload.reason)
    if isinstance(payload, ErrorRecord):
        raise DependencyFailed(payload)
    items, published = payload
    if slot == "published":
        if published is None:
            raise ValueError("this answer published nothing; only answers with Answer(published=...) do")
        return published
    return items[slot]


def _is_plain(wired: Any) -> bool:
    """Whether pickle will do for an argument: nothing in it is of a class that only the sender may have."""
    return _without_values(wired.tree) if type(wired) is WireRef else isinstance(wired, _PLAIN)


def _without_values(tree: tuple[Any, ...]) -> bool:
    kind = tree[0]
    if kind == "joined":
        return all(map(_without_values, tree[1]))
    return kind in ("payload", "packed", "gone") or (kind == "then" and _without_values(tree[1]))


def _wire(arg: Any, payloads: list[Any]) -> Any:
    if isinstance(arg, Pending):
        if arg.make is not None:
            raise TypeError("this Pending's value is made on the driver from the Info; send `pending.result()` instead")
        arg = arg.ref
    return WireRef(_wire_tree(arg._tree, payloads)) if isinstance(arg, Ref) else arg


def _wire_tree(tree: Any, payloads: list[Any]) -> tuple[Any, ...]:
    if isinstance(tree, Leaf):
        if tree.payload is None:
            return ("value", tree.value)
        call = tree.payload
        if call.record.inline is not None and tree.slot != "published":
            return ("packed", call.record.inline, tree.slot)
        if call.lost:
            return ("gone", call.reason)
        stored = call.payload
        for position, known in enumerate(payloads):
            if known is stored:
                return ("payload", position, tree.slot)
        payloads.append(stored)
        return ("payload", len(payloads) - 1, tree.slot)
    if isinstance(tree, Joined):
        return ("joined", [_wire_tree(part, payloads) for part in tree.trees])
    return ("then", _wire_tree(tree.tree, payloads), packed_operator(tree.op), tree.name, tree.where)


def _unwire(tree: tuple[Any, ...], payloads: Sequence[Any], deltas: list[Delta]) -> Any:
    kind = tree[0]
    if kind == "payload":
        return item_of(payloads[tree[1]], tree[2])
    if kind == "value":
        return tree[1]
    if kind == "gone":
        raise DependencyGone(tree[1])
    if kind == "packed":
        return unpack(tree[1])[tree[2]]
    if kind == "joined":
        return join([_unwire(part, payloads, deltas) for part in tree[1]])
    op = loaded_operator(tree[2])
    return apply_deferred(Then(None, op, tree[3], tree[4]), _unwire(tree[1], payloads, deltas), deltas)


_packed: dict[int, bytes] = {}  # by id, for as long as the operator lives: a dataclass has no hash
_loaded: dict[bytes, Operator[Any, Any]] = {}


def packed_operator(op: Operator[Any, Any]) -> bytes:
    """A deferred operator as bytes, made once an operator."""
    key = id(op)
    packed = _packed.get(key)
    if packed is None:
        packed = _packed[key] = cloudpickle.dumps(op, 5)
        weakref.finalize(op, _packed.pop, key, None)
    return packed


def loaded_operator(packed: bytes) -> Operator[Any, Any]:
    """The operator of the bytes, opened, kept for the next item."""
    op = _loaded.get(packed)
    if op is None:
        op = pickle.loads(packed)
        op.open()
        if len(_loaded) >= 256:
            _loaded.clear()
        _loaded[packed] = op
    return op
