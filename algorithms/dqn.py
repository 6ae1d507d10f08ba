"""DQN (Mnih et al., 2015) with its successors by choice; all of them on is Rainbow (arXiv:1710.02298)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from flowrl import ActorGroup, Batch, Flow, actor, rl
from flowrl.algorithms.collecting import evaluated, kept, workers_of
from flowrl.algorithms.replaying import replay_of
from flowrl.algorithms.value_based import ValueConfig, check_no_memory, target_updates
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
)
from flowrl.operators.training import TrainInfo
from flowrl.rl.schedules import Linear, Rate, check_rate


@dataclass(frozen=True)
class DQNConfig(ValueConfig):
    """The settings of DQN. The defaults are tuned to solve CartPole-v1 soon on two cores.

    Rainbow is `policy=PolicySpec(head="q", dueling=True, noisy=True, atoms=51, value_range=(0, 100))` and
    `prioritized=True`, with the range of returns that the environment has.
    """

    policy: rl.PolicySpec = field(default_factory=lambda: rl.PolicySpec(head="q", normalize_obs=True))
    """What the policy is made of, of head "q": dueling, noisy, over atoms. Values are fitted much sooner to
    observations of one scale."""
    samples_per_step: float | None = 32.0
    """Rows trained on for each environment step; None: both sides run as fast as they can."""
    batch: int = 128
    """Rows of an update."""
    n_step: int = 3
    """Rewards of so many steps are summed before the value of what follows."""
    target_every: int | None = None
    """Updates after which the target network takes over the weights; None: it follows by `tau` instead."""
    tau: float | None = 0.02
    """The share of the way to the weights that the target network moves after each update."""
    prioritized: bool = False
    """Rows are drawn by their last error instead of uniformly (arXiv:1511.05952)."""
    huber: bool = False
    """Errors above 1 count by their size and not by their square, which suits rewards within ±1 that come seldom. Where
    values are tens, as CartPole's are, the few rows that end an episode then count too little against all the others,
    and values rise without end. With atoms it has no part."""
    epsilon: Rate | None = None
    """Share of uniform actions; None: none with noisy layers, else from 1 to 0.04 over 6,000 environment steps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_no_memory(self)
        check_rate("epsilon", self.exploration, above_0=False)

    @property
    def exploration(self) -> Rate:
        """ε: as given, or what None means."""
        if self.epsilon is not None:
            return self.epsilon
        return 0.0 if self.policy.noisy else Linear(1.0, 0.04, 6_000)

    def graph(self) -> Flow[Summary]:
        """The whole algorithm as a flow of summaries."""
        return graph(self)


def graph(cfg: DQNConfig) -> Flow[Summary]:
    """DQN: workers store what they see in replay shards, and the learner trains on what it draws from them."""
    workers, replay = workers_of(cfg, next_obs=True), replay_of(cfg, prioritized=cfg.prioritized)
    learner = learner_of(cfg)
    rollouts = (
        ParallelRollouts(workers)
        .for_each(NStep(cfg.n_step, cfg.discount))
        .gather_async(on_failure=cfg.on_worker_failure)
    )
    trained = rollouts.through(learn(cfg, learner, replay, workers))
    return evaluated(trained, cfg, learner).for_each(ReportMetrics())


def learner_of(cfg: DQNConfig, *, name: str = "learner", **more: Any) -> ActorGroup[rl.Learner]:
    """The learner of a config; `more` are further arguments of it, such as `policy_id`."""
    return actor(
        rl.Learner, cfg.policy, loss_of(cfg.policy, double=cfg.double, huber=cfg.huber),
        learning_rate=cfg.learning_rate, max_grad_norm=cfg.max_grad_norm, adam_eps=1e-8, name=name, **more,
    )  # fmt: skip


def learn(
    cfg: DQNConfig,
    learner: ActorGroup[rl.Learner],
    replay: ActorGroup[rl.ReplayShard],
    workers: ActorGroup[Any],
) -> Callable[[Flow[Batch]], Flow[TrainInfo]]:
    """The part that a mix reuses: from n-step rollouts, stored on the one hand, to weights sent on the other."""

    def tail(rollouts: Flow[Batch]) -> Flow[TrainInfo]:
        explored = SetEpsilon(workers, cfg.exploration, policy=learner.kwargs.get("policy_id"))
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
            .for_each(target_updates(cfg, learner))
        )
        if cfg.prioritized:
            trained = trained.for_each(UpdatePriorities(to="origin"))
        sent = trained.for_each(SendWeights(learner, to=workers))
        return Union([stored, sent], mode="async", emit=[sent])

    return tail


def loss_of(policy: rl.PolicySpec, *, double: bool, huber: bool) -> rl.losses.Loss:
    """What a policy of values is trained by: the mean return, or its distribution where it has atoms."""
    return rl.losses.DQNLoss(double, huber) if policy.atoms is None else rl.losses.C51Loss(double)
