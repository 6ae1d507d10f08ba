"""Deterministic actors with central critics: the losses, the learner, and the weights that workers take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from flowrl import Batch
from flowrl.rl import MultiAgentWorker, PolicySpec
from flowrl.rl.maddpg import MADDPGLearner
from flowrl.rl.maddpg_loss import actor_loss, central_critic_loss, next_actions
from flowrl.rl.spec import Spaces, Team
from flowrl.rl.tensors import TensorBatch
from tests.rl.team_envs import Shares

SPEC = PolicySpec(head="deterministic_actor", hidden=(8,), critics=1)
TEAM = Team(("a", "b"), 2)
SPACES = {
    "a": Spaces(Box(-1, 1, (1,), np.float32), Box(-1, 1, (1,), np.float32), TEAM),
    "b": Spaces(Box(-1, 1, (3,), np.float32), Box(-2, 2, (2,), np.float32), TEAM),
}


def learner(**options: Any) -> MADDPGLearner:
    made = MADDPGLearner(SPEC, policy_id=("a", "b"), critic_hidden=(6,), seed=4, **options)
    made.set_target_update(tau=0.1)
    made.build(SPACES)
    return made


def rows(count: int, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)

    def numbers(*shape: int) -> Any:
        return rng.uniform(-1, 1, (count, *shape)).astype(np.float32)

    return Batch(
        {
            "obs/0": numbers(1), "obs/1": numbers(3), "next_obs/0": numbers(1), "next_obs/1": numbers(3),
            "actions/0": numbers(1), "actions/1": numbers(2), "global_state": numbers(2),
            "next_global_state": numbers(2), "agent_rewards": numbers(2), "alive": rng.random((count, 2)) < 0.7,
            "next_alive": rng.random((count, 2)) < 0.7, "agent_terminated": rng.random((count, 2)) < 0.3,
        }
    )  # fmt: skip


def tensors(batch: Batch) -> TensorBatch:
    return TensorBatch({name: torch.tensor(column) for name, column in batch.items()})


def linear(state_BS: torch.Tensor, actions_BD: torch.Tensor) -> torch.Tensor:
    """A critic worked out by hand."""
    return state_BS.sum(-1) + actions_BD @ torch.tensor([1.0, 10.0, 100.0])


def test_the_critics_loss_is_that_worked_by_hand() -> None:
    batch = TensorBatch(
        {
            "alive": torch.tensor([[True, True], [True, False], [False, True]]),
            "agent_terminated": torch.tensor([[False, False], [True, False], [False, False]]),
            "agent_rewards": torch.tensor([[1.0, 0.0], [2.0, 0.0], [9.0, 0.0]]),
            "global_state": torch.tensor([[0.5, 0.5], [0.0, 0.0], [0.0, 0.0]]),
            "next_global_state": torch.tensor([[0.0, 2.0], [5.0, 5.0], [0.0, 0.0]]),
            "actions/0": torch.tensor([[0.1], [0.2], [0.0]]),
            "actions/1": torch.tensor([[0.1, 0.01], [0.0, 0.0], [0.0, 0.0]]),
        }
    )
    following = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
    out = central_critic_loss(linear, linear, 0, batch, following, 0.5)
    # Q is 1 + 0.1 + 1 + 1 = 3.1 and 0.2. What is learned: 1 + 0.5 (2 + 1) = 2.5, and 2 where the agent was terminated.
    assert out.loss.item() == pytest.approx((0.6**2 + 1.8**2) / 2, rel=1e-5)


def test_the_losses_are_those_of_a_slow_reference() -> None:
    made = learner()
    made.train(rows(32, seed=3), minibatch=8)
    batch = rows(10)
    policies = [member.policy for member in made.members]

    def action(policy: Any, obs: Any) -> Any:
        with torch.no_grad():
            return torch.tanh(policy.run(torch.tensor(obs)[None]).logits)[0].numpy()

    following = [
        np.concatenate(
            [action(policies[k].target, batch[f"next_obs/{k}"][i]) * batch["next_alive"][i, k] for k in (0, 1)]
        )
        for i in range(10)
    ]
    np.testing.assert_allclose(next_actions(policies, tensors(batch)), following, rtol=1e-5)
    critic = made.members[1].critic
    assert critic is not None
    losses, values = [], []
    for i in range(10):
        if not batch["alive"][i, 1]:
            continue
        taken = np.concatenate((batch["actions/0"][i], batch["actions/1"][i]))
        own = np.concatenate((batch["actions/0"][i], action(policies[1], batch["obs/1"][i])))
        with torch.no_grad():
            state, after = (torch.tensor(batch[name][i])[None] for name in ("global_state", "next_global_state"))
            then = critic.target(after, torch.tensor(following[i])[None]).item()
            target = batch["agent_rewards"][i, 1] + 0.9 * then * (not batch["agent_terminated"][i, 1])
            losses.append((critic(state, torch.tensor(taken)[None]).item() - target) ** 2)
            values.append(critic(state, torch.tensor(own)[None]).item())
    given = tensors(batch)
    out = central_critic_loss(critic, critic.target, 1, given, torch.tensor(np.array(following)), 0.9)
    assert out.loss.item() == pytest.approx(np.mean(losses), rel=1e-4)
    assert actor_loss(critic, policies[1], 1, given).loss.item() == pytest.approx(-np.mean(values), rel=1e-4)


def test_a_saved_learner_goes_on_bit_for_bit() -> None:
    straight, again = learner(), learner()
    straight.train(rows(40), minibatch=10)
    again.set_state(straight.get_state())
    made = [one.train(rows(40, seed=1), minibatch=10) for one in (straight, again)]
    assert made[0].metrics == made[1].metrics
    np.testing.assert_array_equal(made[0].published, made[1].published)


def test_workers_take_the_weights_of_all_policies_together() -> None:
    policies = {"a": SPEC, "b": SPEC}
    worker = MultiAgentWorker(Shares, policies, lambda agent, _: agent, joint=True, next_obs=True, seed=0)
    made = MADDPGLearner(SPEC, policy_id=("a", "b"), seed=4)
    flat = made.build(worker.spaces()).published
    worker.set_weights(flat, 7, policy=("a", "b"))
    worker.set_epsilon(0.5, policy=("a", "b"))
    state = worker.get_state()["policies"]
    np.testing.assert_array_equal(np.concatenate([state["a"]["weights"], state["b"]["weights"]]), flat)
    assert [state[name]["version"] for name in "ab"] == [7, 7]
    assert [state[name]["epsilon"] for name in "ab"] == [0.5, 0.5]
    with pytest.raises(ValueError, match=rf"the policies \('a', 'b'\) have {len(flat)} weights together, got 3"):
        worker.set_weights(flat[:3], 8, policy=("a", "b"))


def test_what_cannot_be_trained_is_refused() -> None:
    with pytest.raises(ValueError, match="MADDPG trains policies of head='deterministic_actor', got head='q'"):
        MADDPGLearner(PolicySpec(head="q"), policy_id=("a",))
    with pytest.raises(ValueError, match="policy_id must name the agents, each once"):
        MADDPGLearner(SPEC, policy_id=("a", "a"))
    with pytest.raises(ValueError, match=r"policy_id is \('a', 'x'\), and the environment's agents are \('a', 'b'\)"):
        MADDPGLearner(SPEC, policy_id=("a", "x")).build(SPACES)
