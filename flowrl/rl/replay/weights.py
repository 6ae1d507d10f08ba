"""From priorities to masses, and from masses to the weights that make up for an uneven draw (arXiv:1511.05952)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
PRIORITY_FLOOR = 1e-6
_FLOOR = np.array(PRIORITY_FLOOR)


def masses_of(priorities: npt.NDArray[Any], alpha: Any) -> tuple[Floats, float]:
    """(|priority| + 1e-6)^alpha, in proportion to which items are drawn, never 0; and the largest, 0 without any.

    alpha: best as an array without a dimension, which NumPy takes more quickly than a number.

    Raises:
        ValueError: one is not finite, or their sum might not be.
    """
    masses: Floats = np.add(np.absolute(priorities), _FLOOR)
    if not masses.size:
        return masses, 0.0
    np.power(masses, alpha, masses)
    largest = masses.item(masses.argmax())  # of numbers and NaN it is NaN
    if not math.isfinite(largest * masses.size):
        at = int(np.argmax(~np.isfinite(masses)))
        raise ValueError(f"priorities must be finite, and so must their sum, got {priorities[at]} at {at}")
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
        ValueError: it is negative or not finite.
    """
    if not 0.0 <= value < math.inf:
        raise ValueError(f"{name} must be at least 0 and finite, got {value!r}")
    return np.array(value, np.float64)
