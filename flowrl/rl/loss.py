"""What a loss is: a function of a policy, a batch and the progress of training, which a learner minimizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from flowrl.rl.policy import Policy
from flowrl.rl.spec import Progress
from flowrl.rl.tensors import TensorBatch


@dataclass(frozen=True)
class LossOut:
    """A loss (a scalar with gradient), metrics by name (detached scalars), and values a row (B,) such as priorities."""

    loss: Tensor
    metrics: Mapping[str, Tensor | float] = field(default_factory=dict)
    per_row: Mapping[str, Tensor] = field(default_factory=dict)


LossFunction = Callable[[Policy, TensorBatch, Progress], LossOut]
"""The loss of a batch's rows under a policy."""


class Loss(Protocol):
    """A callable that gives the loss of a batch; `needs` are the columns that it reads, nested ones by their root.

    A loss over time has `sequences = True` besides: it gets a SequenceBatch whatever the policy, and minibatches are of
    whole sequences.
    """

    @property
    def needs(self) -> frozenset[str]: ...

    def __call__(self, net: Policy, batch: TensorBatch, now: Progress) -> LossOut:
        """The loss of the batch's rows under `net`; `now` is what schedules are functions of."""
        ...


def wants_sequences(loss: object) -> bool:
    """Whether a loss is one over time, as it says itself."""
    return bool(getattr(loss, "sequences", False))
