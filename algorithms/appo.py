"""APPO, PPO without waiting (arXiv:2006.11751, 1912.00167): a clipped surrogate on V-trace of a target network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flowrl import ActorGroup, Batch, Flow, actors, rl
from flowrl.algorithms.asynchronous import AsynchronousConfig, fragments_of, trained_on
from flowrl.algorithms.collecting import evaluated
from flowrl.numbers import check_whole
from flowrl.operators import ReportMetrics, Summary, UpdateTarget
from flowrl.operators.training import TrainInfo
from flowrl.rl.schedules import Linear, Rate, check_rate


@dataclass(frozen=True)
class APPOConfig(AsynchronousConfig):
    """The settings of APPO. The defaults suit CartPole-v1 on two cores; nothing harder was tried with them."""

    batch_steps: int = 1000
    """Environment steps that are trained on together, at least: fragments side by side."""
    epochs: int = 4
    """Passes over each batch."""
    learning_rate: Rate = Linear(3e-3, 2e-4, 400_000)
    """Adam's step size: a number, or a schedule over environment steps. Where it never falls, a policy that had solved
    the task is lost again sooner or later."""
    vtrace_lambda: float = 0.95
    """λ of V-trace's traces; 1 sums all the rewards that a sequence has."""
    clip: Rate = 0.2
    """ε of the clipped surrogate: how far the policy may move from its target network; a number or a schedule."""
    target_every: int = 16
    """Updates after which the target network takes over the weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("target_every", self.target_every)
        check_rate("clip", self.clip, above_0=True)

    def graph(self) -> Flow[Summary]:
        """The whole algorithm as a flow of summaries."""
        return graph(self)


def graph(cfg: APPOConfig) -> Flow[Summary]:
    """APPO: several passes over each batch, of which the target network's judgement stands still."""
    learner = actors(
        rl.Learner, cfg.policy, rl.losses.APPOLoss(**cfg.vtrace, clip=cfg.clip),
        learning_rate=cfg.learning_rate, max_grad_norm=cfg.max_grad_norm,
        count=cfg.learners, name="learner",
    )  # fmt: skip
    return evaluated(fragments_of(cfg).through(learn(cfg, learner)), cfg, learner).for_each(ReportMetrics())


def learn(cfg: APPOConfig, learner: ActorGroup[rl.Learner]) -> Callable[[Flow[Batch]], Flow[TrainInfo]]:
    """The part that a mix reuses: from fragments to updates, weights going to the worker that a fragment came from."""
    return lambda fragments: trained_on(fragments, cfg, learner).for_each(
        UpdateTarget(learner, every_updates=cfg.target_every)
    )
