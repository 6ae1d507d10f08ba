"""What a learner trains on: its policy's valid rows, or whole sequences of them, and their minibatches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from flowrl.batch import Batch, MultiAgentBatch
from flowrl.rl.observations import MASK, NEXT_MASK
from flowrl.rl.policy import Policy
from flowrl.rl.sequences import sequences_of
from flowrl.rl.tensors import TensorBatch, tensors_of

OPTIONAL = (MASK, NEXT_MASK, "slots", "weights")


def batch_of(batch: Batch | MultiAgentBatch, policy_id: str) -> Batch | None:
    """The batch of one policy; None where there is none, or no valid row in it."""
    mine = batch.get(policy_id) if isinstance(batch, MultiAgentBatch) else batch
    return None if mine is None or mine.env_steps == 0 else mine


def rows_of(batch: Batch, policy: Policy, needs: frozenset[str], where: str, *, sequences: bool = False) -> TensorBatch:
    """The needed columns as tensors, and of `OPTIONAL` those that are there.

    They are sequences for a policy with memory, and for a loss that is one over time (`sequences`).

    Raises:
        KeyError: a column is missing.
        ValueError: sequences are wanted and the batch is not time-major.
        FloatingPointError: a valid row is not finite.
    """
    needs = needs.union(name for name in OPTIONAL if name in batch)
    if policy.state_shapes or sequences:
        return sequences_of(batch, needs, policy.state_shapes, where)
    return tensors_of(batch, needs, where)


def minibatches(rows: TensorBatch, size: int | None, rng: np.random.Generator | None) -> Iterator[TensorBatch]:
    """All rows (or sequences) in a new order, `size` at a time, the last ones too; None: as they are, at once.

    rng: draws the order; None leaves it as it is.
    """
    if size is None or size >= rows.size:
        yield rows
        return
    yield from rows.minibatches(size, None if rng is None else torch.from_numpy(rng.permutation(rows.size)))


class Priorities:
    """The priorities that losses gave to rows of a replay shard, by the slots that the rows came from."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forgets those of an epoch before."""
        self._slots: list[Tensor] = []
        self._priorities: list[Tensor] = []

    def add(self, trained: TensorBatch, priorities: Tensor | None) -> None:
        """Those of a minibatch, a row each (of sequences, a sequence each); nothing without slots or priorities.

        Raises:
            ValueError: they are not as many as the rows.
        """
        if trained.slots is None or priorities is None:
            return
        if priorities.shape != trained.slots.shape:
            raise ValueError(
                f"the loss gave priorities of shape {tuple(priorities.shape)} for {trained.size} rows of a replay shard"
            )
        self._slots.append(trained.slots)
        self._priorities.append(priorities)

    def answer(self) -> Batch | None:
        """The columns slots and priorities (B,), what the shard's `update_priorities` takes; None without any."""
        if not self._slots:
            return None
        columns = {"slots": torch.cat(self._slots), "priorities": torch.cat(self._priorities).detach()}
        return Batch({name: column.numpy() for name, column in columns.items()})
