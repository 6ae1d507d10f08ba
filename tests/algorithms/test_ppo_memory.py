"""PPO on a task that only memory solves: with an LSTM or a GRU it does, without it stays at chance."""

import dataclasses

import numpy as np
import pytest
import torch

from flowrl import Local, run
from flowrl.algorithms import PPOConfig
from flowrl.rl import Learner, PolicySpec, RolloutWorker
from flowrl.rl.losses import PPOLoss
from tests.rl.memory_envs import Recall

CONFIG = PPOConfig(
    env=Recall,
    num_workers=2,
    envs_per_worker=8,
    unroll=32,
    batch_steps=400,
    epochs=8,
    minibatch=4,
    learning_rate=3e-3,
    discount=0.95,
    entropy_cost=0.01,
)


def trained(policy: PolicySpec, env_steps: int, **settings):
    """An evaluation after training."""
    config = dataclasses.replace(CONFIG, policy=policy, **settings)
    with run(config.graph(), Local(), seed=0) as r:
        for summary in r:
            if summary.env_steps >= env_steps or summary.episode_return_mean >= 0.98:
                break
        return r.evaluate(60)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_policy_with_memory_learns_it(kind):
    found = trained(PolicySpec(hidden=(32,), recurrent=kind, recurrent_size=32), 20_000)
    assert found.mean > 0.9


def test_a_policy_without_memory_stays_at_chance():
    found = trained(PolicySpec(hidden=(32,)), 8_000, minibatch=128)
    assert abs(found.mean) < 0.5


def test_fragments_carry_the_state_on():
    """A fragment's states are those that the policy has after the fragments before, from which training begins."""
    config = dataclasses.replace(CONFIG, policy=PolicySpec(hidden=(8,), recurrent="lstm", recurrent_size=6), unroll=5)
    worker = RolloutWorker(Recall, config.policy, steps=config.unroll, num_envs=3, seed=0)
    learner = Learner(config.policy, PPOLoss(), seed=1)
    published = learner.build(worker.spaces())
    worker.set_weights(published.published, 0)
    fragments = [worker.sample().payload for _ in range(6)]
    net = learner.policy
    obs, starts, valid = (
        torch.tensor(np.concatenate([f[name] for f in fragments])) for name in ("obs", "starts", "valid")
    )
    assert 3 < int(starts.sum()) < starts.numel() / 2
    whole = net.run_sequence(obs, None, net.initial_state(3), starts)
    values = torch.tensor(np.concatenate([f["values"] for f in fragments]))
    torch.testing.assert_close(whole.values[valid].detach(), values[valid], atol=1e-5, rtol=1e-4)
    logp = torch.tensor(np.concatenate([f["logp"] for f in fragments]))
    actions = torch.tensor(np.concatenate([f["actions"] for f in fragments]))
    torch.testing.assert_close(whole.dist.logp(actions)[valid].detach(), logp[valid], atol=1e-5, rtol=1e-4)
    # Whatever it has learned of before, each fragment alone gives the same, from the state that it says it began with.
    for fragment in fragments:
        alone = net.forward(fragment)
        at = torch.tensor(fragment["valid"])
        torch.testing.assert_close(
            alone.values[at].detach(), torch.tensor(fragment["values"])[at], atol=1e-5, rtol=1e-4
        )
