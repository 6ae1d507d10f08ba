"""What algorithms of an actor with critics have in common: settings, workers, replay, and the way between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flowrl import ActorGroup, Batch, Flow, actors, rl
from flowrl.algorithms.evaluation import check_evaluation, evaluated
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
class ContinuousConfig:
    """The settings that SAC, TD3 and DDPG share. The defaults are tuned to reach −200 on Pendulum-v1 in few steps."""

    env: Any = "Pendulum-v1"
    """A Gymnasium id, a factory, or "package.module:Name"; its actions lie between bounds."""
    env_kwargs: Mapping[str, Any] | None = None
    """Keyword arguments of the environment."""
    env_options: rl.EnvOptions = field(default_factory=rl.EnvOptions)
    """Wrappers, frame skip and stack; whether copies run in this process or in their own."""
    policy: rl.PolicySpec = field(default_factory=rl.PolicySpec)
    """What the policy is made of, of the algorithm's own head."""
    num_workers: int = 1
    """Rollout workers: the shards of the graph."""
    envs_per_worker: int = 4
    """Copies of the environment that a worker steps together."""
    unroll: int = 4
    """Steps of each environment in a fragment."""
    reward_clip: float | None = None
    """Rewards are clipped to ± this for training; returns are reported raw."""
    replay_shards: int = 1
    """Replay shards, each an actor of `capacity` rows."""
    capacity: int = 100_000
    """Rows that a shard keeps."""
    prioritized: bool = False
    """Rows are drawn by their last error instead of uniformly (arXiv:1511.05952)."""
    alpha: float = 0.6
    """How much priorities count in drawing."""
    beta: Rate = 0.4
    """How far importance weights make up for that; a number or a schedule, often rising to 1."""
    min_size: int = 500
    """Rows that are stored before training begins."""
    samples_per_step: float = 256.0
    """Rows trained on for each environment step: by `batch`, so many updates a step."""
    batch: int = 256
    """Rows of an update."""
    batches: int = 8
    """Updates a message: so many minibatches are drawn and trained on at once."""
    learning_rate: Rate = 1e-3
    """Adam's step size: a number, or a schedule over environment steps."""
    critic_learning_rate: Rate | None = None
    """The critics' own; None: as `learning_rate`."""
    max_grad_norm: float | None = None
    """The gradient's global norm is clipped to it, the actor's and the critics' apart; None leaves them."""
    discount: float = 0.99
    """γ, of future rewards."""
    n_step: int = 1
    """Rewards of so many steps are summed before the value of what follows."""
    tau: float = 0.005
    """How far the target moves towards the policy at each update of it."""
    epsilon: Rate = 0.0
    """Share of actions that are uniform between the bounds: a number, or a schedule over environment steps."""
    evaluate_every_env_steps: int | None = None
    """Evaluate after so many environment steps again and again, on an actor of its own; None: never."""
    evaluate_episodes: int = 20
    """Episodes of an evaluation, played without exploration."""
    video_dir: str | None = None
    """Where each evaluation leaves a video of its first episode; needs the extra `video`."""

    def __post_init__(self) -> None:
        check_fields(
            self,
            whole=(
                "num_workers",
                "envs_per_worker",
                "unroll",
                "replay_shards",
                "capacity",
                "min_size",
                "batch",
                "batches",
                "n_step",
            ),
            positive=("samples_per_step", "tau"),
            not_negative=("alpha",),
            fraction=("discount", "tau"),
        )
        check_rate("learning_rate", self.learning_rate, above_0=True)
        check_rate("beta", self.beta, above_0=False)
        check_evaluation(self)


def workers_of(cfg: ContinuousConfig) -> ActorGroup[rl.RolloutWorker]:
    """The rollout workers of a config."""
    return actors(
        rl.RolloutWorker, cfg.env, cfg.policy, steps=cfg.unroll, num_envs=cfg.envs_per_worker, next_obs=True,
        env_kwargs=cfg.env_kwargs, env_options=cfg.env_options, reward_clip=cfg.reward_clip,
        count=cfg.num_workers, name="workers",
    )  # fmt: skip


def graph_of(cfg: ContinuousConfig, learner: ActorGroup[Any]) -> Flow[Summary]:
    """The graph around a learner: workers store what they see in replay shards, and it trains on what it draws."""
    workers = workers_of(cfg)
    replay = actors(
        rl.ReplayShard, cfg.capacity, prioritized=cfg.prioritized, alpha=cfg.alpha, min_size=cfg.min_size,
        samples_per_insert=cfg.samples_per_step, count=cfg.replay_shards, name="replay",
    )  # fmt: skip
    rollouts = ParallelRollouts(workers).for_each(NStep(cfg.n_step, cfg.discount)).gather_async()
    return evaluated(rollouts.through(learn(cfg, learner, replay, workers)), cfg, learner).for_each(ReportMetrics())


def learn(
    cfg: ContinuousConfig,
    learner: ActorGroup[Any],
    replay: ActorGroup[rl.ReplayShard],
    workers: ActorGroup[rl.RolloutWorker],
) -> Callable[[Flow[Batch]], Flow[TrainInfo]]:
    """The part that a mix reuses: from n-step rollouts, stored on the one hand, to weights sent on the other."""

    def tail(rollouts: Flow[Batch]) -> Flow[TrainInfo]:
        stored = rollouts.for_each(SetEpsilon(workers, cfg.epsilon)).for_each(StoreToReplay(replay))
        trained = (
            Replay(replay, batch=cfg.batch, batches=cfg.batches, in_flight=2, beta=cfg.beta)
            .for_each(TrainOneStep(learner, minibatch=cfg.batch))
            .for_each(UpdateTarget(learner, tau=cfg.tau))
        )
        if cfg.prioritized:
            trained = trained.for_each(UpdatePriorities(to="origin"))
        sent = trained.for_each(SendWeights(learner, to=workers))
        return Union([stored, sent], mode="async", emit=[sent])

    return tail


def check_head(policy: rl.PolicySpec, head: str) -> None:
    """Nothing, if a policy has the head that an algorithm trains.

    Raises:
        ValueError: it has another.
    """
    if policy.head != head:
        raise ValueError(f"policy must be PolicySpec(head={head!r}, ...), got head={policy.head!r}")
