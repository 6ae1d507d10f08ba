"""The losses of asynchronous actor-critics: IMPALA's policy gradient and APPO's clipped surrogate, both on V-trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from flowrl.numbers import check_fields
from flowrl.rl.distributions import MASKED, kl_estimate
from flowrl.rl.heads import ActorCriticHead
from flowrl.rl.loss import LossOut
from flowrl.rl.policy import Policy
from flowrl.rl.ppo_loss import Surrogates
from flowrl.rl.returns import vtrace
from flowrl.rl.schedules import Rate, check_rate, value_at
from flowrl.rl.sequences import SequenceBatch
from flowrl.rl.spec import Progress
from flowrl.rl.successors import SUCCESSOR_COLUMNS, Judged, WithSuccessors
from flowrl.rl.tensors import TensorBatch

VTRACE_COLUMNS = SUCCESSOR_COLUMNS | {"actions", "rewards", "logp"}


@dataclass(frozen=True)
class _OnVTrace:
    discount: float = 0.99
    value_cost: float = 0.5
    entropy_cost: Rate = 0.0
    rho_clip: float = 1.0
    c_clip: float = 1.0
    pg_rho_clip: float = 1.0
    vtrace_lambda: float = 1.0

    sequences: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_fields(self, fraction=("discount", "vtrace_lambda"), not_negative=("value_cost",))
        check_rate("entropy_cost", self.entropy_cost, above_0=False)
        for name in ("rho_clip", "c_clip", "pg_rho_clip"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)!r}")

    @property
    def needs(self) -> frozenset[str]:
        """The columns that it reads."""
        return VTRACE_COLUMNS

    def _sequences(self, net: Policy, batch: TensorBatch) -> SequenceBatch:
        if not isinstance(batch, SequenceBatch) or not isinstance(net.head, ActorCriticHead):
            raise ValueError(
                f"{type(self).__name__} trains a policy and its values (PolicySpec without head=) on sequences, got "
                f"{net.spec} and a {type(batch).__name__}"
            )
        return batch

    def _corrected(self, batch: SequenceBatch, judged: Judged, logp_B: Tensor) -> tuple[Tensor, Tensor]:
        """Targets and advantages (B,) of a policy's judgement; `logp_B` is what it gives of the actions."""
        steps, valid_TN = batch.steps, batch.valid_TN
        logp_TN = torch.zeros_like(judged.values_TN)
        logp_TN[valid_TN] = logp_B.detach()
        made = vtrace(
            steps["logp"],
            logp_TN,
            steps["rewards"],
            judged.values_TN,
            judged.next_values_TN,
            steps["terminated"],
            steps["truncated"],
            discount=self.discount,
            rho_clip=self.rho_clip,
            c_clip=self.c_clip,
            pg_rho_clip=self.pg_rho_clip,
            vtrace_lambda=self.vtrace_lambda,
            valid_TN=valid_TN,
        )
        return made.targets_TN[valid_TN], made.pg_advantages_TN[valid_TN]

    def _out(
        self, policy_loss: Tensor, value_loss: Tensor, entropy_B: Tensor, log_ratio_B: Tensor, now: Progress
    ) -> LossOut:
        """The weighted sum, and the metrics; `log_ratio_B` is of the policy and the behaviour."""
        entropy_cost = value_at(self.entropy_cost, now.env_steps, "entropy_cost")
        entropy = entropy_B.mean()
        metrics: dict[str, Tensor | float] = {
            "policy_loss": policy_loss.detach(),
            "value_loss": value_loss.detach(),
            "entropy": entropy.detach(),
            "kl": kl_estimate(log_ratio_B).mean(),
            "rho": log_ratio_B.clamp(max=0.0).exp().mean(),
            **({"entropy_cost": entropy_cost} if callable(self.entropy_cost) else {}),
        }
        return LossOut(policy_loss + self.value_cost * value_loss - entropy_cost * entropy, metrics)


@dataclass(frozen=True)
class VTraceLoss(_OnVTrace):
    """IMPALA's loss (arXiv:1802.01561, section 4.2), as means over the valid rows of sequences.

    loss = −mean(A · log π) + value_cost·mean((V − v)²) − entropy_cost·mean(H)

    where v and A are V-trace targets and advantages (`flowrl.rl.returns.vtrace`) of the policy and values as they are
    now, without gradient, of behaviour whose log-probability the batch has as `logp`.

    discount: γ, of future rewards.
    value_cost: weight of the mean squared error of the values. There is no further 1/2 in it.
    entropy_cost: weight of the entropy bonus; a number or a schedule (H as PPOLoss has it).
    rho_clip, c_clip, pg_rho_clip: ρ̄, c̄ and the clip of the weight of the policy's gradient.
    vtrace_lambda: λ of the traces; 1 sums all the rewards that a sequence has.

    Metrics: policy_loss, value_loss, entropy, kl (mean of (r − 1) − log r, of the policy and the behaviour), rho (mean
    of min(1, r)), the present value of entropy_cost if it is a schedule.
    """

    def __call__(self, net: Policy, batch: TensorBatch, now: Progress) -> LossOut:
        """The loss over the rows of sequences."""
        sequences = self._sequences(net, batch)
        judged = WithSuccessors(sequences).judged_by(net)
        logp_B, entropy_B = judged.dist.logp_and_entropy(batch["actions"])
        targets_B, advantages_B = self._corrected(sequences, judged, logp_B)
        logp_B = _finite(logp_B)
        policy_loss = -(advantages_B * logp_B).mean()
        value_loss = (judged.values - targets_B).square().mean()
        return self._out(policy_loss, value_loss, entropy_B, logp_B.detach() - batch["logp"], now)


@dataclass(frozen=True)
class APPOLoss(_OnVTrace):
    """The loss of asynchronous PPO: a clipped surrogate on V-trace, as means over the valid rows of sequences.

    loss = −mean(min(r·A, clip(r, 1 ± clip)·A)) + value_cost·mean((V − v)²) − entropy_cost·mean(H)

    v and A are V-trace targets and advantages of the policy's target network, corrected for the behaviour whose
    log-probability the batch has as `logp`, and r is the ratio of the policy to the target network (arXiv:1912.00167,
    section 3; with PPO's clip as in arXiv:2006.11751). So what is learned from a batch stands still while the policy
    moves, and the clip holds it near a policy of its own whatever the age of the data. The learner says when the target
    follows (UpdateTarget); until its first update it is the policy itself, as it began.

    clip: how far the ratio may move the surrogate; a number or a schedule. The rest is VTraceLoss's.

    Metrics: VTraceLoss's and clip_fraction, the share of rows with r outside 1 ± clip; the clip if it is a schedule.
    """

    clip: Rate = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rate("clip", self.clip, above_0=True)

    def __call__(self, net: Policy, batch: TensorBatch, now: Progress) -> LossOut:
        """The loss over the rows of sequences."""
        sequences = self._sequences(net, batch)
        clip = value_at(self.clip, now.env_steps, "clip")
        with torch.no_grad():
            still = WithSuccessors(sequences).judged_by(net.target)
            still_logp_B = still.dist.logp(batch["actions"])
            targets_B, advantages_B = self._corrected(sequences, still, still_logp_B)
        out = net.forward(batch)
        logp_B, entropy_B = out.dist.logp_and_entropy(batch["actions"])
        logp_B = _finite(logp_B)
        # What the target never does has the advantage 0, whatever the policy makes of it.
        still_logp_B = still_logp_B.where(still_logp_B > MASKED, logp_B.detach())
        policy_loss, value_loss, _, clip_fraction = Surrogates.apply(
            logp_B, out.values, still_logp_B, advantages_B, targets_B, clip, None, None
        )
        made = self._out(policy_loss, value_loss, entropy_B, logp_B.detach() - batch["logp"], now)
        scheduled = {"clip": clip} if callable(self.clip) else {}
        return LossOut(made.loss, {**made.metrics, "clip_fraction": clip_fraction, **scheduled})


def _finite(logp_B: Tensor) -> Tensor:
    """log π, with the least float32 for −inf: times an advantage of 0, which such a row has, it is no NaN."""
    return logp_B.clamp(min=MASKED)
