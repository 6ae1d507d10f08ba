"""From priorities to masses, and from masses to the weights that make up for an uneven draw (arXiv:1511.05952)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
PRIORITY_FLOOR = 1e-6


def masses_of(priorities: npt.NDArray[Any], alpha: float) -> Floats:
    """(|priority| + 1e-6)^alpha, in proportion to which items are drawn: never 0.

    Raises:
        ValueError: one is not finite, or their sum.
    """
    masses = np.abs(priorities, dtype=np.float64)
    masses += PRIORITY_FLOOR
    masses **= alpha
    if not math.isfinite(np.add.reduce(masses)):
        at = int(np.argmax(~np.isfinite(masses)))
        raise ValueError(f"priorities must be finite, and so must their sum, got {priorities[at]} at {at}")
    return masses


def weights_of(masses: Floats, n: int, beta: float) -> npt.NDArray[np.float32]:
    """(smallest mass of the minibatch / mass)^beta, (B,) for minibatches of n.

    Raises:
        ValueError: beta is negative or not finite.
    """
    if not 0.0 <= beta < math.inf:
        raise ValueError(f"beta must be at least 0 and finite, got {beta!r}")
    if len(masses) == n:
        shares = np.minimum.reduce(masses) / masses
    else:
        by_batch = masses.reshape(-1, n)
        shares = (by_batch.min(axis=1, keepdims=True) / by_batch).reshape(-1)
    shares **= beta
    return shares.astype(np.float32)
