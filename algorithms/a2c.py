"""A2C (arXiv:1602.01783, in step): all workers' gradients are averaged, and all go on with the same new weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flowrl import ActorGroup, Flow, rl
from flowrl.algorithms.actor_critic import ActorCriticConfig, gradients_of, learner_of
from flowrl.algorithms.collecting import evaluated, kept, workers_of
from flowrl.operators import ApplyGradients, AverageGradients, ReportMetrics, SendWeights, Summary
from flowrl.operators.training import TrainInfo
from flowrl.rl.gradient_batch import Gradients


@dataclass(frozen=True)
class A2CConfig(ActorCriticConfig):
    """The settings of A2C. The defaults suit CartPole-v1 on two cores; nothing harder was tried with them."""

    def graph(self) -> Flow[Summary]:
        """The whole algorithm as a flow of summaries."""
        return graph(self)


def graph(cfg: A2CConfig) -> Flow[Summary]:
    """A2C: the gradient of one batch of all workers' fragments, computed where they were made."""
    workers, learner = workers_of(cfg), learner_of(cfg)
    trained = (
        gradients_of(cfg, workers).gather_sync(on_failure=cfg.on_worker_failure).through(learn(cfg, learner, workers))
    )
    return evaluated(trained, cfg, learner).for_each(ReportMetrics())


def learn(
    cfg: A2CConfig, learner: ActorGroup[rl.Learner], workers: ActorGroup[rl.RolloutWorker]
) -> Callable[[Flow[Gradients]], Flow[TrainInfo]]:
    """The part that a mix reuses: from gradients to weights sent."""
    return lambda gradients: (
        gradients.for_each(AverageGradients(cfg.num_workers))
        .for_each(ApplyGradients(learner, **kept(cfg)))
        .for_each(SendWeights(learner, to=workers))
    )
