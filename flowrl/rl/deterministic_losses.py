"""The losses of deterministic actors: TD3's and, as its plainest case, DDPG's."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from flowrl.rl.loss import LossOut
from flowrl.rl.policy import Policy
from flowrl.rl.soft_losses import COLUMNS, NEXT_NOISE, critic_loss
from flowrl.rl.spec import Progress
from flowrl.rl.tensors import TensorBatch


@dataclass(frozen=True)
class TD3Loss:
    """The losses of TD3 (arXiv:1802.09477); with one critic and no target noise, of DDPG (arXiv:1509.02971).

    Called, it gives their sum, in which each parameter group gets the gradient of its own loss alone; `critic` and
    `actor` are the losses apart.

    target_noise: standard deviation of the noise on the target actor's actions, in units of −1..1 between the bounds.
    noise_clip: what that noise is clipped to, in the same units.

    `next_noise` (B, D) are the standard normal numbers of that noise. `discounts` are γ^k, 0 where the episode
    terminated. `weights` weigh the rows of the critics' loss, where there are any. The critics'
    per_row["priorities"] are their mean |δ|.
    """

    target_noise: float = 0.2
    noise_clip: float = 0.5

    def __post_init__(self) -> None:
        for name in ("target_noise", "noise_clip"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be at least 0 and finite, got {getattr(self, name)}")

    @property
    def needs(self) -> frozenset[str]:
        """The columns that it reads, besides the noise."""
        return COLUMNS

    def __call__(self, net: Policy, batch: TensorBatch, now: Progress) -> LossOut:
        """The sum of both losses over the rows of a batch."""
        critic, actor = self.critic(net, batch, now), self.actor(net, batch, now)
        return LossOut(critic.loss + actor.loss, {**critic.metrics, **actor.metrics}, critic.per_row)

    def critic(self, net: Policy, batch: TensorBatch, now: Progress) -> LossOut:
        """Σ_k mean((Q_k(s, a) − y)²), y = r + γ min_k Q'_k(s', clip(μ'(s') + clip(ε)))."""
        with torch.no_grad():
            next_obs = batch.tree("next_obs")
            next_BD = torch.tanh(net.target_params(next_obs))
            if self.target_noise:
                noise_BD = (batch[NEXT_NOISE] * self.target_noise).clamp_(-self.noise_clip, self.noise_clip)
                next_BD = (next_BD + noise_BD).clamp_(-1.0, 1.0)
            next_q_B = net.q_values(next_obs, next_BD, of_target=True).amin(0)
            target_B = torch.addcmul(batch["rewards"], batch["discounts"], next_q_B)
        return critic_loss(net.q_values(batch.tree("obs"), batch["actions"].flatten(1)), target_B, batch, 1.0)

    def actor(self, net: Policy, batch: TensorBatch, now: Progress) -> LossOut:
        """−mean(Q_1(s, μ(s)))."""
        obs = batch.tree("obs")
        loss = -net.first_q(obs, torch.tanh(net.run(obs).dist.params)).mean()
        return LossOut(loss, {"actor_loss": loss.detach()})
