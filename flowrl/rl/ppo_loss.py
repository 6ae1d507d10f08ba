"""PPO's loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from flowrl.rl.distributions import kl_estimate
from flowrl.rl.loss import LossOut
from flowrl.rl.policy import Policy
from flowrl.rl.schedules import Rate, check_rate, value_at
from flowrl.rl.spec import Progress
from flowrl.rl.tensors import TensorBatch

PPO_COLUMNS = frozenset({"obs", "actions", "logp", "advantages", "returns"})


@dataclass(frozen=True)
class PPOLoss:
    """PPO's clipped surrogate with a value loss and an entropy bonus (arXiv:1707.06347, eq. 7 and 9).

    loss = −mean(min(r·A, clip(r, 1 ± clip)·A)) + value_cost·mean((V − return)²) − entropy_cost·mean(H)

    clip: how far the ratio r of new to old probability may move the surrogate; a number or a schedule.
    value_cost: weight of the mean squared error of the values. There is no further 1/2 in it: 0.5 is the
        usual "½ MSE".
    entropy_cost: weight of the entropy bonus; a number or a schedule. H is the distribution's own, summed over
        action dimensions; where it has no closed form (a squashed Gaussian), −log p of the actions stands for it.
    standardize_advantages: to mean 0 and standard deviation 1 in each minibatch, over all its microbatches.
        A single row is left as it is; equal advantages become 0.
    clip_value: how far V may move from the behaviour value: V is then values + clip(V − values, ± clip_value),
        so a row that moved further has no gradient. A number or a schedule; None, the default, leaves V as it is.

    Metrics: policy_loss, value_loss (the mean squared error), entropy, kl (mean of (r − 1) − log r),
    clip_fraction, the share of rows with r outside 1 ± clip, and the present value of each schedule by its name.
    """

    clip: Rate = 0.2
    value_cost: float = 0.5
    entropy_cost: Rate = 0.0
    standardize_advantages: bool = True
    clip_value: Rate | None = None

    def __post_init__(self) -> None:
        check_rate("clip", self.clip, above_0=True)
        check_rate("value_cost", self.value_cost, above_0=False)
        check_rate("entropy_cost", self.entropy_cost, above_0=False)
        if self.clip_value is not None:
            check_rate("clip_value", self.clip_value, above_0=True)

    @property
    def needs(self) -> frozenset[str]:
        """The columns that it reads."""
        return PPO_COLUMNS if self.clip_value is None else PPO_COLUMNS | {"values"}

    def __call__(self, net: Policy, batch: TensorBatch, now: Progress) -> LossOut:
        """The loss over the rows of a batch."""
        clip = value_at(self.clip, now.env_steps, "clip")
        entropy_cost = value_at(self.entropy_cost, now.env_steps, "entropy_cost")
        clip_value = None if self.clip_value is None else value_at(self.clip_value, now.env_steps, "clip_value")
        out = net.forward(batch)
        advantages_B = batch["advantages"]
        if self.standardize_advantages:
            advantages_B = standardized(advantages_B, getattr(batch, "whole", batch)["advantages"])
        logp_B, entropy_B = out.dist.logp_and_entropy(batch["actions"])
        old_values_B = None if clip_value is None else batch["values"]
        surrogate, squared_error, kl, clip_fraction = Surrogates.apply(
            logp_B, out.values, batch["logp"], advantages_B, batch["returns"], clip, old_values_B, clip_value
        )
        entropy = entropy_B.mean() if entropy_cost else entropy_B.detach().mean()
        loss = torch.add(surrogate, squared_error, alpha=self.value_cost)
        if entropy_cost:
            loss = torch.sub(loss, entropy, alpha=entropy_cost)
        metrics = {
            "policy_loss": surrogate.detach(),
            "value_loss": squared_error.detach(),
            "entropy": entropy.detach(),
            "kl": kl,
            "clip_fraction": clip_fraction,
            **self._scheduled(clip=clip, entropy_cost=entropy_cost, clip_value=clip_value),
        }
        return LossOut(loss, metrics)

    def _scheduled(self, **present: float | None) -> dict[str, float]:
        """Those of the present values that come from schedules."""
        return {name: value for name, value in present.items() if value is not None and callable(getattr(self, name))}


class Surrogates(torch.autograd.Function):
    """−mean(min(r·A, clip(r)·A)), mean((V − return)²) and two diagnostics, with the gradients written out.

    The gradients are by products of the forward pass: ∂/∂logp = −r·A/B where the unclipped term is the
    smaller, else 0; ∂/∂V = 2(V − return)/B, 0 where V is clipped. Autograd needs three times as long for the same.
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
        old_values_B: Tensor | None,
        clip_value: float | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        log_ratio_B = logp_B - old_logp_B
        ratio_B = log_ratio_B.exp()
        clipped_B = ratio_B.clamp(1 - clip, 1 + clip)
        unclipped_term_B = ratio_B * advantages_B
        term_B = torch.minimum(unclipped_term_B, clipped_B * advantages_B)
        if old_values_B is None or clip_value is None:
            error_B = dvalues_B = values_B - returns_B
        else:
            change_B = values_B - old_values_B
            error_B = old_values_B + change_B.clamp(-clip_value, clip_value) - returns_B
            dvalues_B = error_B.where(change_B.abs() <= clip_value, 0.0)
        ctx.save_for_backward(unclipped_term_B.where(unclipped_term_B == term_B, 0.0), dvalues_B)
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
        return dlogp_B, dvalues_B, None, None, None, None, None, None


def standardized(x_B: Tensor, whole_B: Tensor | None = None) -> Tensor:
    """x (B,) with mean 0 and standard deviation 1 (n − 1); one row stays as it is, equal rows give 0.

    Mean and deviation are those of `whole_B` where it is given, of which x is a part.
    """
    whole_B = x_B if whole_B is None else whole_B
    if len(whole_B) < 2:
        return x_B
    # The mean comes from the same pass as the deviation, which is exact for equal rows; the rounding of a
    # plain sum, divided by 1e-8, would make large numbers of them.
    std, mean = torch.std_mean(whole_B)
    return (x_B - mean) / (std + 1e-8)
