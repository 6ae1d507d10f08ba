"""Frames that rows refer to: each stored once, freed when the last row that refers to it has gone."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from flowrl.rl.replay.memory import Memory

Array = npt.NDArray[Any]
Ids = npt.NDArray[np.int32]
UNUSED = -1
FRAME_EXTRA = 12  # bytes that are kept beside each frame


class Frames:
    """A pool of frames (F, elements) by id, which grows as it must.

    `last_row[id]` is the number of the newest row that refers to a frame: rows go in order, so that it is free once
    that row has gone.
    """

    def __init__(self, memory: Memory, name: str, count: int, elements: int, dtype: np.dtype[Any]):
        self._memory, self._name = memory, name
        self.array = memory.empty(name, (count, elements), dtype)
        self.last_row = np.full(count, UNUSED, np.int64)
        self._free = np.empty(count, np.int32)
        self._freed = 0  # how many of `_free` are ids
        self._fresh = 0  # ids from here on were never given

    @property
    def nbytes(self) -> int:
        """The bytes of the pool."""
        return int(self.array.nbytes + self.last_row.nbytes + self._free.nbytes)

    @property
    def in_use(self) -> int:
        """How many frames are stored."""
        return self._fresh - self._freed

    def take(self, count: int) -> Ids:
        """Ids (count,) of frames to be written."""
        again = min(count, self._freed)
        self._freed -= again
        given = self._free[self._freed : self._freed + again].copy()
        if again == count:
            return given
        first, self._fresh = self._fresh, self._fresh + count - again
        if self._fresh > len(self.array):
            self._grow(max(self._fresh, len(self.array) + len(self.array) // 16))
        return np.concatenate([given, np.arange(first, self._fresh, dtype=np.int32)])

    def release(self, ids: Ids, oldest: int) -> None:
        """Frees those of the ids that no row from number `oldest` on refers to."""
        last = self.last_row[ids]
        gone = np.unique(ids[(last < oldest) & (last != UNUSED)])
        self.last_row[gone] = UNUSED
        self._free[self._freed : self._freed + len(gone)] = gone
        self._freed += len(gone)

    def _grow(self, count: int) -> None:
        before = len(self.array)
        size = (count - before) * (self.array.strides[0] + FRAME_EXTRA)
        self._memory.promise({f"more of {self._name}": size}, more=True)
        self.array = self._memory.longer(self._name, self.array, count)
        self.last_row = np.concatenate([self.last_row, np.full(count - before, UNUSED, np.int64)])
        self._free = np.concatenate([self._free, np.empty(count - before, np.int32)])
