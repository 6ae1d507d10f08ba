"""What every algorithm has: an environment, workers that collect from it, and evaluations beside training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from os import PathLike
from typing import Any, TypeVar

from flowrl import ActorGroup, Flow, actor, actors, rl
from flowrl.failures import Ignore, Raise, Restart
from flowrl.numbers import check_fields, check_whole
from flowrl.operators import EvaluateEvery

T = TypeVar("T")


@dataclass(frozen=True)
class CollectingConfig:
    """The settings that all algorithms share."""

    env: Any = "CartPole-v1"
    """A Gymnasium id, a factory, or "package.module:Name"."""
    env_kwargs: Mapping[str, Any] | None = None
    """Keyword arguments of the environment."""
    env_options: rl.EnvOptions = field(default_factory=rl.EnvOptions)
    """Wrappers, frame skip and stack, Atari's preprocessing; whether copies run in this process or in their own."""
    policy: rl.PolicySpec = field(default_factory=rl.PolicySpec)
    """What the policy is made of."""
    num_workers: int = 2
    """Rollout workers: the shards of the graph."""
    envs_per_worker: int = 8
    """Copies of the environment that a worker steps together."""
    unroll: int = 16
    """Steps of each environment in a fragment."""
    reward_clip: float | None = None
    """Rewards are clipped to ± this for training; returns are reported raw."""
    on_worker_failure: Restart | Ignore | Raise = Restart(3)  # noqa: RUF009  (frozen)
    """What the death of a rollout worker's process means: it is started again, left out, or the run stops."""
    on_learner_failure: Restart | Raise = Raise()  # noqa: RUF009
    """What the death of the learner's process means: the run stops, or it goes on from a snapshot of its state."""
    snapshot_every: int = 10
    """Calls of the learner between two snapshots, with on_learner_failure=Restart(n)."""
    learner_timeout_s: float | None = None
    """How long one call of a lone learner may take before it counts as dead; None: 1,800 s."""
    evaluate_every_env_steps: int | None = None
    """Evaluate after so many environment steps again and again, on an actor of its own; None: never."""
    evaluate_episodes: int = 20
    """Episodes of an evaluation, played greedily, without exploration."""
    on_evaluator_failure: Restart | Raise = Restart(3)  # noqa: RUF009
    """What the death of the evaluator's process means: it is started again and begins its evaluation again, or the run
    stops."""
    video_dir: str | None = None
    """Where each evaluation leaves a video of its first episode; needs the extra `video`."""

    def __post_init__(self) -> None:
        check_fields(
            self,
            whole=("num_workers", "envs_per_worker", "unroll"),
            or_none=("reward_clip",),
            seconds=("learner_timeout_s",),
        )
        for name, kind in (("policy", rl.PolicySpec), ("env_options", rl.EnvOptions)):
            if not isinstance(getattr(self, name), kind):
                raise ValueError(f"{name} must be {kind.__name__}(...), got {getattr(self, name)!r}")
        check_policies(
            self, on_worker_failure=(Restart, Ignore, Raise), on_learner_failure=(Restart, Raise),
            on_evaluator_failure=(Restart, Raise),
        )  # fmt: skip
        check_whole("snapshot_every", self.snapshot_every)
        if not isinstance(self.env, str) and not callable(self.env):
            raise ValueError(f"env must be a Gymnasium id, 'package.module:Name' or a factory, got {self.env!r}")
        if self.env_kwargs is not None and not isinstance(self.env_kwargs, Mapping):
            raise ValueError(f"env_kwargs must be a mapping of names to values, got {self.env_kwargs!r}")
        if self.video_dir is not None and not isinstance(self.video_dir, str | PathLike):
            raise ValueError(f"video_dir must be a path, got {self.video_dir!r}")
        for each in fields(self):
            if isinstance(each.default, bool) and not isinstance(getattr(self, each.name), bool):
                raise ValueError(f"{each.name} must be True or False, got {getattr(self, each.name)!r}")
        check_whole("evaluate_episodes", self.evaluate_episodes)
        if self.evaluate_every_env_steps is not None:
            check_whole("evaluate_every_env_steps", self.evaluate_every_env_steps)
        elif self.video_dir is not None:
            raise ValueError(f"video_dir={self.video_dir!r} is for evaluations: set evaluate_every_env_steps too")


def check_policies(cfg: Any, **known: tuple[type, ...]) -> None:
    """Nothing, if the settings named are each one of these failure policies.

    Raises:
        ValueError: one is something else.
    """
    for name, kinds in known.items():
        if not isinstance(getattr(cfg, name), kinds):
            said = ", ".join(f"{kind.__name__}({'n' if kind is Restart else ''})" for kind in kinds)
            raise ValueError(f"{name} must be one of {said}, got {getattr(cfg, name)!r}")


def kept(cfg: CollectingConfig) -> dict[str, Any]:
    """What an operator that asks the learner is told of its death, and when it counts as dead."""
    timeout = {} if cfg.learner_timeout_s is None else {"timeout_s": cfg.learner_timeout_s}
    if isinstance(cfg.on_learner_failure, Raise):
        return timeout
    return {"on_failure": cfg.on_learner_failure, "snapshot_every": cfg.snapshot_every, **timeout}


def workers_of(
    cfg: CollectingConfig, kind: Callable[..., rl.RolloutWorker] | None = None, **more: Any
) -> ActorGroup[rl.RolloutWorker]:
    """The rollout workers of a config, of another class if asked for; `more` are further arguments of theirs."""
    return actors(
        kind or rl.RolloutWorker, cfg.env, cfg.policy, steps=cfg.unroll, num_envs=cfg.envs_per_worker,
        env_kwargs=cfg.env_kwargs, env_options=cfg.env_options, reward_clip=cfg.reward_clip,
        count=cfg.num_workers, name="workers", **more,
    )  # fmt: skip


def evaluated(trained: Flow[T], cfg: CollectingConfig, learner: ActorGroup[Any]) -> Flow[T]:
    """The same items, and evaluations beside them if the config wants any.

    They are played on environments without what is for training only (clipped rewards), by actors of their own.
    """
    if cfg.evaluate_every_env_steps is None:
        return trained
    evaluators = actor(
        rl.Evaluator, cfg.env, cfg.policy, env_kwargs=cfg.env_kwargs, env_options=cfg.env_options,
        num_envs=cfg.envs_per_worker, video_dir=cfg.video_dir, name="evaluators",
    )  # fmt: skip
    every = EvaluateEvery(
        evaluators, learner, env_steps=cfg.evaluate_every_env_steps, episodes=cfg.evaluate_episodes,
        on_failure=cfg.on_evaluator_failure,
    )  # fmt: skip
    return trained.for_each(every)


def check_head(policy: rl.PolicySpec, head: str) -> None:
    """Nothing, if a policy has the head that an algorithm trains.

    Raises:
        ValueError: it has another.
    """
    if policy.head != head:
        raise ValueError(f"policy must be PolicySpec(head={head!r}, ...), got head={policy.head!r}")
