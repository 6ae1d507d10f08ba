"""The reinforcement-learning parts: policies, losses, learners, rollout workers. Loaded when first asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowrl.lazy import lazy_names

if TYPE_CHECKING:
    from flowrl.rl import losses, returns, schedules
    from flowrl.rl.actor_learner import SACLearner, TD3Learner
    from flowrl.rl.central import InferenceServer
    from flowrl.rl.envs import EnvContext
    from flowrl.rl.evaluator import Evaluator
    from flowrl.rl.league import League
    from flowrl.rl.league_worker import LeagueWorker
    from flowrl.rl.learner import Learner
    from flowrl.rl.learning_worker import LearningWorker
    from flowrl.rl.losses import Loss, LossOut
    from flowrl.rl.matchmaking import Matchmaking
    from flowrl.rl.multi_agent_worker import MultiAgentWorker
    from flowrl.rl.policy import Policy
    from flowrl.rl.replay import ReplayShard
    from flowrl.rl.roles import Scripted
    from flowrl.rl.spec import PolicySpec, Progress
    from flowrl.rl.worker import RolloutWorker
    from flowrl.rl.wrappers import EnvOptions
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "actor_learner": ("SACLearner", "TD3Learner"),
            "central": ("InferenceServer",),
            "envs": ("EnvContext",),
            "evaluator": ("Evaluator",),
            "league": ("League",),
            "league_worker": ("LeagueWorker",),
            "learner": ("Learner",),
            "learning_worker": ("LearningWorker",),
            "losses": ("Loss", "LossOut"),
            "matchmaking": ("Matchmaking",),
            "multi_agent_worker": ("MultiAgentWorker",),
            "policy": ("Policy",),
            "replay": ("ReplayShard",),
            "roles": ("Scripted",),
            "spec": ("PolicySpec", "Progress"),
            "worker": ("RolloutWorker",),
            "wrappers": ("EnvOptions",),
        },
        modules=("losses", "returns", "schedules"),
    )

__all__ = [
    "EnvContext",
    "EnvOptions",
    "Evaluator",
    "InferenceServer",
    "League",
    "LeagueWorker",
    "Learner",
    "LearningWorker",
    "Loss",
    "LossOut",
    "Matchmaking",
    "MultiAgentWorker",
    "Policy",
    "PolicySpec",
    "Progress",
    "ReplayShard",
    "RolloutWorker",
    "SACLearner",
    "Scripted",
    "TD3Learner",
    "losses",
    "returns",
    "schedules",
]
