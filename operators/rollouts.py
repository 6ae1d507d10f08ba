"""Where experience comes from: a shard in each rollout worker."""

from __future__ import annotations

from typing import Any

from flowrl import graph
from flowrl.batch import Batch
from flowrl.errors import GraphError
from flowrl.flow import ParallelFlow
from flowrl.handles import ActorGroup
from flowrl.places import calling_place


def ParallelRollouts(workers: ActorGroup[Any]) -> ParallelFlow[Batch]:  # noqa: N802  (reads as an operator)
    """Batches of experience, each pull one `sample()` of a rollout worker.

    Raises:
        GraphError: the group's class has no method `sample`.
    """
    if not isinstance(workers, ActorGroup):
        raise GraphError(f"ParallelRollouts needs a group made by flowrl.actors(RolloutWorker, ...), got {workers!r}")
    cls = workers.actor_class
    if isinstance(cls, type) and not callable(getattr(cls, "sample", None)):
        raise GraphError(f"ParallelRollouts: {cls.__name__} (group {workers.name!r}) has no method sample()")
    return ParallelFlow(graph.Shards(label="ParallelRollouts", where=calling_place(), group=workers, method="sample"))
