"""PPO on Pendulum-v1: continuous actions, clipped for the environment only, with normalized rewards and a schedule."""

import dataclasses

import pytest

from flowrl import Local, run
from flowrl.algorithms import PPOConfig
from flowrl.rl.schedules import Linear

CONFIG = PPOConfig(
    env="Pendulum-v1",
    num_workers=2,
    envs_per_worker=8,
    unroll=64,
    batch_steps=1000,
    epochs=10,
    minibatch=128,
    discount=0.9,
    gae_lambda=0.9,
    learning_rate=Linear(2e-3, 0.0, 50_000),
    normalize_rewards=True,
)


def trained(config: PPOConfig, env_steps: int, seed: int = 0):
    with run(config.graph(), Local(), seed=seed) as r:
        for summary in r:
            if summary.env_steps >= env_steps:
                break
        return summary, r.evaluate(20)


def test_it_swings_up_after_40_000_steps():
    summary, found = trained(CONFIG, 40_000)
    assert summary.learner["default"]["learning_rate"] == pytest.approx(0.002 * (1 - summary.env_steps / 50_000))
    assert found.mean > -600  # an untrained policy gets some -1,200
    assert summary.episode_return_mean > -800


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_is_solved_after_100_000_steps(seed):
    slowly = {"minibatch": 64, "gae_lambda": 0.95, "learning_rate": Linear(1e-3, 0.0, 100_000)}
    config = dataclasses.replace(CONFIG, **slowly)
    assert trained(config, 100_000, seed)[1].mean > -250
