"""SACLearner and TD3Learner: groups trained apart, the actor's delay, targets, what is published, states."""

from functools import partial

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from flowrl.batch import Batch
from flowrl.rl.actor_learner import SACLearner, TD3Learner
from flowrl.rl.losses import SACLoss, TD3Loss
from flowrl.rl.spec import PolicySpec, Spaces

OBS, BOX = Box(-1, 1, (3,), np.float32), Box(-2, 2, (2,), np.float32)
SOFT = PolicySpec(head="soft_actor", hidden=(8,))
PLAIN = PolicySpec(head="deterministic_actor", hidden=(8,))
sac, td3 = partial(SACLearner, SOFT, SACLoss(), seed=1), partial(TD3Learner, PLAIN, TD3Loss(), seed=1)
KINDS = {"sac": (sac, BOX), "discrete": (sac, Discrete(4)), "td3": (td3, BOX)}


def built(kind: str, **options):
    make, action = KINDS[kind]
    learner = make(**options)
    learner.set_target_update(tau=0.1)
    learner.build({"default": Spaces(OBS, action)})
    return learner


def batch_for(kind: str, rows: int = 12, **more) -> Batch:
    rng = np.random.default_rng(0)
    columns = {name: rng.normal(size=(rows, 3)).astype(np.float32) for name in ("obs", "next_obs")}
    columns |= {"rewards": rng.normal(size=rows).astype(np.float32), "discounts": np.full(rows, 0.9, np.float32)}
    box = rng.uniform(-1, 1, (rows, 2)).astype(np.float32)
    return Batch({**columns, "actions": rng.integers(0, 4, rows) if kind == "discrete" else box, **more})


def part(learner, group: str) -> np.ndarray:
    return learner.policy.get_weights()[learner.policy.span(group)]


@pytest.mark.parametrize("kind", ["sac", "discrete"])
def test_sac_moves_all_its_groups_and_the_targets_critics(kind: str):
    learner = built(kind)
    policy, target = learner.policy, learner.policy.target
    before, old = policy.get_weights(), target.get_weights()
    answer = learner.train(batch_for(kind))
    for group in ("actor", "critics", "temperature"):
        assert (part(learner, group) != before[policy.span(group)]).any(), group
    critics = policy.span("critics")
    expected = old[critics] + np.float32(0.1) * (policy.get_weights()[critics] - old[critics])
    np.testing.assert_allclose(target.get_weights()[critics], expected, rtol=1e-6, atol=1e-7)
    assert (target.get_weights()[policy.span("actor")] == old[policy.span("actor")]).all()
    names = {name for _, name in answer.metrics}
    assert {"critic_loss", "actor_loss", "temperature_loss", "alpha", "entropy", "critic_grad_norm"} <= names


def test_the_temperature_sees_the_entropy_before_the_actors_step():
    learner = built("sac", max_grad_norm=None)
    seen = []
    inner = learner.step

    def step(group, loss, batch, now=None):
        seen.append((group, part(learner, "actor").copy()))
        return inner(group, loss, batch, now)

    learner.step = step
    metrics = learner.train(batch_for("sac")).metrics
    assert [group for group, _ in seen] == ["critics", "actor", "temperature"]
    assert metrics["default", "temperature_grad_norm"] == pytest.approx(
        abs(metrics["default", "entropy"] + 2), rel=1e-5
    )


def test_td3_delays_the_actor_and_the_target():
    learner = built("td3", policy_delay=3)
    start, target = learner.policy.get_weights(), learner.policy.target
    for update in range(1, 7):
        actor, old = part(learner, "actor").copy(), target.get_weights()
        learner.train(batch_for("td3"))
        moved = (part(learner, "actor") != actor).any()
        assert moved == (update % 3 == 0)
        assert (target.get_weights() != old).any() == moved
        assert (part(learner, "critics") != start[learner.policy.span("critics")]).any()


@pytest.mark.parametrize("kind", KINDS)
def test_published_are_the_weights_that_acting_takes(kind: str):
    learner = built(kind)
    published = learner.train(batch_for(kind)).published
    np.testing.assert_array_equal(published, part(learner, "actor"))
    assert len(learner.policy_state()["weights"]) == len(learner.policy.flat)


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_goes_on_bit_for_bit(kind: str):
    learner, other = built(kind), built(kind)
    learner.train(batch_for(kind), minibatch=5)
    other.set_state(learner.get_state())
    for each in (learner, other):
        each.train(batch_for(kind), minibatch=5)
    np.testing.assert_array_equal(learner.policy.get_weights(), other.policy.get_weights())
    np.testing.assert_array_equal(learner.policy.target.get_weights(), other.policy.target.get_weights())


@pytest.mark.parametrize("kind", KINDS)
def test_microbatches_change_nothing(kind: str):
    whole, parts = built(kind), built(kind)
    whole.train(batch_for(kind))
    parts.train(batch_for(kind), microbatch=5)
    np.testing.assert_allclose(whole.policy.get_weights(), parts.policy.get_weights(), atol=2e-5)


def test_critics_may_have_a_rate_of_their_own():
    learner = built("td3", policy_delay=1, learning_rate=1e-5, critic_learning_rate=1e-1)
    before = learner.policy.get_weights()
    learner.train(batch_for("td3"))
    moved = np.abs(learner.policy.get_weights() - before)  # Adam's first step is the rate, whatever the gradient
    assert moved[learner.policy.span("actor")].max() == pytest.approx(1e-5, rel=0.1)
    assert moved[learner.policy.span("critics")].max() == pytest.approx(1e-1, rel=0.1)
    with pytest.raises(ValueError, match="critic_learning_rate must be above 0"):
        built("td3", critic_learning_rate=0.0)


def test_rows_of_a_replay_shard_get_their_priorities():
    slots = np.arange(100, 112)
    answer = built("sac").train(batch_for("sac", slots=slots, weights=np.ones(12, np.float32)), minibatch=4)
    np.testing.assert_array_equal(answer.payload["slots"], slots)
    assert (answer.payload["priorities"] > 0).all()


def test_gradients_can_be_computed_here_and_applied_there():
    learner = built("sac")
    gradient = learner.compute_gradients(batch_for("sac")).payload
    assert gradient.shape == learner.policy.flat_parameters.shape
    assert all(np.abs(gradient[learner.policy.span(group)]).max() > 0 for group in ("actor", "critics", "temperature"))
    before = learner.policy.get_weights()
    learner.apply_gradients(gradient)
    assert (learner.policy.get_weights() != before).any()


def test_no_global_generator_is_touched():
    state = torch.get_rng_state(), np.random.get_state()[1].copy()
    built("sac").train(batch_for("sac"))
    assert torch.equal(torch.get_rng_state(), state[0])
    assert (np.random.get_state()[1] == state[1]).all()


def test_normalized_observations_are_normalized_for_the_target_too():
    spec = PolicySpec(head="deterministic_actor", hidden=(8,), normalize_obs=True)
    learner = TD3Learner(spec, TD3Loss(), seed=0)
    learner.set_target_update(tau=0.1)
    learner.build({"default": Spaces(OBS, BOX)})
    published = learner.train(batch_for("td3", rows=64)).published
    assert len(published) == len(part(learner, "actor")) + 6  # mean and variance behind
    np.testing.assert_array_equal(published[-6:], learner.policy.get_weights()[-6:])
    obs = torch.tensor(np.random.default_rng(3).normal(size=(4, 3)).astype(np.float32))
    q = learner.policy.q_values(obs, torch.zeros(4, 2), of_target=True)
    learner.policy.target.statistics.mean += 5  # whatever it holds, the policy's own count
    assert torch.equal(learner.policy.q_values(obs, torch.zeros(4, 2), of_target=True), q)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: SACLearner(PLAIN, SACLoss()), "SACLearner trains policies of head='soft_actor', got head='determ"),
        (lambda: TD3Learner(PolicySpec(), TD3Loss()), "TD3Learner trains policies of head='deterministic_actor', got"),
        (lambda: TD3Learner(PLAIN, TD3Loss(), policy_delay=0), "policy_delay must be at least 1, got 0"),
    ],
)
def test_wrong_learners_are_refused(make, problem: str):
    with pytest.raises(ValueError, match=problem):
        make()
