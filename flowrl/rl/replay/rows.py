"""A batch's valid rows, as replay takes them in: newest last, without the columns that only describe the batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from flowrl.batch import Batch, MultiAgentBatch

Array = npt.NDArray[Any]
SLOTS, WEIGHTS, PRIORITIES = "slots", "weights", "priorities"
OWN = frozenset(("valid", SLOTS, WEIGHTS, PRIORITIES))


def check_batch(batch: object) -> Batch:
    """The batch, if it is one that can be stored.

    Raises:
        TypeError: it is no Batch.
    """
    if type(batch) is Batch:
        return batch
    if isinstance(batch, MultiAgentBatch):
        raise TypeError(
            f"a replay shard stores the rows of one policy, got a MultiAgentBatch of {', '.join(batch)}: "
            "give batch[policy], in a graph flow.by_policy(...) or SelectPolicies(...)"
        )
    if not isinstance(batch, Batch):
        raise TypeError(f"a replay shard stores a Batch, got {type(batch).__name__}")
    return batch


def columns_to_store(batch: Batch) -> dict[str, Array]:
    """The columns that replay stores: all but `valid` and those that it makes itself (slots, weights, priorities).

    Raises:
        ValueError: there is none.
    """
    columns = {name: array for name, array in batch.items() if name not in OWN}
    if not columns:
        raise ValueError(f"a replay shard got a batch without a column to store: {batch!r}")
    return columns


def check_same(columns: Mapping[str, Array], depth: int, stored: Mapping[str, tuple[np.dtype[Any], Any]]) -> None:
    """Nothing, if these columns are those stored before, with their dtypes and row shapes.

    Raises:
        ValueError: they are not; names the first that differs.
    """
    if columns.keys() != stored.keys():
        lacking, more = sorted(stored.keys() - columns.keys()), sorted(columns.keys() - stored.keys())
        said = [f"it lacks {', '.join(lacking)}"] * bool(lacking) + [f"it has {', '.join(more)} too"] * bool(more)
        raise ValueError(f"a replay shard got other columns than those of its first batch: {' and '.join(said)}")
    for name, array in columns.items():
        dtype, shape = stored[name]
        if array.dtype != dtype or array.shape[depth:] != shape:
            raise ValueError(
                f"column {name!r} has {array.dtype} rows of shape {array.shape[depth:]}, but the first batch of this "
                f"replay shard had {dtype} rows of shape {shape}"
            )


def flat_rows(array: Array, batch: Batch, keep: npt.NDArray[np.intp] | None) -> Array:
    """A column's rows (rows, ...), by time and then environment; `keep`: only those."""
    if batch.time_major:
        array = array.reshape(batch.rows, *array.shape[2:])
    return array if keep is None else array[keep]
