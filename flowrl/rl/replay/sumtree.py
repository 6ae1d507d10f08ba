"""Sums over a changing array of masses, and random places in proportion to them; NumPy only, no drift."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

FAN_OUT = 32  # places below a sum: a descent takes few calls, and the rows that it adds up stay short
TOP = 4096  # so many sums at most are simply added up from left to right

# Numbers as arrays without a dimension: a ufunc takes them as they are, a Python number costs it another 0.5 µs.
_FAN_OUT = np.array(FAN_OUT)
_NOTHING = np.array(0.0)
_ONES = np.ones(FAN_OUT)  # a sum is a scalar product with them: quicker than a reduction, and row by row the same


class SumTree:
    """Masses at places 0..capacity-1 and, for every FAN_OUT of them, their sum; levels up to at most TOP sums.

    Each sum is added up anew from its children once one of them has changed: rounding errors do not pile up, and the
    sums are a function of the masses alone. That is done when a sum is next asked for, for all that has changed.
    """

    def __init__(self, capacity: int):
        self.capacity = capacity
        counts = [-(-capacity // FAN_OUT)]
        while counts[-1] > TOP:
            counts.append(-(-counts[-1] // FAN_OUT))
        # From the leaves up, each level of as many numbers as the next has sums of FAN_OUT.
        # Filled, so that they take their memory now and other shards on this machine see it.
        self._levels = [np.full(FAN_OUT * count, 0.0) for count in counts] + [np.full(counts[-1], 0.0)]
        self._blocks = [level.reshape(-1, FAN_OUT) for level in self._levels[:-1]]
        self._before = np.zeros(counts[-1] + 1)  # what stands left of each sum of the top level, and at last all
        self._upto = self._before[1:]  # the same, each sum included
        self._all = self._before[-1:].reshape(())  # a view
        self._stale = False
        self._total: float | None = 0.0  # None: to be added up
        self._changed: list[Ints] = []  # places whose sums are to be added up
        self._num_changed = 0
        self._few = capacity // (2 * FAN_OUT)  # of more changed places all sums are added up: in a row that is quicker

    @property
    def leaves(self) -> Floats:
        """The masses (capacity,); not to be written."""
        return self._levels[0][: self.capacity]

    def masses_at(self, places: Ints) -> Floats:
        """The masses (n,) at some places, also at those past the last that `find` may lead to, which are 0."""
        return self._levels[0].take(places)

    @property
    def nbytes(self) -> int:
        """The bytes of masses and sums."""
        return sum(array.nbytes for array in (*self._levels, self._before))

    @property
    def total(self) -> float:
        """The sum of all masses."""
        if self._total is None:
            self._add_up()
            self._total = float(np.add.reduce(self._levels[-1]))
        return self._total

    def put(self, places: Ints, masses: npt.ArrayLike) -> None:
        """Sets the masses at some places; of a place that comes twice, the last counts."""
        self._levels[0][places] = masses
        self._total = None
        if self._num_changed <= self._few:
            self._changed.append(places)
            self._num_changed += len(places)

    def _add_up(self) -> None:
        """Adds up the sums over places that have changed."""
        if not self._num_changed:
            return
        if self._num_changed > self._few:
            self._add_up_range(0, self.capacity)
        else:
            at = self._changed[0] if len(self._changed) == 1 else np.concatenate(self._changed)
            for block, above in zip(self._blocks, self._levels[1:], strict=True):
                at = np.floor_divide(at, _FAN_OUT)
                above[at] = np.vecdot(block.take(at, axis=0), _ONES)
        self._changed, self._num_changed, self._stale = [], 0, True

    def put_range(self, start: int, stop: int, masses: npt.ArrayLike) -> None:
        """Sets the masses at start..stop-1."""
        if stop <= start:
            return
        self._levels[0][start:stop] = masses
        self._add_up_range(start, stop)
        self._stale, self._total = True, None

    def _add_up_range(self, start: int, stop: int) -> None:
        first, last = start, stop - 1
        for block, above in zip(self._blocks, self._levels[1:], strict=True):
            first, last = first // FAN_OUT, last // FAN_OUT
            np.vecdot(block[first : last + 1], _ONES, out=above[first : last + 1])

    def find(self, shares: Floats) -> Ints:
        """The places (n,) at which the running sum passes `shares` · total, for shares (n,) in [0, 1).

        With uniform shares a place comes up with probability mass / total. Rounding may, once in some 2^50 shares,
        lead past the last mass of a block, to a place that may be empty: who draws looks for that.
        """
        self._add_up()
        upto = self._refreshed()
        targets = shares * self._all  # below the total: a share is at most 1 - 2**-53
        at: Ints = upto.searchsorted(targets, "right")
        targets -= self._before.take(at)
        for level in range(len(self._blocks) - 1, -1, -1):
            sums = self._blocks[level].take(at, axis=0)
            first = sums[:, 0]
            np.subtract(first, targets, first)
            np.add.accumulate(sums, 1, None, sums)  # less the targets: the first above 0 has passed its own
            inside = np.greater(sums, _NOTHING).argmax(1)
            np.multiply(at, _FAN_OUT, at)
            np.add(at, inside, at)
            if level:
                targets = self._levels[level].take(at) - sums[np.arange(len(at)), inside]
        return at

    def _refreshed(self) -> Floats:
        if self._stale:
            np.add.accumulate(self._levels[-1], out=self._upto)
            self._stale = False
        return self._upto
