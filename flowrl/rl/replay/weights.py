"""From priorities to masses, and from masses to the weights that make up for an uneven draw (arXiv:1511.05952)."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
PRIORITY_FLOOR = 1e-6
MOST = 1e290  # of a mass: the sum of as many as memory holds stays finite
_FLOOR = np.array(PRIORITY_FLOOR)


def masses_of(priorities: npt.NDArray[Any], alpha: Any) -> tuple[Floats, float]:
    """(|priority| + 1e-6)^alpha, in proportion to which items are drawn, never 0; and the largest, 0 without any.

    alpha: best as an array without a dimension, which NumPy takes more quickly than a number.

    Raises:
        ValueError: one is no number or not finite, or so large that the sum of many might not be.
    """
    if priorities.dtype.kind != "f":  # -128 of int8 has no absolute value there
        if priorities.dtype.kind not in "iub":
            raise ValueError(f"priorities must be numbers, got {priorities.dtype}")
        priorities = priorities.astype(np.float64)
    masses: Floats = np.add(np.absolute(priorities), _FLOOR)
    if not masses.size:
        return masses, 0.0
    np.power(masses, alpha, masses)
    largest = masses.item(masses.argmax())  # of numbers and NaN it is NaN
    if not largest < MOST:  # NaN neither
        at = int(np.argmax(~(masses < MOST)))
        raise ValueError(
            f"priorities must be finite, and to the power of alpha={float(alpha):g} below {MOST:g}, so that their sum "
            f"is finite too; got {priorities[at]} at {at}"
        )
    return masses, largest


def weights_of(masses: Floats, n: int, beta: Any) -> npt.NDArray[np.float32]:
    """(smallest mass of the minibatch / mass)^beta, (B,) for minibatches of n; beta as `masses_of` takes alpha."""
    if len(masses) == n:
        at = masses.argmin()
        shares = np.divide(masses[at : at + 1], masses)
    else:
        by_batch = masses.reshape(-1, n)
        shares = (by_batch.min(axis=1, keepdims=True) / by_batch).reshape(-1)
    np.power(shares, beta, shares)
    return shares.astype(np.float32)


def exponent_of(name: str, value: float) -> npt.NDArray[np.float64]:
    """An exponent as an array without a dimension.

    Raises:
        ValueError: it is no number, negative or not finite.
    """
    if not isinstance(value, Real) or not 0.0 <= value < math.inf:
        raise ValueError(f"{name} must be at least 0 and finite, got {value!r}")
    return np.array(value, np.float64)


def whole_slots(slots: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Slots as they are compared.

    Raises:
        ValueError: they are no integers.
    """
    if slots.size and slots.dtype.kind not in "iu":
        raise ValueError(f"slots must be integers, as a sample's column `slots` has them, got {slots.dtype}")
    return slots.astype(np.int64)
