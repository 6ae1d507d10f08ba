"""A3C (arXiv:1602.01783): each worker's gradient is applied as it comes, and only that worker gets the new weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flowrl import ActorGroup, Flow, rl
from flowrl.algorithms.actor_critic import ActorCriticConfig, gradients_of, learner_of
from flowrl.algorithms.collecting import evaluated, kept, workers_of
from flowrl.numbers import check_whole
from flowrl.operators import ApplyGradients, ReportMetrics, SendWeights, Summary
from flowrl.operators.training import TrainInfo
from flowrl.rl.gradient_batch import Gradients


@dataclass(frozen=True)
class A3CConfig(ActorCriticConfig):
    """The settings of A3C. The defaults suit CartPole-v1 on two cores; nothing harder was tried with them."""

    num_async: int = 2
    """Gradients of a worker that are under way at once: with 1 it waits for the weights that its last one made, with
    more it goes on with older ones meanwhile."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("num_async", self.num_async)

    def graph(self) -> Flow[Summary]:
        """The whole algorithm as a flow of summaries."""
        return graph(self)


def graph(cfg: A3CConfig) -> Flow[Summary]:
    """A3C: nobody waits for anybody, and gradients may be of weights that others have moved on from."""
    workers, learner = workers_of(cfg), learner_of(cfg)
    trained = (
        gradients_of(cfg, workers)
        .gather_async(num_async=cfg.num_async, on_failure=cfg.on_worker_failure)
        .through(learn(cfg, learner))
    )
    return evaluated(trained, cfg, learner).for_each(ReportMetrics())


def learn(cfg: A3CConfig, learner: ActorGroup[rl.Learner]) -> Callable[[Flow[Gradients]], Flow[TrainInfo]]:
    """The part that a mix reuses: from gradients to weights sent."""
    return lambda gradients: gradients.for_each(ApplyGradients(learner, **kept(cfg))).for_each(
        SendWeights(learner, to="origin")
    )
