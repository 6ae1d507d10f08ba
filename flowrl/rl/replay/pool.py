"""The items of a replay shard as numbers: which are there, how probable each is, how often each may still be drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from flowrl.rl.replay.sumtree import SumTree
from flowrl.rl.replay.tries import Tries, whole_below

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
GONE = -1
RARE = 0.1  # below this share of places worth a draw, looking for one in the tree is quicker than trying some


class Pool:
    """Items in a ring: item number i, counted from the first ever put in, has place i % capacity.

    prioritized: whether items have masses of their own; else each counts the same.
    fifo: whether the oldest are drawn first, each as often as it may be, before the next.
    times: how often an item may be drawn before it goes; None: without limit.
    scattered: whether items may go in another order than they came.
    """

    def __init__(self, capacity: int, *, prioritized: bool, fifo: bool, times: int | None, scattered: bool):
        self.capacity, self.head, self.live = capacity, 0, 0
        self.prioritized, self.fifo, self.times = prioritized, fifo, times
        self._in_order = times is None and not scattered  # items go only to make room
        self.slots: Ints = np.full(capacity, GONE, np.int64)  # of the item at each place
        weighed = prioritized or ((times is not None or scattered) and not fifo)
        self.tree = SumTree(capacity) if weighed else None
        self.left = None if times is None else np.full(capacity, 0)
        self._places = np.array(capacity)  # so np.remainder takes it more quickly
        self._next = 0  # fifo: no item before this number is there
        self._largest: float | None = 1.0  # None: to be found out
        self._bound = 1.0  # no mass is larger; `_written` masses have changed since it was that of an item
        self._written = 0
        self._tries = Tries()
        self._share, self._looked = 0.0, -1  # the share of places worth a draw, as of so many masses written

    @staticmethod
    def size(capacity: int) -> int:
        """The bytes that a pool takes, at most."""
        return capacity * 25

    @property
    def mass(self) -> float:
        """The sum of what items are drawn in proportion to: of their masses, or of 1 each."""
        return float(self.live) if self.tree is None else self.tree.total

    def put(self, count: int, masses: Floats | None, largest: float = 0.0) -> int:
        """Appends items; returns how often those that must make room could still have been drawn.

        Of more than fit the last stay. Without masses they get the largest one there is.

        largest: of the masses.
        """
        kept = min(count, self.capacity)
        self.head += count
        slots = np.arange(self.head - kept, self.head)
        fresh = self._fresh() if masses is None else masses[-kept:]
        forgone = 0 if self.times is None else (count - kept) * self.times
        done, start = 0, int(slots[0]) % self.capacity
        for first, stop in ((start, min(start + kept, self.capacity)), (0, start + kept - self.capacity)):
            if stop <= first:
                continue
            part = slice(first, stop)
            if not self._in_order:
                self.live += stop - first - int(np.count_nonzero(self.slots[part] != GONE))
            self.slots[part] = slots[done : done + stop - first]
            if self.left is not None and self.times is not None:
                forgone += int(self.left[part].sum())
                self.left[part] = self.times
            if self.tree is not None:
                self.tree.put_range(first, stop, fresh[done : done + stop - first] if np.ndim(fresh) else fresh)
            done += stop - first
        if self._in_order:
            self.live = min(self.head, self.capacity)
        if masses is not None:
            self._noticed(largest if kept == count else float(fresh.max()), kept)
        return forgone

    def _fresh(self) -> Any:
        if not self.prioritized or self.tree is None:
            return 1.0
        return self._find_largest() if self._largest is None else self._largest

    def _find_largest(self) -> float:
        assert self.tree is not None
        self._largest = self._bound = float(self.tree.leaves.max()) or 1.0
        self._written = 0
        return self._largest

    def _noticed(self, highest: float, count: int) -> None:
        """New masses stand in place of others: the largest is theirs, or is to be found out when it is wanted."""
        self._largest = highest if self._largest is not None and highest >= self._largest else None
        if highest > self._bound:
            self._bound, self._looked = highest, -1
        self._written += count

    def remove(self, places: Ints) -> None:
        """Items go."""
        self.live -= int(np.count_nonzero(self.slots[places] != GONE))
        self.slots[places] = GONE
        if self.left is not None:
            self.left[places] = 0
        if self.tree is not None:
            self.tree.put(places, 0.0)
        self._largest = None
        self._written += len(places)

    def draw(self, rng: np.random.Generator, n: int) -> tuple[Ints, Ints, Floats | None]:
        """The places of n random items, their numbers, and their masses, where they have some.

        Raises:
            ValueError: there is none, or so many draws are not left.
        """
        if not self.live:
            raise ValueError("this replay shard holds nothing that can be drawn; add a batch before you sample")
        if self.left is not None:
            return self._limited(rng, n)
        places, masses = self._drawn(rng, n)
        return places, self.slots.take(places), masses

    def _drawn(self, rng: np.random.Generator, n: int) -> tuple[Ints, Floats | None]:
        size = min(self.head, self.capacity)
        if self.tree is None:
            return whole_below(size, rng.random(n)), None
        share = self._share if 0 <= self._written - self._looked < size // 32 else self._look(size)
        places, masses = self._tried(rng, n, size, share) if share >= RARE else self._found(rng, n)
        return places, masses if self.prioritized else None

    def _look(self, size: int) -> float:
        """The share of places worth a draw, which says how many to try; it is looked at again once a 32nd has changed.

        So little changes it by a 32nd at the most, unless the bound rises.
        """
        assert self.tree is not None
        share = self.tree.total / (size * self._bound)
        if share < RARE and self._written > size // 16:
            self._find_largest()
            share = self.tree.total / (size * self._bound)
        self._share, self._looked = share, self._written
        return share

    def _tried(self, rng: np.random.Generator, n: int, size: int, share: float) -> tuple[Ints, Floats]:
        """Places drawn evenly, each kept with probability mass / bound: exactly as probable as their masses say.

        share: of the places that will be kept.
        """
        assert self.tree is not None
        count = int((n + 2.0 * math.sqrt(n) + 2.0) / share)  # in nearly all cases enough
        places, levels = self._tries.next(rng, count, size, self._bound)
        masses = self.tree.masses_at(places)
        kept = np.less(levels, masses).nonzero()[0]
        if len(kept) >= n:
            kept = kept[:n]
            self._tries.give_back(count - 1 - kept.item(n - 1))
            return places.take(kept), masses.take(kept)
        more, their_masses = self._tried(rng, n - len(kept), size, share)
        return np.concatenate([places[kept], more]), np.concatenate([masses[kept], their_masses])

    def _found(self, rng: np.random.Generator, n: int) -> tuple[Ints, Floats]:
        assert self.tree is not None
        places = self.tree.find(rng.random(n))
        masses = self.tree.masses_at(places)
        while not masses[masses.argmin()] > 0.0:  # see SumTree.find: as good as never
            empty = np.flatnonzero(masses <= 0.0)
            places[empty] = self.tree.find(rng.random(len(empty)))
            masses = self.tree.masses_at(places)
        return places, masses

    def _limited(self, rng: np.random.Generator, n: int) -> tuple[Ints, Ints, Floats | None]:
        assert self.left is not None
        if (have := int(self.left.sum())) < n:
            raise ValueError(
                f"{n} draws were asked for, and the {self.live} items of this replay shard have {have} left "
                f"(max_times_sampled={self.times})"
            )
        if self.fifo:
            places, slots = self._oldest(n)
            self._used(places)
            return places, slots, None
        found: list[tuple[Ints, Ints]] = []
        masses: list[Floats] = []
        while n:
            places, weighed = self._drawn(rng, n)
            fits = _occurrence(places) < self.left[places]  # of an item that comes too often, the first ones count
            places = places[fits]
            found.append((places, self.slots.take(places)))
            masses += [] if weighed is None else [weighed[fits]]
            n -= len(places)
            self._used(places)
        all_places, all_slots = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return all_places, all_slots, np.concatenate(masses) if masses else None

    def _oldest(self, n: int) -> tuple[Ints, Ints]:
        assert self.left is not None
        found: list[Ints] = []
        number = self._next = max(self._next, self.head - self.capacity)
        while n:
            places = np.arange(number, min(self.head, number + n)) % self.capacity
            drawn = np.repeat(places, self.left[places])[:n]
            found.append(drawn)
            n, number = n - len(drawn), number + len(places)
        places = np.concatenate(found)
        slots = self.slots.take(places)
        self._next = int(slots[-1])
        return places, slots

    def _used(self, places: Ints) -> None:
        assert self.left is not None
        np.subtract.at(self.left, places, 1)
        done = np.unique(places[self.left[places] == 0])
        if len(done):
            self.remove(done)

    def reweigh(self, slots: Ints, masses: Floats, largest: float) -> int:
        """Gives items new masses, by their numbers; returns how many have gone. Of one that comes twice, the last.

        largest: of the masses.
        """
        late = 0
        if self._in_order and len(slots) and self._all_here(slots):
            # The tree holds on to them. In the first lap a place has its item's number.
            places = np.remainder(slots, self._places) if self.head > self.capacity else slots.copy()
        else:
            places = np.remainder(slots, self._places)
            here = np.equal(self.slots.take(places), slots) & (slots >= 0)
            late = len(slots) - int(np.count_nonzero(here))
            if late:
                places, masses = places[here], masses[here]
                largest = float(masses.max()) if len(masses) else 0.0
        if self.prioritized and self.tree is not None and len(places):
            self.tree.put(places, masses)
            self._noticed(largest, len(places))
            if self._largest == largest and self.tree.leaves[places[masses.argmax()]] < largest:
                self._largest = None  # its item came again, with a smaller mass behind it
        return late

    def _all_here(self, slots: Ints) -> bool:
        """Whether all are among the newest, which is enough where items only go to make room."""
        first, last = slots.item(slots.argmin()), slots.item(slots.argmax())
        return bool(first >= 0 and self.head - self.capacity <= first and last < self.head)

    def get_state(self) -> dict[str, Any]:
        """All that the next draw depends on, but for the random numbers."""
        size = min(self.head, self.capacity)
        return {
            "head": self.head,
            "next": self._next,
            "slots": self.slots[:size].copy(),
            "left": None if self.left is None else self.left[:size].copy(),
            "masses": None if self.tree is None else self.tree.leaves[:size].copy(),
            "bound": self._bound,
            "written": self._written,
            "share": self._share,
            "looked": self._looked,
            "tries": self._tries.get_state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state."""
        slots = np.asarray(state["slots"])
        self.head, self._next, self._largest = int(state["head"]), int(state["next"]), None
        self.slots[:] = GONE
        self.slots[: len(slots)] = slots
        self.live = int(np.count_nonzero(slots != GONE))
        if self.left is not None:
            self.left[:] = 0
            self.left[: len(slots)] = np.asarray(state["left"])
        if self.tree is not None:
            masses = np.zeros(self.capacity)
            masses[: len(slots)] = np.asarray(state["masses"])
            self.tree.put_range(0, self.capacity, masses)
        self._bound, self._written = float(state["bound"]), int(state["written"])
        self._share, self._looked = float(state["share"]), int(state["looked"])
        self._tries = Tries()
        if "tries" in state:
            self._tries.set_state(state["tries"])


def _occurrence(places: Ints) -> Ints:
    """How often the place of each entry came before it."""
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    first = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    counts = np.diff(np.append(first, len(places)))
    before = np.empty(len(places), np.int64)
    before[order] = np.arange(len(places)) - np.repeat(first, counts)
    return before
