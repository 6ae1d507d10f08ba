"""Decentralized distributed PPO (arXiv:1911.00357): each worker learns from what it saw, all with one gradient."""

from __future__ import annotations

from dataclasses import dataclass

from flowrl import Flow, rl
from flowrl.algorithms.collecting import evaluated, workers_of
from flowrl.algorithms.ppo import PPOConfig
from flowrl.failures import Raise
from flowrl.numbers import check_fields
from flowrl.operators import (
    AddAdvantages,
    ConcatBatches,
    ParallelRollouts,
    ReportMetrics,
    ShareRewardMoments,
    Summary,
    TrainOneStep,
)


@dataclass(frozen=True)
class DDPPOConfig(PPOConfig):
    """The settings of DD-PPO: PPO's, and how long workers wait for each other."""

    minibatch: int = 512
    """Rows of an update, of all workers together; of a recurrent policy, sequences of `unroll` steps."""
    peer_timeout_s: float = 120.0
    """How long a worker waits for another's gradient before it gives it up for lost."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, seconds=("peer_timeout_s",))
        for name, instead in (("on_learner_failure", "on_worker_failure"), ("learner_timeout_s", "peer_timeout_s")):
            if getattr(self, name) not in (None, Raise()):
                raise ValueError(
                    f"{name}={getattr(self, name)!r} has no part in DD-PPO, whose workers learn: set {instead}"
                )

    def graph(self) -> Flow[Summary]:
        """The whole algorithm as a flow of summaries."""
        return graph(self)


def graph(cfg: DDPPOConfig) -> Flow[Summary]:
    """Decentralized distributed PPO (arXiv:1911.00357): the driver sees neither experience, gradients nor weights."""
    workers = workers_of(
        cfg, rl.LearningWorker,
        loss=rl.losses.PPOLoss(cfg.clip, cfg.value_cost, cfg.entropy_cost, clip_value=cfg.clip_value),
        learning_rate=cfg.learning_rate, max_grad_norm=cfg.max_grad_norm, target_kl=cfg.target_kl,
        normalize_rewards=cfg.discount if cfg.normalize_rewards else None,
    )  # fmt: skip
    train = TrainOneStep(
        workers, epochs=cfg.epochs, minibatch=cfg.minibatch, microbatch=cfg.microbatch,
        peer_timeout_s=cfg.peer_timeout_s,
    )  # fmt: skip
    trained = (
        ParallelRollouts(workers)
        .for_each(AddAdvantages(cfg.discount, cfg.gae_lambda))
        .gather_sync(on_failure=cfg.on_worker_failure)
        .for_each(ConcatBatches(min_steps=cfg.batch_steps))
        .for_each(train)  # each worker's fragments come back to it
    )
    if cfg.normalize_rewards:
        trained = trained.for_each(ShareRewardMoments(workers))
    return evaluated(trained, cfg, workers).for_each(ReportMetrics())
