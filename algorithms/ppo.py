"""PPO with a clipped surrogate (arXiv:1707.06347): synchronous rollouts, epochs of minibatches, weights sent back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flowrl import ActorGroup, Batch, Flow, actor, rl
from flowrl.algorithms.collecting import CollectingConfig, check_head, evaluated, kept, workers_of
from flowrl.numbers import check_fields
from flowrl.operators import (
    AddAdvantages,
    ConcatBatches,
    ParallelRollouts,
    ReportMetrics,
    SendWeights,
    ShareRewardMoments,
    Summary,
    TrainOneStep,
)
from flowrl.operators.training import TrainInfo
from flowrl.rl.schedules import Rate, check_rate


@dataclass(frozen=True)
class PPOConfig(CollectingConfig):
    """The settings of PPO. The defaults are tuned to solve CartPole-v1 soon on two cores; harder environments want a
    smaller learning_rate (3e-4) and a larger gae_lambda (0.95)."""

    unroll: int = 128
    """Steps of each environment in a fragment."""
    batch_steps: int = 1900
    """Environment steps that are trained on together, at least. One round gives 2 × 8 × 128 rows, of which those that
    only reset an environment are no steps; a little less than a round therefore trains once a round."""
    normalize_rewards: bool = False
    """Rewards are divided by the standard deviation of the discounted return of all workers."""
    epochs: int = 8
    """Passes over each batch."""
    minibatch: int = 512
    """Rows of an update; of a recurrent policy, sequences of `unroll` steps."""
    microbatch: int | None = None
    """What of a minibatch goes through the network at once; the gradient is accumulated and stays the same."""
    learning_rate: Rate = 4e-3
    """Adam's step size: a number, or in Python a schedule over environment steps such as Linear(4e-3, 0, 500_000)."""
    discount: float = 0.99
    """γ, of future rewards."""
    gae_lambda: float = 0.9
    """λ of generalized advantage estimation (arXiv:1506.02438)."""
    clip: Rate = 0.2
    """ε of the clipped surrogate (equation 7); a number or a schedule."""
    clip_value: Rate | None = None
    """How far a value may move from the one at collection before its row is left out; None: any way."""
    value_cost: float = 0.5
    """Weight of the value loss, the mean squared error of the returns."""
    entropy_cost: Rate = 0.0
    """Weight of the entropy bonus; a number or a schedule."""
    target_kl: float | None = None
    """Training on a batch ends when the policy has moved further than this (KL divergence); None: after all epochs."""
    max_grad_norm: float = 0.5
    """The gradient's global norm is clipped to it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_head(self.policy, "actor_critic")
        check_fields(
            self,
            whole=("batch_steps", "epochs", "minibatch", *(() if self.microbatch is None else ("microbatch",))),
            positive=("max_grad_norm",),
            not_negative=("value_cost",),
            fraction=("discount", "gae_lambda"),
        )
        check_rate("learning_rate", self.learning_rate, above_0=True)
        check_rate("clip", self.clip, above_0=True)
        if self.clip_value is not None:
            check_rate("clip_value", self.clip_value, above_0=True)
        check_rate("entropy_cost", self.entropy_cost, above_0=False)

    def graph(self) -> Flow[Summary]:
        """The whole algorithm as a flow of summaries."""
        return graph(self)


def graph(cfg: PPOConfig) -> Flow[Summary]:
    """PPO with a clipped surrogate (arXiv:1707.06347)."""
    workers = workers_of(cfg, normalize_rewards=cfg.discount if cfg.normalize_rewards else None)
    learner = learner_of(cfg)
    rollouts = (
        ParallelRollouts(workers)
        .for_each(AddAdvantages(cfg.discount, cfg.gae_lambda))
        .gather_sync(on_failure=cfg.on_worker_failure)
    )
    trained = rollouts.through(learn(cfg, learner, workers))
    if cfg.normalize_rewards:
        trained = trained.for_each(ShareRewardMoments(workers))
    return evaluated(trained, cfg, learner).for_each(ReportMetrics())


def learner_of(cfg: PPOConfig, *, name: str = "learner", **more: Any) -> ActorGroup[rl.Learner]:
    """The learner of a config; `more` are further arguments of it, such as `policy_id`."""
    return actor(
        rl.Learner, cfg.policy,
        rl.losses.PPOLoss(cfg.clip, cfg.value_cost, cfg.entropy_cost, clip_value=cfg.clip_value),
        learning_rate=cfg.learning_rate, max_grad_norm=cfg.max_grad_norm, target_kl=cfg.target_kl, name=name, **more,
    )  # fmt: skip


def learn(
    cfg: PPOConfig, learner: ActorGroup[rl.Learner], workers: ActorGroup[Any]
) -> Callable[[Flow[Batch]], Flow[TrainInfo]]:
    """The part that a mix reuses: from rollouts to weights sent."""
    return lambda rollouts: (
        rollouts.for_each(ConcatBatches(min_steps=cfg.batch_steps))
        .for_each(
            TrainOneStep(learner, epochs=cfg.epochs, minibatch=cfg.minibatch, microbatch=cfg.microbatch, **kept(cfg))
        )
        .for_each(SendWeights(learner, to=workers))
    )
