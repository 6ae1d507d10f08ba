"""Numbers that users give: whole numbers of any integer type, seconds to wait."""

from __future__ import annotations

import operator
import threading
from typing import Any


def whole(value: Any) -> int | None:
    """The value as an int, NumPy's integers too; None for what is no whole number, a bool among them."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def short(value: Any) -> str:
    """The value as an error shows it; of a whole number longer than a line only its length."""
    long = isinstance(value, int) and value.bit_length() > 128
    return f"one of {value.bit_length()} bits" if long else repr(value)


def seconds(timeout_s: float | None) -> float | None:
    """A timeout as locks and backends take it; None, no limit, also for infinity.

    Raises:
        ValueError: it is not a number of at least 0.
    """
    if timeout_s is None:
        return None
    try:
        if timeout_s >= 0:
            return None if timeout_s > threading.TIMEOUT_MAX else float(timeout_s)
    except TypeError:
        pass
    raise ValueError(f"timeout_s must be a number of seconds of at least 0, or None for no limit, got {timeout_s!r}")
