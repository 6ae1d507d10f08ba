"""IMPALA (arXiv:1802.01561): workers never wait, and the learner corrects for their older policies by V-trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flowrl import ActorGroup, Batch, Flow, actors, rl
from flowrl.algorithms.asynchronous import AsynchronousConfig, fragments_of, trained_on
from flowrl.algorithms.collecting import evaluated
from flowrl.operators import ReportMetrics, Summary
from flowrl.operators.training import TrainInfo


@dataclass(frozen=True)
class IMPALAConfig(AsynchronousConfig):
    """The settings of IMPALA. The defaults suit CartPole-v1 on two cores; nothing harder was tried with them."""

    def graph(self) -> Flow[Summary]:
        """The whole algorithm as a flow of summaries."""
        return graph(self)


def graph(cfg: IMPALAConfig) -> Flow[Summary]:
    """IMPALA: a policy gradient on V-trace advantages."""
    learner = actors(
        rl.Learner, cfg.policy, rl.losses.VTraceLoss(**cfg.vtrace),
        learning_rate=cfg.learning_rate, max_grad_norm=cfg.max_grad_norm,
        count=cfg.learners, name="learner",
    )  # fmt: skip
    return evaluated(fragments_of(cfg).through(learn(cfg, learner)), cfg, learner).for_each(ReportMetrics())


def learn(cfg: IMPALAConfig, learner: ActorGroup[rl.Learner]) -> Callable[[Flow[Batch]], Flow[TrainInfo]]:
    """The part that a mix reuses: from fragments to updates, weights going to the worker that a fragment came from."""
    return lambda fragments: trained_on(fragments, cfg, learner)
