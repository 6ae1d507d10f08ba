"""Sums over a changing array of masses, and random places in proportion to them; NumPy only, no drift."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

FAN_OUT = 32  # places below a sum: a descent takes few calls, and the rows that it adds up stay short
TOP = 4096  # so many sums at most are simply added up from left to right


class SumTree:
    """Masses at places 0..capacity-1 and, for every FAN_OUT of them, their sum; levels up to at most TOP sums.

    Each sum is added up anew from its children whenever one of them changes: rounding errors do not pile up, and the
    sums are a function of the masses alone.
    """

    def __init__(self, capacity: int):
        self.capacity = capacity
        counts = [-(-capacity // FAN_OUT)]
        while counts[-1] > TOP:
            counts.append(-(-counts[-1] // FAN_OUT))
        # From the leaves up, each level of as many numbers as the next has sums of FAN_OUT.
        self._levels = [np.zeros(FAN_OUT * count) for count in counts] + [np.zeros(counts[-1])]
        self._blocks = [level.reshape(-1, FAN_OUT) for level in self._levels[:-1]]
        self._before = np.zeros(counts[-1] + 1)  # what stands left of each sum of the top level, and at last all
        self._upto = self._before[1:]  # the same, each sum included
        self._stale = False

    @property
    def leaves(self) -> Floats:
        """The masses (capacity,); not to be written."""
        return self._levels[0][: self.capacity]

    @property
    def nbytes(self) -> int:
        """The bytes of masses and sums."""
        return sum(array.nbytes for array in (*self._levels, self._before))

    @property
    def total(self) -> float:
        """The sum of all masses."""
        return float(self._refreshed()[-1])

    def put(self, places: Ints, masses: npt.ArrayLike) -> None:
        """Sets the masses at some places; of a place that comes twice, the last counts."""
        self._levels[0][places] = masses
        at = places
        for block, above in zip(self._blocks, self._levels[1:], strict=True):
            at = at // FAN_OUT
            above[at] = np.add.reduce(block.take(at, axis=0), axis=1)
        self._stale = True

    def put_range(self, start: int, stop: int, masses: npt.ArrayLike) -> None:
        """Sets the masses at start..stop-1."""
        if stop <= start:
            return
        self._levels[0][start:stop] = masses
        first, last = start, stop - 1
        for block, above in zip(self._blocks, self._levels[1:], strict=True):
            first, last = first // FAN_OUT, last // FAN_OUT
            np.add.reduce(block[first : last + 1], axis=1, out=above[first : last + 1])
        self._stale = True

    def find(self, shares: Floats) -> Ints:
        """The places (n,) at which the running sum passes `shares` · total, for shares (n,) in [0, 1).

        With uniform shares a place comes up with probability mass / total. Rounding may, once in some 2^50 shares,
        lead past the last mass of a block, to a place that may be empty: who draws looks for that.
        """
        upto = self._refreshed()
        targets = shares * float(upto[-1])  # below the total: a share is at most 1 - 2**-53
        at: Ints = upto.searchsorted(targets, "right")
        targets -= self._before.take(at)
        for level in range(len(self._blocks) - 1, -1, -1):
            children = self._blocks[level].take(at, axis=0)
            sums = np.add.accumulate(children, axis=1)
            inside = (sums > targets[:, None]).argmax(axis=1)
            at *= FAN_OUT
            at += inside
            if level:
                rows = np.arange(len(at))
                targets -= sums[rows, inside] - children[rows, inside]
        return at

    def _refreshed(self) -> Floats:
        if self._stale:
            np.add.accumulate(self._levels[-1], out=self._upto)
            self._stale = False
        return self._upto
