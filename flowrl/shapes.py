"""A value in a few words: its type, shape and columns, for drawings, statistics and checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from itertools import islice
from typing import Any

SHOWN = 40  # columns, keys or fields


def describe(value: Any) -> str:
    """`Batch(128, 8): obs f32[4], rewards f32 …`, `ndarray f32(3,)`, `list of 4 × int`; else the name of its type."""
    try:
        return _described(value)
    except Exception:  # an item of the user's may have attributes of these names that are something else
        return type(value).__name__


def _described(value: Any) -> str:
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if dtype is not None and shape is not None:
        return f"{type(value).__name__} {dtype}{tuple(shape)}"
    if isinstance(value, list | tuple) and value:
        kinds = {type(entry).__name__ for entry in value}
        return f"{type(value).__name__} of {len(value)} × {kinds.pop() if len(kinds) == 1 else 'mixed'}"
    leading = getattr(value, "leading", None)
    if isinstance(value, Mapping) and isinstance(leading, tuple):
        columns = ", ".join(_column(name, array, len(leading)) for name, array in islice(value.items(), SHOWN))
        return f"{type(value).__name__}{leading}: {columns}" + (" …" if len(value) > SHOWN else "")
    if isinstance(value, Mapping):
        return f"{type(value).__name__} with {', '.join(str(key) for key in islice(value, SHOWN))}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [entry.name for entry in dataclasses.fields(value)]
        return f"{type(value).__name__} with {', '.join(fields[:SHOWN])}" if fields else type(value).__name__
    return type(value).__name__


def _column(name: str, array: Any, depth: int) -> str:
    """`obs f32[4]`: the name, the kind and bits of its numbers, and the shape of one row."""
    row = ", ".join(str(n) for n in array.shape[depth:])
    kind = "bool" if array.dtype.kind == "b" else f"{array.dtype.kind}{array.dtype.itemsize * 8}"
    return f"{name} {kind}" + (f"[{row}]" if row else "")
