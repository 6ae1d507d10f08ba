"""An observation column and that of what followed, in a ring of references to frames that are stored once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from flowrl.rl.replay.frames import FRAME_EXTRA, Frames, Ids
from flowrl.rl.replay.kinds import Grid, Kind
from flowrl.rl.replay.links import Array, Bools, Windows, windows_of
from flowrl.rl.replay.memory import Memory

Places = npt.NDArray[np.int64]
REMEMBERED = 4096  # frames of next observations that observations of later batches may show


class Linked:
    """Rows of `obs` and `next_obs` as windows of frames, in a ring of `capacity` rows.

    A frame is stored once, wherever it comes again: in a stack that moves on, as a next observation, and as the first
    observation of a batch that goes on where an earlier one ended. It is freed with the last row that refers to it.
    """

    def __init__(self, kind: Kind, capacity: int, frames: int, memory: Memory):
        self.kind, self.capacity = kind, capacity
        self.frames = Frames(memory, kind.name, frames, kind.elements, kind.dtype)
        self._ids: dict[str, Ids] = {
            name: np.empty((capacity, kind.stack), np.int32) for name in (kind.name, kind.following) if name is not None
        }
        self._lag = 1
        self._recent: OrderedDict[int, int] = OrderedDict()  # frames by the hash of their bytes

    @staticmethod
    def size(kind: Kind, capacity: int, frames: int) -> int:
        """The bytes that such a column takes with so many frames."""
        columns = 1 if kind.following is None else 2
        return frames * (kind.elements * kind.dtype.itemsize + FRAME_EXTRA) + columns * capacity * kind.stack * 4

    @property
    def nbytes(self) -> int:
        """The bytes of frames and references."""
        return self.frames.nbytes + sum(ids.nbytes for ids in self._ids.values())

    def evict(self, places: Places, oldest: int) -> None:
        """The rows at these places go; those from number `oldest` on stay."""
        ids = [ring[places].reshape(-1) for ring in self._ids.values()]
        self.frames.release(np.concatenate(ids), oldest)

    def write(self, grid: Grid, places: Places, first: int, oldest: int) -> None:
        """Puts the rows to be stored of a batch at these places, as rows number `first` and on."""
        kind, stored_TN = self.kind, grid.stored_TN
        obs_TN = grid.columns[kind.name]
        next_TN = None if kind.following is None else grid.columns[kind.following]
        windows, self._lag = windows_of(obs_TN, next_TN, grid.valid_TN, kind.stack, self._lag)
        known = self._known(windows, obs_TN, next_TN, oldest)
        new = np.flatnonzero(windows.used(stored_TN) & (known < 0))
        known[new] = self._put(windows.source[new], obs_TN, next_TN)
        rows = np.arange(first, first + len(places))
        for name, at_TN in ((kind.name, windows.obs_at), (kind.following, windows.next_at)):
            if name is not None and at_TN is not None:
                ids = known[at_TN[stored_TN]]
                self._ids[name][places] = ids
                np.maximum.at(self.frames.last_row, ids, rows[:, None])
        if next_TN is not None:
            self._remember(windows, known, next_TN, stored_TN)

    def _put(self, source: npt.NDArray[np.int64], obs_TN: Array, next_TN: Array | None) -> Ids:
        ids = self.frames.take(len(source))
        size = obs_TN.size // self.kind.elements
        for array, mine, offset in ((obs_TN, source < size, 0), (next_TN, source >= size, size)):
            if array is not None:
                self.frames.array[ids[mine]] = array.reshape(-1, self.kind.elements)[source[mine] - offset]
        return ids

    def _known(self, windows: Windows, obs_TN: Array, next_TN: Array | None, oldest: int) -> Ids:
        """(L,) the ids of those frames of the batch that an earlier one brought; -1 for the others."""
        known = np.full(len(windows.source), -1, np.int32)
        if not self._recent or next_TN is None or windows.next_at is None:
            return known
        for n in range(obs_TN.shape[1]):
            for t in range(len(obs_TN)):  # as far as this one goes on where an earlier one ended
                self._recall(known, windows.obs_at[t, n], obs_TN[t, n], oldest)
                if known[windows.obs_at[t, n, -1]] < 0:
                    break
        for t, n in windows.tails:
            self._recall(known, windows.next_at[t, n], next_TN[t, n], oldest)
        return known

    def _recall(self, known: Ids, at: Places, row: Array, oldest: int) -> None:
        for place, frame in zip(at.tolist(), row.reshape(self.kind.stack, -1), strict=True):
            if known[place] < 0:
                data = frame.tobytes()
                found = self._recent.get(hash(data), -1)
                if found >= 0 and self.frames.last_row[found] >= oldest and self.frames.array[found].tobytes() == data:
                    known[place] = found

    def _remember(self, windows: Windows, known: Ids, next_TN: Array, stored_TN: Bools) -> None:
        assert windows.next_at is not None
        for t, n in windows.tails:
            if stored_TN[t, n]:
                for place, frame in zip(
                    windows.next_at[t, n].tolist(), next_TN[t, n].reshape(self.kind.stack, -1), strict=True
                ):
                    key = hash(frame.tobytes())
                    self._recent[key] = int(known[place])
                    self._recent.move_to_end(key)
        while len(self._recent) > max(REMEMBERED, len(windows.tails) * self.kind.stack):
            self._recent.popitem(last=False)

    def read(self, places: Places) -> dict[str, Array]:
        """Copies of the rows (n, ...) at these places, by column."""
        return {
            name: self.frames.array.take(ring.take(places, axis=0).reshape(-1), axis=0).reshape(-1, *self.kind.shape)
            for name, ring in self._ids.items()
        }

    def get_state(self, size: int) -> dict[str, Any]:
        """The frames that the first `size` places refer to, and the references."""
        ids = {name: ring[:size] for name, ring in self._ids.items()}
        used, renumbered = np.unique(np.concatenate([each.reshape(-1) for each in ids.values()]), return_inverse=True)
        parts = np.split(renumbered.astype(np.int32), np.cumsum([each.size for each in ids.values()])[:-1])
        return {
            "frames": self.frames.array[used],
            "last_row": self.frames.last_row[used],
            "lag": self._lag,
            "shape": list(self.kind.shape),
            "ids": {name: part.reshape(ids[name].shape) for name, part in zip(ids, parts, strict=True)},
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state; what an earlier batch ended with is not looked for in the next."""
        frames = np.asarray(state["frames"])
        given = self.frames.take(len(frames))
        self.frames.array[given] = frames
        self.frames.last_row[given] = np.asarray(state["last_row"])
        for name, ids in state["ids"].items():
            self._ids[name][: len(ids)] = given[np.asarray(ids)]
        self._lag = int(state["lag"])
