"""DQN (Mnih et al., 2015) with its successors by choice; all of them on is Rainbow (arXiv:1710.02298)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flowrl import ActorGroup, Batch, Flow, actor, actors, rl
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
from flowrl.rl.schedules import Linear, Rate, check_rate


@dataclass(frozen=True)
class DQNConfig:
    """The settings of DQN. The defaults are tuned to solve CartPole-v1 soon on two cores.

    Rainbow is `policy=PolicySpec(head="q", dueling=True, noisy=True, atoms=51, value_range=(0, 100))`, `n_step=3` and
    `prioritized=True`, with the range of returns that the environment has.
    """

    env: Any = "CartPole-v1"
    """A Gymnasium id, a factory, or "package.module:Name"; its actions are Discrete."""
    env_kwargs: Mapping[str, Any] | None = None
    """Keyword arguments of the environment."""
    env_options: rl.EnvOptions = field(default_factory=rl.EnvOptions)
    """Wrappers, frame skip and stack, Atari's preprocessing; whether copies run in this process or in their own."""
    policy: rl.PolicySpec = field(default_factory=lambda: rl.PolicySpec(head="q", hidden=(128, 128), activation="relu"))
    """What the policy is made of, of head "q": dueling, noisy, over atoms."""
    num_workers: int = 1
    """Rollout workers: the shards of the graph."""
    envs_per_worker: int = 8
    """Copies of the environment that a worker steps together."""
    unroll: int = 16
    """Steps of each environment in a fragment."""
    reward_clip: float | None = None
    """Rewards are clipped to ± this for training; returns are reported raw."""
    replay_shards: int = 1
    """Replay shards, each an actor of `capacity` rows."""
    capacity: int = 50_000
    """Rows that a shard keeps."""
    prioritized: bool = False
    """Rows are drawn by their last error instead of uniformly (arXiv:1511.05952)."""
    alpha: float = 0.6
    """How much priorities count in drawing."""
    beta: Rate = 0.4
    """How far importance weights make up for that; a number or a schedule, often rising to 1."""
    min_size: int = 1000
    """Rows that are stored before training begins."""
    samples_per_step: float = 8.0
    """Rows trained on for each environment step."""
    batch: int = 64
    """Rows of an update."""
    batches: int = 16
    """Updates a message: so many minibatches are drawn and trained on at once."""
    learning_rate: Rate = 1e-3
    """Adam's step size: a number, or a schedule over environment steps."""
    max_grad_norm: float = 10.0
    """The gradient's global norm is clipped to it."""
    discount: float = 0.99
    """γ, of future rewards."""
    n_step: int = 1
    """Rewards of so many steps are summed before the value of what follows."""
    double: bool = True
    """The policy's own network chooses the action that the target values (arXiv:1509.06461)."""
    huber: bool = True
    """Errors above 1 count by their size and not by its square; with atoms it has no part."""
    target_every: int = 100
    """Updates after which the target network takes over the weights."""
    epsilon: Rate | None = None
    """Share of uniform actions; None: none with noisy layers, else from 1 to 0.05 over 10,000 environment steps."""
    evaluate_every_env_steps: int | None = None
    """Evaluate after so many environment steps again and again, on an actor of its own; None: never."""
    evaluate_episodes: int = 20
    """Episodes of an evaluation, played greedily."""
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
                "target_every",
            ),
            positive=("samples_per_step", "max_grad_norm"),
            not_negative=("alpha",),
            fraction=("discount",),
        )
        check_rate("learning_rate", self.learning_rate, above_0=True)
        check_rate("beta", self.beta, above_0=False)
        check_q(self.policy)
        check_evaluation(self)

    @property
    def exploration(self) -> Rate:
        """ε: as given, or what None means."""
        if self.epsilon is not None:
            return self.epsilon
        return 0.0 if self.policy.noisy else Linear(1.0, 0.05, 10_000)

    def graph(self) -> Flow[Summary]:
        """The whole algorithm as a flow of summaries."""
        return graph(self)


def graph(cfg: DQNConfig) -> Flow[Summary]:
    """DQN: workers store what they see in replay shards, and the learner trains on what it draws from them."""
    workers = actors(
        rl.RolloutWorker, cfg.env, cfg.policy, steps=cfg.unroll, num_envs=cfg.envs_per_worker, next_obs=True,
        env_kwargs=cfg.env_kwargs, env_options=cfg.env_options, reward_clip=cfg.reward_clip,
        count=cfg.num_workers, name="workers",
    )  # fmt: skip
    learner = actor(
        rl.Learner, cfg.policy, loss_of(cfg.policy, double=cfg.double, huber=cfg.huber),
        learning_rate=cfg.learning_rate, max_grad_norm=cfg.max_grad_norm, name="learner",
    )  # fmt: skip
    replay = actors(
        rl.ReplayShard, cfg.capacity, prioritized=cfg.prioritized, alpha=cfg.alpha, min_size=cfg.min_size,
        samples_per_insert=cfg.samples_per_step, count=cfg.replay_shards, name="replay",
    )  # fmt: skip
    rollouts = ParallelRollouts(workers).for_each(NStep(cfg.n_step, cfg.discount)).gather_async()
    trained = rollouts.through(learn(cfg, learner, replay, workers))
    return evaluated(trained, cfg, learner).for_each(ReportMetrics())


def learn(
    cfg: DQNConfig,
    learner: ActorGroup[rl.Learner],
    replay: ActorGroup[rl.ReplayShard],
    workers: ActorGroup[rl.RolloutWorker],
) -> Callable[[Flow[Batch]], Flow[TrainInfo]]:
    """The part that a mix reuses: from n-step rollouts, stored on the one hand, to weights sent on the other."""

    def tail(rollouts: Flow[Batch]) -> Flow[TrainInfo]:
        stored = rollouts.for_each(SetEpsilon(workers, cfg.exploration)).for_each(StoreToReplay(replay))
        trained = (
            Replay(replay, batch=cfg.batch, batches=cfg.batches, in_flight=2, beta=cfg.beta)
            .for_each(TrainOneStep(learner, minibatch=cfg.batch))
            .for_each(UpdateTarget(learner, every_updates=cfg.target_every))
        )
        if cfg.prioritized:
            trained = trained.for_each(UpdatePriorities(to="origin"))
        sent = trained.for_each(SendWeights(learner, to=workers))
        return Union([stored, sent], mode="async", emit=[sent])

    return tail


def loss_of(policy: rl.PolicySpec, *, double: bool, huber: bool) -> rl.losses.Loss:
    """What a policy of values is trained by: the mean return, or its distribution where it has atoms."""
    return rl.losses.DQNLoss(double, huber) if policy.atoms is None else rl.losses.C51Loss(double)


def check_q(policy: rl.PolicySpec) -> None:
    """Nothing, if a policy's outputs are values of actions.

    Raises:
        ValueError: they are not.
    """
    if policy.head != "q":
        raise ValueError(f"policy must be of values of actions, PolicySpec(head='q', ...); got head={policy.head!r}")
