"""Evaluations beside training, as every algorithm has them by the same settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from flowrl import ActorGroup, Flow, actor, rl
from flowrl.numbers import check_whole
from flowrl.operators import EvaluateEvery

T = TypeVar("T")


class Evaluated(Protocol):
    """What a config says of environments and evaluations."""

    @property
    def env(self) -> Any: ...
    @property
    def env_kwargs(self) -> Mapping[str, Any] | None: ...
    @property
    def env_options(self) -> rl.EnvOptions: ...
    @property
    def policy(self) -> rl.PolicySpec: ...
    @property
    def envs_per_worker(self) -> int: ...
    @property
    def evaluate_every_env_steps(self) -> int | None: ...
    @property
    def evaluate_episodes(self) -> int: ...
    @property
    def video_dir(self) -> str | None: ...


def check_evaluation(cfg: Evaluated) -> None:
    """Nothing, if the settings of evaluations make sense.

    Raises:
        ValueError: a number is below 1, or videos of evaluations that never are.
    """
    check_whole("evaluate_episodes", cfg.evaluate_episodes)
    if cfg.evaluate_every_env_steps is not None:
        check_whole("evaluate_every_env_steps", cfg.evaluate_every_env_steps)
    elif cfg.video_dir is not None:
        raise ValueError(f"video_dir={cfg.video_dir!r} is for evaluations: set evaluate_every_env_steps too")


def evaluated(trained: Flow[T], cfg: Evaluated, learner: ActorGroup[Any]) -> Flow[T]:
    """The same items, and evaluations beside them if the config wants any.

    They are played on environments without what is for training only (clipped rewards), by actors of their own.
    """
    if cfg.evaluate_every_env_steps is None:
        return trained
    evaluators = actor(
        rl.Evaluator, cfg.env, cfg.policy, env_kwargs=cfg.env_kwargs, env_options=cfg.env_options,
        num_envs=cfg.envs_per_worker, video_dir=cfg.video_dir, name="evaluators",
    )  # fmt: skip
    every = EvaluateEvery(evaluators, learner, env_steps=cfg.evaluate_every_env_steps, episodes=cfg.evaluate_episodes)
    return trained.for_each(every)
