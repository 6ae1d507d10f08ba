"""Checks of the numbers that users set: each refuses a value by its name and says the range."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from numbers import Real
from typing import Any

MOST_S = 1e8  # three years


def check_whole(name: str, value: Any, at_least: int = 1) -> None:
    """Nothing, if the value is an integer (numpy's too) of at least `at_least`.

    Raises:
        ValueError: it is not; names it.
    """
    try:
        whole = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        whole = None
    if whole is None:
        raise ValueError(f"{name} must be an integer of at least {at_least}, got {value!r}")
    if whole < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {value!r}")


def check_finite(name: str, value: Any) -> None:
    """Nothing, if the value is a number, neither NaN nor infinite.

    Raises:
        ValueError: it is not; names it.
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value!r}")


def check_seconds(name: str, value: Any, *, may_be_0: bool = False) -> None:
    """Nothing, if the value is a time to wait, in seconds: above 0 and at most MOST_S, more than which no clock takes.

    Raises:
        ValueError: it is not; names it.
    """
    number = isinstance(value, Real) and not isinstance(value, bool)
    if number and (value >= 0 if may_be_0 else value > 0) and value <= MOST_S:
        return
    least = "of at least 0" if may_be_0 else "above 0"
    raise ValueError(f"{name} must be a number of seconds {least} and at most {MOST_S:g}, got {value!r}")


def check_fields(
    config: Any,
    *,
    whole: Iterable[str] = (),
    positive: Iterable[str] = (),
    not_negative: Iterable[str] = (),
    fraction: Iterable[str] = (),
    or_none: Iterable[str] = (),
    seconds: Iterable[str] = (),
) -> None:
    """Nothing, if these fields are: integers of at least 1; above 0; at least 0; from 0 to 1; above 0 or None; times to
    wait, or None.

    Raises:
        ValueError: one is not; names it.
    """
    for name in whole:
        check_whole(name, getattr(config, name))
    for name in seconds:
        if getattr(config, name) is not None:
            check_seconds(name, getattr(config, name))
    for name in (*positive, *not_negative, *fraction):
        check_finite(name, getattr(config, name))
    or_none = [name for name in or_none if getattr(config, name) is not None]
    for name in or_none:
        check_finite(name, getattr(config, name))
    for name in (*positive, *or_none):
        if not getattr(config, name) > 0:
            raise ValueError(f"{name} must be above 0, got {getattr(config, name)!r}")
    for name in (*not_negative, *fraction):
        if not getattr(config, name) >= 0:
            raise ValueError(f"{name} must be at least 0, got {getattr(config, name)!r}")
    for name in fraction:
        if not getattr(config, name) <= 1:
            raise ValueError(f"{name} must be at most 1, got {getattr(config, name)!r}")
