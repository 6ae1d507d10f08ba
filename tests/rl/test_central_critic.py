"""Rows that say how the whole environment stood, and the central critic that values them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from flowrl import Batch
from flowrl.rl import MultiAgentWorker, PolicySpec
from flowrl.rl.central_critic import CentralCriticLearner, CentralPPOLoss
from flowrl.rl.spec import Progress, Spaces, Team
from flowrl.rl.tensors import TensorBatch
from tests.rl.team_envs import Falling, Signals

SPEC = PolicySpec(hidden=(8,))


def rows_by_agent(batch: Batch) -> dict[int, dict[str, Any]]:
    """The valid rows of each agent, in order of time."""
    found = {}
    for agent in np.unique(batch["agent"][batch.valid]):
        mine = batch.valid & (batch["agent"] == agent)
        found[int(agent)] = {name: column.swapaxes(0, 1)[mine.T] for name, column in batch.items()}
    return found


def test_rows_carry_the_global_state_of_the_moment_in_which_their_agent_acted() -> None:
    worker = MultiAgentWorker(Falling, {"one": SPEC}, joint=True, steps=3, seed=0)
    rows = rows_by_agent(worker.sample().payload["one"])
    assert {agent: len(mine["moment"]) for agent, mine in rows.items()} == {0: 1, 1: 2, 2: 3}
    # Observations of a, b and c, side by side, and who has one: a has fallen after the first step, b after the second.
    first, second, third = [0, 0.1, 0.2, 1, 1, 1], [0, 1.1, 1.2, 0, 1, 1], [0, 0, 2.2, 0, 0, 1]
    np.testing.assert_allclose(rows[2]["global_state"], [first, second, third])
    np.testing.assert_allclose(rows[1]["global_state"], [first, second])
    np.testing.assert_allclose(rows[0]["global_state"], [first])
    # c was cut short: its last observation stands in the state that followed.
    np.testing.assert_allclose(rows[2]["next_global_state"], [second, third, [0, 0, 3.2, 0, 0, 1]])
    np.testing.assert_allclose(rows[0]["next_global_state"], [second])
    np.testing.assert_array_equal(rows[2]["alive"], [[1, 1, 1], [0, 1, 1], [0, 0, 1]])
    np.testing.assert_array_equal(rows[2]["next_alive"], [[0, 1, 1], [0, 0, 1], [0, 0, 1]])
    np.testing.assert_array_equal(rows[2]["over"], [False, False, True])
    for mine in rows.values():
        np.testing.assert_array_equal(mine["moment"], np.arange(len(mine["moment"])))
        np.testing.assert_array_equal(mine["took"], 1)


def test_the_environments_own_state_comes_first() -> None:
    worker = MultiAgentWorker(Falling, {"one": SPEC}, joint=True, steps=3, seed=0, env_kwargs={"own_state": True})
    assert worker.spaces()["one"].team == Team(("a", "b", "c"), 2)
    rows = rows_by_agent(worker.sample().payload["one"])
    np.testing.assert_array_equal(rows[2]["global_state"], [[0, 7], [1, 7], [2, 7]])
    np.testing.assert_array_equal(rows[2]["next_global_state"], [[1, 7], [2, 7], [3, 7]])


def test_without_joint_nothing_changes() -> None:
    plain = MultiAgentWorker(Falling, {"one": SPEC}, steps=3, seed=0).sample().payload["one"]
    joined = MultiAgentWorker(Falling, {"one": SPEC}, steps=3, seed=0, joint=True).sample().payload["one"]
    assert plain == joined.select(plain)


def test_agents_that_share_a_policy_see_who_they_are() -> None:
    worker = MultiAgentWorker(Falling, {"one": SPEC}, agent_ids=True, joint=True, steps=3, seed=0, next_obs=True)
    assert worker.spaces()["one"].observation.shape == (4,)
    rows = rows_by_agent(worker.sample().payload["one"])
    np.testing.assert_allclose(rows[1]["obs"], [[0.1, 0, 1, 0], [1.1, 0, 1, 0]])
    np.testing.assert_allclose(rows[1]["next_obs"], [[1.1, 0, 1, 0], [2.1, 0, 1, 0]])


class Indexed(Falling):
    """Observations that are indices."""

    def observation_space(self, agent: str) -> Any:
        return Discrete(4)

    def _obs(self) -> dict[str, Any]:
        return dict.fromkeys(self.agents, self.steps)


class Pictures(Falling):
    """Observations that are images."""

    def observation_space(self, agent: str) -> Any:
        return Box(0, 255, (8, 8, 3), np.uint8)


def test_observations_of_other_kinds() -> None:
    worker = MultiAgentWorker(Indexed, {"one": SPEC}, agent_ids=True, joint=True, steps=3, seed=0)
    assert set(worker.spaces()["one"].observation.spaces) == {"agent", "own"}
    batch = worker.sample().payload["one"]
    assert batch["obs/agent"].shape == (3, 3)
    assert worker.spaces()["one"].team == Team(("a", "b", "c"), 3 * (3 + 4) + 3)  # one-hot, the id and the index
    with pytest.raises(ValueError, match=r"has no state\(\), and the observations of agent 'a' hold an image"):
        MultiAgentWorker(Pictures, {"one": SPEC}, joint=True)


def learner(**options: Any) -> CentralCriticLearner:
    made = CentralCriticLearner(SPEC, CentralPPOLoss(), policy_id="one", critic_hidden=(4,), seed=3, **options)
    worker = MultiAgentWorker(Falling, {"one": SPEC}, joint=True, steps=3, seed=0)
    made.build(worker.spaces())
    return made


def test_advantages_follow_from_the_critics_values() -> None:
    """Against sums written out: agent c acts three times, is rewarded with 3 and cut short."""
    made = learner(discount=0.5, gae_lambda=0.5)
    batch = MultiAgentWorker(Falling, {"one": SPEC}, joint=True, steps=3, seed=0).sample().payload["one"]
    states = torch.tensor([[0, 0.1, 0.2, 1, 1, 1], [0, 1.1, 1.2, 0, 1, 1], [0, 0, 2.2, 0, 0, 1], [0, 0, 3.2, 0, 0, 1]])
    with torch.no_grad():
        v = made.critic(states, torch.full((4,), 2)).tolist()
        v_a = made.critic(states[:1], torch.zeros(1, dtype=torch.int64)).item()
    deltas = [3.0 + 0.5 * v[t + 1] - v[t] for t in range(3)]
    expected = [deltas[0] + 0.25 * deltas[1] + 0.0625 * deltas[2], deltas[1] + 0.25 * deltas[2], deltas[2]]
    judged = rows_by_agent(made.judged(batch))
    np.testing.assert_allclose(judged[2]["advantages"], expected, rtol=1e-5)
    np.testing.assert_allclose(judged[0]["advantages"], [1.0 - v_a], rtol=1e-5)  # a was terminated with its first step
    # Returns in the critic's units: mean 0 and deviation 1 over all six rows that it has seen.
    returns = np.concatenate([mine["returns"] for mine in judged.values()])
    assert len(returns) == 6
    np.testing.assert_allclose([returns.mean(), returns.std()], [0.0, 1.0], atol=1e-5)
    raw = [mine["advantages"] + values for mine, values in ((judged[2], v[:3]), (judged[0], [v_a]))]
    scaled = np.concatenate([judged[2]["returns"], judged[0]["returns"]])
    slope = np.diff(scaled) / np.diff(np.concatenate(raw))
    np.testing.assert_allclose(slope, slope[0], rtol=1e-4)  # one scale for all


def test_the_losses_are_those_worked_by_hand() -> None:
    made = learner()
    rows = TensorBatch(
        {
            "obs": torch.zeros(2, 1),
            "actions": torch.tensor([0, 1]),
            "logp": torch.log(torch.tensor([0.5, 0.25])),  # the initial policy is uniform for an observation of zeros
            "advantages": torch.tensor([2.0, 3.0]),
            "returns": torch.tensor([1.0, -1.0]),
            "global_state": torch.zeros(2, 6),
            "agent": torch.tensor([0, 1]),
        }
    )
    out = CentralPPOLoss(clip=0.2, entropy_cost=0.1, standardize_advantages=False)(made.policy, rows, Progress())
    # Ratios 1 and 2, of which the second is clipped to 1.2: (2 + 3.6) / 2; the entropy is log 2.
    assert float(out.loss.detach()) == pytest.approx(-2.8 - 0.1 * np.log(2.0), rel=1e-5)
    with torch.no_grad():
        values = made.critic(rows["global_state"], rows["agent"])
    expected = float(((values[0] - 1.0) ** 2 + (values[1] + 1.0) ** 2) / 2)
    assert float(made.loss.critic(made.critic, rows, Progress()).loss.detach()) == pytest.approx(expected)


def test_a_saved_learner_goes_on_bit_for_bit() -> None:
    worker = MultiAgentWorker(Falling, {"one": SPEC}, joint=True, steps=12, num_envs=2, seed=0)
    first, second = worker.sample().payload, worker.sample().payload
    straight, again = learner(), learner()
    straight.train(first, epochs=2, minibatch=8)
    again.set_state(straight.get_state())
    made = [one.train(second, epochs=2, minibatch=8).metrics for one in (straight, again)]
    assert made[0] == made[1]
    assert made[0]["one", "value_loss"] > 0
    np.testing.assert_array_equal(straight.critic.get_weights(), again.critic.get_weights())
    np.testing.assert_array_equal(straight.policy.get_weights(), again.policy.get_weights())


def test_microbatches_give_the_same_critic() -> None:
    batch = MultiAgentWorker(Signals, {"one": SPEC}, joint=True, steps=16, seed=0).sample().payload
    made = []
    for microbatch in (None, 5):
        one = CentralCriticLearner(SPEC, CentralPPOLoss(), policy_id="one", seed=3)
        one.build({"one": Spaces(Box(-1, 1, (1,), np.float32), Discrete(2), Team(("a", "b"), 4))})
        one.train(batch, minibatch=16, microbatch=microbatch)
        made.append(one.critic.get_weights())
    np.testing.assert_allclose(made[0], made[1], atol=1e-6)


def test_what_cannot_be_valued_is_refused() -> None:
    made = CentralCriticLearner(SPEC, CentralPPOLoss(), policy_id="one", seed=3)
    with pytest.raises(ValueError, match=r"a central critic needs the global states of MultiAgentWorker\(joint=True\)"):
        made.build({"one": Spaces(Box(-1, 1, (1,), np.float32), Discrete(2))})
    batch = MultiAgentWorker(Falling, {"one": SPEC}, joint=True, steps=3, seed=0).sample().payload["one"]
    with pytest.raises(ValueError, match=r"judges time-major batches"):
        learner().train(batch.flat())
    with pytest.raises(RuntimeError, match="a CentralCriticLearner keeps more than a policy and cannot begin again"):
        learner().begin_again()
