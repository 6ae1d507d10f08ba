"""The losses of the soft actor-critic, for Box and for Discrete actions: critics, actor, temperature."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from flowrl.rl.distributions import LOG_2PI
from flowrl.rl.loss import LossOut
from flowrl.rl.observations import MASK, NEXT_MASK
from flowrl.rl.policy import Policy
from flowrl.rl.spec import Progress
from flowrl.rl.tensors import TensorBatch

NOISE, NEXT_NOISE = "noise", "next_noise"
COLUMNS = frozenset({"obs", "actions", "rewards", "next_obs", "discounts"})


@dataclass(frozen=True)
class SACLoss:
    """The losses of SAC (arXiv:1801.01290, 1812.05905) or, for Discrete actions, of its exact form (arXiv:1910.07207).

    Called, it gives their sum, in which each parameter group gets the gradient of its own loss alone; `critic`,
    `actor` and `temperature` are the losses apart. Box actions are compared between −1 and 1, so their log-densities
    and entropies do not depend on the bounds.

    target_entropy: H̄, to which α drives the entropy. None: −D for D numbers of a Box action, and for A Discrete actions
        `discrete_target` · log A.
    discrete_target: which share of the greatest entropy of Discrete actions is aimed at.
    learn_temperature: False keeps α as it is.

    `noise` and `next_noise` (B, D) are standard normal numbers by which Box actions are drawn for `obs` and `next_obs`.
    `discounts` are γ^k, 0 where the episode terminated. `weights` weigh the rows of the critics' loss, where there are
    any. The critics' per_row["priorities"] are their mean |δ|.
    """

    target_entropy: float | None = None
    discrete_target: float = 0.98
    learn_temperature: bool = True

    def __post_init__(self) -> None:
        if self.target_entropy is not None and not math.isfinite(self.target_entropy):
            raise ValueError(f"target_entropy must be finite, got {self.target_entropy}")
        if not 0.0 < self.discrete_target <= 1.0:
            raise ValueError(f"discrete_target must be above 0 and at most 1, got {self.discrete_target}")

    @property
    def needs(self) -> frozenset[str]:
        """The columns that it reads, besides the noise."""
        return COLUMNS

    def __call__(self, net: Policy, batch: TensorBatch, now: Progress) -> LossOut:
        """The sum of the three losses over the rows of a batch."""
        critic, actor = self.critic(net, batch, now), self.actor(net, batch, now)
        loss, metrics = critic.loss + actor.loss, {**critic.metrics, **actor.metrics}
        if self.learn_temperature:
            temperature = self.temperature(net, float(actor.metrics["entropy"]))
            loss, metrics = loss + temperature.loss, {**metrics, **temperature.metrics}
        return LossOut(loss, metrics, critic.per_row)

    def critic(self, net: Policy, batch: TensorBatch, now: Progress) -> LossOut:
        """½ Σ_k mean((Q_k(s, a) − y)²), y = r + γ (min_k Q'_k(s', a') − α log π(a'|s')), a' of the present actor."""
        with torch.no_grad():
            next_values_B = self._next_values(net, batch)
            target_B = torch.addcmul(batch["rewards"], batch["discounts"], next_values_B)
        if net.actions.kind == "discrete":
            q_KBA = net.q_values(batch.tree("obs"))
            index_KB1 = batch["actions"].long().expand(len(q_KBA), -1).unsqueeze(-1)
            q_KB = q_KBA.gather(-1, index_KB1).squeeze(-1)
        else:
            q_KB = net.q_values(batch.tree("obs"), torch.tanh(batch["actions"].flatten(1)))
        return critic_loss(q_KB, target_B, batch, 0.5)

    def _next_values(self, net: Policy, batch: TensorBatch) -> Tensor:
        next_obs, alpha = batch.tree("next_obs"), net.log_alpha.exp()
        if net.actions.kind == "discrete":
            logp_BA, p_BA = log_softmax(net.run(next_obs, batch.get(NEXT_MASK)).dist.params)
            q_BA = net.q_values(next_obs, of_target=True).amin(0)
            return (p_BA * (q_BA - alpha * logp_BA)).sum(-1)
        actions_BD, logp_B = squashed_sample(net.run(next_obs).dist.params, batch[NEXT_NOISE])
        q_B = net.q_values(next_obs, actions_BD, of_target=True).amin(0)
        return q_B - alpha * logp_B

    def actor(self, net: Policy, batch: TensorBatch, now: Progress) -> LossOut:
        """mean(α log π(a|s) − min_k Q_k(s, a)) with a reparametrized; for Discrete actions its expectation over a."""
        obs, alpha = batch.tree("obs"), net.log_alpha.detach().exp()
        if net.actions.kind == "discrete":
            logp_BA, p_BA = log_softmax(net.run(obs, batch.get(MASK)).dist.params)
            with torch.no_grad():
                q_BA = net.q_values(obs, frozen=True).amin(0)
            loss = (p_BA * (alpha * logp_BA - q_BA)).sum(-1).mean()
            entropy = torch.special.entr(p_BA.detach()).sum(-1).mean()
        else:
            actions_BD, logp_B = squashed_sample(net.run(obs).dist.params, batch[NOISE])
            q_B = net.q_values(obs, actions_BD, frozen=True).amin(0)
            loss = (alpha * logp_B - q_B).mean()
            entropy = -logp_B.detach().mean()
        return LossOut(loss, {"actor_loss": loss.detach(), "entropy": entropy})

    def temperature(self, net: Policy, entropy: Tensor | float) -> LossOut:
        """log α · (entropy − H̄): the mean entropy that the actor had, below H̄, makes α grow (1812.05905, section 5).

        On log α, as usual in practice, so that a step's size does not depend on α.
        """
        loss = net.log_alpha * (entropy - self.target_of(net))
        return LossOut(loss, {"temperature_loss": loss.detach(), "alpha": net.log_alpha.detach().exp()})

    def target_of(self, net: Policy) -> float:
        """H̄ for the actions of a policy."""
        if self.target_entropy is not None:
            return self.target_entropy
        if net.actions.kind == "discrete":
            return self.discrete_target * math.log(net.actions.num_params)
        return -float(net.actions.size)


def critic_loss(q_KB: Tensor, target_B: Tensor, batch: TensorBatch, scale: float) -> LossOut:
    """scale · Σ_k mean(w (Q_k − y)²) with the rows' `weights`, if any; per_row["priorities"]: the mean |δ|."""
    error_KB = q_KB - target_B
    square_KB = error_KB.square()
    if "weights" in batch:
        square_KB = square_KB * batch["weights"]
    loss = square_KB.sum() * (scale / len(target_B))
    with torch.no_grad():
        metrics = {"critic_loss": loss.detach(), "q": q_KB.mean(), "q_target": target_B.mean()}
        return LossOut(loss, metrics, {"priorities": error_KB.abs().mean(0)})


def squashed_sample(params_B2D: Tensor, noise_BD: Tensor) -> tuple[Tensor, Tensor]:
    """Actions (B, D) from −1 to 1 and their log-densities (B,): tanh u, u = μ + σ·noise (1801.01290, appendix C)."""
    mean_BD, log_std_BD = params_B2D.chunk(2, 1)
    u_BD = torch.addcmul(mean_BD, log_std_BD.exp(), noise_BD)
    # log N(u) − log tanh'(u), with log tanh'(u) = 2 (log 2 − u − softplus(−2u)) without cancellation at large |u|
    constant_BD = noise_BD.square().mul_(-0.5).sub_(0.5 * LOG_2PI + 2.0 * math.log(2.0))
    logp_B = (constant_BD - log_std_BD + 2.0 * (u_BD + functional.softplus(-2.0 * u_BD))).sum(1)
    return torch.tanh(u_BD), logp_B


def log_softmax(logits_BA: Tensor) -> tuple[Tensor, Tensor]:
    """log p and p (B, A); where p is 0, log p is a finite number, so that p log p is 0."""
    logp_BA = torch.log_softmax(logits_BA, -1)
    return logp_BA, logp_BA.exp()
