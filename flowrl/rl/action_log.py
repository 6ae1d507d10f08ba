"""The actions since environments were reset, kept by reference, so that what led to a fault can be played again."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
MOST_BYTES = 4 * 2**20  # of actions; then the oldest are forgotten


class ActionLog:
    """Actions and ends of the filled fragments since the last seeded reset, or the newest of them.

    at_step: the worker's step at that reset; None where the log does not go back to it.
    """

    def __init__(self) -> None:
        self._filled: deque[tuple[Array, Array, Array]] = deque()
        self._bytes = 0
        self.at_step: int | None = None

    def begin(self, at_step: int) -> None:
        """New episodes begin everywhere."""
        self.forget()
        self.at_step = at_step

    def forget(self) -> None:
        """What was played is not known."""
        self._filled.clear()
        self._bytes, self.at_step = 0, None

    def add(self, actions_TN: Array, terminated_TN: Array, truncated_TN: Array) -> None:
        """A fragment was filled. The arrays must not change from now on."""
        self._filled.append((actions_TN, terminated_TN, truncated_TN))
        self._bytes += actions_TN.nbytes
        while self._bytes > MOST_BYTES and len(self._filled) > 1:
            self._bytes -= self._filled.popleft()[0].nbytes
            self.at_step = None

    def rows(self, env: int | None, actions_KN: Array, done_KN: Array) -> tuple[Array, Array]:
        """Stored actions (R, M, ...) and whether each ended an episode (R, M), those given behind the log's own.

        env: M is this one environment; None: all.
        """
        which = slice(None) if env is None else slice(env, env + 1)
        actions = [actions[:, which] for actions, _, _ in self._filled]
        done = [terminated[:, which] | truncated[:, which] for _, terminated, truncated in self._filled]
        return np.concatenate([*actions, actions_KN[:, which]]), np.concatenate([*done, done_KN[:, which]])


def episode_of(done_R: Array, row: int, *, phantom_rows: bool) -> tuple[int | None, int]:
    """Where the episode of a row begins, and the row's step in it from 1.

    None: it begins before the first row, or the row only resets.
    """
    ends = np.flatnonzero(done_R[:row])
    if not len(ends):
        return None, row + 1
    begins = int(ends[-1]) + (2 if phantom_rows else 1)
    return begins, row + 1 - begins
