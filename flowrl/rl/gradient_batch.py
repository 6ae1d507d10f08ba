"""Gradients as items: rows of a batch, so that references to them join as those of experience do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from flowrl.batch import Batch
from flowrl.rl.normalize import RunningMoments

Float32 = npt.NDArray[np.float32]
GRADIENTS, ROWS, MADE_FOR = "gradients", "rows", "policy"
MOMENTS = ("obs_count", "obs_mean", "obs_m2")  # of normalized observations, which the learner sees nothing else of


class Gradients(Batch):
    """A Batch of flat gradients: `gradients` (B, P), and `rows` (B,), the valid rows each is the mean over.

    Its env_steps are those rows. Of a policy that normalizes observations also their moments; `policy` (B,), where it
    is given, is text that says what each was made for (`Policy.described`).
    """

    __slots__ = ()

    @staticmethod
    def of(
        gradient: npt.ArrayLike, rows: int, moments: RunningMoments | None = None, policy: str | None = None
    ) -> Gradients:
        """One gradient (P,), as a batch of one row; `policy` says what it was made for."""
        columns: dict[str, npt.NDArray[Any]] = {GRADIENTS: np.asarray(gradient, np.float32)[None]}
        columns[ROWS] = np.array([rows], np.int64)
        if policy is not None:
            columns[MADE_FOR] = np.array([policy])
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
        """All their gradients.

        Raises:
            ValueError: they were made for several policies, or the shapes differ.
        """
        _check_one_policy(set().union(*(batch[MADE_FOR].tolist() for batch in batches if MADE_FOR in batch)))
        return Gradients(dict(Batch.concat(batches)))

    def __reduce__(self) -> tuple[Any, ...]:
        return Gradients, (dict(self),)


def mean_of(gradients: Batch, size: int, policy: str | None = None) -> tuple[Float32, int]:
    """The mean gradient (P,), each weighted by its rows, and all the rows: that of all rows at once.

    policy: what they are to be applied to (`Policy.described`), where they say what they were made for.

    Raises:
        KeyError: the batch holds no gradients.
        ValueError: they have another length than `size`, or were made for another policy, or for several.
    """
    if GRADIENTS not in gradients or ROWS not in gradients:
        raise KeyError(
            f"apply_gradients needs the columns {GRADIENTS!r} and {ROWS!r}, as ComputeGradients makes them, "
            f"got {gradients!r}"
        )
    made_for = set(gradients[MADE_FOR].tolist()) if MADE_FOR in gradients else set()
    _check_one_policy(made_for)
    if policy is not None and made_for not in (set(), {policy}):
        raise ValueError(
            f"gradients of the policy {made_for.pop()} cannot be applied to the policy {policy}: give ComputeGradients "
            "and the learner the same PolicySpec and policy_id"
        )
    each_BP, rows_B = gradients[GRADIENTS], gradients[ROWS]
    if each_BP.shape != (len(rows_B), size):
        raise ValueError(f"gradients must be flat with shape ({len(rows_B)}, {size}), got {each_BP.shape}")
    rows = int(rows_B.sum())
    if len(rows_B) == 1 or rows == 0:
        return each_BP[0], rows
    return (rows_B / rows @ each_BP.astype(np.float64)).astype(np.float32), rows


def _check_one_policy(made_for: set[str]) -> None:
    if len(made_for) > 1:
        raise ValueError(
            f"gradients of different policies have no mean: {' and '.join(sorted(made_for))}; average and apply those "
            "of each policy in a branch of its own"
        )


def moments_of(gradients: Batch) -> Iterator[RunningMoments]:
    """The moments of observations behind each gradient, if they came with it."""
    if MOMENTS[0] in gradients:
        for count, mean, m2 in zip(*(gradients[name] for name in MOMENTS), strict=True):
            yield RunningMoments(int(count), mean, m2)
