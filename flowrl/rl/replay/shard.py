"""A replay shard: an actor class, of use in-process too, that stores rows and gives random ones back."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from flowrl.batch import Batch, MultiAgentBatch
from flowrl.metrics import Sum
from flowrl.numbers import check_finite, check_whole
from flowrl.pacing import Pacing
from flowrl.ref import Answer
from flowrl.rl.replay.memory import Memory
from flowrl.rl.replay.rows import PRIORITIES, SLOTS, WEIGHTS, check_batch, columns_to_store
from flowrl.rl.replay.sumtree import SumTree
from flowrl.rl.replay.table import Table

PRIORITY_FLOOR = 1e-6  # NUMERICS: priority = (|δ| + floor)^alpha


class ReplayShard:
    """Stores the newest `capacity` rows and draws minibatches of them, uniformly or by priority (arXiv:1511.05952).

    Args:
        capacity: rows that are kept; then the oldest go.
        prioritized: whether rows are drawn in proportion to (|priority| + 1e-6)^alpha, else uniformly.
        alpha: how much priorities count.
        beta: how far `weights` make up for the uneven draw, unless `sample` is told otherwise.
        frame_stack: how many frames an observation is a stack of, along its first axis: each is stored once; None: as
            the first batch shows, 1: none.
        memory_map: a folder in which the columns lie as files instead of in memory.
        min_size, samples_per_insert, error_buffer: the pacing of the whole group (`flowrl.pacing.Pacing`).
        index, count: which shard of how many; the engine gives them.
        seed: of its draws (a SeedSequence is taken as this shard's own stream, an integer is combined with `index`).

    Observations of 64 bytes or more are stored once: as `obs`, as the `next_obs` of earlier rows, and in the stacks
    that follow. The first batch says columns, dtypes and row shapes; MemoryError if the full shard would not fit.

    Raises:
        ValueError: a number is out of range; names it.
    """

    default_cpus = 0

    def __init__(
        self,
        capacity: int,
        *,
        prioritized: bool = False,
        alpha: float = 0.6,
        beta: float = 0.4,
        frame_stack: int | None = None,
        memory_map: str | os.PathLike[str] | None = None,
        min_size: int = 1,
        samples_per_insert: float | None = None,
        error_buffer: float | None = None,
        index: int = 0,
        count: int = 1,
        seed: int | np.random.SeedSequence | None = None,
    ):
        check_whole("capacity", capacity)
        for name, number in (("alpha", alpha), ("beta", beta)):
            check_finite(name, number)
            if number < 0:
                raise ValueError(f"{name} must be at least 0, got {number!r}")
        self._pacing = Pacing(min_size, samples_per_insert, error_buffer)
        if min_size > capacity * count:
            raise ValueError(
                f"min_size={min_size} rows can never be stored: {count} shard{'s' if count > 1 else ''} of "
                f"capacity={capacity}; raise the capacity or lower min_size"
            )
        self._capacity, self._alpha, self._beta = int(capacity), float(alpha), float(beta)
        stream = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed, spawn_key=(index,))
        self._rng = np.random.default_rng(stream)
        if frame_stack is not None:
            check_whole("frame_stack", frame_stack)
        self._tree = SumTree(self._capacity) if prioritized else None
        self._slots = np.full(self._capacity, -1, np.int64)  # of the row at each place
        self._table = Table(
            self._capacity,
            Memory(memory_map, f"replay-{index}"),
            frame_stack=frame_stack,
            alone=count == 1,
            extra={} if self._tree is None else {"priorities": self._tree.nbytes},
        )

    @classmethod
    def pacing(cls, *args: Any, **kwargs: Any) -> Pacing:
        """The pacing of a group with these constructor arguments; nothing is constructed."""
        given = inspect.signature(cls).bind_partial(*args, **kwargs).arguments
        names = ("min_size", "samples_per_insert", "error_buffer")
        return Pacing(**{name: given[name] for name in names if name in given})

    def __len__(self) -> int:
        return self._table.size

    @property
    def nbytes(self) -> int:
        """The bytes of what is stored, those of rows yet to come included; of the columns 0 before the first batch."""
        return self._table.nbytes + (0 if self._tree is None else self._tree.nbytes)

    @property
    def mass(self) -> float:
        """What rows are drawn in proportion to, over all of them: Σ p^alpha, or their number."""
        return float(self._table.size) if self._tree is None else self._tree.total

    def add(self, batch: Batch, priorities: npt.ArrayLike | None = None) -> int:
        """Stores the valid rows of a batch, time-major or (B,); returns how many.

        priorities: of each row, of the batch's leading shape; else its column `priorities`, else rows get the largest
        priority that is stored.

        Raises:
            ValueError: other columns than before, or priorities that are not finite or of another shape.
        """
        batch = check_batch(batch)
        columns = columns_to_store(batch)
        masses = self._masses_of(batch, priorities)
        first = self._table.head
        count = self._table.write(batch, columns)
        if count:
            self._mark(first, count, masses)
        return count

    def _masses_of(self, batch: Batch, priorities: npt.ArrayLike | None) -> npt.NDArray[np.float64] | None:
        if priorities is None:
            priorities = batch.get(PRIORITIES)
        if priorities is None or self._tree is None:
            return None
        given = np.asarray(priorities)
        if given.shape != batch.leading:
            raise ValueError(f"priorities must have the shape {batch.leading} of the batch's rows, got {given.shape}")
        return self._mass(given[batch.valid])

    def _mass(self, priorities: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        masses = np.abs(priorities, dtype=np.float64)
        masses += PRIORITY_FLOOR
        masses **= self._alpha
        if not math.isfinite(np.add.reduce(masses)):
            at = int(np.flatnonzero(~np.isfinite(masses))[0]) if not np.isfinite(masses).all() else 0
            raise ValueError(f"priorities must be finite, got {priorities[at]} at {at}")
        return masses

    def _mark(self, first: int, count: int, masses: npt.NDArray[np.float64] | None) -> None:
        kept = min(count, self._capacity)
        slots = np.arange(first + count - kept, first + count)
        start = int(slots[0]) % self._capacity
        before_end = min(kept, self._capacity - start)
        self._slots[start : start + before_end] = slots[:before_end]
        self._slots[: kept - before_end] = slots[before_end:]
        if self._tree is None:
            return
        masses = np.full(kept, self._largest()) if masses is None else masses[-kept:]
        self._tree.put_range(start, start + before_end, masses[:before_end])
        self._tree.put_range(0, kept - before_end, masses[before_end:])

    def _largest(self) -> float:
        assert self._tree is not None
        return float(self._tree.leaves.max()) or 1.0

    def sample(self, n: int, *, batches: int = 1, beta: float | None = None) -> Batch:
        """`batches` minibatches of n rows each, one after the other, with replacement: a (batches·n,) Batch.

        Its columns are those stored, `slots` (int64, what `update_priorities` takes) and `weights` (float32,
        (N·P)^-beta divided by the largest of the minibatch, 1 without priorities). N and the total of the priorities,
        global or the shard's, cancel in that quotient: a weight is (the minibatch's smallest mass / its own)^beta.

        Raises:
            ValueError: nothing is stored, or a number is out of range.
        """
        check_whole("n", n)
        check_whole("batches", batches)
        if not self._table.size:
            raise ValueError("nothing is stored in this replay shard yet; add a batch before you sample")
        rows = n * batches
        if self._tree is None:
            places, weights = self._rng.integers(0, self._table.size, rows), np.ones(rows, np.float32)
        else:
            places, masses = self._drawn(rows)
            weights = _weights(masses, n, self._beta if beta is None else beta)
        columns = self._table.read(places)
        columns[SLOTS], columns[WEIGHTS] = self._slots.take(places), weights
        return Batch.of_fresh(columns, rows)

    def _drawn(self, rows: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        assert self._tree is not None
        places = self._tree.find(self._rng.random(rows))
        masses = self._tree.leaves.take(places, mode="clip")
        while not np.minimum.reduce(masses) > 0.0:  # see SumTree.find: as good as never
            empty = np.flatnonzero(masses <= 0.0)
            places[empty] = self._tree.find(self._rng.random(len(empty)))
            masses = self._tree.leaves.take(places, mode="clip")
        return places, masses

    def update_priorities(self, slots: npt.ArrayLike, priorities: npt.ArrayLike) -> int:
        """Gives rows, by the `slots` of a sample, new priorities; returns how many were too late.

        A row that was overwritten since is left alone. Of a slot that comes twice, the last priority counts.

        Raises:
            ValueError: shapes differ, or a priority is not finite.
        """
        at, given = np.asarray(slots, np.int64).reshape(-1), np.asarray(priorities).reshape(-1)
        if at.shape != given.shape:
            raise ValueError(f"slots and priorities must be as many, got {at.size} and {given.size}")
        masses = self._mass(given)
        places = at % self._capacity
        here = self._slots.take(places) == at
        late = len(at) - int(np.count_nonzero(here))
        if late:
            places, masses = places[here], masses[here]
        if self._tree is not None and len(places):
            self._tree.put(places, masses)
        return late

    # what a graph asks
    def store(self, batch: Batch | MultiAgentBatch) -> Answer[None]:
        """`add` for a graph: says `inserted`, and the `size` and `mass` of the shard."""
        inserted = self.add(batch)  # type: ignore[arg-type]  # add refuses the other
        return Answer(None, {"inserted": Sum(inserted), **self._holds(), "nbytes": self.nbytes})

    def draw(
        self,
        n: int,
        batches: int = 1,
        beta: float | None = None,
        total_size: int | None = None,
        total_mass: float | None = None,
    ) -> Answer[Batch]:
        """`sample` for a graph: says how many rows were `sampled`, and the `size` and `mass` of the shard."""
        batch = self.sample(n, batches=batches, beta=beta)
        return Answer(batch, {"sampled": Sum(batch.rows), **self._holds()})

    def reprioritize(self, trained: Mapping[str, npt.ArrayLike] | None) -> Answer[None]:
        """`update_priorities` for a graph, by columns `slots` and `priorities`: counts those that were `late`."""
        if trained is None:
            return Answer(None)
        return Answer(None, {"late": Sum(self.update_priorities(trained[SLOTS], trained[PRIORITIES]))})

    def _holds(self) -> dict[str, Any]:
        return {"size": len(self), "mass": self.mass}

    # its state
    def get_state(self) -> dict[str, Any]:
        """All that the next sample depends on."""
        return {
            "rng": self._rng.bit_generator.state,
            "table": self._table.get_state(),
            "masses": None if self._tree is None else self._tree.leaves.copy(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state: the next sample is that of the shard that gave it, number for number."""
        self._rng.bit_generator.state = state["rng"]
        self._table.set_state(state["table"])
        if self._tree is not None and state["masses"] is not None:
            self._tree.put_range(0, self._capacity, np.asarray(state["masses"]))


def _weights(masses: npt.NDArray[np.float64], n: int, beta: float) -> npt.NDArray[np.float32]:
    """(smallest mass of the minibatch / mass)^beta, for minibatches of n."""
    if not 0.0 <= beta < math.inf:
        raise ValueError(f"beta must be at least 0 and finite, got {beta!r}")
    if len(masses) == n:
        shares = np.minimum.reduce(masses) / masses
    else:
        by_batch = masses.reshape(-1, n)
        shares = (by_batch.min(axis=1, keepdims=True) / by_batch).reshape(-1)
    shares **= beta
    return shares.astype(np.float32)
