"""Numbers that users give: whole numbers of any integer type, seconds to wait."""

from __future__ import annotations

import math
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


def seconds(timeout_s: float | None) -> float | None:
    """A timeout as locks and backends take it; None, no limit, also for infinity.

    Raises:
        ValueError: it is not a number.
    """
    if timeout_s is None or timeout_s > threading.TIMEOUT_MAX:
        return None
    if math.isnan(timeout_s):
        raise ValueError("timeout_s must be a number of seconds, or None for no limit, got nan")
    return timeout_s
