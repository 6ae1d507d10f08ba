"""PPO with a clipped surrogate (arXiv:1707.06347): synchronous rollouts, epochs of minibatches, weights sent back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flowrl import ActorGroup, Batch, Flow, actor, actors, rl
from flowrl.numbers import check_fields
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


@dataclass(frozen=True)
class PPOConfig:
    """The settings of PPO. The defaults are tuned to solve CartPole-v1 soon on two cores; harder environments want a
    smaller learning_rate (3e-4) and a larger gae_lambda (0.95)."""

    env: Any = "CartPole-v1"
    """A Gymnasium id, a factory, or "package.module:Name"."""
    env_kwargs: Mapping[str, Any] | None = None
    """Keyword arguments of the environment."""
    policy: rl.PolicySpec = field(default_factory=rl.PolicySpec)
    """What the policy is made of."""
    num_workers: int = 2
    """Rollout workers: the shards of the graph."""
    envs_per_worker: int = 8
    """Copies of the environment that a worker steps together."""
    unroll: int = 128
    """Steps of each environment in a fragment."""
    batch_steps: int = 1900
    """Environment steps that are trained on together, at least. One round gives 2 × 8 × 128 rows, of which those that
    only reset an environment are no steps; a little less than a round therefore trains once a round."""
    epochs: int = 8
    """Passes over each batch."""
    minibatch: int = 512
    """Rows of an update."""
    learning_rate: float = 4e-3
    """Adam's step size."""
    discount: float = 0.99
    """γ, of future rewards."""
    gae_lambda: float = 0.9
    """λ of generalized advantage estimation (arXiv:1506.02438)."""
    clip: float = 0.2
    """ε of the clipped surrogate (equation 7)."""
    value_cost: float = 0.5
    """Weight of the value loss, the mean squared error of the returns."""
    entropy_cost: float = 0.0
    """Weight of the entropy bonus."""
    max_grad_norm: float = 0.5
    """The gradient's global norm is clipped to it."""

    def __post_init__(self) -> None:
        check_fields(
            self,
            whole=("num_workers", "envs_per_worker", "unroll", "batch_steps", "epochs", "minibatch"),
            positive=("learning_rate", "clip", "max_grad_norm"),
            not_negative=("value_cost", "entropy_cost"),
            fraction=("discount", "gae_lambda"),
        )

    def graph(self) -> Flow[Summary]:
        """The whole algorithm as a flow of summaries."""
        return graph(self)


def graph(cfg: PPOConfig) -> Flow[Summary]:
    """PPO with a clipped surrogate (arXiv:1707.06347)."""
    workers = actors(
        rl.RolloutWorker, cfg.env, cfg.policy, steps=cfg.unroll, num_envs=cfg.envs_per_worker,
        env_kwargs=cfg.env_kwargs, count=cfg.num_workers, name="workers",
    )  # fmt: skip
    learner = actor(
        rl.Learner, cfg.policy, rl.losses.PPOLoss(cfg.clip, cfg.value_cost, cfg.entropy_cost),
        learning_rate=cfg.learning_rate, max_grad_norm=cfg.max_grad_norm, name="learner",
    )  # fmt: skip
    rollouts = ParallelRollouts(workers).for_each(AddAdvantages(cfg.discount, cfg.gae_lambda)).gather_sync()
    return rollouts.through(learn(cfg, learner, workers)).for_each(ReportMetrics())


def learn(
    cfg: PPOConfig, learner: ActorGroup[rl.Learner], workers: ActorGroup[rl.RolloutWorker]
) -> Callable[[Flow[Batch]], Flow[TrainInfo]]:
    """The part that a mix reuses: from rollouts to weights sent."""
    return lambda rollouts: (
        rollouts.for_each(ConcatBatches(min_steps=cfg.batch_steps))
        .for_each(TrainOneStep(learner, epochs=cfg.epochs, minibatch=cfg.minibatch))
        .for_each(SendWeights(learner, to=workers))
    )
