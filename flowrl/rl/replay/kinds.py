"""Which columns of a first batch are stored as references to frames, and how many frames they will take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flowrl.batch import Batch
from flowrl.rl.replay.links import Array, Bools, find_environments, find_stack, windows_of

OBS = "obs"
LINKED_FROM = 64  # bytes of an observation: below, a second copy takes hardly more than the references to one


@dataclass(frozen=True)
class Kind:
    """What is linked: the columns' names (`following` None where there is no next one), a row's dtype and shape, k."""

    name: str
    following: str | None
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    stack: int

    @property
    def elements(self) -> int:
        """The numbers of one frame."""
        return int(np.prod(self.shape)) // self.stack


@dataclass(frozen=True)
class Grid:
    """The linked columns of a batch by time and environment, and which of its rows are valid and to be stored."""

    columns: Mapping[str, Array]
    valid_TN: Bools
    stored_TN: Bools

    @staticmethod
    def of(kind: Kind, batch: Batch, columns: Mapping[str, Array], keep: npt.NDArray[np.intp] | None) -> Grid:
        """`keep`: indices of the flat rows to be stored; None: all. A flat batch is taken apart by its environments."""
        shape = batch.leading
        if not batch.time_major:
            envs = find_environments(columns[kind.name][:, None], kind.stack)
            shape = (batch.rows // envs, envs)
        stored = np.ones(batch.rows, np.bool_)
        if keep is not None:
            stored[:] = False
            stored[keep] = True
        mine = {
            name: columns[name].reshape(*shape, *kind.shape) for name in (kind.name, kind.following) if name is not None
        }
        return Grid(mine, batch.valid.reshape(shape), stored.reshape(shape))


def linked_kinds(batch: Batch, columns: Mapping[str, Array], frame_stack: int | None) -> list[Kind]:
    """The observations (`obs`, `obs/...`) that are stored as references.

    Raises:
        ValueError: frame_stack is given, and no observation has so many frames.
    """
    depth = len(batch.leading)
    kinds = []
    for name, array in columns.items():
        dtype, shape = array.dtype, array.shape[depth:]
        if (name != OBS and not name.startswith(OBS + "/")) or row_bytes(dtype, shape) < LINKED_FROM:
            continue
        after = columns.get(f"next_{name}")
        if after is not None and (after.dtype, after.shape) != (dtype, array.shape):
            after = None
        if frame_stack is None:
            stack = _stack(batch, array, after)
        else:
            stack = frame_stack if shape[:1] == (frame_stack,) else 1
        if after is not None or stack > 1:
            kinds.append(Kind(name, None if after is None else f"next_{name}", dtype, shape, stack))
    if frame_stack is not None and frame_stack > 1 and all(kind.stack == 1 for kind in kinds):
        shapes = ", ".join(f"{n} {list(a.shape[depth:])}" for n, a in columns.items() if n.split("/")[0] == OBS)
        raise ValueError(
            f"frame_stack={frame_stack}, but no observation is as many frames of together at least {LINKED_FROM} bytes "
            f"along its first axis: {shapes or 'there is none'}; leave frame_stack out to have it found out"
        )
    return kinds


def _stack(batch: Batch, obs: Array, after: Array | None) -> int:
    valid = batch.valid
    if not batch.time_major:
        obs, valid, after = obs[:, None], valid[:, None], None if after is None else after[:, None]
    return find_stack(obs, after, valid)


def frames_needed(kind: Kind, grid: Grid, capacity: int, *, alone: bool) -> int:
    """How many frames `capacity` rows will take, as a first batch lets expect.

    alone: whether batches that follow each other come here; the first rows of all but the first are then there already.
    """
    following = None if kind.following is None else grid.columns[kind.following]
    windows, _ = windows_of(grid.columns[kind.name], following, grid.valid_TN, kind.stack, 1)
    rows = int(np.count_nonzero(grid.stored_TN))
    used = int(np.count_nonzero(windows.used(grid.stored_TN)))
    lasting = used - windows.at_ends if alone else used
    return int(np.ceil(capacity * max(1.0, lasting / max(rows, 1)))) + 2 * windows.at_ends + kind.stack


def row_bytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """The bytes of one row."""
    return dtype.itemsize * int(np.prod(shape))
