"""What makes two values differ: for tests, which want the place and not only that they do."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterable, Mapping
from typing import Any

import cloudpickle
import numpy as np

from flowrl.ref import Ref


def difference(a: Any, b: Any, at: str = "value") -> str | None:
    """What makes two values differ, and where; None if nothing does.

    Batches and mappings are compared by key, sequences and arrays by element, objects without an equality of their own
    by what they hold. Types and dtypes must be the same; NaN equals NaN.
    """
    if a is b:
        return None
    if isinstance(a, Ref) and isinstance(b, Ref):
        return difference(a.get(), b.get(), at)
    if type(a) is not type(b):
        return f"{at} is a {type(a).__name__}, not a {type(b).__name__}: {_short(a)}, not {_short(b)}"
    if isinstance(a, Mapping):
        if a.keys() != b.keys():
            return f"{at} has the keys {list(a)}, not {list(b)}"
        if getattr(a, "time_major", None) != getattr(b, "time_major", None):
            return f"{at} is time-major and the other is not, or the other way round"
        return _first(difference(a[key], b[key], f"{at}[{key!r}]") for key in a)
    if isinstance(a, list | tuple):
        if len(a) != len(b):
            return f"{at} has {len(a)} elements, not {len(b)}: {_short(a)}, not {_short(b)}"
        return _first(difference(ours, theirs, f"{at}[{i}]") for i, (ours, theirs) in enumerate(zip(a, b, strict=True)))
    if isinstance(a, float) or hasattr(a, "__array__"):
        return _array_difference(np.asarray(a), np.asarray(b), at)
    if isinstance(a, types.FunctionType):
        if a.__qualname__ != b.__qualname__ or a.__code__.co_code != b.__code__.co_code:
            return f"{at} is {a.__qualname__}, not {b.__qualname__}"
        ours, theirs = ([cell.cell_contents for cell in f.__closure__ or ()] for f in (a, b))
        return difference(ours, theirs, f"{at}'s closure")
    if dataclasses.is_dataclass(a) and not isinstance(a, type):  # whose own equality knows no NaN
        names = [entry.name for entry in dataclasses.fields(a)]
        return _first(difference(getattr(a, name), getattr(b, name), f"{at}.{name}") for name in names)
    if not isinstance(a, type) and _compares_by_identity(a):
        if hasattr(a, "__dict__"):
            return difference(vars(a), vars(b), at)
        same = cloudpickle.dumps(a, 5) == cloudpickle.dumps(b, 5)
    else:
        same = bool(a == b)
    return None if same else f"{at} is {_short(a)}, not {_short(b)}"


def _compares_by_identity(value: Any) -> bool:
    owner = next(kind for kind in type(value).__mro__ if "__eq__" in vars(kind))
    return owner is object


def _array_difference(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], at: str) -> str | None:
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"{at} is {a.dtype}{a.shape}, not {b.dtype}{b.shape}"
    unlike = ~((a == b) | ((a != a) & (b != b)))
    if not unlike.any():
        return None
    where = tuple(int(i) for i in np.argwhere(unlike)[0])
    place = f"{at}[{', '.join(map(str, where))}]" if where else at
    return f"{place} is {a[where]!r}, not {b[where]!r}"


def _first(found: Iterable[str | None]) -> str | None:
    return next((wrong for wrong in found if wrong is not None), None)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"
