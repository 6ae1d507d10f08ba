"""A team's value of its agents' values: the mixing network, the loss and the learner."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from hypothesis import given
from hypothesis import strategies as st

from flowrl import Batch
from flowrl.rl import PolicySpec
from flowrl.rl.mixing import Mixer, mixed
from flowrl.rl.qmix_loss import QMIXLoss, chosen
from flowrl.rl.spec import Progress, Spaces, Team
from flowrl.rl.team_learner import TeamLearner
from flowrl.rl.tensors import TensorBatch

SPEC = PolicySpec(head="q", hidden=(8,))
SPACES = {"shared": Spaces(Box(-1, 1, (3,), np.float32), Discrete(2), Team(("a", "b"), 4))}


def learner(**options: Any) -> TeamLearner:
    made = TeamLearner(SPEC, QMIXLoss(), policy_id="shared", embedding=5, seed=2, **options)
    made.set_target_update(every_updates=3)
    made.build(SPACES)
    return made


def rows(count: int, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    return Batch(
        {
            "obs": rng.uniform(-1, 1, (count, 2, 3)).astype(np.float32),
            "next_obs": rng.uniform(-1, 1, (count, 2, 3)).astype(np.float32),
            "actions": rng.integers(2, size=(count, 2)),
            "rewards": rng.normal(size=count).astype(np.float32),
            "discounts": rng.choice(np.array([0.0, 0.9], np.float32), count),
            "alive": rng.random((count, 2)) < 0.8,
            "next_alive": rng.random((count, 2)) < 0.8,
            "global_state": rng.uniform(-1, 1, (count, 4)).astype(np.float32),
            "next_global_state": rng.uniform(-1, 1, (count, 4)).astype(np.float32),
        }
    )


def test_values_are_mixed_as_worked_by_hand() -> None:
    q = torch.tensor([[1.0, -2.0]])
    first = torch.tensor([[[1.0, -0.5], [-1.0, 2.0]]])  # absolute: [[1, 0.5], [1, 2]]
    bias, second, value = torch.tensor([[0.5, 1.0]]), torch.tensor([[-2.0, 3.0]]), torch.tensor([10.0])
    # Hidden: 1 − 2 + 0.5 = −0.5 and 0.5 − 4 + 1 = −2.5, by elu e^x − 1; then 2 of the first, 3 of the second, and 10.
    expected = 2 * (math.exp(-0.5) - 1) + 3 * (math.exp(-2.5) - 1) + 10
    assert mixed(q, first, bias, second, value).item() == pytest.approx(expected, rel=1e-6)


@given(st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_the_teams_value_rises_with_every_agents(seed: int, agents: int) -> None:
    rng = np.random.default_rng(seed)
    mixer = Mixer(Team(tuple(range(agents)), 3), 4, np.random.SeedSequence(seed))
    mixer.set_weights(rng.normal(size=len(mixer.flat)).astype(np.float32))
    q = torch.tensor(rng.normal(size=(5, agents)), dtype=torch.float32, requires_grad=True)
    state = torch.tensor(rng.normal(size=(5, 3)), dtype=torch.float32)
    [slope] = torch.autograd.grad(mixer(q, state).sum(), q)
    assert (slope >= 0).all()


def test_the_loss_is_that_of_a_slow_reference() -> None:
    made = learner()
    made.train(rows(16, seed=5), minibatch=8)  # now policy and target differ
    batch = rows(12)
    out = made.loss(made.team, TensorBatch({name: torch.tensor(column) for name, column in batch.items()}), Progress())
    total = 0.0
    for row in range(12):
        at = {name: column[row] for name, column in batch.items()}

        def q(obs: Any, agent: int, of_target: bool = False) -> Any:
            policy = made.policy.target if of_target else made.policy
            with torch.no_grad():
                return policy.run(torch.tensor(obs[agent : agent + 1])).logits[0].numpy()

        taken = [q(at["obs"], k)[at["actions"][k]] * at["alive"][k] for k in range(2)]
        after = [q(at["next_obs"], k, True)[q(at["next_obs"], k).argmax()] * at["next_alive"][k] for k in range(2)]
        assert made.team.mixer is not None
        with torch.no_grad():
            now = made.team.mixer(torch.tensor([taken]), torch.tensor(at["global_state"])[None]).item()
            then = made.team.mixer.target(torch.tensor([after]), torch.tensor(at["next_global_state"])[None]).item()
        total += 0.5 * (at["rewards"] + at["discounts"] * then - now) ** 2 / 12
    assert out.loss.item() == pytest.approx(total, rel=1e-4)
    gradients = made.team.gradients(out.loss)
    assert [len(g) for g in gradients] == [len(made.policy.flat_parameters), len(made.team.mixer.flat_parameters)]
    assert all(float(g.abs().sum()) > 0 for g in gradients)


def test_the_best_next_action_is_one_that_may_be_taken() -> None:
    made = learner(mixing="vdn")
    made.policy.set_weights(np.zeros(len(made.policy.flat), np.float32))
    weights = made.policy.get_weights()
    weights[-2:] = [1.0, 5.0]  # the biases of the last layer: Q is (1, 5) whatever is seen
    made.policy.set_weights(weights)
    made.update_target()
    columns = {name: torch.tensor(column) for name, column in rows(1).items()}
    columns |= {
        "actions": torch.tensor([[0, 0]]), "rewards": torch.tensor([0.0]), "discounts": torch.tensor([1.0]),
        "alive": torch.tensor([[True, True]]), "next_alive": torch.tensor([[True, False]]),
    }  # fmt: skip
    free = made.loss(made.team, TensorBatch(columns), Progress()).loss.item()
    columns["next_action_mask"] = torch.tensor([[[True, False], [True, True]]])
    bound = made.loss(made.team, TensorBatch(columns), Progress()).loss.item()
    assert (free, bound) == (pytest.approx(0.5 * (5 - 2) ** 2), pytest.approx(0.5 * (1 - 2) ** 2))


def test_a_dead_agents_value_is_nothing() -> None:
    q = torch.tensor([[[1.0, 2.0], [float("nan"), float("nan")]]])
    made = chosen(q, torch.tensor([[1, 0]]), torch.tensor([[True, False]]))
    np.testing.assert_array_equal(made, [[2.0, 0.0]])


def test_a_saved_learner_goes_on_bit_for_bit() -> None:
    straight, again = learner(), learner()
    straight.train(rows(40), minibatch=10)
    again.set_state(straight.get_state())
    made = [one.train(rows(40, seed=1), minibatch=10).metrics for one in (straight, again)]
    assert made[0] == made[1]
    for one, other in ((straight.policy, again.policy), (straight.team.mixer, again.team.mixer)):
        np.testing.assert_array_equal(one.get_weights(), other.get_weights())  # type: ignore[union-attr]
        np.testing.assert_array_equal(one.target.get_weights(), other.target.get_weights())  # type: ignore[union-attr]


def test_statistics_are_of_the_agents_that_live() -> None:
    made = TeamLearner(PolicySpec(head="q", normalize_obs=True), QMIXLoss(), policy_id="shared", seed=2)
    made.build(SPACES)
    batch = rows(30)
    made.train(batch)
    assert made.policy.statistics is not None
    np.testing.assert_allclose(made.policy.statistics.mean, batch["obs"][batch["alive"]].mean(0), rtol=1e-5)


def test_both_targets_move_together() -> None:
    made = learner()
    mixer = made.team.mixer
    assert mixer is not None
    moved = []
    for _ in range(4):
        before = mixer.target.get_weights(), made.policy.target.get_weights()
        made.train(rows(8))
        moved.append(
            [not np.array_equal(b, a.target.get_weights()) for b, a in zip(before, (mixer, made.policy), strict=True)]
        )
    assert moved == [[False, False], [False, False], [True, True], [False, False]]


def test_what_cannot_be_mixed_is_refused() -> None:
    with pytest.raises(ValueError, match="without atoms and without memory"):
        TeamLearner(PolicySpec(head="q", recurrent="lstm"), QMIXLoss())
    with pytest.raises(ValueError, match="mixing must be 'qmix' or 'vdn', got 'sum'"):
        TeamLearner(SPEC, QMIXLoss(), mixing="sum")  # type: ignore[arg-type]
    made = TeamLearner(SPEC, QMIXLoss(), policy_id="shared")
    with pytest.raises(ValueError, match=r"a team's value needs the global states of MultiAgentWorker\(joint=True\)"):
        made.build({"shared": Spaces(Box(-1, 1, (3,), np.float32), Discrete(2))})
