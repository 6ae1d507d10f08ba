"""The torch policy: acting, the flat vector, targets, and the global state that it leaves alone."""

import copy
import pickle
import random

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, Text
from torch import nn

from flowrl.batch import Batch
from flowrl.rl.initial import initial_weights
from flowrl.rl.policy import Policy
from flowrl.rl.spaces import UnsupportedSpace
from flowrl.rl.spec import PolicySpec, Spaces
from flowrl.rl.tensors import TensorBatch

SPACES = Spaces(Box(-np.inf, np.inf, (4,), np.float32), Discrete(3, start=5))


class Convolution(nn.Module):
    """A user's module with dropout, batch normalization (a float and an integer buffer) and a scalar head."""

    def __init__(self, observation, action):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Dropout(0.5))
        self.head = nn.Linear(18, int(action.n))
        self.value = nn.Linear(18, 1)

    def forward(self, obs):
        features = self.body(obs[:, None].float() / 255)
        return self.head(features), self.value(features)[:, 0]


PIXELS = Spaces(Box(0, 255, (5, 5), np.uint8), Discrete(4))


def test_act_on_one_observation_gives_an_int_of_the_space_and_on_a_batch_an_array():
    policy = Policy(PolicySpec(), SPACES, seed=0)
    one = policy.act(np.zeros(4))
    assert type(one) is int
    assert SPACES.action.contains(one)
    actions = policy.act(np.zeros((50, 4), np.float32))
    assert actions.shape == (50,)
    assert set(actions.tolist()) == {5, 6, 7}
    assert policy.act([[0, 0, 0, 0]], deterministic=True).shape == (1,)


def test_deterministic_takes_the_most_probable():
    policy = Policy(PolicySpec(), SPACES, seed=0)
    flat = policy.get_weights()
    head_bias = len(flat) - (4 * 64 + 64 + 64 * 64 + 64 + 64 + 1) - 3
    flat[head_bias : head_bias + 3] = [0, 5, 0]
    policy.set_weights(flat)
    assert policy.act(np.zeros((9, 4)), deterministic=True).tolist() == [6] * 9


def test_the_same_seed_acts_the_same():
    first, second = (Policy(PolicySpec(), SPACES, seed=3) for _ in range(2))
    obs = np.random.default_rng(0).normal(size=(40, 4))
    np.testing.assert_array_equal(first.act(obs), second.act(obs))
    first.seed(9)
    drawn = first.act(obs)
    first.seed(9)
    np.testing.assert_array_equal(first.act(obs), drawn)


def test_wrong_observations_and_states_are_refused():
    policy = Policy(PolicySpec(), SPACES, seed=0)
    with pytest.raises(ValueError, match=r"obs has shape \(3,\), but one observation of this policy has \(4,\)"):
        policy.act(np.zeros(3))
    with pytest.raises(ValueError, match="state must be None"):
        policy.act(np.zeros(4), state=1)
    with pytest.raises(FloatingPointError, match="logits are not finite"):
        policy.act(np.full(4, np.nan))
    with pytest.raises(UnsupportedSpace, match="Text"):
        Policy(PolicySpec(), Spaces(SPACES.observation, Text(3)))


def test_the_default_models_flat_vector_is_the_initial_weights_in_order():
    spec = PolicySpec(hidden=(7, 6), activation="relu")
    policy = Policy(spec, SPACES, seed=np.random.SeedSequence(5))
    flat = initial_weights(spec, SPACES, np.random.SeedSequence(5))
    np.testing.assert_array_equal(policy.get_weights(), flat)
    layers = [*policy.module.actor.layers, *policy.module.critic.layers]
    assert [tuple(layer.weight.shape) for layer in layers] == [(7, 4), (6, 7), (3, 6), (7, 4), (6, 7), (1, 6)]
    parts = [p for layer in layers for p in (layer.weight, layer.bias)]
    np.testing.assert_array_equal(torch.cat([p.detach().reshape(-1) for p in parts]), flat)


def test_parameters_are_views_of_the_flat_vector():
    policy = Policy(PolicySpec(), SPACES, seed=0)
    policy.flat.fill_(0.25)
    assert all((parameter == 0.25).all() for parameter in policy.module.parameters())
    assert policy.get_weights().base is None
    with pytest.raises(ValueError, match=r"this policy has \d+ weights, got an array of shape \(3,\)"):
        policy.set_weights(np.zeros(3))
    broken = policy.get_weights()
    broken[11] = np.inf
    with pytest.raises(ValueError, match="finite, got inf at position 11"):
        policy.set_weights(broken)
    assert (policy.flat == 0.25).all()


def test_spans_of_parameter_groups():
    policy = Policy(PolicySpec(hidden=(8,)), SPACES, seed=0)
    actor, critic = policy.span("actor"), policy.span("critic")
    assert (actor.start, actor.stop, critic.start, critic.stop) == (0, 67, 67, 116)
    assert policy.span("all") == slice(0, 116)
    with pytest.raises(KeyError, match=r"no parameter group 'act'.*\['actor', 'critic'\]"):
        policy.span("act")


def test_forward_takes_batches_of_both_layouts_and_tensors():
    policy = Policy(PolicySpec(), SPACES, seed=0)
    obs = np.random.default_rng(0).normal(size=(3, 2, 4)).astype(np.float32)
    grid = policy.forward(Batch({"obs": obs}, time_major=True))
    assert grid.logits.shape == (3, 2, 3)
    assert grid.values.shape == (3, 2)
    flat = policy.forward(Batch({"obs": obs.reshape(6, 4)}))
    torch.testing.assert_close(flat.logits, grid.logits.reshape(6, 3))
    tensors = policy.forward(TensorBatch({"obs": torch.tensor(obs.reshape(6, 4))}))
    torch.testing.assert_close(flat.values, tensors.values)
    assert flat.logits.requires_grad


def test_observations_of_any_shape_are_flattened_and_integers_cast():
    policy = Policy(PolicySpec(hidden=(3,)), Spaces(Box(0, 255, (2, 3), np.uint8), Discrete(2)), seed=0)
    assert policy.forward(Batch({"obs": np.full((4, 2, 3), 255, np.uint8)})).logits.shape == (4, 2)
    assert policy.act(np.zeros((2, 3), np.uint8)) in (0, 1)


def test_a_module_with_the_wrong_outputs_is_refused():
    class Wrong(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, obs):
            return self.layer(obs), self.layer(obs)[:, :1]

    policy = Policy(PolicySpec(model=lambda o, a: Wrong()), SPACES)
    with pytest.raises(ValueError, match=r"values \(2,\) for 2 observations, got \(2, 3\) and \(2, 1\)"):
        policy.forward(Batch({"obs": np.zeros((2, 4), np.float32)}))
    with pytest.raises(TypeError, match=r"must return a torch.nn.Module.*returned int"):
        Policy(PolicySpec(model=lambda o, a: 3), SPACES)
    with pytest.raises(TypeError, match=r"must be float32, got one of torch.float64"):
        Policy(PolicySpec(model=lambda o, a: Wrong().double()), SPACES)


def test_the_target_is_a_copy_made_when_first_asked_for_buffers_too():
    policy = Policy(PolicySpec(model=Convolution), PIXELS, seed=0)
    assert not policy.has_target
    norm = policy.module.body[1]
    norm.running_mean.fill_(3.0)
    target = policy.target
    assert policy.target is target
    np.testing.assert_array_equal(target.get_weights(), policy.get_weights())
    assert (target.module.body[1].running_mean == 3).all()
    policy.flat.fill_(0.0)
    assert target.get_weights().any()
    target.flat.fill_(7.0)
    assert (target.module.head.weight == 7).all()
    assert not policy.get_weights().any()


def test_a_users_module_is_seeded_and_its_vector_is_parameters_then_float_buffers():
    first, second = (Policy(PolicySpec(model=Convolution), PIXELS, seed=4) for _ in range(2))
    np.testing.assert_array_equal(first.get_weights(), second.get_weights())
    assert (first.get_weights() != Policy(PolicySpec(model=Convolution), PIXELS, seed=5).get_weights()).any()
    parameters = torch.cat([p.detach().reshape(-1) for p in first.module.parameters()])
    norm = first.module.body[1]
    np.testing.assert_array_equal(first.get_weights(), torch.cat([parameters, norm.running_mean, norm.running_var]))
    assert len(first.flat_parameters) == len(parameters)
    assert first.other_buffers().keys() == {"body.1.num_batches_tracked"}
    one = first.act(np.zeros((5, 5), np.uint8), deterministic=True)
    assert one == first.act(np.zeros((5, 5), np.uint8), deterministic=True)  # dropout is off when acting
    assert first.module.training


def test_frozen_and_unused_parameters_have_gradient_zero():
    class Partly(nn.Module):
        def __init__(self):
            super().__init__()
            self.frozen = nn.Linear(4, 3)
            self.used = nn.Linear(4, 3)
            self.unused = nn.Linear(2, 2)
            self.frozen.requires_grad_(False)

        def forward(self, obs):
            return self.frozen(obs) + self.used(obs), obs.sum(-1)

    policy = Policy(PolicySpec(model=lambda o, a: Partly()), SPACES, seed=0)
    gradient = policy.gradient(policy.forward(Batch({"obs": np.ones((2, 4), np.float32)})).logits.square().sum())
    assert gradient.shape == (36,)
    assert not gradient[:15].any()
    assert gradient[15:30].all()
    assert not gradient[30:].any()


@pytest.mark.parametrize("spec", [PolicySpec(), PolicySpec(hidden=(7,), activation="relu"), PolicySpec(hidden=())])
def test_the_written_out_backward_pass_equals_autograds(spec):
    policy = Policy(spec, SPACES, seed=0)
    obs = torch.randn(9, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    weights = torch.randn(9, 3, generator=torch.Generator().manual_seed(1))

    def scalar(logits, values):
        return (logits * weights).sum() + values.square().mean()

    written, plain = scalar(*policy._network(obs)), scalar(*policy.module(obs))
    torch.testing.assert_close(written, plain)
    torch.testing.assert_close(policy.gradient(written + 0), policy.gradient(plain + 0))
    (for_obs,) = torch.autograd.grad(scalar(*policy._network(obs)), obs)
    (expected,) = torch.autograd.grad(scalar(*policy.module(obs)), obs)
    torch.testing.assert_close(for_obs, expected)


def test_a_term_over_the_modules_own_parameters_adds_to_the_gradient():
    policy = Policy(PolicySpec(hidden=(3,)), SPACES, seed=0)
    out = policy.forward(Batch({"obs": np.ones((2, 4), np.float32)}))
    decay = sum(parameter.square().sum() for parameter in policy.module.critic.parameters())
    both = policy.gradient(out.logits.square().sum() + decay)
    alone = policy.gradient(policy.forward(Batch({"obs": np.ones((2, 4), np.float32)})).logits.square().sum())
    critic = policy.span("critic")
    expected = alone.clone()
    expected[critic] += 2 * policy.flat[critic]
    torch.testing.assert_close(both, expected)


def test_a_frozen_part_of_the_default_model_has_gradient_zero():
    policy = Policy(PolicySpec(hidden=(3,)), SPACES, seed=0)
    policy.module.critic.requires_grad_(False)
    out = policy.forward(Batch({"obs": np.ones((2, 4), np.float32)}))
    gradient = policy.gradient(out.logits.square().sum() + out.values.square().sum())
    assert not gradient[policy.span("critic")].any()
    assert gradient[policy.span("actor")].any()


@pytest.mark.parametrize(("spec", "spaces"), [(PolicySpec(), SPACES), (PolicySpec(model=Convolution), PIXELS)])
@pytest.mark.parametrize("through", [copy.deepcopy, lambda policy: pickle.loads(pickle.dumps(policy))])
def test_copies_and_pickles_act_alike_and_are_apart(spec, spaces, through):
    policy = Policy(spec, spaces, seed=0)
    obs = np.random.default_rng(0).integers(0, 255, size=(20, *spaces.observation.shape))
    other = through(policy)
    np.testing.assert_array_equal(other.act(obs, deterministic=True), policy.act(obs, deterministic=True))
    other.flat.fill_(0.0)
    assert policy.get_weights().any()
    assert repr(policy).endswith("weights)")


@pytest.mark.parametrize(("spec", "spaces"), [(PolicySpec(), SPACES), (PolicySpec(model=Convolution), PIXELS)])
def test_global_generators_are_not_touched(spec, spaces):
    before = (torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate())
    policy = Policy(spec, spaces, seed=0)
    policy.act(np.zeros((3, *spaces.observation.shape)))
    pickle.loads(pickle.dumps(policy))
    assert torch.equal(torch.get_rng_state(), before[0])
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])
    assert random.getstate() == before[2]


def test_a_specification_says_nothing_that_its_own_module_would_ignore():
    for name, value in (("recurrent", "gru"), ("convolutions", [(4, 3, 1)]), ("image_features", 5)):
        with pytest.raises(ValueError, match=f"{name} is for the default model and would change nothing in"):
            PolicySpec(model=Convolution, **{name: value})
    for name, value, said in (
        ("recurrent", "rnn", "recurrent must be None, 'lstm' or 'gru', got 'rnn'"),
        ("recurrent_size", 0, "recurrent_size must be at least 1, got 0"),
        ("recurrent_size", "x", "recurrent_size must be an integer of at least 1, got 'x'"),
        ("hidden", 5, "hidden must be a tuple of widths, got 5"),
        ("hidden", (1.5,), r"hidden widths must be at least 1, got \(1.5,\)"),
        ("critics", 1.5, "critics must be an integer of at least 1, got 1.5"),
        ("initial_log_std", "x", "initial_log_std must be a finite number, got 'x'"),
        ("log_std_range", 5, "log_std_range must be a tuple of numbers, got 5"),
        ("initial_log_std", 3.0, "initial_log_std must be from -20 to 2, got 3.0"),
        ("image_features", 0, "image_features must be at least 1, got 0"),
    ):
        with pytest.raises(ValueError, match=said):
            PolicySpec(**{name: value})
