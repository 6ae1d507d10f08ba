"""Columns of a fixed number of rows, written round and round: the newest `capacity` rows stay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from flowrl.batch import Batch
from flowrl.rl.replay.rows import check_same, flat_rows

Array = npt.NDArray[Any]
Places = npt.NDArray[np.int64]


class Table:
    """Columns in a ring: row number r, counted from the first ever written, stands at place r % capacity.

    `head` counts the rows ever written. What the columns are, and their dtypes and row shapes, the first batch says.
    """

    def __init__(self, capacity: int):
        self.capacity, self.head = capacity, 0
        self._kinds: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
        self._plain: dict[str, Array] = {}

    @property
    def size(self) -> int:
        """The rows that are there."""
        return min(self.head, self.capacity)

    @property
    def nbytes(self) -> int:
        """The bytes of all columns, rows yet to come included."""
        return sum(array.nbytes for array in self._plain.values())

    def write(self, batch: Batch, columns: Mapping[str, Array], keep: npt.NDArray[np.intp] | None) -> int:
        """Appends the rows of a batch (`keep`: only those of its flat ones); returns how many.

        Raises:
            ValueError: other columns than those of the first batch.
        """
        depth = len(batch.leading)
        if not self._kinds:
            self._make({name: (array.dtype, array.shape[depth:]) for name, array in columns.items()})
        check_same(columns, depth, self._kinds)
        count = batch.rows if keep is None else len(keep)
        for name, array in columns.items():
            self._put(self._plain[name], flat_rows(array, batch, keep))
        self.head += count
        return count

    def _make(self, kinds: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]) -> None:
        self._kinds = dict(kinds)
        self._plain = {name: np.empty((self.capacity, *shape), dtype) for name, (dtype, shape) in kinds.items()}

    def _put(self, ring: Array, rows: Array) -> None:
        rows = rows[-self.capacity :]
        start = (self.head + max(0, len(rows) - self.capacity)) % self.capacity
        before_end = min(len(rows), self.capacity - start)
        ring[start : start + before_end] = rows[:before_end]
        ring[: len(rows) - before_end] = rows[before_end:]

    def read(self, places: Places) -> dict[str, Array]:
        """Copies of the rows (n, ...) at these places, by column."""
        return {name: ring.take(places, axis=0) for name, ring in self._plain.items()}

    def numbers(self, places: Places) -> Places:
        """The numbers of the rows at these places."""
        newest = self.head - 1
        return newest - (newest - places) % self.capacity

    def get_state(self) -> dict[str, Any]:
        """The rows that are there, by column."""
        size = self.size
        return {"head": self.head, "columns": {name: ring[:size].copy() for name, ring in self._plain.items()}}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state."""
        columns = {name: np.asarray(array) for name, array in state["columns"].items()}
        self._make({name: (array.dtype, array.shape[1:]) for name, array in columns.items()})
        for name, array in columns.items():
            self._plain[name][: len(array)] = array
        self.head = int(state["head"])
