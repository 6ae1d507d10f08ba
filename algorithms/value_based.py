"""What algorithms of values of actions have in common: settings, workers, and how the target network follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flowrl import ActorGroup, actors, rl
from flowrl.algorithms.evaluation import check_evaluation
from flowrl.numbers import check_fields
from flowrl.operators import UpdateTarget
from flowrl.rl.schedules import Rate, check_rate


@dataclass(frozen=True)
class ValueConfig:
    """The settings that DQN, Ape-X and R2D2 share."""

    env: Any = "CartPole-v1"
    """A Gymnasium id, a factory, or "package.module:Name"; its actions are Discrete."""
    env_kwargs: Mapping[str, Any] | None = None
    """Keyword arguments of the environment."""
    env_options: rl.EnvOptions = field(default_factory=rl.EnvOptions)
    """Wrappers, frame skip and stack, Atari's preprocessing; whether copies run in this process or in their own."""
    policy: rl.PolicySpec = field(default_factory=lambda: rl.PolicySpec(head="q"))
    """What the policy is made of, of head "q"."""
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
    alpha: float = 0.6
    """How much priorities count in drawing."""
    beta: Rate = 0.4
    """How far importance weights make up for that; a number or a schedule, often rising to 1."""
    min_size: int = 1000
    """Rows that are stored before training begins."""
    samples_per_step: float | None = 8.0
    """Rows trained on for each environment step; None: both sides run as fast as they can."""
    batch: int = 64
    """Rows of an update."""
    batches: int = 16
    """Updates a message: so many minibatches are drawn and trained on at once."""
    in_flight: int = 2
    """Messages to the replay shards, and to the learner, that are out at once."""
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
    target_every: int = 100
    """Updates after which the target network takes over the weights."""
    tau: float | None = None
    """Instead, the target network moves this share of the way to the weights after each update."""
    evaluate_every_env_steps: int | None = None
    """Evaluate after so many environment steps again and again, on an actor of its own; None: never."""
    evaluate_episodes: int = 20
    """Episodes of an evaluation, played greedily."""
    video_dir: str | None = None
    """Where each evaluation leaves a video of its first episode; needs the extra `video`."""

    def __post_init__(self) -> None:
        counts = ("num_workers", "envs_per_worker", "unroll", "replay_shards", "capacity", "min_size", "batch")
        paced = () if self.samples_per_step is None else ("samples_per_step",)
        check_fields(
            self,
            whole=(*counts, "batches", "in_flight", "n_step", "target_every"),
            positive=("max_grad_norm", *paced),
            not_negative=("alpha",),
            fraction=("discount",),
        )
        check_rate("learning_rate", self.learning_rate, above_0=True)
        check_rate("beta", self.beta, above_0=False)
        if self.policy.head != "q":
            raise ValueError(
                f"policy must be of values of actions, PolicySpec(head='q', ...); got head={self.policy.head!r}"
            )
        check_evaluation(self)


@dataclass(frozen=True)
class DistributedConfig(ValueConfig):
    """The settings that Ape-X and R2D2 share: several workers, whose environments explore by a share of their own.

    Training episodes are those of exploring workers, so evaluations beside training see when a return is reached.
    """

    num_workers: int = 2
    """Rollout workers: the shards of the graph."""
    unroll: int = 32
    """Steps of each environment in a fragment."""
    in_flight: int = 3
    """Messages to the replay shards, and to the learner, that are out at once."""
    epsilon: float = 0.4
    """ε of the environment that explores the most; number i of N, over all workers, has ε^(1 + 7 i / (N − 1))."""
    evaluate_every_env_steps: int | None = 10_000
    """Evaluate after so many environment steps again and again, on an actor of its own; None: never."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, fraction=("epsilon",))


def workers_of(cfg: ValueConfig) -> ActorGroup[rl.RolloutWorker]:
    """The rollout workers of a config."""
    return actors(
        rl.RolloutWorker, cfg.env, cfg.policy, steps=cfg.unroll, num_envs=cfg.envs_per_worker, next_obs=True,
        env_kwargs=cfg.env_kwargs, env_options=cfg.env_options, reward_clip=cfg.reward_clip,
        count=cfg.num_workers, name="workers",
    )  # fmt: skip


def replay_of(cfg: ValueConfig, *, prioritized: bool, **more: Any) -> ActorGroup[rl.ReplayShard]:
    """The replay shards of a config; `more` are further arguments of theirs."""
    return actors(
        rl.ReplayShard, cfg.capacity, prioritized=prioritized, alpha=cfg.alpha, min_size=cfg.min_size,
        samples_per_insert=cfg.samples_per_step, count=cfg.replay_shards, name="replay", **more,
    )  # fmt: skip


def target_updates(cfg: ValueConfig, learner: ActorGroup[Any]) -> UpdateTarget:
    """How the target network follows: by `tau` where it is given, else by copies."""
    return UpdateTarget(learner, every_updates=None if cfg.tau is not None else cfg.target_every, tau=cfg.tau)
