"""The rules for the columns of a batch: what one may be, and when those of two batches can be joined."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Columns = Mapping[str, Array]


def column_of(name: str, value: npt.ArrayLike, depth: int) -> Array:
    """A read-only view of an array with at least `depth` dimensions.

    Raises:
        TypeError: the dtype is object, or the name no string.
        ValueError: it has fewer dimensions.
    """
    if not isinstance(name, str):
        raise TypeError(f"column names are strings, got {name!r}")
    array = np.asarray(value).view()
    if array.dtype.hasobject:
        raise TypeError(
            f"column {name!r} has dtype object, which cannot be stored: "
            "give numbers, or one column for each part ('obs/camera')"
        )
    if array.ndim < depth:
        need = "(T, N, ...)" if depth == 2 else "(B, ...)"
        raise ValueError(f"column {name!r} has shape {array.shape}, but its leading dimensions must be {need}")
    array.flags.writeable = False
    return array


def leading_of(columns: Columns, depth: int) -> tuple[int, ...]:
    """The leading dimensions that all columns share.

    Raises:
        ValueError: they differ, or `valid` is not a boolean array of that shape; names the column.
    """
    shapes = [array.shape[:depth] for array in columns.values()]
    common = shapes[0]
    if any(shape != common for shape in shapes):
        common = max(dict.fromkeys(shapes), key=shapes.count)
        odd = ", ".join(f"{name!r} has shape {a.shape}" for name, a in columns.items() if a.shape[:depth] != common)
        letters = "(T, N)" if depth == 2 else "(B,)"
        raise ValueError(f"column {odd}, but the leading dimensions of the others are {letters} = {common}")
    valid = columns.get("valid")
    if valid is not None and (valid.dtype != np.bool_ or valid.ndim != depth):
        raise ValueError(f"column 'valid' must be a boolean array of shape {common}, got {valid.dtype} {valid.shape}")
    return common


def check_joinable(first: Columns, other: Columns, place: int, *, depth: int, join_axis: int) -> None:
    """Nothing, if the columns of batch `place` can be joined to those of batch 0 along `join_axis`.

    Raises:
        ValueError: other columns, another T, dtype or row shape.
    """
    if other.keys() != first.keys():
        missing, more = sorted(first.keys() - other.keys()), sorted(other.keys() - first.keys())
        said = [f"batch {place} lacks {missing}"] * bool(missing) + [f"batch 0 lacks {more}"] * bool(more)
        raise ValueError(f"cannot concat batches of different columns: {' and '.join(said)}")
    for name, array in first.items():
        found = other[name]
        if join_axis == 1 and found.shape[0] != array.shape[0]:
            raise ValueError(
                f"cannot concat time-major batches of unequal T: batch 0 has {array.shape[0]}, "
                f"batch {place} has {found.shape[0]}"
            )
        if found.dtype != array.dtype or found.shape[depth:] != array.shape[depth:]:
            raise ValueError(
                f"cannot concat column {name!r}: batch 0 has {array.dtype} {array.shape}, "
                f"batch {place} has {found.dtype} {found.shape}"
            )


def same(a: Array, b: Array) -> bool:
    """Whether two arrays have equal dtype, shape and values; NaN equals NaN."""
    return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")
