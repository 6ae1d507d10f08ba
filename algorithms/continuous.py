"""What algorithms of an actor with critics have in common: settings, workers, replay, and the way between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from flowrl import ActorGroup, Batch, Flow, rl
from flowrl.algorithms.collecting import evaluated, kept, workers_of
from flowrl.algorithms.replaying import ReplayingConfig, replay_of
from flowrl.numbers import check_fields
from flowrl.operators import (
    NStep,
    ParallelRollouts,
    Replay,
    ReportMetrics,
    SendWeights,
    SetEpsilon,
    StoreToReplay,
    Summary,
    TrainOneStep,
    Union,
    UpdatePriorities,
    UpdateTarget,
)
from flowrl.operators.training import TrainInfo
from flowrl.rl.schedules import Rate, check_rate


@dataclass(frozen=True)
class ContinuousConfig(ReplayingConfig):
    """The settings that SAC, TD3 and DDPG share. The defaults are tuned to reach −200 on Pendulum-v1 in few steps."""

    env: Any = "Pendulum-v1"
    """A Gymnasium id, a factory, or "package.module:Name"; its actions lie between bounds."""
    policy: rl.PolicySpec = field(default_factory=rl.PolicySpec)
    """What the policy is made of, of the algorithm's own head."""
    envs_per_worker: int = 4
    """Copies of the environment that a worker steps together."""
    unroll: int = 4
    """Steps of each environment in a fragment."""
    capacity: int = 100_000
    """Rows that a shard keeps."""
    prioritized: bool = False
    """Rows are drawn by their last error instead of uniformly (arXiv:1511.05952)."""
    min_size: int = 500
    """Rows that are stored before training begins."""
    samples_per_step: float | None = 256.0
    """Rows trained on for each environment step, by `batch` so many updates a step; None: both sides run as fast as
    they can."""
    batch: int = 256
    """Rows of an update."""
    batches: int = 8
    """Updates a message: so many minibatches are drawn and trained on at once."""
    critic_learning_rate: Rate | None = None
    """The critics' own; None: as `learning_rate`."""
    max_grad_norm: float | None = None
    """The gradient's global norm is clipped to it, the actor's and the critics' apart; None leaves them."""
    tau: float = 0.005
    """How far the target moves towards the policy at each update of it."""
    epsilon: Rate = 0.0
    """Share of actions that are uniform between the bounds: a number, or a schedule over environment steps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, positive=("tau",), fraction=("tau",), or_none=("max_grad_norm",))
        if self.critic_learning_rate is not None:
            check_rate("critic_learning_rate", self.critic_learning_rate, above_0=True)


def graph_of(cfg: ContinuousConfig, learner: ActorGroup[Any]) -> Flow[Summary]:
    """The graph around a learner: workers store what they see in replay shards, and it trains on what it draws."""
    workers, replay = workers_of(cfg, next_obs=True), replay_of(cfg, prioritized=cfg.prioritized)
    rollouts = (
        ParallelRollouts(workers)
        .for_each(NStep(cfg.n_step, cfg.discount))
        .gather_async(on_failure=cfg.on_worker_failure)
    )
    return evaluated(rollouts.through(learn(cfg, learner, replay, workers)), cfg, learner).for_each(ReportMetrics())


def learn(
    cfg: ContinuousConfig,
    learner: ActorGroup[Any],
    replay: ActorGroup[rl.ReplayShard],
    workers: ActorGroup[Any],
) -> Callable[[Flow[Batch]], Flow[TrainInfo]]:
    """The part that a mix reuses: from n-step rollouts, stored on the one hand, to weights sent on the other."""

    def tail(rollouts: Flow[Batch]) -> Flow[TrainInfo]:
        explored = SetEpsilon(workers, cfg.epsilon, policy=learner.kwargs.get("policy_id"))
        stored = rollouts.for_each(explored).for_each(StoreToReplay(replay))
        trained = (
            Replay(
                replay,
                batch=cfg.batch,
                batches=cfg.batches,
                in_flight=cfg.in_flight,
                beta=cfg.beta,
                on_failure=cfg.on_shard_failure,
            )
            .for_each(TrainOneStep(learner, minibatch=cfg.batch, in_flight=cfg.in_flight, **kept(cfg)))
            .for_each(UpdateTarget(learner, tau=cfg.tau))
        )
        if cfg.prioritized:
            trained = trained.for_each(UpdatePriorities(to="origin"))
        sent = trained.for_each(SendWeights(learner, to=workers))
        return Union([stored, sent], mode="async", emit=[sent])

    return tail
