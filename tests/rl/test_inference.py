"""NumPy inference: golden numbers, equality with torch, sampling, and refusals."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from hypothesis import given
from hypothesis import strategies as st

from flowrl.rl.inference import NumpyInference, TorchInference, make_inference
from flowrl.rl.initial import initial_weights, num_weights
from flowrl.rl.numpy_distributions import log_exponential, log_probability
from flowrl.rl.policy import Policy
from flowrl.rl.spec import PolicySpec, Spaces
from flowrl.rl.unroll import Unroll

SPACES = Spaces(Box(-10, 10, (4,)), Discrete(3))


def torch_twin(spec: PolicySpec, inputs: int, actions: int, flat: np.ndarray) -> tuple[Any, Any]:
    """Actor and critic in plain torch, filled from the flat layout."""
    activation = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}[spec.activation]
    nets, at = [], 0
    for outputs in (actions, 1):
        layers: list[torch.nn.Module] = []
        widths = [inputs, *spec.hidden, outputs]
        for into, out in itertools.pairwise(widths):
            linear = torch.nn.Linear(into, out)
            with torch.no_grad():
                linear.weight.copy_(torch.tensor(flat[at : at + into * out].reshape(out, into)))
                at += into * out
                linear.bias.copy_(torch.tensor(flat[at : at + out]))
                at += out
            layers += [linear, activation()]
        nets.append(torch.nn.Sequential(*layers[:-1]))
    assert at == len(flat)
    return nets[0], nets[1]


def some_weights(spec: PolicySpec, spaces: Spaces, seed: int = 0) -> np.ndarray:
    """Weights whose biases and heads are not near zero."""
    flat = initial_weights(spec, spaces, seed)
    return flat + np.random.default_rng(seed).normal(0, 0.1, len(flat)).astype(np.float32)


def test_golden_numbers_of_a_linear_policy() -> None:
    spaces = Spaces(Box(-1, 1, (2,)), Discrete(2))
    net = NumpyInference(PolicySpec(hidden=()), spaces)
    # actor [[1, 2], [0, -1]] + [0.5, 0], critic [3, 4] + [-1]
    net.set_weights(np.array([1, 2, 0, -1, 0.5, 0, 3, 4, -1], np.float32))
    obs = np.array([[1, 0], [1, -2]], np.float32)
    logits, values = net.forward(obs)
    np.testing.assert_allclose(logits, [[1.5, 0.0], [-2.5, 2.0]])
    assert values is None
    np.testing.assert_allclose(net.values(obs), [2.0, -6.0])
    greedy, state = net.act(obs)
    assert greedy.tolist() == [0, 1]
    assert greedy.dtype == np.int64
    assert state == {}
    unroll = Unroll(net, 1, 2, np.random.default_rng(0))
    unroll.act(0, obs)
    (logp,), (values, _) = unroll.logp(), unroll.values(np.stack([obs, obs]))
    # log softmax of (1.5, 0): -log(1 + e^-1.5) = -0.201413 and -1.701413; of (-2.5, 2): -4.511048 and -0.011048
    assert min(abs(logp[0] - x) for x in (-0.201413, -1.701413)) < 1e-6
    assert min(abs(logp[1] - x) for x in (-4.511048, -0.011048)) < 1e-6
    np.testing.assert_allclose(values, [2.0, -6.0])


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("hidden", [(64, 64), (5,), ()])
@pytest.mark.parametrize("rows", [1, 8, 300])
def test_equals_torch(activation: Any, hidden: tuple[int, ...], rows: int) -> None:
    spec = PolicySpec(hidden=hidden, activation=activation)
    flat = some_weights(spec, SPACES)
    net = NumpyInference(spec, SPACES)
    net.set_weights(flat)
    actor, critic = torch_twin(spec, 4, 3, flat)
    obs = np.random.default_rng(1).normal(size=(rows, 4)).astype(np.float32)
    with torch.no_grad():
        logits, values = actor(torch.tensor(obs)).numpy(), critic(torch.tensor(obs)).numpy()[:, 0]
    np.testing.assert_allclose(net.forward(obs)[0], logits, atol=1e-6, rtol=1e-6)
    np.testing.assert_allclose(net.values(obs), values, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32])
def test_equals_the_policy_for_images_and_integers(dtype: Any) -> None:
    spaces = Spaces(Box(0, 9, (3, 2, 2), dtype), Discrete(4, start=7))
    spec = PolicySpec(hidden=(16,))
    flat = some_weights(spec, spaces) * np.float32(0.1)
    policy, net = Policy(spec, spaces), NumpyInference(spec, spaces)
    policy.set_weights(flat)
    net.set_weights(flat)
    obs = np.random.default_rng(2).integers(0, 9, (5, 3, 2, 2)).astype(dtype)
    out = policy.forward({"obs": obs})
    np.testing.assert_allclose(net.forward(obs)[0], out.logits.detach(), atol=1e-6)
    np.testing.assert_allclose(net.values(obs), out.values.detach(), atol=1e-6)
    actions, _ = net.act(obs, np.random.default_rng(0))
    logp = net.sampler.logp(net.forward(obs)[0], actions)
    np.testing.assert_allclose(logp, out.dist.logp(torch.tensor(actions)).detach(), atol=1e-6)
    np.testing.assert_array_equal(net.act(obs)[0] + 7, policy.act(obs, deterministic=True))


def test_answers_are_not_overwritten_by_the_next_call() -> None:
    net = NumpyInference(PolicySpec(), SPACES)
    net.set_weights(some_weights(PolicySpec(), SPACES))
    obs = np.ones((8, 4), np.float32)
    values = net.values(obs)
    kept = values.copy()
    net.values(-obs)
    np.testing.assert_array_equal(values, kept)


def test_samples_follow_the_probabilities() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.2], np.float32)) + 40
    rng = np.random.default_rng(0)
    counts = np.bincount((logits - log_exponential(rng, (40_000, 3))).argmax(1), minlength=3) / 40_000
    np.testing.assert_allclose(counts, [0.5, 0.3, 0.2], atol=0.01)  # four standard errors


@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=2, max_size=6), st.data())
def test_log_probability_is_stable(logits: list[float], data: st.DataObject) -> None:
    array = np.array([logits], np.float32)
    action = data.draw(st.integers(0, len(logits) - 1))
    got = log_probability(array, np.array([action]))
    wide = np.array(logits, np.float32).astype(np.float64)
    expected = wide[action] - wide.max() - np.log(np.exp(wide - wide.max()).sum())
    assert got.dtype == np.float32
    np.testing.assert_allclose(got[0], expected, rtol=1e-6, atol=1e-5)


def test_an_unroll_is_repeated_sampling() -> None:
    net = NumpyInference(PolicySpec(), SPACES)
    net.set_weights(some_weights(PolicySpec(), SPACES))
    obs = np.random.default_rng(3).normal(size=(6, 4, 4)).astype(np.float32)
    unroll = Unroll(net, 5, 4, np.random.default_rng(9))
    actions = np.array([unroll.act(t, obs[t]) for t in range(5)])
    logp, values = unroll.logp(), unroll.values(obs)
    rng = np.random.default_rng(9)
    for t in range(5):
        expected_actions, _ = net.act(obs[t], rng)
        np.testing.assert_array_equal(actions[t], expected_actions)
        np.testing.assert_allclose(logp[t], log_probability(net.forward(obs[t])[0], actions[t]), atol=1e-6)
        np.testing.assert_allclose(values[t], net.values(obs[t]), atol=1e-6)
    np.testing.assert_allclose(values[5], net.values(obs[5]), atol=1e-6)


def test_exploration_mixes_uniform_actions_and_says_their_probability() -> None:
    spaces = Spaces(Box(-1, 1, (1,)), Discrete(2))
    net = NumpyInference(PolicySpec(hidden=()), spaces)
    net.set_weights(np.array([0, 0, 2, 0, 0, 0], np.float32))  # logits (2, 0) everywhere
    obs = np.zeros((201, 50, 1), np.float32)
    unroll = Unroll(net, 200, 50, np.random.default_rng(0), epsilon=0.5)
    actions = np.array([unroll.act(t, obs[t]) for t in range(200)])
    logp = unroll.logp()
    first = 0.5 / (1 + np.exp(-2)) + 0.25  # 0.690399
    np.testing.assert_allclose(logp, np.log(np.where(actions == 0, first, 1 - first)), atol=1e-6)
    assert abs((actions == 0).mean() - first) < 0.02
    sure = Unroll(net, 2, 3, np.random.default_rng(0), epsilon=1.0)
    for t in range(2):
        sure.act(t, obs[t, :3])
    np.testing.assert_allclose(sure.logp(), np.log(0.5), atol=1e-7)


def unroll_once(net: NumpyInference, obs_N: np.ndarray) -> None:
    unroll = Unroll(net, 1, len(obs_N), np.random.default_rng(0))
    unroll.act(0, obs_N)
    unroll.check()
    unroll.values(np.stack([obs_N, obs_N]))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "call",
    [lambda net, obs: net.act(obs, np.random.default_rng(0)), lambda net, obs: net.act(obs), unroll_once],
    ids=["sample", "greedy", "unroll"],
)
def test_outputs_that_are_not_finite_are_refused(call: Any) -> None:
    net = NumpyInference(PolicySpec(hidden=()), SPACES)
    net.set_weights(np.full(num_weights(PolicySpec(hidden=()), SPACES), 3e38, np.float32))
    with pytest.raises(
        FloatingPointError, match=r"gave logits of inf .* its weights or the observation are non-finite"
    ):
        call(net, np.ones((2, 4), np.float32))


def test_weights_are_checked() -> None:
    net, flat = make_inference(PolicySpec(hidden=(3,)), SPACES, np.random.SeedSequence(0))
    with pytest.raises(
        ValueError, match=r"this policy has 46 weights in one flat vector, got an array of shape \(7,\)"
    ):
        net.set_weights(np.zeros(7, np.float32))
    flat[3] = np.nan
    with pytest.raises(ValueError, match="1 of 46 weights are not finite"):
        net.set_weights(flat)


class Shared(torch.nn.Module):
    """A user's model: actor and critic on one trunk, with a layer that differs in training."""

    def __init__(self, observation: Any, action: Any):
        super().__init__()
        self.trunk = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Dropout(0.5))
        self.actor, self.critic = torch.nn.Linear(16, int(action.n)), torch.nn.Linear(16, 1)

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.trunk(obs)
        return self.actor(hidden), self.critic(hidden).squeeze(-1)


def test_any_other_model_runs_in_torch() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    seed = np.random.SeedSequence(1)
    net, flat = make_inference(PolicySpec(model=Shared), SPACES, seed)
    assert isinstance(net, TorchInference)
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(flat, make_inference(PolicySpec(model=Shared), SPACES, seed)[1])
    policy = Policy(PolicySpec(model=Shared), SPACES, seed=4)
    net.set_weights(policy.get_weights())
    policy.module.eval()
    obs = np.random.default_rng(0).normal(size=(6, 5, 4)).astype(np.float32)
    out = policy.forward({"obs": obs})
    unroll = Unroll(net, 5, 5, np.random.default_rng(0))
    actions = np.array([unroll.act(t, obs[t]) for t in range(5)])
    logp, values = unroll.logp(), unroll.values(obs)
    np.testing.assert_allclose(values, out.values.detach(), atol=1e-6)
    np.testing.assert_allclose(
        logp, policy.forward({"obs": obs[:5]}).dist.logp(torch.tensor(actions)).detach(), atol=1e-6
    )
    with pytest.raises(ValueError, match="weights in one flat vector, got an array of shape"):
        net.set_weights(np.zeros(3, np.float32))


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    script = (
        "import numpy as np, hashlib; from gymnasium.spaces import Box, Discrete\n"
        "from flowrl.rl.inference import make_inference; from flowrl.rl.spec import PolicySpec, Spaces\n"
        "net, flat = make_inference(PolicySpec(), Spaces(Box(-1, 1, (4,)), Discrete(2)), np.random.SeedSequence(0))\n"
        "obs = np.random.default_rng(0).normal(size=(1032, 4)).astype(np.float32)\n"
        "print(hashlib.sha256(net.values(obs).tobytes() + net.forward(obs)[0].tobytes() + flat.tobytes()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads, "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in ("1", "2")
    }
    assert len(digests) == 1
