"""JoinAgents: a row for each step of each environment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flowrl import Batch, Context, MultiAgentBatch
from flowrl.operators import JoinAgents
from flowrl.rl import MultiAgentWorker, PolicySpec
from tests.rl.scripted_agents import ScriptedAgents
from tests.rl.team_envs import Falling, TwoStep

SPEC = PolicySpec(hidden=(4,))


def sample(env: Any, **options: Any) -> MultiAgentBatch:
    given = {"joint": True, "next_obs": True, "seed": 0, **options}
    policies = given.pop("policies", {"one": SPEC})
    worker = MultiAgentWorker(env, policies, given.pop("policy_of", None), **given)
    batch: MultiAgentBatch = worker.sample().payload
    return batch


def joined(batch: MultiAgentBatch, **options: Any) -> Batch:
    op = JoinAgents(**options)
    op.open()
    [made] = op.process(batch, Context())
    return made


def test_the_rows_of_one_moment_become_one() -> None:
    batch = joined(sample(Falling, steps=6, num_envs=2))
    assert batch.leading == (6, 2)
    assert batch.env_steps == 12
    for n in range(2):
        np.testing.assert_array_equal(batch["alive"][:, n], [[1, 1, 1], [0, 1, 1], [0, 0, 1]] * 2)
        np.testing.assert_array_equal(batch["next_alive"][:, n], [[0, 1, 1], [0, 0, 1], [0, 0, 1]] * 2)
        np.testing.assert_array_equal(batch["agent_rewards"][:, n], [[1, 2, 3], [0, 2, 3], [0, 0, 3]] * 2)
        np.testing.assert_array_equal(batch["agent_terminated"][:, n], [[1, 0, 0], [0, 1, 0], [0, 0, 0]] * 2)
        np.testing.assert_allclose(batch["rewards"][:, n], [2, 2.5, 3] * 2)  # the mean of those who live
        np.testing.assert_allclose(batch["obs"][:3, n, :, 0], [[0, 0.1, 0.2], [0, 1.1, 1.2], [0, 0, 2.2]])
        # c is cut short at the end: its last observation is there, those of the dead are not.
        np.testing.assert_allclose(batch["next_obs"][:3, n, :, 0], [[0, 1.1, 1.2], [0, 0, 2.2], [0, 0, 3.2]])
    np.testing.assert_array_equal(batch["truncated"].T, [[0, 0, 1, 0, 0, 1]] * 2)
    assert not batch["terminated"].any()


def test_a_teams_reward_counts_once() -> None:
    batch = sample(TwoStep, steps=8)
    total = sum(batch["one"]["rewards"][batch["one"].valid])
    made = joined(batch)
    assert made["rewards"].sum() == total / 2
    assert joined(batch, reward="sum")["rewards"].sum() == total
    np.testing.assert_array_equal(made["terminated"][:, 0], [False, True] * 4)
    np.testing.assert_array_equal(made["global_state"][::2, 0], [[1, 0, 0]] * 4)
    np.testing.assert_array_equal(made["next_global_state"][:-1:2], made["global_state"][1::2])


def test_several_policies_join_and_columns_may_stand_apart() -> None:
    apart = sample(
        Falling, steps=3, policies={"x": SPEC, "y": SPEC}, policy_of=lambda agent, _: "x" if agent == "a" else "y"
    )
    assert set(apart) == {"x", "y"}
    made = joined(apart, stack=False)
    assert {"obs/0", "obs/1", "obs/2", "actions/2", "next_obs/1"} <= set(made)
    np.testing.assert_allclose(made["obs/1"][:, 0, 0], [0.1, 1.1, 0])
    np.testing.assert_allclose(made["next_obs/2"][:, 0, 0], [1.2, 2.2, 3.2])
    np.testing.assert_array_equal(made["alive"][:, 0], [[1, 1, 1], [0, 1, 1], [0, 0, 1]])


def test_agents_that_wait_are_refused() -> None:
    batch = sample(lambda ctx: ScriptedAgents(0, 1), steps=40)
    with pytest.raises(ValueError, match=r"needs agents that act at every step while they live, but agent \d"):
        joined(batch)


def test_batches_without_the_joint_columns_are_refused() -> None:
    with pytest.raises(ValueError, match=r"JoinAgents needs the time-major batches of MultiAgentWorker\(joint=True"):
        joined(sample(Falling, steps=3, joint=False))
    with pytest.raises(ValueError, match="reward must be 'mean' or 'sum', got 'most'"):
        JoinAgents("most")  # type: ignore[arg-type]


def test_nothing_comes_of_nothing() -> None:
    op = JoinAgents()
    op.open()
    assert list(op.process(MultiAgentBatch({}, env_steps=4), Context())) == []
