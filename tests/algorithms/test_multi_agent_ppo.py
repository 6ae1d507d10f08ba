"""PPO of several agents: shared and independent policies, own values and central critics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl import Local, Ray
from flowrl.algorithms import MultiAgentPPOConfig, PPOConfig
from flowrl.cli import main
from flowrl.rl import PolicySpec
from tests.rl.team_envs import Falling, Signals

PPO = PPOConfig(
    policy=PolicySpec(hidden=(16,)), batch_steps=128, epochs=6, minibatch=64, learning_rate=1e-2, discount=0.9
)


def config(**settings: Any) -> MultiAgentPPOConfig:
    given = {"env": Signals, "num_workers": 1, "envs_per_worker": 4, "unroll": 32, "ppo": PPO}
    return MultiAgentPPOConfig(**{**given, **settings})


@pytest.mark.parametrize("policies", ["shared", "independent"])
@pytest.mark.parametrize("critic", ["own", "central"])
def test_it_learns_to_answer_signals(policies: Any, critic: Any) -> None:
    with flowrl.run(config(policies=policies, critic=critic).graph(), Local(isolate=False), seed=0) as run:
        summary = run.step(5)[-1]
        found = run.evaluate(10)
        ids = {"shared"} if policies == "shared" else {"a", "b"}
        assert set(run.policies()) == set(summary.learner) == ids
    # Two agents are rewarded with 10 a step each for 8 steps; a random team gets half of it.
    assert found.mean >= 0.97 * 160.0
    if critic == "central":
        assert all(table["return_std"] > 0 for table in summary.learner.values())


@pytest.mark.parametrize("policies", ["shared", "independent"])
def test_a_summary_tells_what_all_agents_get_together(policies: Any) -> None:
    with flowrl.run(config(policies=policies).graph(), Local(isolate=False), seed=0) as run:
        summary = run.step(2)[-1]
    table = summary.nodes["ParallelRollouts"]
    names = ("shared",) if policies == "shared" else ("a", "b")
    assert summary.episode_return_mean == table["episode_return"]
    agents = {name: table[f"{name}/episode_return"] for name in names}
    of_two = 2 * agents["shared"] if policies == "shared" else sum(agents.values())
    assert summary.episode_return_mean == pytest.approx(of_two, rel=0.2)  # over other windows of 100


def test_agents_that_die_are_trained_on_while_they_lived(ray_session: None) -> None:
    ppo = PPOConfig(policy=PolicySpec(hidden=(4,)), batch_steps=96)
    cfg = config(env=Falling, critic="central", unroll=24, ppo=ppo)  # whole episodes of three steps
    numbers = []
    for backend in (Local(), Ray()):
        with flowrl.run(cfg.graph(), backend, seed=1) as run:
            last = run.step(2)[-1]
            numbers.append(run.policy_state()["weights"])
    # Of three steps an episode the agents take one, two and three.
    assert last.agent_steps == 2 * last.env_steps
    np.testing.assert_array_equal(*numbers)


def test_settings_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(ValueError, match=r"critic must be one of \('own', 'central'\), got 'both'"):
        MultiAgentPPOConfig(critic="both")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"ppo.clip_value has no part beside a central critic"):
        MultiAgentPPOConfig(critic="central", ppo=PPOConfig(clip_value=0.2))
    with pytest.raises(ValueError, match="critic_learning_rate is for critic='central'"):
        MultiAgentPPOConfig(critic_learning_rate=1e-3)
    with pytest.raises(ValueError, match=r"ppo.unroll=7 has no part in a mix"):
        MultiAgentPPOConfig(ppo=PPOConfig(unroll=7))


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--num-workers", "1", "--envs-per-worker", "2", "--unroll", "16", "--ppo.batch-steps", "32"]
    small += ["--total-steps", "100", "--backend", "local", "--seed", "0", "--critic", "central"]
    assert main(["train", "multi_agent_ppo", *small, "--policies", "independent"]) == 0
    assert "by_policy('agent_3')" in capsys.readouterr().out
