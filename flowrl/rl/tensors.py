"""Training batches: the valid rows of a batch as torch tensors, checked once to be finite."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from flowrl.batch import Array, Batch

NO_SCALES: Mapping[str, tuple[float, float]] = {}


class TensorBatch(Mapping[str, Tensor]):
    """An immutable mapping of column names to tensors (B, ...): valid rows only. `rows` is B.

    `whole` is the minibatch that a part of it was taken from (gradients may be accumulated over parts), else the
    batch itself: what is computed over a whole minibatch, such as the scale of advantages, is computed from that.
    Where learners train in step the minibatch is spread over them; `scales` then has the mean and deviation of those
    columns over all of it that the loss `standardizes`.
    """

    __slots__ = ("_columns", "_whole", "rows", "scales")

    rows: int
    scales: Mapping[str, tuple[float, float]]

    def __init__(self, columns: Mapping[str, Tensor], *, whole: TensorBatch | None = None):
        self._columns = columns
        self._whole = whole
        self.scales = NO_SCALES
        self.rows = len(next(iter(columns.values()))) if columns else 0

    def __getitem__(self, name: str) -> Tensor:
        try:
            return self._columns[name]
        except KeyError:
            raise KeyError(
                f"no column {name!r} in this training batch; it has {sorted(self._columns)}: "
                "a loss names the columns that it reads in `needs`"
            ) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    @property
    def whole(self) -> TensorBatch:
        """The minibatch that this is a part of; itself where it is no part."""
        return self if self._whole is None else self._whole

    @property
    def slots(self) -> Tensor | None:
        """The places (B,) in a replay shard that the rows came from; None if they came from none."""
        return self._columns.get("slots")

    @property
    def size(self) -> int:
        """In how many pieces it can be divided: its rows."""
        return self.rows

    def tree(self, path: str) -> Tensor | dict[str, Tensor]:
        """The column `path`, or else the columns below it as a dict by their path from there on."""
        if path in self._columns:
            return self[path]
        below = {name[len(path) + 1 :]: self[name] for name in self._columns if name.startswith(path + "/")}
        return below or self[path]

    def where(self, mask_B: Tensor, *, whole: TensorBatch | None = None) -> TensorBatch:
        """Only the rows where the mask (B,) is true; `whole` is what they are a part of, if not a minibatch itself."""
        return TensorBatch({name: self[name][mask_B] for name in self}, whole=whole)

    def minibatches(self, rows: int | list[int], order: Tensor | None) -> Iterator[TensorBatch]:
        """All rows in the given order (None: as they stand), `rows` at a time; the last minibatch may be shorter.

        A list says of each minibatch how many.
        """
        # One gather an epoch and views of it: a gather a minibatch costs several times as much.
        whole = [column if order is None else column.index_select(0, order) for column in self._columns.values()]
        parts = [column.split(rows) for column in whole]
        for columns in zip(*parts, strict=True):
            yield TensorBatch(dict(zip(self._columns, columns, strict=True)))

    def parts(self, rows: int) -> Iterator[TensorBatch]:
        """Its rows in order, `rows` at a time: parts of this batch, which is their `whole`."""
        parts = [column.split(rows) for column in self._columns.values()]
        for columns in zip(*parts, strict=True):
            yield TensorBatch(dict(zip(self._columns, columns, strict=True)), whole=self.whole)


def tensors_of(batch: Batch, needs: Iterable[str], where: str) -> TensorBatch:
    """The needed columns of a batch's valid rows; float columns as float32. `where` begins an error's text.

    A need may be one column or the root of several ("obs" for "obs/camera").

    Raises:
        KeyError: a needed column is missing.
        FloatingPointError: a value of a valid row is not finite; names column and row.
    """
    names = [name for need in sorted(needs) for name in columns_of(batch, need, where)]
    keep = None if "valid" not in batch or batch.valid.all() else batch.valid.reshape(-1)
    columns = {}
    for name in names:
        array = batch[name]
        if batch.time_major:
            array = array.reshape(batch.rows, *array.shape[2:])
        if keep is not None:
            array = array[keep]
        if array.dtype.kind == "f":
            array = array.astype(np.float32, copy=False)
            if not np.isfinite(array).all():
                raise FloatingPointError(not_finite(batch, name, where))
        columns[name] = torch.tensor(array)
    return TensorBatch(columns)


def nonfinite_columns(batch: TensorBatch) -> list[str]:
    """The names of the columns that hold NaN or infinity."""
    return [name for name, column in batch.items() if column.is_floating_point() and not torch.isfinite(column).all()]


def columns_of(batch: Batch, need: str, where: str) -> list[str]:
    """The column of that name and those below it.

    Raises:
        KeyError: there is none.
    """
    names = [name for name in batch if name == need or name.startswith(need + "/")]
    if not names:
        raise KeyError(f"{where}: the loss needs column {need!r} and the batch has {sorted(batch)}")
    return names


def not_finite(batch: Batch, name: str, where: str) -> str:
    """What an error says of a column that is not finite in a valid row."""
    array: Array = batch[name]
    depth = len(batch.leading)
    bad = ~np.isfinite(array).reshape(*batch.leading, -1).all(-1) & batch.valid
    row = tuple(int(place) for place in np.argwhere(bad)[0])
    values = array[row]
    value = np.ravel(values)[~np.isfinite(np.ravel(values))][0]
    at = f"t={row[0]}, n={row[1]}" if depth == 2 else f"row {row[0]}"
    return (
        f"{where}: column {name!r} holds {value} at {at} "
        f"({int(bad.sum())} of {batch.env_steps} valid rows are not finite); nothing was trained"
    )
