"""Action distributions: equal to torch.distributions, golden numbers, bounds, frequencies; NumPy's equal torch's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces as gym_spaces
from hypothesis import given
from hypothesis import strategies as st
from torch import distributions as reference

from flowrl.rl.actions import ActionLayout
from flowrl.rl.distributions import (
    MASKED,
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    MultiCategorical,
    SquashedGaussian,
    distribution_of,
    kl_estimate,
)
from flowrl.rl.numpy_distributions import sampler_of

SPACES: dict[str, tuple[gym_spaces.Space[Any], bool]] = {
    "discrete": (gym_spaces.Discrete(5, start=2), False),
    "multi-discrete": (gym_spaces.MultiDiscrete([2, 5, 3]), False),
    "matrix of choices": (gym_spaces.MultiDiscrete([[2, 3], [4, 1]]), False),
    "multi-binary": (gym_spaces.MultiBinary((2, 2)), False),
    "box": (gym_spaces.Box(-1, 1, (3,)), False),
    "scalar box": (gym_spaces.Box(-1, 1, ()), False),
    "squashed box": (gym_spaces.Box(np.array([[-1.0, 0.0]]), np.array([[3.0, 0.5]]), (1, 2), np.float64), True),
}
CHI2_99_9 = {1: 10.83, 4: 18.47, 7: 24.32, 9: 27.88}  # 99.9% points by degrees of freedom


def layout_of(name: str) -> ActionLayout:
    """The layout of one of SPACES."""
    space, squash = SPACES[name]
    return ActionLayout.of(space, squash=squash)


def params_for(layout: ActionLayout, rows: int = 6, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    """Some outputs of a model."""
    return torch.randn(rows, layout.num_params, generator=torch.Generator().manual_seed(seed)) * scale


def torch_reference(layout: ActionLayout, params: torch.Tensor) -> reference.Distribution | list[reference.Categorical]:
    """The same by torch.distributions; a list of independent choices for several."""
    if layout.kind in ("discrete", "multi_discrete"):
        return [reference.Categorical(logits=part) for part in params.split(list(layout.choices), -1)]
    if layout.kind == "multi_binary":
        return reference.Independent(reference.Bernoulli(logits=params), 1)
    mean, log_std = params.chunk(2, -1)
    normal = reference.Independent(reference.Normal(mean, log_std.exp()), 1)
    if not layout.squash:
        return normal
    low, high = torch.tensor(layout.low), torch.tensor(layout.high)
    chain = [reference.TanhTransform(), reference.AffineTransform((low + high) / 2, (high - low) / 2)]
    return reference.TransformedDistribution(normal, [reference.ComposeTransform(chain)])


@pytest.mark.parametrize("name", SPACES)
def test_log_probability_and_entropy_equal_torch_distributions(name: str) -> None:
    layout = layout_of(name)
    params = params_for(layout).double().requires_grad_()
    dist = distribution_of(layout)(params)
    actions = dist.sample(torch.Generator().manual_seed(1)).detach()
    assert actions.shape == (6, *layout.shape)
    assert actions.numpy().dtype.kind == layout.dtype.kind
    logp, entropy = dist.logp_and_entropy(actions)
    flat = actions.reshape(6, -1)
    twin = torch_reference(layout, params)
    if isinstance(twin, list):
        expected = sum(part.log_prob(flat[:, k]) for k, part in enumerate(twin))
        expected_entropy = sum(part.entropy() for part in twin)
    elif layout.squash:
        low, high = torch.tensor(layout.low), torch.tensor(layout.high)
        expected = twin.log_prob(low + (flat.tanh() + 1) * (high - low) / 2)
        expected_entropy = -expected
    else:
        expected = twin.log_prob(flat.double())
        expected_entropy = twin.entropy()
    tolerance = {"rtol": 1e-6, "atol": 1e-6} if layout.squash else {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(logp, expected, **tolerance)
    torch.testing.assert_close(entropy, expected_entropy, **tolerance)
    torch.testing.assert_close(dist.logp(actions), logp)
    ours = torch.autograd.grad((logp * torch.arange(6.0)).sum() + entropy.square().sum(), params)[0]
    theirs = torch.autograd.grad((expected * torch.arange(6.0)).sum() + expected_entropy.square().sum(), params)[0]
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", SPACES)
def test_rows_of_any_leading_dimensions(name: str) -> None:
    layout = layout_of(name)
    params = params_for(layout, 6)
    make = distribution_of(layout)
    flat, grid = make(params), make(params.reshape(2, 3, -1))
    actions = flat.sample(torch.Generator().manual_seed(2))
    assert grid.sample(torch.Generator().manual_seed(2)).shape == (2, 3, *layout.shape)
    assert grid.mode().shape == (2, 3, *layout.shape)
    shaped = actions.reshape(2, 3, *layout.shape)
    for ours, expected in zip(grid.logp_and_entropy(shaped), flat.logp_and_entropy(actions), strict=True):
        torch.testing.assert_close(ours.reshape(6), expected)
    assert torch.equal(grid.mode().reshape(6, *layout.shape), flat.mode())


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_numpys_equal_torchs(name: str, scale: float) -> None:
    layout = layout_of(name)
    params = params_for(layout, 12, scale=scale)
    if layout.kind == "box":
        params[:, layout.size :].clamp_(-3, 1)
    dist, sampler = distribution_of(layout)(params), sampler_of(layout)
    rng = np.random.default_rng(0)
    grid = params.numpy().reshape(3, 4, -1)
    actions = np.empty((3, 4, *layout.shape), layout.dtype)
    sampler.pick(grid, sampler.noise(rng, (3, 4)), actions)
    logp = sampler.logp(grid, actions)
    assert logp.dtype == np.float32
    expected = distribution_of(layout)(params.double()).logp(torch.tensor(actions.reshape(12, *layout.shape)))
    np.testing.assert_allclose(logp.ravel(), expected, rtol=1e-6, atol=1e-5 if scale > 1 else 2e-6)
    np.testing.assert_allclose(
        logp.ravel(), dist.logp(torch.tensor(actions.reshape(12, *layout.shape))), rtol=1e-6, atol=1e-5
    )
    mode = sampler.mode(grid)
    assert mode.shape == actions.shape
    assert mode.dtype == layout.dtype
    np.testing.assert_array_equal(mode.reshape(12, *layout.shape), dist.mode())


# golden numbers, worked by hand
def test_golden_gaussian() -> None:
    # means 0, 1; standard deviations 1, 2; at (1, 0): z = 1 and -0.5
    dist = DiagonalGaussian(torch.tensor([[0.0, 1.0, 0.0, math.log(2.0)]]), (2,))
    logp = -0.5 - 0.125 - math.log(2.0) - math.log(2 * math.pi)
    torch.testing.assert_close(dist.logp(torch.tensor([[1.0, 0.0]])), torch.tensor([logp]))
    torch.testing.assert_close(dist.entropy(), torch.tensor([math.log(2 * math.pi * math.e) + math.log(2.0)]))
    assert dist.mode().tolist() == [[0.0, 1.0]]


def test_golden_bits() -> None:
    dist = Bernoulli(torch.tensor([[math.log(3.0), -100.0]]), (2,))  # probabilities 3/4 and (almost) 0
    torch.testing.assert_close(dist.logp(torch.tensor([[1, 0]])), torch.tensor([math.log(0.75)]))
    torch.testing.assert_close(dist.logp(torch.tensor([[0, 1]])), torch.tensor([math.log(0.25) - 100.0]))
    torch.testing.assert_close(dist.entropy(), torch.tensor([-0.75 * math.log(0.75) - 0.25 * math.log(0.25)]))
    assert dist.mode().tolist() == [[1, 0]]


def test_golden_choices() -> None:
    logits = torch.log(torch.tensor([[0.2, 0.8, 0.5, 0.25, 0.25]]))
    dist = MultiCategorical(logits, (2, 3), (2,))
    torch.testing.assert_close(dist.logp(torch.tensor([[1, 2]])), torch.tensor([math.log(0.8 * 0.25)]))
    entropy = -(0.2 * math.log(0.2) + 0.8 * math.log(0.8)) + 1.5 * math.log(2.0)
    torch.testing.assert_close(dist.entropy(), torch.tensor([entropy]))
    assert dist.mode().tolist() == [[1, 0]]


# squashing
def squashed(mean: float, log_std: float, low: float, high: float) -> SquashedGaussian:
    """A squashed Gaussian over one number, in double precision."""
    return SquashedGaussian(torch.tensor([[mean, log_std]], dtype=torch.float64), (1,), math.log((high - low) / 2))


@pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (0.7, -1.0), (-2.0, 0.3)])
def test_the_squashed_density_integrates_to_one_over_the_bounds(mean: float, log_std: float) -> None:
    low, high = -1.0, 3.0
    u = torch.linspace(mean - 9 * math.exp(log_std), mean + 9 * math.exp(log_std), 200_001).double()
    a = low + (u.tanh() + 1) * (high - low) / 2
    params = torch.tensor([mean, log_std], dtype=torch.float64).expand(len(u), 2)
    density = SquashedGaussian(params, (1,), math.log((high - low) / 2)).logp(u.unsqueeze(-1)).exp()
    assert abs(float(torch.trapezoid(density, a)) - 1.0) < 1e-5


def test_the_correction_at_zero_and_far_out() -> None:
    dist = squashed(0.0, 0.0, -1.0, 1.0)
    normal = lambda u: -0.5 * u * u - 0.5 * math.log(2 * math.pi)  # noqa: E731
    assert abs(float(dist.logp(torch.tensor([[0.0]]).double())) - normal(0.0)) < 1e-12  # tanh'(0) = 1
    # log(1 - tanh(u)^2) = log(4 e^{2u} / (e^{2u} + 1)^2); at |u| = 20 that is 2 log 2 - 40, where 1 - tanh^2 is 0.
    for u in (20.0, -20.0):
        logp = dist.logp(torch.tensor([[u]], dtype=torch.float64))
        assert abs(float(logp) - (normal(u) - (2 * math.log(2) - 40))) < 1e-12
        single = SquashedGaussian(torch.tensor([[0.0, 0.0]]), (1,), 0.0).logp(torch.tensor([[u]]))
        assert abs(float(single) - float(logp)) < 2e-5
        sampler = sampler_of(ActionLayout.of(gym_spaces.Box(-1, 1, (1,)), squash=True))
        numpys = sampler.logp(np.zeros((1, 2), np.float32), np.array([[u]], np.float32))
        assert abs(float(numpys[0]) - float(logp)) < 2e-5


@given(st.floats(-30, 30), st.floats(-3, 3), st.floats(-4, 2))
def test_the_correction_is_the_log_of_the_slope(u: float, mean: float, log_std: float) -> None:
    dist = squashed(mean, log_std, -2.0, 2.0)
    logp = float(dist.logp(torch.tensor([[u]], dtype=torch.float64)))
    slope = 2.0 * 4.0 / (math.exp(u) + math.exp(-u)) ** 2  # half the range times sech²
    z = (u - mean) / math.exp(log_std)
    expected = -0.5 * z * z - log_std - 0.5 * math.log(2 * math.pi) - math.log(slope)
    assert math.isclose(logp, expected, rel_tol=1e-9, abs_tol=1e-9)


def test_the_entropy_estimate_is_right_on_average() -> None:
    # u ~ N(0, 1): the entropy by quadrature against the mean of -log p over samples.
    u = torch.linspace(-9, 9, 20_001).double()
    dist = SquashedGaussian(torch.zeros(len(u), 2).double(), (1,), math.log(1.5))
    normal = torch.exp(-0.5 * u * u) / math.sqrt(2 * math.pi)
    exact = torch.trapezoid(-normal * dist.logp(u.unsqueeze(-1)), u)
    many = SquashedGaussian(torch.zeros(200_000, 2), (1,), math.log(1.5))
    logp, entropy = many.logp_and_entropy(many.sample(torch.Generator().manual_seed(0)))
    assert torch.equal(entropy, -logp)
    assert abs(float(entropy.mean() - exact)) < 4 * float(entropy.std()) / math.sqrt(200_000)


# sampling
def chi_square(counts: np.ndarray[Any, Any], probabilities: np.ndarray[Any, Any]) -> float:
    """Pearson's statistic."""
    expected = counts.sum() * probabilities
    return float(((counts - expected) ** 2 / expected).sum())


def draws(layout: ActionLayout, params: torch.Tensor, rows: int, how: str, seed: int = 5) -> np.ndarray[Any, Any]:
    """Many actions of one distribution."""
    many = params.expand(rows, -1)
    if how == "torch":
        return distribution_of(layout)(many).sample(torch.Generator().manual_seed(seed)).numpy()
    sampler, actions = sampler_of(layout), np.empty((rows, *layout.shape), layout.dtype)
    sampler.pick(many.numpy(), sampler.noise(np.random.default_rng(seed), (rows,)), actions)
    return actions


@pytest.mark.parametrize("how", ["torch", "numpy"])
def test_frequencies_of_choices(how: str) -> None:
    layout = ActionLayout.of(gym_spaces.MultiDiscrete([2, 5]))
    p = np.array([0.3, 0.7]), np.array([0.5, 0.2, 0.15, 0.1, 0.05])
    actions = draws(layout, torch.log(torch.tensor(np.concatenate(p), dtype=torch.float32))[None], 60_000, how)
    joint = np.zeros((2, 5))
    np.add.at(joint, (actions[:, 0], actions[:, 1]), 1)
    assert chi_square(joint.ravel(), np.outer(*p).ravel()) < CHI2_99_9[9]


@pytest.mark.parametrize("how", ["torch", "numpy"])
def test_frequencies_of_an_index(how: str) -> None:
    layout = ActionLayout.of(gym_spaces.Discrete(5))
    p = np.array([0.5, 0.2, 0.15, 0.1, 0.05])
    actions = draws(layout, torch.log(torch.tensor(p, dtype=torch.float32))[None] + 30, 60_000, how)
    assert chi_square(np.bincount(actions, minlength=5), p) < CHI2_99_9[4]


@pytest.mark.parametrize("how", ["torch", "numpy"])
def test_frequencies_of_bits(how: str) -> None:
    layout = ActionLayout.of(gym_spaces.MultiBinary(4))
    logits = torch.tensor([[0.0, 1.5, -200.0, 200.0]])
    actions = draws(layout, logits, 60_000, how)
    for k, p in enumerate((0.5, 1 / (1 + math.exp(-1.5)))):
        ones = float(actions[:, k].sum())
        assert chi_square(np.array([60_000 - ones, ones]), np.array([1 - p, p])) < CHI2_99_9[1]
    assert not actions[:, 2].any()
    assert actions[:, 3].all()


@pytest.mark.parametrize("how", ["torch", "numpy"])
def test_frequencies_of_numbers(how: str) -> None:
    layout = ActionLayout.of(gym_spaces.Box(-1, 1, (2,)))
    params = torch.tensor([[1.0, -2.0, 0.0, math.log(0.5)]])
    z = (draws(layout, params, 60_000, how) - [1.0, -2.0]) / [1.0, 0.5]
    edges = [-1.1503494, -0.6744898, -0.3186394, 0.0, 0.3186394, 0.6744898, 1.1503494]  # eighths of the normal
    for k in range(2):
        counts = np.bincount(np.searchsorted(edges, z[:, k]), minlength=8)
        assert chi_square(counts, np.full(8, 1 / 8)) < CHI2_99_9[7]
    assert abs(np.corrcoef(z.T)[0, 1]) < 4 / math.sqrt(60_000)


def test_no_invalid_action_in_50_000_samples_of_1_400() -> None:
    layout = ActionLayout.of(gym_spaces.Discrete(1400))
    rng = np.random.default_rng(0)
    for seed in range(10):
        mask = rng.random(1400) < 0.01
        mask[rng.integers(1400)] = True
        logits = torch.tensor(rng.normal(0, 10, 1400).astype(np.float32))
        masked = torch.where(torch.tensor(mask), logits, MASKED)[None]
        assert mask[draws(layout, masked, 5_000, "torch", seed)].all()


def test_masked_logits_have_probability_zero_and_finite_gradients() -> None:
    logits = torch.tensor([[1.0, MASKED, -2.0, MASKED]], requires_grad=True)
    dist = Categorical(logits)
    logp, entropy = dist.logp_and_entropy(torch.tensor([2]))
    p = 1 / (1 + math.exp(3.0))
    assert abs(float(logp.detach()) - math.log(p)) < 1e-6
    assert abs(float(entropy.detach()) + p * math.log(p) + (1 - p) * math.log(1 - p)) < 1e-6
    (gradient,) = torch.autograd.grad(logp.sum() + entropy.sum(), logits)
    assert torch.isfinite(gradient).all()
    assert gradient[0, [1, 3]].tolist() == [0.0, 0.0]


# the estimate of KL
@pytest.mark.parametrize("name", ["discrete", "multi-binary", "box", "squashed box"])
def test_the_kl_estimate_is_right_on_average(name: str) -> None:
    layout = layout_of(name)
    old, new = params_for(layout, 1, 3, 0.3), params_for(layout, 1, 4, 0.3)
    make, rows = distribution_of(layout), 100_000
    before, after = make(old.expand(rows, -1)), make(new.expand(rows, -1))
    actions = before.sample(torch.Generator().manual_seed(0))
    estimate = kl_estimate(after.logp(actions) - before.logp(actions))
    assert (estimate >= 0).all()
    flat = ActionLayout.of(SPACES[name][0])  # tanh moves both alike: the divergence is that of the Gaussians
    one, two = torch_reference(flat, old), torch_reference(flat, new)
    exact = (
        sum(reference.kl_divergence(a, b) for a, b in zip(one, two, strict=True))
        if isinstance(one, list) and isinstance(two, list)
        else reference.kl_divergence(one, two)
    )
    assert abs(float(estimate.mean() - exact)) < 4 * float(estimate.std()) / math.sqrt(rows)
