"""A replay shard: an actor class, of use in-process too, that stores rows and gives random ones back."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from flowrl.batch import Batch, MultiAgentBatch
from flowrl.metrics import Sum
from flowrl.numbers import check_whole
from flowrl.pacing import Pacing
from flowrl.ref import Answer
from flowrl.rl.replay.memory import Memory
from flowrl.rl.replay.moved import rows_of_state
from flowrl.rl.replay.pool import Floats, Ints, Pool
from flowrl.rl.replay.rows import PRIORITIES, SLOTS, WEIGHTS, check_batch, columns_to_store
from flowrl.rl.replay.sequences import STATE, Cutter, Items
from flowrl.rl.replay.settings import check_settings
from flowrl.rl.replay.table import Table
from flowrl.rl.replay.weights import exponent_of, masses_of, weights_of, whole_slots

SLOTS_OF_ONE = 2**44  # of one incarnation: more than it will ever store


class ReplayShard:
    """Stores the newest `capacity` rows and draws minibatches: of rows, sequences or episodes, evenly or by priority.

    Args:
        capacity: rows that are kept; then the oldest go.
        prioritized: whether items are drawn in proportion to (|priority| + 1e-6)^alpha (arXiv:1511.05952), else evenly.
        alpha: how much priorities count.
        beta: how far `weights` make up for the uneven draw, unless `sample` is told otherwise.
        sequence: an item is so many rows of one environment that follow each other, with the policy's state before
            the first; None: one row.
        period: a sequence begins so many rows after the one before, at most `sequence`, which is the default.
        episodes: an item is a whole episode.
        fifo: items are drawn in the order in which they came, each `max_times_sampled` times (default 1).
        max_times_sampled: an item goes when it was drawn so often; None: never for that.
        frame_stack: how many frames an observation is a stack of, along its first axis: each is stored once; None: as
            the first batch shows, 1: none.
        memory_map: a folder in which the columns lie as files instead of in memory; their room is taken from the disk
            as they are made.
        min_size, samples_per_insert, error_buffer: the pacing of the whole group (`flowrl.pacing.Pacing`).
        index, count: which shard of how many; the engine gives them.
        incarnation: how often it died before; the engine gives it. Slots of one incarnation are none of the next, so
            priorities that come late for what a dead shard held reach nobody.
        seed: of its draws (a SeedSequence is taken as this shard's own stream, an integer is combined with `index`).

    Observations of 64 bytes or more are stored once: as `obs`, as the `next_obs` of earlier rows, and in the stacks
    that follow. The first batch says columns, dtypes and row shapes; MemoryError if the full shard would not fit beside
    what other shards on the machine have yet to fill.

    Raises:
        ValueError: a number is out of range, or two arguments do not go together; names them.
    """

    default_cpus = 0

    def __init__(
        self,
        capacity: int,
        *,
        prioritized: bool = False,
        alpha: float = 0.6,
        beta: float = 0.4,
        sequence: int | None = None,
        period: int | None = None,
        episodes: bool = False,
        fifo: bool = False,
        max_times_sampled: int | None = None,
        frame_stack: int | None = None,
        memory_map: str | os.PathLike[str] | None = None,
        min_size: int = 1,
        samples_per_insert: float | None = None,
        error_buffer: float | None = None,
        index: int = 0,
        count: int = 1,
        incarnation: int = 0,
        seed: int | np.random.SeedSequence | None = None,
    ):
        check_settings(capacity, alpha, beta, sequence, period, episodes, fifo, prioritized, frame_stack)
        times = 1 if fifo and max_times_sampled is None else max_times_sampled
        Pacing(min_size, samples_per_insert, error_buffer, times, sequence or 1)  # checks them
        if min_size > capacity * count:
            raise ValueError(
                f"min_size={min_size} rows can never be stored: {count} shard{'s' if count > 1 else ''} of "
                f"capacity={capacity}; raise the capacity or lower min_size"
            )
        self._capacity = int(capacity)
        self._alpha, self._beta = exponent_of("alpha", alpha), exponent_of("beta", beta)
        stream = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed, spawn_key=(index,))
        self._rng = np.random.default_rng(stream)
        self._first_slot = incarnation * SLOTS_OF_ONE
        self._settings = {
            "capacity": self._capacity,
            "prioritized": bool(prioritized),
            "alpha": float(alpha) if prioritized else None,
            "sequence": sequence,
            "period": period or sequence,
            "episodes": bool(episodes),
            "fifo": bool(fifo),
            "max_times_sampled": times,
        }
        joined = sequence is not None or episodes
        self._items = Items(Cutter(sequence, period or sequence or 1, self._capacity)) if joined else None
        # Sequences need not go in the order in which they came: of so many places one is free when its turn comes.
        places = self._capacity * (2 if joined else 1)
        numbers = Memory()
        numbers.promise({"the items' numbers": Pool.size(places)})
        self._pool = Pool(places, prioritized=prioritized, fifo=fifo, times=times, scattered=joined)
        numbers.filled(1.0)
        memory = Memory(memory_map, f"replay-{index}")
        self._table = Table(self._capacity, memory, frame_stack=frame_stack, alone=count == 1)

    @classmethod
    def pacing(cls, *args: Any, **kwargs: Any) -> Pacing:
        """The pacing of a group with these constructor arguments; nothing is constructed."""
        given = inspect.signature(cls).bind_partial(*args, **kwargs).arguments
        names = ("min_size", "samples_per_insert", "error_buffer")
        times = given.get("max_times_sampled")
        if times is None and given.get("fifo"):
            times = 1
        numbers = {name: given[name] for name in names if name in given}
        return Pacing(**numbers, max_times_sampled=times, item_rows=given.get("sequence") or 1)

    def __len__(self) -> int:
        """The rows that are there to be drawn; of sequences and episodes 0 before the first is whole."""
        if self._items is None:
            return self._pool.live
        return self._table.size if self._pool.live else 0

    @property
    def nbytes(self) -> int:
        """The bytes of the columns, those of rows yet to come included; 0 before the first batch."""
        return self._table.nbytes

    @property
    def mass(self) -> float:
        """What items are drawn in proportion to, over all of them: Σ p^alpha, or their number."""
        return self._pool.mass

    def add(self, batch: Batch, priorities: npt.ArrayLike | None = None, *, stream: int | str | None = None) -> int:
        """Stores the valid rows of a batch, time-major or (B,); returns how many.

        priorities: of each row, of the batch's leading shape; else its column `priorities`, else items get the largest
            that is stored. Sequences and episodes always do.
        stream: whose experience it is, where items are sequences or episodes: a batch goes on where the last one of
            its stream ended, environment by environment. None: it stands alone (`flowrl.rl.replay.sequences.Cutter`).

        Raises:
            ValueError: other columns than before, or priorities that are not finite or of another shape.
            MemoryError: the first batch shows that the full shard would need more memory than is free, or than other
                shards on this machine leave of it when they are full.
        """
        return self._added(batch, priorities, stream)[0]

    def _added(self, batch: Batch, priorities: npt.ArrayLike | None, stream: int | str | None) -> tuple[int, int]:
        """(rows stored, draws that overwritten items had left)"""
        batch = check_batch(batch)
        columns = columns_to_store(batch)
        if self._items is None:
            masses = self._masses_of(batch, priorities)
            count = self._table.write(batch, columns)
            return count, self._pool.put(count, *masses) if count else 0
        if priorities is not None:
            raise ValueError("sequences and episodes begin with the largest priority: give none with their rows")
        self._items.cutter.check(batch)
        first = self._table.head
        count = self._table.write(batch, {n: array for n, array in columns.items() if not n.startswith(STATE)})
        oldest = self._table.head - self._table.size
        made = self._items.cutter.cut(batch, first, stream)
        whole = [i for i, rows in enumerate(made.rows) if rows[0] >= oldest]
        if not whole and not self._pool.live:
            self._items.cutter.check_spans(made, self._capacity)
        gone = self._items.outdated(oldest)
        forgone = 0 if self._pool.left is None else int(self._pool.left[gone].sum())
        self._pool.remove(gone)
        if whole:
            forgone += self._pool.put(len(whole), None)
            places = np.arange(self._pool.head - len(whole), self._pool.head) % self._pool.capacity
            self._items.put(places, made.only(whole))
        return count, forgone

    def _masses_of(self, batch: Batch, priorities: npt.ArrayLike | None) -> tuple[Floats | None, float]:
        if priorities is None:
            priorities = batch.get(PRIORITIES)
        if priorities is None or not self._pool.prioritized:
            return None, 0.0
        given = np.asarray(priorities)
        if given.shape != batch.leading:
            raise ValueError(f"priorities must have the shape {batch.leading} of the batch's rows, got {given.shape}")
        return masses_of(given[batch.valid], self._alpha)

    def sample(self, n: int, *, batches: int = 1, beta: float | None = None) -> Batch:
        """`batches` minibatches of n items each, one after the other, with replacement.

        Of rows a (batches·n,) Batch, of sequences and episodes a time-major one (L, batches·n), shorter ones padded
        with rows that are not `valid`. Its columns are those stored, `slots` (int64, what `update_priorities` takes)
        and `weights` (float32, (N·P)^-beta divided by the largest of the minibatch, 1 without priorities); of items of
        several rows, and of the `state/...` before their first, every row says the same.

        N and the total of the priorities, global or the shard's, cancel in the quotient of the weights: it is (the
        minibatch's smallest mass / the item's own)^beta.

        Raises:
            ValueError: nothing can be drawn, fewer draws are left than asked for, or a number is out of range.
        """
        check_whole("n", n)
        check_whole("batches", batches)
        count = n * batches
        places, slots, masses = self._pool.draw(self._rng, count)
        if self._first_slot:
            slots = slots + self._first_slot
        if masses is None:
            weights = np.ones(count, np.float32)
        else:
            weights = weights_of(masses, n, self._beta if beta is None else exponent_of("beta", beta))
        if self._items is not None:
            return self._joined(places, slots, weights)
        columns = self._table.read(places)
        columns[SLOTS], columns[WEIGHTS] = slots, weights
        return Batch.of_fresh(columns, count)

    def _joined(self, places: Ints, slots: Ints, weights: npt.NDArray[np.float32]) -> Batch:
        assert self._items is not None
        rows, valid = self._items.rows_at(places)
        read = self._table.read(rows.reshape(-1) % self._capacity)
        columns = {name: array.reshape(*rows.shape, *array.shape[1:]) for name, array in read.items()}
        columns |= self._items.states_at(places, len(rows))
        columns |= {SLOTS: np.broadcast_to(slots, rows.shape), WEIGHTS: np.broadcast_to(weights, rows.shape)}
        return Batch({**columns, "valid": valid}, time_major=True)

    def update_priorities(self, slots: npt.ArrayLike, priorities: npt.ArrayLike) -> int:
        """Gives items, by the `slots` of a sample, new priorities; returns how many were too late.

        An item that was overwritten since, or has gone, is left alone. Of a slot that comes twice, the last priority
        counts.

        Raises:
            ValueError: shapes differ, a slot is no integer, or a priority is no number or not finite.
        """
        at, given = np.asarray(slots), np.asarray(priorities)
        if at.dtype != np.int64:
            at = whole_slots(at)
        if at.ndim != 1 or given.ndim != 1:
            at, given = at.reshape(-1), given.reshape(-1)
        if len(at) != len(given):
            raise ValueError(f"slots and priorities must be as many, got {at.size} and {given.size}")
        if self._first_slot:
            at = at - self._first_slot  # below 0 of a predecessor's, which no item has
        return self._pool.reweigh(at, *masses_of(given, self._alpha))

    # what a graph asks
    def store(self, batch: Batch | MultiAgentBatch, stream: int | str | None = None) -> Answer[None]:
        """`add` for a graph: says the rows `inserted`, the draws `forgone` with items that were overwritten before
        they were drawn as often as they may be, and the shard's `size`, `mass` and `nbytes`."""
        inserted, forgone = self._added(batch, None, stream)  # type: ignore[arg-type]  # it refuses the other
        said = {"inserted": Sum(inserted), **self._holds(), "nbytes": self.nbytes}
        return Answer(None, said if self._pool.left is None else {**said, "forgone": Sum(forgone)})

    def draw(self, n: int, batches: int = 1, beta: float | None = None) -> Answer[Batch]:
        """`sample` for a graph: says how many rows were `sampled`, and the `size` and `mass` of the shard."""
        batch = self.sample(n, batches=batches, beta=beta)
        return Answer(batch, {"sampled": Sum(batch.env_steps), **self._holds()})

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
            "settings": dict(self._settings),
            "first_slot": self._first_slot,
            "rng": self._rng.bit_generator.state,
            "table": self._table.get_state(),
            "pool": self._pool.get_state(),
            "items": None if self._items is None else self._items.get_state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state: the next sample is that of the shard that gave it, number for number.

        Raises:
            ValueError: it is of a shard with other settings; names them.
        """
        were = state["settings"]
        if others := [name for name, value in self._settings.items() if were[name] != value]:
            said = ", ".join(f"{name}={were[name]!r} (here {self._settings[name]!r})" for name in others)
            raise ValueError(f"the state is of a replay shard with {said}: they must be the same")
        self._rng.bit_generator.state = state["rng"]
        self._first_slot = int(state.get("first_slot", 0))
        self._table.set_state(state["table"])
        self._pool.set_state(state["pool"])
        if self._items is not None:
            self._items.set_state(state["items"])

    def absorb(self, state: Mapping[str, Any]) -> None:
        """Takes in the rows of another shard, behind its own and in their order, each as probable as it was there.

        Raises:
            ValueError: its items are not rows, have limited draws, or other priorities than those here.
        """
        moved = rows_of_state(state, self._settings)
        if moved is not None:
            batch, masses = moved
            count = self._table.write(batch, columns_to_store(batch))
            self._pool.put(count, masses, 0.0 if masses is None else float(masses.max()))
