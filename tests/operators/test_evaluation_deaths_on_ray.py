"""An evaluator's process is killed on Ray."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

import flowrl
from flowrl import Local, Restart
from flowrl.algorithms import PPOConfig


def process_of(actor: Any) -> int:
    """The id of the process that it lives in."""
    return os.getpid()


@pytest.mark.ray
def test_an_evaluator_is_killed_in_the_middle_of_an_evaluation_on_ray(ray_session: None) -> None:
    cfg = PPOConfig(
        "CartPole-v1", num_workers=1, envs_per_worker=2, unroll=8, batch_steps=16, epochs=1, minibatch=16,
        evaluate_every_env_steps=16, evaluate_episodes=60, on_evaluator_failure=Restart(3, backoff_s=0.01),
    )  # fmt: skip
    with flowrl.run(cfg.graph(), Local(), seed=3) as running:
        expected = [dict(item.nodes.get("EvaluateEvery", {})) for item in running.step(4)]
    with flowrl.run(cfg.graph(), flowrl.Ray(), seed=3) as running:
        process = running.actors["evaluators"][0].ask(process_of).result()
        found = [dict(item.nodes.get("EvaluateEvery", {})) for item in running.step(1)]
        os.kill(process, signal.SIGKILL)  # the first evaluation has just been asked for, and is not answered
        found += [dict(item.nodes.get("EvaluateEvery", {})) for item in running.step(3)]
        assert running.stats().metrics["evaluators"]["restarts"] == 1
        assert running.evaluate(3).episodes == 3
    assert found[-1].pop("evaluations_restarted") == 1
    assert [
        {name: figure for name, figure in one.items() if name != "evaluations_restarted"} for one in found
    ] == expected
