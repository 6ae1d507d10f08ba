"""What A2C and A3C have in common: settings, and shards that give gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flowrl import ActorGroup, ParallelFlow, actor, actors, rl
from flowrl.algorithms.evaluation import check_evaluation
from flowrl.numbers import check_fields
from flowrl.operators import AddAdvantages, ComputeGradients, ParallelRollouts
from flowrl.rl.gradient_batch import Gradients
from flowrl.rl.schedules import Rate, check_rate


@dataclass(frozen=True)
class ActorCriticConfig:
    """The settings that A2C and A3C share."""

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
    unroll: int = 20
    """Steps of each environment in a fragment, of which one gradient is computed."""
    microbatch: int | None = None
    """What of a fragment goes through the network at once (rows, of a recurrent policy sequences); the gradient is
    accumulated and stays the same."""
    reward_clip: float | None = None
    """Rewards are clipped to ± this for training; returns are reported raw."""
    learning_rate: Rate = 1e-3
    """Adam's step size: a number, or a schedule over environment steps such as Linear(1e-3, 0, 500_000)."""
    discount: float = 0.99
    """γ, of future rewards."""
    gae_lambda: float = 1.0
    """λ of generalized advantage estimation; 1, as in the paper, sums all the rewards that a fragment has."""
    value_cost: float = 0.5
    """Weight of the value loss, the mean squared error of the returns."""
    entropy_cost: Rate = 0.01
    """Weight of the entropy bonus; a number or a schedule."""
    max_grad_norm: float = 0.5
    """The gradient's global norm is clipped to it, once it is averaged."""
    evaluate_every_env_steps: int | None = None
    """Evaluate after so many environment steps again and again, on an actor of its own; None: never."""
    evaluate_episodes: int = 20
    """Episodes of an evaluation, played with the most probable actions."""
    video_dir: str | None = None
    """Where each evaluation leaves a video of its first episode; needs the extra `video`."""

    def __post_init__(self) -> None:
        check_fields(
            self,
            whole=("num_workers", "envs_per_worker", "unroll", *(() if self.microbatch is None else ("microbatch",))),
            positive=("max_grad_norm",),
            not_negative=("value_cost",),
            fraction=("discount", "gae_lambda"),
        )
        check_rate("learning_rate", self.learning_rate, above_0=True)
        check_rate("entropy_cost", self.entropy_cost, above_0=False)
        check_evaluation(self)


def workers_of(cfg: ActorCriticConfig) -> ActorGroup[rl.RolloutWorker]:
    """The rollout workers of a config."""
    return actors(
        rl.RolloutWorker, cfg.env, cfg.policy, steps=cfg.unroll, num_envs=cfg.envs_per_worker,
        env_kwargs=cfg.env_kwargs, env_options=cfg.env_options, reward_clip=cfg.reward_clip,
        count=cfg.num_workers, name="workers",
    )  # fmt: skip


def loss_of(cfg: ActorCriticConfig) -> rl.losses.ActorCriticLoss:
    """What is minimized."""
    return rl.losses.ActorCriticLoss(cfg.value_cost, cfg.entropy_cost)


def learner_of(cfg: ActorCriticConfig) -> ActorGroup[rl.Learner]:
    """The learner of a config, which applies gradients."""
    return actor(
        rl.Learner, cfg.policy, loss_of(cfg), learning_rate=cfg.learning_rate, max_grad_norm=cfg.max_grad_norm,
        name="learner",
    )  # fmt: skip


def gradients_of(cfg: ActorCriticConfig, workers: ActorGroup[rl.RolloutWorker]) -> ParallelFlow[Gradients]:
    """A gradient of each fragment, computed by the worker that made it."""
    return (
        ParallelRollouts(workers)
        .for_each(AddAdvantages(cfg.discount, cfg.gae_lambda))
        .for_each(ComputeGradients(cfg.policy, loss_of(cfg), cfg.microbatch))
    )
