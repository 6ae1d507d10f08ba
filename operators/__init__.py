"""The operators that algorithms are made of, one idea a file; each is loaded when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

# The folder is a package of flowrl through a symbolic link; under its bare name every class in it would exist twice.
if __name__ != "flowrl.operators":
    raise ImportError(f"{__name__!r} is not a package of its own: use `import flowrl.operators`", name=__name__)

from flowrl.lazy import lazy_names

if TYPE_CHECKING:
    from flowrl.operators.advantages import AddAdvantages
    from flowrl.operators.batching import ConcatBatches
    from flowrl.operators.evaluation import EvaluateEvery
    from flowrl.operators.exploration import SetEpsilon
    from flowrl.operators.goals import RelabelGoals
    from flowrl.operators.gradients import ApplyGradients, AverageGradients, ComputeGradients
    from flowrl.operators.joining import JoinAgents
    from flowrl.operators.league import PlayAgainst, SnapshotToLeague
    from flowrl.operators.mixing import MixInReplay
    from flowrl.operators.nstep import NStep
    from flowrl.operators.policies import SelectPolicies
    from flowrl.operators.priorities import InitialPriorities
    from flowrl.operators.replay import Replay, StoreToReplay, UpdatePriorities, WaitUntil
    from flowrl.operators.reporting import ReportMetrics, Summary
    from flowrl.operators.rewards import ShareRewardMoments
    from flowrl.operators.rollouts import ParallelRollouts
    from flowrl.operators.standardize import Standardize
    from flowrl.operators.targets import UpdateTarget
    from flowrl.operators.training import TrainOneStep
    from flowrl.operators.union import Union
    from flowrl.operators.weights import SendWeights
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "advantages": ("AddAdvantages",),
            "batching": ("ConcatBatches",),
            "evaluation": ("EvaluateEvery",),
            "exploration": ("SetEpsilon",),
            "goals": ("RelabelGoals",),
            "joining": ("JoinAgents",),
            "gradients": ("ApplyGradients", "AverageGradients", "ComputeGradients"),
            "league": ("PlayAgainst", "SnapshotToLeague"),
            "mixing": ("MixInReplay",),
            "nstep": ("NStep",),
            "policies": ("SelectPolicies",),
            "priorities": ("InitialPriorities",),
            "replay": ("Replay", "StoreToReplay", "UpdatePriorities", "WaitUntil"),
            "reporting": ("ReportMetrics", "Summary"),
            "rewards": ("ShareRewardMoments",),
            "rollouts": ("ParallelRollouts",),
            "standardize": ("Standardize",),
            "targets": ("UpdateTarget",),
            "training": ("TrainOneStep",),
            "union": ("Union",),
            "weights": ("SendWeights",),
        },
    )

__all__ = [
    "AddAdvantages",
    "ApplyGradients",
    "AverageGradients",
    "ComputeGradients",
    "ConcatBatches",
    "EvaluateEvery",
    "InitialPriorities",
    "JoinAgents",
    "MixInReplay",
    "NStep",
    "ParallelRollouts",
    "PlayAgainst",
    "RelabelGoals",
    "Replay",
    "ReportMetrics",
    "SelectPolicies",
    "SendWeights",
    "SetEpsilon",
    "ShareRewardMoments",
    "SnapshotToLeague",
    "Standardize",
    "StoreToReplay",
    "Summary",
    "TrainOneStep",
    "Union",
    "UpdatePriorities",
    "UpdateTarget",
    "WaitUntil",
]
