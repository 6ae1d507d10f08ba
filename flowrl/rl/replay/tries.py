"""Places drawn evenly, each with a level that what stands there must surpass: made some draws in advance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
MOST = 2048  # tries made at once: then a draw of 32 pays little for making them, and they stay in the cache


class Tries:
    """A stream of tries (place, level): places even below `size`, levels even below `bound`, all independent.

    They know nothing of the masses, so that to hold those made against the masses of a later day is as good as to make
    new ones. As long as size and bound stay, each lot is twice the one before; once one has changed, a lot is no more
    than what is asked for.
    """

    def __init__(self) -> None:
        self._places, self._levels, self._at = np.empty(0, np.int64), np.empty(0), 0
        self._size, self._bound = 0, 0.0

    def next(self, rng: np.random.Generator, count: int, size: int, bound: float) -> tuple[Ints, Floats]:
        """The next tries: places (count,) below `size`, levels (count,) below `bound`; not to be written."""
        until = self._at + count
        if until > len(self._places) or size != self._size or bound != self._bound:
            self._make(rng, count, size, bound)
            until = count
        part = slice(self._at, until)
        self._at = until
        return self._places[part], self._levels[part]

    def give_back(self, count: int) -> None:
        """The last `count` tries were not looked at: they come again."""
        self._at -= count

    def _make(self, rng: np.random.Generator, count: int, size: int, bound: float) -> None:
        lasting = size == self._size and bound == self._bound
        count = max(count, min(2 * len(self._places), MOST) if lasting else 0)
        shares = rng.random(2 * count)
        self._places = whole_below(size, shares[:count])
        self._levels = shares[count:] * bound
        self._at, self._size, self._bound = 0, size, bound

    def get_state(self) -> dict[str, Any]:
        """The tries that come next."""
        rest = slice(self._at, None)
        made = len(self._places)
        return {
            "places": self._places[rest].copy(),
            "levels": self._levels[rest].copy(),
            "made": made,
            "size": self._size,
            "bound": self._bound,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state."""
        places, levels = np.asarray(state["places"]), np.asarray(state["levels"])
        self._at = int(state["made"]) - len(places)
        self._places, self._levels = (
            np.concatenate([np.zeros(self._at, each.dtype), each]) for each in (places, levels)
        )
        self._size, self._bound = int(state["size"]), float(state["bound"])


def whole_below(size: int, shares: Floats) -> Ints:
    """Whole numbers below `size` of shares in [0, 1): a fifth of the time that Generator.integers takes for a few."""
    return np.multiply(shares, size).astype(np.int64)
