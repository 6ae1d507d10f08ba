"""What a learner trains on: its policy's valid rows, or whole sequences of them, and their minibatches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from flowrl.batch import Batch, MultiAgentBatch
from flowrl.rl.observations import MASK
from flowrl.rl.policy import Policy
from flowrl.rl.sequences import sequences_of
from flowrl.rl.tensors import TensorBatch, tensors_of


def batch_of(batch: Batch | MultiAgentBatch, policy_id: str) -> Batch | None:
    """The batch of one policy; None where there is none, or no valid row in it."""
    mine = batch.get(policy_id) if isinstance(batch, MultiAgentBatch) else batch
    return None if mine is None or mine.env_steps == 0 else mine


def rows_of(batch: Batch, policy: Policy, needs: frozenset[str], where: str) -> TensorBatch:
    """The needed columns as tensors, and the action mask if there is one; sequences for a policy with memory.

    Raises:
        KeyError: a column is missing.
        ValueError: the policy has memory and the batch is not time-major.
        FloatingPointError: a valid row is not finite.
    """
    needs = needs | {MASK} if MASK in batch else needs
    if policy.state_shapes:
        return sequences_of(batch, needs, policy.state_shapes, where)
    return tensors_of(batch, needs, where)


def minibatches(rows: TensorBatch, size: int | None, rng: np.random.Generator) -> Iterator[TensorBatch]:
    """All rows (or sequences) in a new order, `size` at a time, the last ones too; None: as they are, at once."""
    if size is None or size >= rows.size:
        yield rows
        return
    yield from rows.minibatches(size, torch.from_numpy(rng.permutation(rows.size)))
