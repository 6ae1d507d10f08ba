"""Losses: what a learner minimizes, as functions of a policy, a batch and the progress of training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from flowrl.rl.distributions import kl_estimate
from flowrl.rl.policy import Policy
from flowrl.rl.spec import Progress
from flowrl.rl.tensors import TensorBatch


@dataclass(frozen=True)
class LossOut:
    """A loss (a scalar with gradient), metrics by name (detached scalars), and values a row (B,) such as priorities."""

    loss: Tensor
    metrics: Mapping[str, Tensor | float] = field(default_factory=dict)
    per_row: Mapping[str, Tensor] = field(default_factory=dict)


class Loss(Protocol):
    """A callable that gives the loss of a batch; `needs` are the columns that it reads, nested ones by their root."""

    @property
    def needs(self) -> frozenset[str]: ...

    def __call__(self, net: Policy, batch: TensorBatch, now: Progress) -> LossOut:
        """The loss of the batch's rows under `net`; `now` is what schedules are functions of."""
        ...


@dataclass(frozen=True)
class PPOLoss:
    """PPO's clipped surrogate with a value loss and an entropy bonus (arXiv:1707.06347, eq. 7 and 9).

    loss = −mean(min(r·A, clip(r, 1 ± clip)·A)) + value_cost·mean((V − return)²) − entropy_cost·mean(H)

    clip: how far the ratio r of new to old probability may move the surrogate.
    value_cost: weight of the mean squared error of the values. There is no further 1/2 in it: 0.5 is the
        usual "½ MSE".
    entropy_cost: weight of the entropy bonus.
    standardize_advantages: to mean 0 and standard deviation 1 in each minibatch. A single row
        is left as it is; equal advantages become 0.

    Metrics: policy_loss, value_loss (the mean squared error), entropy, kl (mean of (r − 1) − log r) and
    clip_fraction, the share of rows with r outside 1 ± clip.
    """

    clip: float = 0.2
    value_cost: float = 0.5
    entropy_cost: float = 0.0
    standardize_advantages: bool = True

    needs: ClassVar[frozenset[str]] = frozenset({"obs", "actions", "logp", "advantages", "returns"})

    def __post_init__(self) -> None:
        if self.clip <= 0:
            raise ValueError(f"clip must be above 0, got {self.clip}")
        for name in ("value_cost", "entropy_cost"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")

    def __call__(self, net: Policy, batch: TensorBatch, now: Progress) -> LossOut:
        """The loss over the rows of a batch."""
        out = net.forward(batch)
        advantages_B = standardized(batch["advantages"]) if self.standardize_advantages else batch["advantages"]
        logp_B, entropy_B = out.dist.logp_and_entropy(batch["actions"])
        surrogate, squared_error, kl, clip_fraction = _Surrogates.apply(
            logp_B, out.values, batch["logp"], advantages_B, batch["returns"], self.clip
        )
        entropy = entropy_B.mean() if self.entropy_cost else entropy_B.detach().mean()
        loss = torch.add(surrogate, squared_error, alpha=self.value_cost)
        if self.entropy_cost:
            loss = torch.sub(loss, entropy, alpha=self.entropy_cost)
        metrics = {
            "policy_loss": surrogate.detach(),
            "value_loss": squared_error.detach(),
            "entropy": entropy.detach(),
            "kl": kl,
            "clip_fraction": clip_fraction,
        }
        return LossOut(loss, metrics)


class _Surrogates(torch.autograd.Function):
    """−mean(min(r·A, clip(r)·A)), mean((V − return)²) and two diagnostics, with the gradients written out.

    The gradients are by products of the forward pass: ∂/∂logp = −r·A/B where the unclipped term is the
    smaller, else 0; ∂/∂V = 2(V − return)/B. Autograd needs three times as long for the same.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logp_B: Tensor,
        values_B: Tensor,
        old_logp_B: Tensor,
        advantages_B: Tensor,
        returns_B: Tensor,
        clip: float,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        log_ratio_B = logp_B - old_logp_B
        ratio_B = log_ratio_B.exp()
        clipped_B = ratio_B.clamp(1 - clip, 1 + clip)
        unclipped_term_B = ratio_B * advantages_B
        term_B = torch.minimum(unclipped_term_B, clipped_B * advantages_B)
        error_B = values_B - returns_B
        ctx.save_for_backward(unclipped_term_B.where(unclipped_term_B == term_B, 0.0), error_B)
        clip_fraction = torch.count_nonzero(ratio_B != clipped_B) / len(ratio_B)
        kl = kl_estimate(log_ratio_B).mean()
        ctx.mark_non_differentiable(kl, clip_fraction)
        ctx.set_materialize_grads(False)
        return -term_B.mean(), error_B.square().mean(), kl, clip_fraction

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, dsurrogate: Tensor | None, dsquared_error: Tensor | None, *_: None
    ) -> tuple[Tensor | None, ...]:
        term_B, error_B = ctx.saved_tensors
        dlogp_B = None if dsurrogate is None else term_B * (dsurrogate / -len(term_B))
        dvalues_B = None if dsquared_error is None else error_B * (dsquared_error * (2 / len(error_B)))
        return dlogp_B, dvalues_B, None, None, None, None


def standardized(x_B: Tensor) -> Tensor:
    """x (B,) with mean 0 and standard deviation 1 (n − 1); one row stays as it is, equal rows give 0."""
    if len(x_B) < 2:
        return x_B
    # The mean comes from the same pass as the deviation, which is exact for equal rows; the rounding of a
    # plain sum, divided by 1e-8, would make large numbers of them.
    std, mean = torch.std_mean(x_B)
    return (x_B - mean) / (std + 1e-8)
