"""Several losses on one batch, each over the rows that are meant for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from flowrl.rl.loss import Loss, LossOut, wants_sequences
from flowrl.rl.policy import Policy
from flowrl.rl.schedules import Rate, check_rate, value_at
from flowrl.rl.spec import Progress
from flowrl.rl.tensors import TensorBatch


@dataclass(frozen=True)
class Term:
    """A loss in a mix.

    loss: what is minimized. weight: its factor, a number or a schedule.
    rows: the boolean column that says which rows it is for; None: all of them.
    """

    loss: Loss
    weight: Rate = 1.0
    rows: str | None = None

    def __post_init__(self) -> None:
        check_rate("weight", self.weight, above_0=False)


@dataclass(frozen=True)
class MixedLoss:
    """The weighted sum of losses by name, each a mean over its own rows of the minibatch, however many these are.

    A term that has no row in a minibatch adds nothing. Metrics and values a row are those of the terms as
    `name/metric`, the latter 0 in rows that are not the term's.

    Raises:
        ValueError: there is no term.
    """

    terms: Mapping[str, Term]

    def __post_init__(self) -> None:
        if not self.terms:
            raise ValueError("a MixedLoss needs at least one term, got none")

    @property
    def needs(self) -> frozenset[str]:
        """The columns that the terms read and those that say their rows."""
        masks = frozenset(term.rows for term in self.terms.values() if term.rows is not None)
        return masks.union(*(term.loss.needs for term in self.terms.values()))

    @property
    def sequences(self) -> bool:
        """Whether one of the terms is a loss over time."""
        return any(wants_sequences(term.loss) for term in self.terms.values())

    def __call__(self, net: Policy, batch: TensorBatch, now: Progress) -> LossOut:
        """The sum over the terms."""
        losses: list[Tensor] = []
        metrics: dict[str, Tensor | float] = {}
        per_row: dict[str, Tensor] = {}
        for name, term in self.terms.items():
            mine, mask_B = _rows_of(batch, term.rows)
            if mine.rows == 0:
                continue
            out = term.loss(net, mine, now)
            # Of a batch that is part of a minibatch the learner takes the share part.rows / whole.rows. This term's
            # share is by its own rows.
            share = (mine.rows / mine.whole.rows) / (batch.rows / batch.whole.rows)
            losses.append(out.loss * (value_at(term.weight, now.env_steps, f"term {name!r}") * share))
            metrics.update({f"{name}/{metric}": value for metric, value in out.metrics.items()})
            for key, values_B in out.per_row.items():
                per_row[f"{name}/{key}"] = values_B.new_zeros(batch.rows).masked_scatter(mask_B, values_B)
        total = torch.stack(losses).sum() if losses else net.flat_parameters.new_zeros(()).requires_grad_()
        return LossOut(total, metrics, per_row)


def _rows_of(batch: TensorBatch, column: str | None) -> tuple[TensorBatch, Tensor]:
    """The rows where the boolean column is true, as a part of those of the whole minibatch, and the mask."""
    if column is None:
        return batch, torch.ones(batch.rows, dtype=torch.bool)
    mask_B = batch[column]
    if mask_B.dtype != torch.bool:
        raise TypeError(f"column {column!r} says which rows a loss is for and must be boolean, got {mask_B.dtype}")
    whole = None if batch.whole is batch else batch.whole.where(batch.whole[column])
    return batch.where(mask_B, whole=whole), mask_B
