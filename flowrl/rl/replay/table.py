"""Columns of a fixed number of rows, written round and round: the newest `capacity` rows stay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from flowrl.batch import Batch
from flowrl.rl.replay.kinds import Grid, Kind, frames_needed, linked_kinds, row_bytes
from flowrl.rl.replay.linked import Linked
from flowrl.rl.replay.memory import Memory
from flowrl.rl.replay.rows import check_same, flat_rows

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]


class Table:
    """Columns in a ring: row number r, counted from the first ever written, stands at place r % capacity.

    `head` counts the rows ever written. What the columns are, and their dtypes and row shapes, the first batch with a
    valid row says.

    frame_stack: how many frames an observation is a stack of, along its first axis; None: as the first batch shows.
    alone: whether batches that follow each other come here, and not to other shards in turn.
    """

    def __init__(
        self,
        capacity: int,
        memory: Memory | None = None,
        *,
        frame_stack: int | None = None,
        alone: bool = True,
    ):
        self.capacity, self.head = capacity, 0
        self._memory = Memory() if memory is None else memory
        self._frame_stack, self._alone = frame_stack, alone
        self._kinds: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
        self._plain: dict[str, Array] = {}
        self._linked: list[Linked] = []

    @property
    def size(self) -> int:
        """The rows that are there."""
        return min(self.head, self.capacity)

    @property
    def nbytes(self) -> int:
        """The bytes of all columns, those of rows yet to come included."""
        plain = sum(ring.nbytes for ring in self._plain.values())
        return plain + sum(linked.nbytes for linked in self._linked)

    def write(self, batch: Batch, columns: Mapping[str, Array]) -> int:
        """Appends the valid rows of a batch, by time and then environment; returns how many.

        Of more than fit the last stay, numbered as if all had been written.

        Raises:
            ValueError: other columns than those of the first batch.
            MemoryError: the first batch's columns need more memory than is free and other shards leave.
        """
        valid = batch.get("valid")
        all_valid = valid is None or bool(valid.all())
        total = batch.rows if all_valid else batch.env_steps
        keep = None
        if not all_valid or total > self.capacity:
            keep = np.arange(batch.rows) if all_valid else np.flatnonzero(batch.valid)
            keep = keep[-self.capacity :]
        if not self._kinds:
            if not total:  # nothing to learn from it what the columns are like
                return 0
            self._make(batch, columns, keep)
        check_same(columns, len(batch.leading), self._kinds)
        kept = total if keep is None else len(keep)
        if kept:
            first = self.head + total - kept
            start = first % self.capacity
            for name, ring in self._plain.items():
                _put(ring, start, flat_rows(columns[name], batch, keep))
            if self._linked:
                self._write_linked(batch, columns, keep, first, kept)
            if self.head < self.capacity:
                self._memory.filled(min(1.0, (self.head + total) / self.capacity))
            self.head += total
        return total

    def _write_linked(self, batch: Batch, columns: Mapping[str, Array], keep: Any, first: int, kept: int) -> None:
        oldest = first + kept - self.capacity
        gone = np.arange(max(0, self.head - self.capacity), min(self.head, oldest))
        places = np.arange(first, first + kept) % self.capacity
        for linked in self._linked:
            if len(gone):
                linked.evict(gone % self.capacity, oldest)
            grid = Grid.of(linked.kind, batch, columns, keep)
            linked.write(grid, places, first, max(0, oldest))

    def _make(self, batch: Batch, columns: Mapping[str, Array], keep: Any) -> None:
        depth = len(batch.leading)
        kinds = {name: (array.dtype, array.shape[depth:]) for name, array in columns.items()}
        linked = []
        for kind in linked_kinds(batch, columns, self._frame_stack):
            grid = Grid.of(kind, batch, columns, keep)
            linked.append((kind, frames_needed(kind, grid, self.capacity, alone=self._alone)))
        self._allocate(kinds, linked)

    def _allocate(self, kinds: Mapping[str, Any], linked: list[tuple[Kind, int]]) -> None:
        names = {name for kind, _ in linked for name in (kind.name, kind.following)}
        plain = {name: kind for name, kind in kinds.items() if name not in names}
        sizes = {name: self.capacity * row_bytes(dtype, shape) for name, (dtype, shape) in plain.items()}
        sizes |= {kind.name: Linked.size(kind, self.capacity, frames) for kind, frames in linked}
        self._memory.promise(sizes)
        self._kinds = dict(kinds)
        self._plain = {n: self._memory.empty(n, (self.capacity, *shape), dtype) for n, (dtype, shape) in plain.items()}
        self._linked = [Linked(kind, self.capacity, frames, self._memory) for kind, frames in linked]

    def read(self, places: Places) -> dict[str, Array]:
        """Copies of the rows (n, ...) at these places, by column."""
        columns = {name: ring.take(places, 0) for name, ring in self._plain.items()}
        for linked in self._linked:
            columns |= linked.read(places)
        return columns

    def numbers(self, places: Places) -> Places:
        """The numbers of the rows at these places."""
        newest = self.head - 1
        return newest - (newest - places) % self.capacity

    def get_state(self) -> dict[str, Any]:
        """The rows that are there, by column."""
        size = self.size
        return {
            "head": self.head,
            "plain": {name: np.array(ring[:size]) for name, ring in self._plain.items()},
            "linked": {linked.kind.name: linked.get_state(size) for linked in self._linked},
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state."""
        plain = {name: np.asarray(array) for name, array in state["plain"].items()}
        kinds: dict[str, Any] = {name: (array.dtype, array.shape[1:]) for name, array in plain.items()}
        linked = []
        for name, part in state["linked"].items():
            frames, shape = np.asarray(part["frames"]), tuple(int(n) for n in part["shape"])
            names = list(part["ids"])
            following = next((other for other in names if other != name), None)
            kind = Kind(name, following, frames.dtype, shape, np.asarray(part["ids"][name]).shape[1])
            kinds |= {each: (frames.dtype, shape) for each in names}
            linked.append((kind, max(len(frames), self.capacity) + 1))
        self._allocate(kinds, linked)
        for name, array in plain.items():
            self._plain[name][: len(array)] = array
        for each in self._linked:
            each.set_state(state["linked"][each.kind.name])
        self.head = int(state["head"])
        self._memory.filled(self.size / self.capacity)


def _put(ring: Array, start: int, rows: Array) -> None:
    before_end = min(len(rows), len(ring) - start)
    ring[start : start + before_end] = rows[:before_end]
    if before_end < len(rows):
        ring[: len(rows) - before_end] = rows[before_end:]
