"""PPO with a clipped surrogate (arXiv:1707.06347): synchronous rollouts, several epochs of minibatches, weights sent back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flowrl import ActorGroup, Batch, Flow, actor, actors
from flowrl.operators import (
    AddAdvantages,
    ConcatBatches,
    ParallelRollouts,
    ReportMetrics,
    SendWeights,
    Summary,
    TrainOneStep,
)
from flowrl.operators.training import TrainInfo
from flowrl.rl import Learner, PolicySpec, RolloutWorker
from flowrl.rl.losses import PPOLoss


@dataclass(frozen=True)
class PPOConfig:
    """The settings of PPO; the defaults are tuned for CartPole-v1 on two cores."""

    env: Any = "CartPole-v1"
    """A Gymnasium id, a factory, or "package.module:Name"."""
    env_kwargs: Mapping[str, Any] | None = None
    """Keyword arguments of the environment."""
    policy: PolicySpec = field(default_factory=PolicySpec)
    """What the policy is made of."""
    num_workers: int = 2
    """Rollout workers: the shards of the graph."""
    envs_per_worker: int = 8
    """Copies of the environment that a worker steps together."""
    unroll: int = 128
    """Steps of each environment in a fragment."""
    batch_steps: int = 1900
    """Environment steps that are trained on together."""
    epochs: int = 10
    """Passes over each batch."""
    minibatch: int = 256
    """Rows of an update."""
    learning_rate: float = 1e-3
    """Adam's step size."""
    discount: float = 0.99
    """γ, of future rewards."""
    gae_lambda: float = 0.95
    """λ of generalized advantage estimation (arXiv:1506.02438)."""
    clip: float = 0.2
    """ε of the clipped surrogate (equation 7)."""
    value_cost: float = 0.5
    """Weight of the value loss, the mean squared error of the returns."""
    entropy_cost: float = 0.0
    """Weight of the entropy bonus."""
    max_grad_norm: float = 0.5
    """The gradient's global norm is clipped to it."""

    def graph(self) -> Flow[Summary]:
        """The whole algorithm as a flow of summaries."""
        return graph(self)


def graph(cfg: PPOConfig) -> Flow[Summary]:
    """PPO with a clipped surrogate (arXiv:1707.06347)."""
    workers = actors(
        RolloutWorker, cfg.env, cfg.policy, steps=cfg.unroll, num_envs=cfg.envs_per_worker, env_kwargs=cfg.env_kwargs,
        count=cfg.num_workers, name="workers",
    )  # fmt: skip
    learner = actor(
        Learner, cfg.policy, PPOLoss(cfg.clip, cfg.value_cost, cfg.entropy_cost),
        learning_rate=cfg.learning_rate, max_grad_norm=cfg.max_grad_norm, name="learner",
    )  # fmt: skip
    rollouts = ParallelRollouts(workers).for_each(AddAdvantages(cfg.discount, cfg.gae_lambda)).gather_sync()
    return rollouts.through(learn(cfg, learner, workers)).for_each(ReportMetrics())


def learn(
    cfg: PPOConfig, learner: ActorGroup[Learner], workers: ActorGroup[RolloutWorker]
) -> Callable[[Flow[Batch]], Flow[TrainInfo]]:
    """The part that a mix reuses: from rollouts to weights sent."""
    return lambda rollouts: (
        rollouts.for_each(ConcatBatches(min_steps=cfg.batch_steps))
        .for_each(TrainOneStep(learner, epochs=cfg.epochs, minibatch=cfg.minibatch))
        .for_each(SendWeights(learner, to=workers))
    )
