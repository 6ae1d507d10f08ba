"""Which frames of a batch are the same: those of stacks that move on by one, and next observations that follow later.

Everything is decided by comparing bytes. T time, N environments, k frames of a stack, W words of a frame. A batch
makes one list of frames an environment: its observations in order and, behind them, the next observations of its last
`lag` steps; an observation is a window of k frames that ends at its newest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
LOOK_BACK = 8  # steps before a batch's end whose next observations the next batch may begin with


@dataclass
class Windows:
    """Where the frames of each row are, as indices into one list of different frames.

    obs_at, next_at: (T, N, k) indices; those of rows that are not to be stored mean nothing.
    source: (L,) for each frame of the list one place where it stands: an index into the frames of all observations
        (T·N·k of them, flat), and from there on into those of all next observations.
    tails: (t, n) of the next observations that no observation of the batch equals and a later one may.
    """

    obs_at: Ints
    next_at: Ints | None
    source: Ints
    tails: list[tuple[int, int]]

    @property
    def at_ends(self) -> int:
        """How many frames this batch shares with those that it goes on from and that go on from it."""
        first = self.obs_at[:, :, 0]
        begun = first.size - np.count_nonzero(first[1:] == first[:-1] + 1)
        ending = np.zeros(len(self.source), np.bool_)
        if self.next_at is not None and self.tails:
            ending[self.next_at[tuple(np.array(self.tails).T)]] = True
        ending[self.obs_at] = False
        return int((self.obs_at.shape[2] - 1) * begun + np.count_nonzero(ending))

    def used(self, stored_TN: Bools) -> Bools:
        """(L,) which frames the stored rows refer to."""
        used = np.zeros(len(self.source), np.bool_)
        used[self.obs_at[stored_TN]] = True
        if self.next_at is not None:
            used[self.next_at[stored_TN]] = True
        return used


def words_of(array: Array, stack: int) -> Array:
    """Observations (T, N, ...) as (T, N, k, W), their bytes in words as wide as fit."""
    array = np.ascontiguousarray(array)
    frames = array.reshape(*array.shape[:2], stack, -1)
    nbytes = frames.shape[-1] * frames.dtype.itemsize
    width = next(size for size in (8, 4, 2, 1) if nbytes % size == 0)
    return frames.view(f"u{width}")


def equal(a: Array, b: Array) -> Bools:
    """Which rows (..., k, W) of two are the same in all bytes."""
    same: Bools = (a == b).all(axis=(-2, -1))
    return same


def find_stack(obs_TN: Array, next_TN: Array | None, valid_TN: Bools) -> int:
    """How many frames each observation (T, N, k, ...) is a stack of; 1 where they do not move on along axis k.

    They do where most observations that follow each other share all frames but one.
    """
    if obs_TN.ndim < 4 or obs_TN.shape[2] < 2:
        return 1
    stack = obs_TN.shape[2]
    obs = words_of(obs_TN, stack)
    moved = [equal(obs[1:, :, :-1], obs[:-1, :, 1:])[valid_TN[:-1] & valid_TN[1:]]]
    if next_TN is not None:
        moved.append(equal(words_of(next_TN, stack)[:, :, :-1], obs[:, :, 1:])[valid_TN])
    return stack if any(len(each) and each.mean() > 0.5 for each in moved) else 1


def find_environments(obs_B: Array, stack: int) -> int:
    """Of how many environments, row by row in turn, the observations (B, 1, ...) of a flat batch are: 1 if unclear."""
    obs = words_of(obs_B, stack)
    if stack == 1 or len(obs) < 2:
        return 1
    following = np.flatnonzero(equal(obs[1:, 0, :-1], obs[0, 0, 1:]))
    envs = int(following[0]) + 1 if len(following) else 1
    return envs if len(obs) % envs == 0 else 1


def find_lag(obs: Array, following: Array, valid_TN: Bools, lag: int) -> int:
    """After how many steps a next observation comes as an observation: `lag` where any does, else as the first say."""
    steps = len(obs)
    if steps < 2:
        return lag
    if lag < steps and equal(following[:-lag], obs[lag:])[valid_TN[:-lag]].any():
        return lag
    for n in range(min(obs.shape[1], 4)):
        for t in np.flatnonzero(valid_TN[:, n])[:2]:
            found = np.flatnonzero(equal(following[t, n], obs[t + 1 :, n]))
            if len(found):
                return int(found[0]) + 1
    return lag


def windows_of(obs_TN: Array, next_TN: Array | None, valid_TN: Bools, stack: int, lag: int) -> tuple[Windows, int]:
    """The windows of a batch, and after how many steps its next observations come as observations."""
    obs = words_of(obs_TN, stack)
    following = None if next_TN is None else words_of(next_TN, stack)
    if following is not None:
        lag = find_lag(obs, following, valid_TN, lag)
    return _find_windows(obs, following, valid_TN, lag), lag


def _find_windows(obs: Array, following: Array | None, valid_TN: Bools, lag: int) -> Windows:
    steps, envs, stack = obs.shape[:3]
    late = 0 if following is None else max(steps - lag, 0)  # the next observations from here on stand in the lists
    extra = 0 if following is None else steps - late
    moved = np.ones((steps + extra, envs), np.bool_)
    moved[0] = False
    if stack > 1:
        moved[1:steps] = equal(obs[1:, :, :-1], obs[:-1, :, 1:])
        if following is not None:
            moved[steps] = equal(following[late, :, :-1], obs[-1, :, 1:])
            moved[steps + 1 :] = equal(following[late + 1 :, :, :-1], following[late:-1, :, 1:])
    counts = np.where(moved, 1, stack)
    newest = counts.cumsum(axis=0) - 1
    newest += np.concatenate([[0], (newest[-1] + 1).cumsum()[:-1]])
    total = int(newest[-1, -1]) + 1
    within = np.arange(1 - stack, 1)
    at = newest[:, :, None] + within  # (T + extra, N, k)
    frame = np.arange(steps * envs * stack).reshape(steps, envs, stack)
    frames = frame if following is None else np.concatenate([frame, frame[late:] + frame.size])
    source = np.empty(total, np.int64)
    source[at[~moved]] = frames[~moved]
    source[newest] = frames[:, :, -1]
    if following is None:
        return Windows(at, None, source, [])

    matched = np.zeros((steps, envs), np.bool_)
    matched[:late] = equal(following[:late], obs[lag:]) if late else False
    matched[late:] = moved[steps:] | (stack == 1)
    next_at = np.concatenate([at[lag:steps], at[steps:]]) if late else at[steps:].copy()
    loose = _loose(obs, following, valid_TN & ~matched, at, total, frame)
    next_at[loose.t, loose.n] = loose.at
    tail_n, tail_t = np.nonzero((valid_TN & matched)[late:].T)
    near = loose.ends_t >= steps - LOOK_BACK
    tails = [*zip((tail_t + late).tolist(), tail_n.tolist(), strict=True)]
    tails += zip(loose.ends_t[near].tolist(), loose.ends_n[near].tolist(), strict=True)
    return Windows(at[:steps], next_at, np.concatenate([source, loose.source]), tails)


@dataclass
class _Loose:
    """Next observations that stand nowhere else, (R,) rows at (t, n): their windows (R, k), the sources of frames of
    their own, and those rows at which a run of equal ones ends."""

    t: Ints
    n: Ints
    at: Ints
    source: Ints
    ends_t: Ints
    ends_n: Ints


def _loose(obs: Array, following: Array, rows_TN: Bools, at: Ints, first: int, frame: Ints) -> _Loose:
    """Final observations: n-step rows that end together have one, which shares all frames but one with the last's."""
    stack = obs.shape[2]
    n, t = np.nonzero(rows_TN.T)
    ends = np.ones(len(n), np.bool_)
    beside = np.flatnonzero((n[1:] == n[:-1]) & (t[1:] == t[:-1] + 1))
    ends[beside] = ~equal(following[t[beside], n[beside]], following[t[beside + 1], n[beside + 1]])
    ends_t, ends_n = t[ends], n[ends]
    moved = np.zeros(len(ends_t), np.bool_)
    if stack > 1:
        moved = equal(following[ends_t, ends_n, :-1], obs[ends_t, ends_n, 1:])
    newest = first + np.where(moved, 1, stack).cumsum() - 1
    windows = newest[:, None] + np.arange(1 - stack, 1)
    windows[moved, :-1] = at[ends_t[moved], ends_n[moved], 1:]
    source = np.empty(int(newest[-1]) + 1 - first if len(newest) else 0, np.int64)
    frames = frame[ends_t, ends_n] + frame.size
    source[windows[~moved] - first] = frames[~moved]
    source[newest - first] = frames[:, -1]
    group = ends.cumsum() - ends
    return _Loose(t, n, windows[group], source, ends_t, ends_n)
