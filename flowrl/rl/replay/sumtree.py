"""Sums over a changing array of masses, and random places in proportion to them; NumPy only, no drift."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

FAN_OUT = 16  # leaves below a node: wide enough that a descent takes few calls, narrow enough that rows stay small
TOP = 8192  # so many sums are simply added up from left to right
BELOW_ONE = 1.0 - 2.0**-53


class SumTree:
    """Masses at places 0..capacity-1 and, for every FAN_OUT of them, their sum; levels up to at most TOP sums.

    Each sum is added up anew from its children whenever one of them changes: rounding errors do not pile up, and the
    sums are a function of the masses alone. `find` answers places of mass above 0 only, exactly so.
    """

    def __init__(self, capacity: int):
        self.capacity = capacity
        counts = [-(-capacity // FAN_OUT) * FAN_OUT]
        while counts[-1] // FAN_OUT > TOP:
            counts.append(-(-(counts[-1] // FAN_OUT) // FAN_OUT) * FAN_OUT)
        self._levels = [np.zeros(count) for count in counts]  # from the leaves up
        self._blocks = [level.reshape(-1, FAN_OUT) for level in self._levels]
        self._top = np.zeros(counts[-1] // FAN_OUT)
        self._running = np.zeros(len(self._top))  # sums of `_top` from the left
        self._stale = False

    @property
    def leaves(self) -> Floats:
        """The masses (capacity,); not to be written."""
        return self._levels[0][: self.capacity]

    @property
    def nbytes(self) -> int:
        """The bytes of masses and sums."""
        return sum(array.nbytes for array in (*self._levels, self._top, self._running))

    @property
    def total(self) -> float:
        """The sum of all masses."""
        return float(self._refreshed()[-1])

    def put(self, places: Ints, masses: npt.ArrayLike) -> None:
        """Sets the masses at some places; of a place that comes twice, the last counts."""
        self._levels[0][places] = masses
        at = places
        for level, block in enumerate(self._blocks):
            at = at // FAN_OUT
            sums = block.take(at, axis=0).sum(axis=1)
            above = self._levels[level + 1] if level + 1 < len(self._levels) else self._top
            above[at] = sums
        self._stale = True

    def put_range(self, start: int, stop: int, masses: npt.ArrayLike) -> None:
        """Sets the masses at start..stop-1."""
        if stop <= start:
            return
        self._levels[0][start:stop] = masses
        first, last = start, stop - 1
        for level, block in enumerate(self._blocks):
            first, last = first // FAN_OUT, last // FAN_OUT
            above = self._levels[level + 1] if level + 1 < len(self._levels) else self._top
            above[first : last + 1] = block[first : last + 1].sum(axis=1)
        self._stale = True

    def find(self, shares: Floats) -> Ints:
        """The places (n,) at which the running sum passes `shares` · total, for shares (n,) in [0, 1).

        With uniform shares a place comes up with probability mass / total.
        """
        running = self._refreshed()
        targets = shares * running[-1]  # below the total: a share is at most 1 - 2**-53
        at = running.searchsorted(targets, "right")
        targets -= running.take(at) - self._top.take(at)
        for block in reversed(self._blocks):
            children = block.take(at, axis=0)
            sums = children.cumsum(axis=1)
            # Below the last sum, so that some child passes it; the first that does has a mass above 0.
            np.minimum(targets, sums[:, -1] * BELOW_ONE, out=targets)
            inside = (sums > targets[:, None]).argmax(axis=1)
            if block is not self._blocks[0]:
                places = np.arange(len(at)), inside
                targets -= sums[places] - children[places]
                np.maximum(targets, 0.0, out=targets)
            at = at * FAN_OUT + inside
        return at

    def _refreshed(self) -> Floats:
        if self._stale:
            np.cumsum(self._top, out=self._running)
            self._stale = False
        return self._running
