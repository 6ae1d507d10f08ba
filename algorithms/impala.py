"""IMPALA (arXiv:1802.01561): workers never wait, and the learner corrects for their older policies by V-trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flowrl import ActorGroup, Batch, Flow, actor, actors, rl
from flowrl.algorithms.evaluation import check_evaluation, evaluated
from flowrl.numbers import check_fields
from flowrl.operators import (
    ConcatBatches,
    MixInReplay,
    ParallelRollouts,
    ReportMetrics,
    SendWeights,
    Summary,
    TrainOneStep,
)
from flowrl.operators.training import TrainInfo
from flowrl.rl.schedules import Rate, check_rate


@dataclass(frozen=True)
class IMPALAConfig:
    """The settings of IMPALA. The defaults are tuned to solve CartPole-v1 soon on two cores."""

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
    unroll: int = 50
    """Steps of each environment in a fragment: the sequences that V-trace goes through."""
    num_async: int = 2
    """Fragments of a worker that are under way at once. The newest weights go with every request for another one, so a
    worker makes at the most so many fragments before it has those of the moment when its last one was taken in."""
    batch_steps: int = 500
    """Environment steps that are trained on together, at least: fragments side by side."""
    in_flight: int = 2
    """Batches that are on their way to the learner at once."""
    replay_proportion: float = 0.0
    """Old fragments that are trained on again, for each new one (section 5.2.2); 0: none."""
    replay_slots: int = 64
    """The newest fragments, from which old ones are drawn."""
    reward_clip: float | None = None
    """Rewards are clipped to ± this for training; returns are reported raw."""
    minibatch: int | None = None
    """Sequences of `unroll` steps in an update; None: the whole batch is one."""
    learning_rate: Rate = 2e-3
    """Adam's step size: a number, or a schedule over environment steps such as Linear(2e-3, 0, 500_000)."""
    discount: float = 0.99
    """γ, of future rewards."""
    vtrace_lambda: float = 1.0
    """λ of V-trace's traces."""
    rho_clip: float = 1.0
    """ρ̄: how much an action that has become more probable counts at the most, for values and for the policy."""
    c_clip: float = 1.0
    """c̄: how much it counts at the most for what came before it."""
    value_cost: float = 0.5
    """Weight of the value loss, the mean squared error of the V-trace targets."""
    entropy_cost: Rate = 0.005
    """Weight of the entropy bonus; a number or a schedule."""
    max_grad_norm: float = 0.5
    """The gradient's global norm is clipped to it."""
    evaluate_every_env_steps: int | None = None
    """Evaluate after so many environment steps again and again, on an actor of its own; None: never."""
    evaluate_episodes: int = 20
    """Episodes of an evaluation, played with the most probable actions."""
    video_dir: str | None = None
    """Where each evaluation leaves a video of its first episode; needs the extra `video`."""

    def __post_init__(self) -> None:
        counts = ("num_workers", "envs_per_worker", "unroll", "num_async", "batch_steps", "in_flight", "replay_slots")
        check_fields(
            self,
            whole=(*counts, *(() if self.minibatch is None else ("minibatch",))),
            positive=("max_grad_norm",),
            not_negative=("value_cost", "replay_proportion", "rho_clip", "c_clip"),
            fraction=("discount", "vtrace_lambda"),
        )
        check_rate("learning_rate", self.learning_rate, above_0=True)
        check_rate("entropy_cost", self.entropy_cost, above_0=False)
        check_evaluation(self)

    def graph(self) -> Flow[Summary]:
        """The whole algorithm as a flow of summaries."""
        return graph(self)


def graph(cfg: IMPALAConfig) -> Flow[Summary]:
    """IMPALA (arXiv:1802.01561)."""
    workers = actors(
        rl.RolloutWorker, cfg.env, cfg.policy, steps=cfg.unroll, num_envs=cfg.envs_per_worker, next_obs=True,
        env_kwargs=cfg.env_kwargs, env_options=cfg.env_options, reward_clip=cfg.reward_clip,
        count=cfg.num_workers, name="workers",
    )  # fmt: skip
    learner = actor(
        rl.Learner, cfg.policy,
        rl.losses.VTraceLoss(
            cfg.discount, cfg.value_cost, cfg.entropy_cost, rho_clip=cfg.rho_clip, c_clip=cfg.c_clip,
            pg_rho_clip=cfg.rho_clip, vtrace_lambda=cfg.vtrace_lambda,
        ),
        learning_rate=cfg.learning_rate, max_grad_norm=cfg.max_grad_norm, name="learner",
    )  # fmt: skip
    trained = ParallelRollouts(workers).gather_async(num_async=cfg.num_async).through(learn(cfg, learner))
    return evaluated(trained, cfg, learner).for_each(ReportMetrics())


def learn(cfg: IMPALAConfig, learner: ActorGroup[rl.Learner]) -> Callable[[Flow[Batch]], Flow[TrainInfo]]:
    """The part that a mix reuses: from fragments to updates, weights going to the worker that a fragment came from."""

    def tail(fragments: Flow[Batch]) -> Flow[TrainInfo]:
        fragments = fragments.for_each(SendWeights(learner, to="origin"))
        if cfg.replay_proportion:
            fragments = fragments.for_each(MixInReplay(cfg.replay_slots, cfg.replay_proportion))
        return fragments.for_each(ConcatBatches(min_steps=cfg.batch_steps)).for_each(
            TrainOneStep(learner, minibatch=cfg.minibatch, in_flight=cfg.in_flight)
        )

    return tail
