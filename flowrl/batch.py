"""Batches: named NumPy columns with equal leading dimensions, (T, N) time-major or (B,)."""

from __future__ import annotations

import math
from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from flowrl.columns import Array, check_joinable, column_of, leading_of, same
from flowrl.ref import Info

__all__ = ["Array", "Batch", "MultiAgentBatch"]


class Batch(Mapping[str, Array]):
    """An immutable mapping of column names to arrays with equal leading dimensions.

    Leading dimensions are (T, N), time by environments, if `time_major`, else (B,). A boolean column
    `valid` marks the rows that are real transitions; without it all are. Nested observations are
    columns by path (`obs/camera`); `tree("obs")` gathers them. Arrays are read-only views of what was
    given; pickling (protocol 5) takes their buffers out of band.

    Raises:
        ValueError: no column, a 0-d column, unequal leading dimensions, or `valid` not boolean.
        TypeError: a column of dtype object, or a name that is not a string.
    """

    __slots__ = ("_columns", "_leading", "time_major")

    time_major: bool

    def __init__(self, columns: Mapping[str, npt.ArrayLike], *, time_major: bool = False):
        if not columns:
            raise ValueError("a Batch needs at least one column, got none")
        depth = 2 if time_major else 1
        arrays = {name: column_of(name, value, depth) for name, value in columns.items()}
        self._columns = arrays
        self._leading = leading_of(arrays, depth)
        self.time_major = time_major

    @staticmethod
    def of_fresh(columns: dict[str, Array], rows: int) -> Batch:
        """A (B,) batch of columns that were just made and that nobody else holds, unchecked: each of `rows` rows."""
        for array in columns.values():
            array.setflags(False)  # type: ignore[call-arg]  # by position it takes a third of the time
        batch = Batch.__new__(Batch)
        batch._columns, batch._leading, batch.time_major = columns, (rows,), False
        return batch

    # a mapping
    def __getitem__(self, name: str) -> Array:
        try:
            return self._columns[name]
        except KeyError:
            raise KeyError(f"no column {name!r} in this batch; it has {sorted(self._columns)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    # Those of Mapping ask for each column by its name, and make up the error's text for one that is not there.
    def get(self, name: str, default: Any = None) -> Any:
        """The column, or `default` where there is none."""
        return self._columns.get(name, default)

    def items(self) -> ItemsView[str, Array]:
        """Names and columns."""
        return self._columns.items()

    def __eq__(self, other: object) -> bool:
        """Whether columns, dtypes, shapes and values are the same (NaN equals NaN)."""
        if not isinstance(other, Batch):
            return NotImplemented
        return (
            self.time_major == other.time_major
            and self._columns.keys() == other._columns.keys()
            and all(same(array, other._columns[name]) for name, array in self._columns.items())
        )

    __hash__ = None  # type: ignore[assignment]  # arrays do not hash

    # what it holds
    @property
    def leading(self) -> tuple[int, ...]:
        """(T, N) if time-major, else (B,)."""
        return self._leading

    @property
    def rows(self) -> int:
        """T*N or B: all rows, the invalid ones too."""
        return math.prod(self._leading)

    @property
    def valid(self) -> Array:
        """The boolean mask of real transitions, of shape `leading`; all true without a column `valid`."""
        valid = self._columns.get("valid")
        return np.ones(self._leading, np.bool_) if valid is None else valid

    @property
    def env_steps(self) -> int:
        """The number of valid rows."""
        valid = self._columns.get("valid")
        return self.rows if valid is None else int(np.count_nonzero(valid))

    @property
    def nbytes(self) -> int:
        """The bytes of all columns together."""
        return sum(array.nbytes for array in self._columns.values())

    def info(self) -> Info:
        """The figures that the driver gets of this batch."""
        steps = self.env_steps
        return Info(env_steps=steps, agent_steps=steps, nbytes=self.nbytes)

    def __flowrl_info__(self) -> Info:
        return self.info()

    def tree(self, path: str) -> Array | dict[str, Array]:
        """The column `path`, or else the columns below it as a dict by their path from there on.

        Raises:
            KeyError: there is neither such a column nor any below it.
        """
        if path in self._columns:
            return self._columns[path]
        below = {name[len(path) + 1 :]: self._columns[name] for name in self._columns if name.startswith(path + "/")}
        if not below:
            raise KeyError(f"no column {path!r} and none below it in this batch; it has {sorted(self._columns)}")
        return below

    # other batches made of it
    def with_columns(self, columns: Mapping[str, npt.ArrayLike] | None = None, /, **more: npt.ArrayLike) -> Batch:
        """This batch with columns added or replaced."""
        return Batch({**self._columns, **(columns or {}), **more}, time_major=self.time_major)

    def select(self, names: Iterable[str]) -> Batch:
        """Only the named columns, in the order asked for."""
        return Batch({name: self[name] for name in _names(names)}, time_major=self.time_major)

    def without(self, names: Iterable[str]) -> Batch:
        """All columns but the named ones, each of which must be there."""
        dropped = {name for name in _names(names) if self[name] is not None}
        kept = {name: array for name, array in self._columns.items() if name not in dropped}
        return Batch(kept, time_major=self.time_major)

    def rows_at(self, index: npt.ArrayLike | slice) -> Batch:
        """The rows of a (B,) batch at integer positions, a mask or a slice.

        Raises:
            ValueError: the batch is time-major, or `index` is a single number.
        """
        if self.time_major:
            raise ValueError("rows_at needs a (B,) batch and this one is time-major; take flat() first")
        at = index if isinstance(index, slice) else np.asarray(index)
        if not isinstance(at, slice) and at.ndim != 1:
            raise ValueError(f"rows_at needs a 1-d index, mask or slice, got an index of shape {at.shape}")
        return Batch({name: array[at] for name, array in self._columns.items()})

    def flat(self) -> Batch:
        """The valid rows as a (B,) batch, by time and then environment; the column `valid` is dropped.

        Raises:
            ValueError: `valid` is the only column.
        """
        valid = self._columns.get("valid")
        columns = {name: array for name, array in self._columns.items() if name != "valid"}
        if self.time_major:
            columns = {name: array.reshape(self.rows, *array.shape[2:]) for name, array in columns.items()}
        if valid is not None and not valid.all():
            keep = valid.reshape(-1)
            columns = {name: array[keep] for name, array in columns.items()}
        return Batch(columns)

    @staticmethod
    def concat(batches: Sequence[Batch]) -> Batch:
        """One batch of several: (B,) batches along B, time-major ones of equal T along N.

        Raises:
            ValueError: no batch, layouts or T differ, or a column is missing, of another dtype or row shape.
        """
        if not batches:
            raise ValueError("Batch.concat needs at least one batch, got none")
        first = batches[0]
        if len(batches) == 1:
            return first
        axis = 1 if first.time_major else 0
        for place, other in enumerate(batches[1:], start=1):
            if other.time_major != first.time_major:
                raise ValueError(
                    f"cannot concat: batch 0 is {_layout(first)} and batch {place} is {_layout(other)}; flat() both"
                )
            check_joinable(first._columns, other._columns, place, depth=axis + 1, join_axis=axis)
        columns = {name: np.concatenate([batch[name] for batch in batches], axis=axis) for name in first}
        return Batch(columns, time_major=first.time_major)

    def __repr__(self) -> str:
        columns = ", ".join(f"{name}: {array.dtype}{list(array.shape)}" for name, array in self._columns.items())
        return f"Batch({'time-major, ' if self.time_major else ''}{columns})"

    def __reduce__(self) -> tuple[Any, ...]:
        packed = {name: _packed(array) for name, array in self._columns.items()}
        return _restore, (packed, self.time_major)


class MultiAgentBatch(Mapping[str, Batch]):
    """An immutable mapping of policy ids to their batches, with the environment steps they were made in.

    A policy that made no row may be absent. Several agents may act in one environment step, so
    `agent_steps` counts valid rows and `env_steps` is said by who collected them.

    Raises:
        ValueError: env_steps is negative.
        TypeError: a value is not a Batch.
    """

    __slots__ = ("_batches", "env_steps")

    env_steps: int

    def __init__(self, batches: Mapping[str, Batch], *, env_steps: int):
        for policy, batch in batches.items():
            if not isinstance(batch, Batch):
                raise TypeError(f"policy {policy!r} needs a Batch, got {type(batch).__name__}")
        if env_steps < 0:
            raise ValueError(f"env_steps must be at least 0, got {env_steps}")
        self._batches = dict(batches)
        self.env_steps = int(env_steps)

    def __getitem__(self, policy: str) -> Batch:
        try:
            return self._batches[policy]
        except KeyError:
            raise KeyError(f"no policy {policy!r} in this batch; it has {sorted(self._batches)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MultiAgentBatch):
            return NotImplemented
        return self.env_steps == other.env_steps and self._batches == other._batches

    __hash__ = None  # type: ignore[assignment]  # batches do not hash

    @property
    def agent_steps(self) -> int:
        """The number of valid rows over all policies."""
        return sum(batch.env_steps for batch in self._batches.values())

    @property
    def nbytes(self) -> int:
        """The bytes of all batches together."""
        return sum(batch.nbytes for batch in self._batches.values())

    def info(self) -> Info:
        """The figures that the driver gets, agent steps by policy among them."""
        policies = {policy: batch.env_steps for policy, batch in self._batches.items()}
        return Info(env_steps=self.env_steps, agent_steps=sum(policies.values()), nbytes=self.nbytes, policies=policies)

    def __flowrl_info__(self) -> Info:
        return self.info()

    def with_batches(self, batches: Mapping[str, Batch]) -> MultiAgentBatch:
        """The same steps with the batches of some policies replaced."""
        return MultiAgentBatch({**self._batches, **batches}, env_steps=self.env_steps)

    def select(self, policies: Iterable[str]) -> MultiAgentBatch:
        """Only the named policies; one that made no row here stays absent. The environment steps stand."""
        kept = {policy: self._batches[policy] for policy in _names(policies) if policy in self._batches}
        return MultiAgentBatch(kept, env_steps=self.env_steps)

    @staticmethod
    def concat(batches: Sequence[MultiAgentBatch]) -> MultiAgentBatch:
        """One batch of several, joined policy by policy; environment steps add up."""
        if not batches:
            raise ValueError("MultiAgentBatch.concat needs at least one batch, got none")
        ids = dict.fromkeys(policy for batch in batches for policy in batch)
        joined = {policy: Batch.concat([batch[policy] for batch in batches if policy in batch]) for policy in ids}
        return MultiAgentBatch(joined, env_steps=sum(batch.env_steps for batch in batches))

    def __repr__(self) -> str:
        return f"MultiAgentBatch({self.env_steps} env steps, {self._batches!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_multi_agent, (self._batches, self.env_steps)


def _layout(batch: Batch) -> str:
    return f"time-major {batch.leading}" if batch.time_major else f"flat {batch.leading}"


def _names(names: Iterable[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _packed(array: Array) -> Array | tuple[Array, tuple[int, ...]]:
    """What travels of a column: a contiguous array, and where one was broadcast (stride 0), it without the repeats."""
    # Only contiguous arrays travel out of band; a strided view would be copied into the pickle itself.
    if 0 not in array.strides or not array.size:
        return np.ascontiguousarray(array)
    once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in array.strides)
    return np.ascontiguousarray(array[once]), array.shape


def _restore(columns: dict[str, Array | tuple[Array, tuple[int, ...]]], time_major: bool) -> Batch:
    whole = {n: np.broadcast_to(*packed) if isinstance(packed, tuple) else packed for n, packed in columns.items()}
    return Batch(whole, time_major=time_major)


def _restore_multi_agent(batches: dict[str, Batch], env_steps: int) -> MultiAgentBatch:
    return MultiAgentBatch(batches, env_steps=env_steps)
