"""Policies of an actor with critics: spaces, weights, NumPy and torch, and what workers make of them."""

import subprocess
import sys

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary
from torch import nn

from flowrl.rl.actor_inference import NumpyActor
from flowrl.rl.inference import TorchInference, make_inference
from flowrl.rl.policy import Policy
from flowrl.rl.saved import load_policy, save_policy
from flowrl.rl.spec import PolicySpec, Spaces
from flowrl.rl.unsupported import UnsupportedSpace
from flowrl.rl.worker import RolloutWorker

OBS, BOX = Box(-1, 1, (3,), np.float32), Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 5.0], np.float32))
SOFT = PolicySpec(head="soft_actor", hidden=(16, 8), activation="relu")
PLAIN = PolicySpec(head="deterministic_actor", hidden=(16, 8), exploration_noise=0.2)
KINDS = {"soft": (SOFT, BOX), "choices": (SOFT, Discrete(4)), "plain": (PLAIN, BOX)}


class Bounded(gymnasium.Env):
    """Ends after 5 steps, by termination; remembers the actions it got."""

    observation_space, action_space, taken = OBS, BOX, []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.step_count = 0
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.taken.append(action)
        self.step_count += 1
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), 1.0, self.step_count == 5, False, {}


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_workers_act_as_the_policy_does_without_torch_and_critics(kind: str, normalize: bool):
    spec, action = KINDS[kind]
    spec = PolicySpec(**{**vars(spec), "normalize_obs": normalize})
    policy = Policy(spec, Spaces(OBS, action), seed=3)
    rng = np.random.default_rng(0)
    weights = policy.get_weights()
    weights[:] += 0.3 * np.abs(rng.normal(size=len(weights)))  # variances stay positive
    policy.set_weights(weights)
    net, initial = make_inference(spec, Spaces(OBS, action))
    assert isinstance(net, NumpyActor)
    assert net.size == len(initial) == len(policy.acting_weights()) < len(policy.flat)
    obs = rng.normal(size=(40, 3)).astype(np.float32)
    expected = policy.run(torch.tensor(obs)).dist
    for flat in (weights, policy.acting_weights()):  # the whole vector, or the actor's part of it
        net.set_weights(np.zeros_like(flat))
        net.set_weights(flat)
        np.testing.assert_allclose(net.forward(obs)[0], expected.params.detach(), atol=1e-5)
    actions, _ = net.act(obs)
    np.testing.assert_allclose(net.actions.to_env(actions), policy.act(obs, deterministic=True), atol=1e-5)
    with pytest.raises(ValueError, match=rf"this policy has {net.size:,} weights in one flat vector"):
        net.set_weights(np.zeros(7, np.float32))


@pytest.mark.parametrize("kind", KINDS)
def test_weights_begin_alike_for_policy_and_worker(kind: str):
    spec, action = KINDS[kind]
    seed = np.random.SeedSequence(5)
    policy = Policy(spec, Spaces(OBS, action), seed=seed)
    _, initial = make_inference(spec, Spaces(OBS, action), seed)
    np.testing.assert_array_equal(policy.acting_weights(), initial)
    first = policy.module.actor.net.linears[0]
    assert 0.4 / 3**0.5 < first.weight.abs().max() <= 1 / 3**0.5
    # twins do not begin as one
    assert (policy.module.critics.nets[0].linears[0].weight != policy.module.critics.nets[1].linears[0].weight).any()


def test_soft_actors_begin_with_their_deviation_and_temperature():
    spec = PolicySpec(head="soft_actor", initial_log_std=-1.0, initial_temperature=0.2)
    policy = Policy(spec, Spaces(OBS, BOX), seed=0)
    assert policy.module.actor.net.linears[-1].bias[2:].tolist() == [-1.0, -1.0]
    assert policy.log_alpha.exp().item() == pytest.approx(0.2)


def test_log_deviations_are_clipped():
    spec = PolicySpec(head="soft_actor", hidden=(4,), log_std_range=(-2.0, 1.0))
    policy = Policy(spec, Spaces(OBS, BOX), seed=0)
    with torch.no_grad():
        policy.module.actor.net.linears[-1].bias[2:] = torch.tensor([50.0, -50.0])
    assert policy.run(torch.zeros(1, 3)).dist.params[0, 2:].tolist() == [1.0, -2.0]
    net, _ = make_inference(spec, Spaces(OBS, BOX))
    net.set_weights(policy.get_weights())
    assert net.forward(np.zeros((1, 3), np.float32))[0][0, 2:].tolist() == [1.0, -2.0]


def test_batches_have_neither_values_nor_log_probabilities():
    worker = RolloutWorker(Bounded, SOFT, steps=6, num_envs=2, next_obs=True, seed=0)
    batch = worker.sample().payload
    assert set(batch) == RolloutWorker.batch_columns(Bounded, SOFT, next_obs=True)
    assert not {"logp", "values", "next_values"} & set(batch)
    assert np.abs(batch["actions"]).max() > 0  # before tanh, as they were drawn


def test_noise_explores_in_units_of_the_bounds_and_evaluations_have_none():
    spec = PolicySpec(head="deterministic_actor", hidden=(4,), exploration_noise=0.25)
    worker = RolloutWorker(Bounded, spec, steps=2000, seed=0)
    policy = Policy(spec, Spaces(OBS, BOX), seed=0)
    flat = policy.acting_weights()
    worker.set_weights(flat * 0, 1)
    actions = worker.sample().payload["actions"]
    assert actions.std() == pytest.approx(0.25, rel=0.05)
    assert actions.mean() == pytest.approx(0.0, abs=0.02)
    assert np.abs(actions).max() <= 1
    Bounded.taken.clear()
    worker.evaluate(episodes=2)
    np.testing.assert_allclose(Bounded.taken, np.broadcast_to([0.0, 2.5], (10, 2)), atol=1e-6)  # the middle
    # A torch policy says the same.
    policy.set_acting_weights(flat * 0)
    drawn = np.array([policy.act(np.zeros(3, np.float32)) for _ in range(500)])
    assert drawn[:, 0].std() == pytest.approx(0.25 * 2.0, rel=0.1)
    with pytest.raises(TypeError, match="a deterministic actor's actions have no density"):
        policy.run(torch.zeros(1, 3)).dist.logp(torch.zeros(1, 2))


@pytest.mark.parametrize("spec", [SOFT, PLAIN])
def test_epsilon_draws_between_the_bounds(spec: PolicySpec):
    worker = RolloutWorker(Bounded, spec, steps=500, num_envs=2, seed=0)
    worker.set_epsilon(1.0)
    Bounded.taken.clear()
    worker.sample()
    taken = np.array(Bounded.taken)
    for column, (low, high) in zip(taken.T, ((-2, 2), (0, 5)), strict=True):
        assert column.mean() == pytest.approx((low + high) / 2, abs=0.1 * (high - low))
        assert column.std() == pytest.approx((high - low) / 12**0.5, rel=0.1)
    worker.set_epsilon([0.0, 1.0])  # one an environment
    worker.sample()
    with pytest.raises(ValueError, match="which are for Discrete spaces, not for box actions"):
        RolloutWorker(Bounded, steps=2).set_epsilon(0.5)


@pytest.mark.parametrize("kind", KINDS)
def test_policies_are_saved_whole(kind: str, tmp_path):
    spec, action = KINDS[kind]
    policy = Policy(spec, Spaces(OBS, action), seed=0)
    state = {"policy_id": "default", "spec": spec, "spaces": policy.spaces, "weights": policy.get_weights()}
    loaded = load_policy(save_policy(tmp_path / "policy", {**state, "version": 1}))
    np.testing.assert_array_equal(loaded.get_weights(), policy.get_weights())
    assert loaded.spec == spec


def test_modules_of_ones_own_act_by_their_actor():
    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.actor, self.critics = nn.Linear(3, 2), nn.Linear(5, 2)

    spec = PolicySpec(lambda *_: Mine(), head="deterministic_actor")
    net, flat = make_inference(spec, Spaces(OBS, BOX), np.random.SeedSequence(0))
    assert isinstance(net, TorchInference)
    assert net.size == len(flat) == 8
    net.set_weights(np.arange(8, dtype=np.float32))
    net.set_weights(np.zeros(20, np.float32))  # the whole vector
    assert net.forward(np.ones((4, 3), np.float32))[0].shape == (4, 2)
    with pytest.raises(ValueError, match="this policy has 8 weights in one flat vector"):
        net.set_weights(np.zeros(9, np.float32))


def test_modules_that_do_not_fit_are_refused():
    with pytest.raises(TypeError, match=r"needs a module with the submodules `actor` and `critics`.*with \[\]"):
        Policy(PolicySpec(lambda *_: nn.Linear(3, 2), head="soft_actor"), Spaces(OBS, BOX))

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.actor, self.critics, self.encoder = nn.Linear(3, 2), nn.Linear(5, 2), nn.Linear(3, 3)

    with pytest.raises(TypeError, match=r"each parameter belongs to `actor` or to `critics`.*encoder\.weight"):
        Policy(PolicySpec(lambda *_: Shared(), head="deterministic_actor"), Spaces(OBS, BOX))


@pytest.mark.parametrize(
    ("spec", "action", "problem"),
    [
        (SOFT, MultiBinary(3), r"head='soft_actor'\) is for Box and Discrete actions"),
        (PLAIN, Discrete(3), r"head='deterministic_actor'\) is for Box actions"),
        (SOFT, Box(-np.inf, np.inf, (2,)), r"head='soft_actor'\) scales to the bounds, so they must be finite"),
    ],
)
def test_spaces_that_do_not_fit_are_refused(spec: PolicySpec, action: gymnasium.Space, problem: str):
    with pytest.raises(UnsupportedSpace, match=problem):
        Policy(spec, Spaces(OBS, action))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"recurrent": "gru"}, "head='soft_actor' keeps no state between steps: recurrent must be None"),
        ({"squash": True}, "head='soft_actor' squashes Box actions by itself: leave squash out"),
        ({"critics": 0}, "critics must be at least 1, got 0"),
        ({"log_std_range": (1.0, -1.0)}, "log_std_range must be"),
        ({"initial_log_std": 2.0, "log_std_range": (-1.0, 1.0)}, "log_std_range must be"),
        ({"initial_temperature": 0.0}, r"initial_temperature must be above 0 and finite, got 0\.0"),
        ({"exploration_noise": -0.1}, r"exploration_noise must be at least 0 and finite, got -0\.1"),
    ],
)
def test_wrong_specifications_are_refused(settings: dict, problem: str):
    with pytest.raises(ValueError, match=problem):
        PolicySpec(head="soft_actor", **settings)


def test_a_worker_starts_without_torch():
    code = (
        "import sys; from flowrl.rl import PolicySpec, RolloutWorker\n"
        "worker = RolloutWorker('Pendulum-v1', PolicySpec(head='soft_actor'), steps=4, next_obs=True)\n"
        "worker.sample(); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_actions_of_several_dimensions():
    policy = Policy(PLAIN, Spaces(OBS, Box(-1, 3, (2, 2), np.float32)), seed=0)
    assert policy.act(np.zeros(3, np.float32)).shape == (2, 2)
    assert policy.q_values(torch.zeros(5, 3), torch.zeros(5, 4)).shape == (2, 5)
