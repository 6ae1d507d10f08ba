"""Gradients as items: rows of a batch, so that references to them join as those of experience do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from flowrl.batch import Batch
from flowrl.rl.normalize import RunningMoments

Float32 = npt.NDArray[np.float32]
GRADIENTS, ROWS = "gradients", "rows"
MOMENTS = ("obs_count", "obs_mean", "obs_m2")  # of normalized observations, which the learner sees nothing else of


class Gradients(Batch):
    """A Batch of flat gradients: `gradients` (B, P), and `rows` (B,), the valid rows each is the mean over.

    Its env_steps are those rows. Of a policy that normalizes observations also their moments.
    """

    __slots__ = ()

    @staticmethod
    def of(gradient: npt.ArrayLike, rows: int, moments: RunningMoments | None = None) -> Gradients:
        """One gradient (P,), as a batch of one row."""
        columns: dict[str, npt.NDArray[Any]] = {GRADIENTS: np.asarray(gradient, np.float32)[None]}
        columns[ROWS] = np.array([rows], np.int64)
        if moments is not None:
            of_moments = (np.int64(moments.count), moments.mean, moments.m2)
            columns |= {name: np.asarray(value)[None] for name, value in zip(MOMENTS, of_moments, strict=True)}
        return Gradients(columns)

    @property
    def env_steps(self) -> int:
        """The valid rows behind all the gradients."""
        return int(self[ROWS].sum())

    @staticmethod
    def concat(batches: Sequence[Batch]) -> Gradients:
        """All their gradients."""
        return Gradients(dict(Batch.concat(batches)))

    def __reduce__(self) -> tuple[Any, ...]:
        return Gradients, (dict(self),)


def mean_of(gradients: Batch, size: int) -> tuple[Float32, int]:
    """The mean gradient (P,), each weighted by its rows, and all the rows: that of all rows at once.

    Raises:
        KeyError: the batch holds no gradients.
        ValueError: they have another length than `size`.
    """
    if GRADIENTS not in gradients or ROWS not in gradients:
        raise KeyError(
            f"apply_gradients needs the columns {GRADIENTS!r} and {ROWS!r}, as ComputeGradients makes them, "
            f"got {gradients!r}"
        )
    each_BP, rows_B = gradients[GRADIENTS], gradients[ROWS]
    if each_BP.shape != (len(rows_B), size):
        raise ValueError(f"gradients must be flat with shape ({len(rows_B)}, {size}), got {each_BP.shape}")
    rows = int(rows_B.sum())
    if len(rows_B) == 1 or rows == 0:
        return each_BP[0], rows
    return (rows_B / rows @ each_BP.astype(np.float64)).astype(np.float32), rows


def moments_of(gradients: Batch) -> Iterator[RunningMoments]:
    """The moments of observations behind each gradient, if they came with it."""
    if MOMENTS[0] in gradients:
        for count, mean, m2 in zip(*(gradients[name] for name in MOMENTS), strict=True):
            yield RunningMoments(int(count), mean, m2)
