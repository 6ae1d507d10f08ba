"""What settings may be: times to wait that no clock takes are refused where they are set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import flowrl
from flowrl import Ray, Restart
from flowrl.algorithms import DDPPOConfig, IMPALAConfig, PPOConfig
from flowrl.operators import TrainOneStep
from flowrl.rl import EnvOptions, Evaluator, Learner, PolicySpec, RolloutWorker
from flowrl.rl.losses import PPOLoss

LEARNERS = flowrl.actors(Learner, PolicySpec(), PPOLoss(), count=2, name="learners")
LONE = flowrl.actor(Learner, PolicySpec(), PPOLoss(), name="learner")
TIMES: dict[str, Callable[[Any], Any]] = {
    "env_timeout_s": lambda s: EnvOptions(env_timeout_s=s),
    "learner_timeout_s": lambda s: PPOConfig(learner_timeout_s=s),
    "IMPALA's peer_timeout_s": lambda s: IMPALAConfig(peer_timeout_s=s),
    "DD-PPO's peer_timeout_s": lambda s: DDPPOConfig(peer_timeout_s=s),
    "TrainOneStep: peer_timeout_s": lambda s: TrainOneStep(LEARNERS, peer_timeout_s=s),
    "TrainOneStep: timeout_s": lambda s: TrainOneStep(LONE, timeout_s=s),
    "gather_sync: timeout_s": lambda s: flowrl.from_items([1], num_shards=1).gather_sync(timeout_s=s),
    "Restart: backoff_s": lambda s: Restart(backoff_s=s),
    "wait_for_resources_s": lambda s: Ray(wait_for_resources_s=s),
}


@pytest.mark.parametrize("given", [1e14, float("inf"), float("nan"), -1, "3", True], ids=repr)
@pytest.mark.parametrize("name", TIMES)
def test_times_that_no_clock_takes(name: str, given: Any) -> None:
    setting = name.rpartition("'s ")[2]
    with pytest.raises((ValueError, flowrl.GraphError), match=rf"{setting} must be a number of seconds .*, got "):
        TIMES[name](given)


@pytest.mark.parametrize("name", TIMES)
def test_times_that_are_long(name: str) -> None:
    TIMES[name](1e8)


@pytest.mark.parametrize("times", [0, -1, 2.5, True, "2", None])
def test_a_restart_is_a_whole_number_of_times(times: Any) -> None:
    with pytest.raises(ValueError, match=r"Restart: times must be .*; to give up at once use Raise\(\)"):
        Restart(times)


@pytest.mark.parametrize("name", ["steps", "num_envs"])
@pytest.mark.parametrize("kind", [RolloutWorker, Evaluator], ids=["worker", "evaluator"])
def test_numbers_as_words_are_refused_by_name(kind: Any, name: str) -> None:
    setting = "max_steps" if kind is Evaluator and name == "steps" else name
    with pytest.raises(ValueError, match=f"{setting} must be an integer of at least 1, got '8'"):
        kind("CartPole-v1", PolicySpec(), **{setting: "8"})
