"""MADDPG on a continuous game whose optimum is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl import Local
from flowrl.algorithms import DDPGConfig, MADDPGConfig
from flowrl.cli import main
from flowrl.rl import PolicySpec
from flowrl.rl.schedules import Linear
from tests.rl.team_envs import Shares


def config(**settings: Any) -> MADDPGConfig:
    ddpg = DDPGConfig(
        policy=PolicySpec(head="deterministic_actor", hidden=(32,), critics=1, exploration_noise=0.2),
        min_size=200, batch=64, batches=8, samples_per_step=32.0, learning_rate=3e-3, tau=0.02,
        epsilon=Linear(1.0, 0.0, 1000),
    )  # fmt: skip
    given = {"env": Shares, "ddpg": ddpg, "critic_hidden": (32, 32), "unroll": 4}
    return MADDPGConfig(**{**given, **settings})


def test_two_agents_find_how_to_share() -> None:
    with flowrl.run(config().graph(), Local(isolate=False), seed=0) as run:
        for summary in run:
            if summary.env_steps >= 2_500:
                break
        found = run.evaluate(40)
        policies = run.policies()
    assert set(policies) == {"a", "b"}
    assert set(summary.learner) == {"a", "b"}
    # The best is 0, at half of x each; both are given the reward. Actions of 0 come to −2/3, uniform ones to some −2.
    assert found.mean >= -0.03
    for x in (-0.8, 0.0, 0.8):
        shares = [float(policies[name].act(np.array([x], np.float32), deterministic=True)[0]) for name in "ab"]
        assert shares == pytest.approx([x / 2, x / 2], abs=0.15)
        assert sum(shares) == pytest.approx(x, abs=0.12)


def test_settings_without_a_part_are_refused() -> None:
    with pytest.raises(ValueError, match=r"ddpg.n_step=3 has no part in a mix"):
        config(ddpg=DDPGConfig(n_step=3))
    policy = PolicySpec(head="deterministic_actor", normalize_obs=True)
    with pytest.raises(ValueError, match="normalize_obs has no part in MADDPG"):
        config(ddpg=DDPGConfig(policy=policy))


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--env-kwargs", "agents=2", "--ddpg.min-size", "20", "--ddpg.batch", "8", "--ddpg.batches", "1"]
    small += ["--total-steps", "100", "--backend", "local", "--seed", "0", "--ddpg.samples-per-step", "1"]
    assert main(["train", "maddpg", *small]) == 0
    assert "JoinAgents(reward='mean', stack=False)" in capsys.readouterr().out
