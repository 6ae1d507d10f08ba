"""Standardize: columns with mean 0 and standard deviation 1."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np

from flowrl.batch import Array, Batch, MultiAgentBatch
from flowrl.operator import Context, Operator

B = TypeVar("B", Batch, MultiAgentBatch)


@dataclass
class Standardize(Operator[B, B]):
    """The batch with columns shifted to mean 0 and scaled to standard deviation 1 (n − 1), over its valid rows.

    A single valid row is left as it is, and equal values become 0, never NaN. Invalid rows become 0. Of a
    MultiAgentBatch each policy's batch that has the column is standardized by itself. The
    results are float32, sums are carried in float64.

    columns: one name or several.

    Raises:
        ValueError: no column named.
        KeyError: a Batch lacks the column.
    """

    columns: str | tuple[str, ...] = "advantages"

    pure: ClassVar[bool] = True

    def __post_init__(self) -> None:
        names = self.required_columns()
        if not names or not all(isinstance(name, str) and name for name in names):
            raise ValueError(f"columns must be a column name or several, got {self.columns!r}")

    def required_columns(self) -> frozenset[str]:
        """The columns that it standardizes."""
        return frozenset((self.columns,) if isinstance(self.columns, str) else self.columns)

    def process(self, value: B, ctx: Context) -> Iterable[B]:
        """Yields the batch with its columns standardized."""
        if isinstance(value, MultiAgentBatch):
            yield value.with_batches({policy: self._done(value[policy], set(value[policy])) for policy in value})
        else:
            yield self._done(value, self.required_columns())

    def _done(self, batch: Batch, present: Iterable[str]) -> Batch:
        valid = batch.valid
        return batch.with_columns(
            {name: standardized(batch[name], valid) for name in sorted(self.required_columns()) if name in present}
        )


def standardized(column: Array, valid: Array) -> Array:
    """A column of one number a row as float32 of the same shape, with mean 0 and deviation 1 over the valid rows.

    Raises:
        ValueError: the column has more than one number a row.
    """
    if column.shape != valid.shape:
        raise ValueError(f"only columns of one number a row can be standardized: shape {column.shape} of {valid.shape}")
    x = column[valid].astype(np.float64)
    if len(x) > 1:
        spread = np.ptp(x)
        x = (x - x.mean()) / (x.std(ddof=1) + 1e-8) if spread > 0 else np.zeros_like(x)
    result = np.zeros(column.shape, np.float32)
    result[valid] = x
    return result
