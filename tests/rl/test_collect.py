"""Collecting with memory: states over fragments and episodes, and the same numbers in every autoreset mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flowrl.rl.policy import Policy
from flowrl.rl.spec import PolicySpec
from flowrl.rl.worker import RolloutWorker
from flowrl.rl.wrappers import EnvOptions
from tests.rl.counting_envs import Counting

MEMORY = PolicySpec(hidden=(8,), recurrent="lstm", recurrent_size=6)
LENGTHS = (3, 5, 1, 4)


def worker_of(mode: Any, steps: int, spec: PolicySpec = MEMORY, seed: int = 0) -> RolloutWorker:
    """Two environments of known episodes; what they give does not depend on actions."""
    return RolloutWorker(
        lambda: Counting(LENGTHS, truncates=True), spec, steps=steps, num_envs=2, seed=seed,
        env_options=EnvOptions(autoreset=mode), next_obs=True,
    )  # fmt: skip


def transitions(worker: RolloutWorker, fragments: int, n: int = 0) -> list[np.ndarray]:
    """(episode, step, value, next value) of one environment's valid rows in order."""
    rows = []
    for _ in range(fragments):
        batch = worker.sample().payload
        keep = batch.valid[:, n]
        values = np.stack([batch["values"][:, n], batch["next_values"][:, n]], -1)
        rows += list(np.concatenate([batch["obs"][:, n], values], -1)[keep])
    return rows


@pytest.mark.parametrize("mode", ["same_step", "disabled"])
def test_values_of_remembered_episodes_are_the_same_in_every_mode(mode: Any) -> None:
    shown, other = transitions(worker_of("next_step", 7), 6), transitions(worker_of(mode, 7), 6)
    count = min(len(shown), len(other))
    assert count > 25
    np.testing.assert_allclose(other[:count], shown[:count], atol=1e-6)


def test_the_next_value_is_that_of_the_next_row_and_at_an_end_of_the_final_observation() -> None:
    rows = np.array(transitions(worker_of("same_step", 5), 8))
    worker = worker_of("same_step", 5)
    spaces = worker.spaces()["default"]
    policy = Policy(MEMORY, spaces)
    policy.set_weights(worker.get_state()["weights"])
    for episode in range(5):
        length = LENGTHS[episode % len(LENGTHS)]
        mine = rows[rows[:, 0] == episode]
        assert len(mine) == length
        obs = torch.tensor([[[float(episode), float(step)]] for step in range(length + 1)])
        starts = torch.zeros(length + 1, 1, dtype=torch.bool)
        values = policy.run_sequence(obs, None, policy.initial_state(1), starts).values[:, 0].detach()
        np.testing.assert_allclose(mine[:, 2], values[:-1], atol=1e-6)
        np.testing.assert_allclose(mine[:, 3], values[1:], atol=1e-6)


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_a_batch_is_what_the_policy_says_of_its_columns(mode: Any) -> None:
    worker = worker_of(mode, 6)
    policy = Policy(MEMORY, worker.spaces()["default"])
    policy.set_weights(worker.get_state()["weights"])
    for fragment in range(4):
        batch = worker.sample().payload
        out = policy.forward(batch)
        np.testing.assert_allclose(out.values.detach(), batch["values"], atol=1e-6)
        logp = out.dist.logp(torch.tensor(batch["actions"])).detach()
        np.testing.assert_allclose(logp, batch["logp"], atol=1e-6)
        # Rows whose observation is the first of an episode, and only these, are starts.
        assert ((batch["obs"][..., 1] == 0) == batch["starts"]).all()
        assert bool(batch["state/h"][0].any()) == (fragment > 0)


def test_a_restored_worker_remembers() -> None:
    worker, other = (worker_of("next_step", 5, seed=seed) for seed in (0, 1))
    worker.sample()
    worker.set_policy(MEMORY, worker.get_state()["weights"])  # its memory begins anew
    worker.sample()
    other.set_state(worker.get_state())
    assert other.sample().payload == worker.sample().payload
