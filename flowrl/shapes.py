"""A value in a few words: its type, shape and columns, for drawings, statistics and checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def describe(value: Any) -> str:
    """`Batch(128, 8): obs f32[4], rewards f32 …`, `ndarray f32(3,)`, `list of 4 × int`."""
    text = getattr(value, "describe", None)
    if callable(text) and not isinstance(value, type):
        return str(text())
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if dtype is not None and shape is not None:
        return f"{type(value).__name__} {dtype}{tuple(shape)}"
    if isinstance(value, list | tuple) and value:
        kinds = {type(entry).__name__ for entry in value}
        return f"{type(value).__name__} of {len(value)} × {kinds.pop() if len(kinds) == 1 else 'mixed'}"
    if isinstance(value, Mapping):
        return f"{type(value).__name__} with {', '.join(str(key) for key in list(value)[:8])}"
    return type(value).__name__
