"""Where experience comes from: a shard in each rollout worker."""

from __future__ import annotations

from typing import Any

from flowrl import graph
from flowrl.batch import Batch
from flowrl.errors import GraphError
from flowrl.flow import ParallelFlow
from flowrl.handles import ActorGroup
from flowrl.places import calling_place


def ParallelRollouts(  # noqa: N802  (reads as an operator)
    workers: ActorGroup[Any], *, inference: ActorGroup[Any] | None = None
) -> ParallelFlow[Batch]:
    """Batches of experience, each pull one `sample()` of a rollout worker.

    inference: a group of `flowrl.rl.InferenceServer`, where the policy's outputs are computed instead of in the workers
        (SEED RL, arXiv:1910.06591). Each step is then a message of the worker with its observations and one with the
        outputs; a server answers all that wait in one pass (behind gather_sync those of all workers). Weights are sent
        to this group (`SendWeights(learner, to=inference)`), and may change within a fragment, whose version is then
        that of its first step. Worker i asks server i modulo their number. It pays where a pass costs more than two
        messages: large networks, many workers; with a small network it is slower than workers of their own.

    Raises:
        GraphError: a group's class lacks the methods that this needs.
    """
    if not isinstance(workers, ActorGroup):
        raise GraphError(f"ParallelRollouts needs a group made by flowrl.actors(RolloutWorker, ...), got {workers!r}")
    _check_methods(workers, "sample" if inference is None else "begin_sample")
    if inference is None:
        return ParallelFlow(
            graph.Shards(label="ParallelRollouts", where=calling_place(), group=workers, method="sample")
        )
    if not isinstance(inference, ActorGroup):
        raise GraphError(
            "ParallelRollouts: inference must be a group made by flowrl.actors(InferenceServer, ...), got "
            f"{inference!r}"
        )
    _check_methods(workers, "go_on")
    _check_methods(inference, "serve")
    return ParallelFlow(
        graph.Shards(
            label="ParallelRollouts",
            where=calling_place(),
            group=workers,
            method="begin_sample",
            served_by=inference,
            takes="go_on",
        )
    )


def _check_methods(group: ActorGroup[Any], method: str) -> None:
    cls = group.actor_class
    if isinstance(cls, type) and not callable(getattr(cls, method, None)):
        raise GraphError(f"ParallelRollouts: {cls.__name__} (group {group.name!r}) has no method {method}()")
