"""Ape-X (arXiv:1803.00933): many exploring workers, prioritized replay in shards, and one learner that never waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from flowrl import ActorGroup, Batch, Flow, actor, rl
from flowrl.algorithms.collecting import evaluated, kept, workers_of
from flowrl.algorithms.dqn import loss_of
from flowrl.algorithms.replaying import replay_of
from flowrl.algorithms.value_based import DistributedConfig, check_no_memory, target_updates
from flowrl.operators import (
    InitialPriorities,
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
)
from flowrl.operators.training import TrainInfo
from flowrl.rl.schedules import Rate


@dataclass(frozen=True)
class ApexConfig(DistributedConfig):
    """The settings of Ape-X. The defaults are tuned to solve CartPole-v1 soon on two cores."""

    policy: rl.PolicySpec = field(default_factory=lambda: rl.PolicySpec(head="q", dueling=True, normalize_obs=True))
    """What the policy is made of, of head "q": dueling, over atoms. Values are fitted much sooner to observations of
    one scale."""
    unroll: int = 64
    """Steps of each environment in a fragment."""
    replay_shards: int = 2
    """Replay shards, each an actor of `capacity` rows."""
    min_size: int = 2000
    """Rows that are stored before training begins."""
    samples_per_step: float | None = 4.0
    """Rows trained on for each environment step; None: both sides run as fast as they can."""
    batch: int = 512
    """Rows of an update."""
    batches: int = 8
    """Updates a message: so many minibatches are drawn and trained on at once."""
    in_flight: int = 2
    """Messages to the replay shards, and to the learner, that are out at once."""
    learning_rate: Rate = 2e-3
    """Adam's step size: a number, or a schedule over environment steps."""
    target_every: int | None = 10
    """Updates after which the target network takes over the weights; None: it follows by `tau` instead."""
    n_step: int = 3
    """Rewards of so many steps are summed before the value of what follows."""
    huber: bool = False
    """Errors above 1 count by their size and not by their square, which suits rewards within ±1 that come seldom. Where
    values are tens, as CartPole's are, the few rows that end an episode then count too little against all the others,
    and values rise without end. With atoms it has no part."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_no_memory(self)

    def graph(self) -> Flow[Summary]:
        """The whole algorithm as a flow of summaries."""
        return graph(self)


def graph(cfg: ApexConfig) -> Flow[Summary]:
    """Ape-X: priorities come from the workers, and experience goes from actor to actor without passing the driver."""
    workers, replay = workers_of(cfg, next_obs=True), replay_of(cfg, prioritized=True)
    learner = actor(
        rl.Learner, cfg.policy, loss_of(cfg.policy, double=cfg.double, huber=cfg.huber),
        learning_rate=cfg.learning_rate, max_grad_norm=cfg.max_grad_norm, adam_eps=1e-8, name="learner",
    )  # fmt: skip
    with_priorities = ParallelRollouts(workers).for_each(NStep(cfg.n_step, cfg.discount)).for_each(InitialPriorities())
    trained = with_priorities.gather_async(num_async=2, on_failure=cfg.on_worker_failure).through(
        learn(cfg, learner, replay, workers)
    )
    return evaluated(trained, cfg, learner).for_each(ReportMetrics())


def learn(
    cfg: DistributedConfig,
    learner: ActorGroup[rl.Learner],
    replay: ActorGroup[rl.ReplayShard],
    workers: ActorGroup[rl.RolloutWorker],
) -> Callable[[Flow[Batch]], Flow[TrainInfo]]:
    """The part that a mix reuses: from rollouts to weights sent, several messages in flight."""

    def tail(rollouts: Flow[Batch]) -> Flow[TrainInfo]:
        stored = (
            rollouts.for_each(SetEpsilon(workers, cfg.epsilon, per_env=7.0))
            .for_each(SendWeights(learner, to="origin"))
            .for_each(StoreToReplay(replay))
        )
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
            .for_each(UpdatePriorities(to="origin"))
            .for_each(target_updates(cfg, learner))
        )
        return Union([stored, trained], mode="async", emit=[trained])

    return tail
