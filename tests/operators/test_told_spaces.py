"""Learners are told their spaces whoever dies as the run begins, or before a learner is started again."""

from __future__ import annotations

from typing import Any

import pytest

import flowrl
from flowrl import ActorDied, Raise, Restart
from flowrl.algorithms import A3CConfig, DDPPOConfig, PPOConfig
from flowrl.rl import PolicySpec
from flowrl.testing import Delayed

SMALL: dict[str, Any] = {"num_workers": 2, "envs_per_worker": 2, "unroll": 4, "policy": PolicySpec(hidden=(4,))}
CONFIGS = {
    "ppo": PPOConfig(**SMALL, batch_steps=12, epochs=1, on_worker_failure=Restart(2, 0.0)),
    "a3c": A3CConfig(**SMALL, on_worker_failure=Restart(2, 0.0)),
    "ddppo": DDPPOConfig(**SMALL, batch_steps=12, epochs=1, on_worker_failure=Restart(2, 0.0)),
}


@pytest.mark.parametrize("number", [1, 4])  # of the message: the question for the spaces is the first or among the next
@pytest.mark.parametrize("name", CONFIGS)
def test_the_environment_that_is_asked_dies_before_it_answers(name: str, number: int) -> None:
    backend = Delayed(1, die=lambda actor, n: actor == "workers[0]" and n == number)
    with flowrl.run(CONFIGS[name].graph(), backend, seed=0) as run:
        assert len(run.step(4)) == 4
        assert run.stats().groups["workers"].deaths == 1
        assert run.policy_state()["version"] >= 2


@pytest.mark.parametrize("later", range(3))  # of the messages with which they meet; with the third it hands over
def test_one_learner_dies_while_another_is_started_again_and_they_meet(later: int) -> None:
    died: list[str] = []
    since: list[int] = []
    handed_over = later == 2

    def die(actor: str, n: int) -> bool:
        if actor == "workers[0]" and died:
            since.append(n)
        due = (actor == "workers[1]" and n == 14) or (actor == "workers[0]" and len(since) == later + 1)
        if due:
            died.append(actor)
        return due

    with flowrl.run(CONFIGS["ddppo"].graph(), Delayed(1, die=die), seed=0) as run:
        if not handed_over:
            with pytest.raises(ActorDied, match="nobody is left who has what was learned: all died before one could"):
                run.step(6)
            assert run.closed
            assert died == ["workers[1]", "workers[0]"]
            return
        assert len(run.step(6)) == 6
        assert run.stats().groups["workers"].deaths == 2
        weights = [handle.ask("policy_state").result()["weights"] for handle in run.actors["workers"]]
    assert died == ["workers[1]", "workers[0]"]
    assert weights[0].tobytes() == weights[1].tobytes()


def test_without_a_policy_the_death_ends_the_start() -> None:
    cfg = PPOConfig(**SMALL, batch_steps=12, epochs=1, on_worker_failure=Raise())
    backend = Delayed(1, die=lambda actor, n: actor == "workers[0]" and n == 1)
    with pytest.raises(ActorDied, match=r"workers\[0\] died: .*on_failure=Raise\(\)"):
        flowrl.run(cfg.graph(), backend, seed=0).step()
