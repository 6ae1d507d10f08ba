"""Reinforcement-learning algorithms as lazy dataflow graphs, whose parallel shards are actors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowrl.lazy import lazy_names

if TYPE_CHECKING:
    from flowrl import algorithms, operators, rl, testing
    from flowrl.backends.local import Local
    from flowrl.backends.ray import Ray
    from flowrl.batch import Batch, MultiAgentBatch
    from flowrl.engine.run import Run, run
    from flowrl.errors import (
        ActorDied,
        CheckpointError,
        EndOfStream,
        FlowError,
        FlowStalled,
        GraphError,
        OperatorError,
        RemoteError,
        StartError,
    )
    from flowrl.failures import Ignore, Raise, Restart
    from flowrl.flow import Flow, ParallelFlow
    from flowrl.handles import ActorGroup, ActorHandle, Pending, actor, actors
    from flowrl.operator import AskOperator, Context, Operator
    from flowrl.ref import Answer, Info, Ref
    from flowrl.rl.saved import load_policy
    from flowrl.sources import Aggregator, from_actors, from_items, from_iterable, from_iterators
    from flowrl.training import TrainResult, train
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "backends.local": ("Local",),
            "backends.ray": ("Ray",),
            "batch": ("Batch", "MultiAgentBatch"),
            "engine.run": ("Run", "run"),
            "errors": (
                "ActorDied",
                "CheckpointError",
                "EndOfStream",
                "FlowError",
                "FlowStalled",
                "GraphError",
                "OperatorError",
                "RemoteError",
                "StartError",
            ),
            "failures": ("Ignore", "Raise", "Restart"),
            "flow": ("Flow", "ParallelFlow"),
            "handles": ("ActorGroup", "ActorHandle", "Pending", "actor", "actors"),
            "operator": ("AskOperator", "Context", "Operator"),
            "ref": ("Answer", "Info", "Ref"),
            "rl.saved": ("load_policy",),
            "sources": ("Aggregator", "from_actors", "from_items", "from_iterable", "from_iterators"),
            "training": ("TrainResult", "train"),
        },
        modules=("algorithms", "operators", "rl", "testing"),
    )

__version__ = "0.1.0"

__all__ = [
    "ActorDied",
    "ActorGroup",
    "ActorHandle",
    "Aggregator",
    "Answer",
    "AskOperator",
    "Batch",
    "CheckpointError",
    "Context",
    "EndOfStream",
    "Flow",
    "FlowError",
    "FlowStalled",
    "GraphError",
    "Ignore",
    "Info",
    "Local",
    "MultiAgentBatch",
    "Operator",
    "OperatorError",
    "ParallelFlow",
    "Pending",
    "Raise",
    "Ray",
    "Ref",
    "RemoteError",
    "Restart",
    "Run",
    "StartError",
    "TrainResult",
    "__version__",
    "actor",
    "actors",
    "algorithms",
    "from_actors",
    "from_items",
    "from_iterable",
    "from_iterators",
    "load_policy",
    "operators",
    "rl",
    "run",
    "testing",
    "train",
]
