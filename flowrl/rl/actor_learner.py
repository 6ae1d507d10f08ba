"""The learners of actors with critics: an optimizer for each parameter group, one update after the other."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch

from flowrl.rl.deterministic_losses import TD3Loss
from flowrl.rl.learner import Learner, Metrics
from flowrl.rl.loss import LossOut
from flowrl.rl.schedules import Rate, check_rate, value_at
from flowrl.rl.soft_losses import SACLoss
from flowrl.rl.spec import PolicySpec, Progress
from flowrl.rl.tensors import TensorBatch


class ActorLearner(Learner):
    """What the learners of actors with critics have in common: noise for their losses, rates, what is published.

    The published weights are those that acting takes: the actor's, with the statistics of normalized observations.
    """

    head: ClassVar[str]
    noise: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        policy: PolicySpec,
        loss: SACLoss | TD3Loss,
        *,
        critic_learning_rate: Rate | None = None,
        max_grad_norm: float | None = None,
        adam_eps: float = 1e-8,
        seed: int | np.random.SeedSequence | None = None,
        **options: Any,
    ):
        if policy.head != self.head:
            raise ValueError(f"{type(self).__name__} trains policies of head={self.head!r}, got head={policy.head!r}")
        if critic_learning_rate is not None:
            check_rate("critic_learning_rate", critic_learning_rate, above_0=True)
        super().__init__(policy, loss, max_grad_norm=max_grad_norm, adam_eps=adam_eps, seed=seed, **options)
        self.critic_learning_rate = critic_learning_rate

    def prepare(self, batch: TensorBatch) -> TensorBatch:
        """The rows with the columns of noise that the losses draw actions by, from the learner's own stream."""
        actions = self.policy.actions
        if actions.kind == "discrete":
            return batch
        drawn = self._rng.standard_normal((len(self.noise), batch.rows, actions.size), np.float32)
        return TensorBatch({**batch, **dict(zip(self.noise, torch.from_numpy(drawn), strict=True))})

    def _learning_rate(self, now: Progress, group: str = "all") -> float:
        if group == "critics" and self.critic_learning_rate is not None:
            return value_at(self.critic_learning_rate, now.env_steps, "critic_learning_rate")
        return super()._learning_rate(now, group)


class SACLearner(ActorLearner):
    """Trains a soft actor: an update steps the critics, then the actor, then the temperature (arXiv:1812.05905).

    The arguments are `Learner`'s, and `critic_learning_rate`: the critics' step size, where it is not `learning_rate`.
    """

    head: ClassVar[str] = "soft_actor"
    noise: ClassVar[tuple[str, ...]] = ("noise", "next_noise")
    loss: SACLoss

    def update(self, batch: TensorBatch, now: Progress) -> Metrics:
        """One update on a minibatch; the actor sees the new critics, the temperature the entropy before the step."""
        critic = self.step("critics", self.loss.critic, batch, now)
        actor = self.step("actor", self.loss.actor, batch, now)
        metrics = {**_named(critic, "critic"), **_named(actor, "actor")}
        if not self.loss.learn_temperature:
            return metrics
        entropy = actor["entropy"]

        def temperature(net: Any, batch: TensorBatch, now: Progress) -> LossOut:
            return self.loss.temperature(net, entropy)

        return {**metrics, **_named(self.step("temperature", temperature, batch, now), "temperature")}


class TD3Learner(ActorLearner):
    """Trains a deterministic actor: each update steps the critics, each `policy_delay`-th one the actor too.

    The target follows (`set_target_update`) after the updates that step the actor. That is TD3 (arXiv:1802.09477);
    with `policy_delay=1`, one critic and no target noise, DDPG (arXiv:1509.02971).
    The arguments are `Learner`'s, and `critic_learning_rate`: the critics' step size, where it is not `learning_rate`.
    """

    head: ClassVar[str] = "deterministic_actor"
    noise: ClassVar[tuple[str, ...]] = ("next_noise",)
    loss: TD3Loss

    def __init__(
        self,
        policy: PolicySpec,
        loss: TD3Loss,
        *,
        policy_delay: int = 2,
        seed: int | np.random.SeedSequence | None = None,
        **options: Any,
    ):
        if policy_delay < 1:
            raise ValueError(f"policy_delay must be at least 1, got {policy_delay}")
        super().__init__(policy, loss, seed=seed, **options)
        self.policy_delay = policy_delay

    def update(self, batch: TensorBatch, now: Progress) -> Metrics:
        """One update on a minibatch; the actor, in its turn, sees the new critics."""
        metrics = _named(self.step("critics", self.loss.critic, batch, now), "critic")
        if (now.updates + 1) % self.policy_delay == 0:
            metrics |= _named(self.step("actor", self.loss.actor, batch, now), "actor")
        return metrics

    def _updated(self) -> None:
        self._updates += 1
        if self._updates % self.policy_delay == 0:
            self._targets.after_update(self.policy)


def _named(metrics: Metrics, group: str) -> Metrics:
    """The metrics with the norm of the gradient under the group's name."""
    return {f"{group}_grad_norm" if name == "grad_norm" else name: value for name, value in metrics.items()}
