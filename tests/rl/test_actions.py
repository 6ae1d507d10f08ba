"""What is stored of an action, and what the environment gets of it."""

from __future__ import annotations

import functools
import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces as gym_spaces

from flowrl.rl.actions import ActionLayout
from flowrl.rl.distributions import distribution_of
from flowrl.rl.numpy_distributions import GaussianSampler
from flowrl.rl.policy import Policy
from flowrl.rl.spec import PolicySpec, Spaces
from flowrl.rl.unsupported import UnsupportedSpace
from flowrl.rl.worker import RolloutWorker

BOUNDS = gym_spaces.Box(np.array([-1.0, 0.0, -np.inf]), np.array([1.0, np.inf, np.inf]), (3,), np.float64)
SEEN = gym_spaces.Box(-1, 1, (2,))


def test_indices_get_their_start() -> None:
    layout = ActionLayout.of(gym_spaces.Discrete(3, start=5))
    assert layout.to_env(np.array([0, 2])).tolist() == [5, 7]
    layout = ActionLayout.of(gym_spaces.MultiDiscrete([[2, 3]], np.int32, start=[[-1, 4]]))
    given = layout.to_env(np.array([[[1, 2]]]))
    assert given.tolist() == [[[0, 6]]]
    assert given.dtype == np.int32


def test_boxes_are_clipped_and_cast_for_the_environment_only() -> None:
    layout = ActionLayout.of(BOUNDS)
    stored = np.array([[-3.0, -2.0, -1e30], [0.25, 7.0, 3.0]], np.float32)
    kept = stored.copy()
    given = layout.to_env(stored)
    np.testing.assert_array_equal(given, [[-1.0, 0.0, np.float32(-1e30)], [0.25, 7.0, 3.0]])
    assert given.dtype == np.float64
    np.testing.assert_array_equal(stored, kept)
    assert all(BOUNDS.contains(row) for row in given)


def test_squashed_boxes_are_scaled_to_the_bounds() -> None:
    space = gym_spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([3.0, 0.5], np.float32))
    layout = ActionLayout.of(space, squash=True)
    u = np.array([[0.0, 0.0], [math.atanh(0.5), math.atanh(-0.5)], [60.0, -60.0]], np.float32)
    np.testing.assert_allclose(layout.to_env(u), [[1.0, 0.25], [2.0, 0.125], [3.0, 0.0]], atol=1e-6)
    assert all(space.contains(row) for row in layout.to_env(u))


def test_bounds_further_apart_than_a_float_holds() -> None:
    for space in (gym_spaces.Box(-3e38, 3e38, (3,)), gym_spaces.Box(-1e300, 1e300, (3,), np.float64)):
        with pytest.raises(UnsupportedSpace, match="must be finite in float32, and so must be the distance"):
            ActionLayout.of(space, squash=True)
        stored = np.array([-1e30, 0.0, 1e30], np.float32)
        np.testing.assert_array_equal(ActionLayout.of(space).to_env(stored), stored)


def test_bounds_of_doubles_are_never_left() -> None:
    space = gym_spaces.Box(np.array([-0.1, 0.3]), np.array([0.1, 0.7]), dtype=np.float64)
    assert not space.contains(np.float32([0.1, 0.3]).astype(np.float64))  # 0.1 as a float is above it, 0.3 too
    for layout in (ActionLayout.of(space), ActionLayout.of(space, squash=True)):
        for stored in ([-60.0, -60.0], [60.0, 60.0]):
            assert space.contains(layout.to_env(np.array(stored, np.float32)))


def test_a_number_that_cannot_vary_has_no_part_in_densities() -> None:
    fixed = gym_spaces.Box(np.array([-2.0, 0.5], np.float32), np.array([2.0, 0.5], np.float32))
    layout = ActionLayout.of(fixed, squash=True)
    assert layout.log_scale == math.log(2.0)
    params, stored = np.zeros((1, 4), np.float32), np.array([[0.3, -0.4]], np.float32)
    logp = GaussianSampler(layout).logp(params, stored)
    assert np.isfinite(logp).all()
    ours = distribution_of(layout)(torch.tensor(params)).logp(torch.tensor(stored))
    np.testing.assert_allclose(ours.numpy(), logp, rtol=1e-5)


class Recording(gymnasium.Env[Any, Any]):
    """Keeps every action that it gets."""

    def __init__(self, space: Any, kept: list[Any]):
        self.observation_space, self.action_space, self.kept = SEEN, space, kept

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.kept.append(np.array(action))
        return np.zeros(2, np.float32), 0.0, False, False, {}


@pytest.mark.parametrize("squash", [False, True])
def test_the_worker_stores_the_sample_and_its_density_and_gives_the_rest_to_the_environment(squash: bool) -> None:
    space = gym_spaces.Box(-0.5, 1.0, (2,))
    kept: list[Any] = []
    spec = PolicySpec(squash=squash, initial_log_std=0.5)
    worker = RolloutWorker(functools.partial(Recording, space, kept), spec, steps=40, seed=0)
    answer = worker.sample()
    batch, stored = answer.payload, answer.payload["actions"][:, 0]
    assert stored.dtype == np.float32
    assert np.abs(stored).max() > 1.0  # neither clipped nor put through tanh
    expected = np.clip(stored, -0.5, 1.0) if not squash else 0.25 + 0.75 * np.tanh(stored)
    np.testing.assert_allclose(np.array(kept), expected, atol=1e-6)
    policy = Policy(spec, Spaces(SEEN, space))
    policy.set_weights(worker.get_state()["weights"])
    logp = policy.forward(batch).dist.logp(torch.tensor(batch["actions"])).detach()
    np.testing.assert_allclose(batch["logp"], logp, atol=1e-6)


def test_epsilon_is_for_indices() -> None:
    worker = RolloutWorker(functools.partial(Recording, gym_spaces.Box(-1, 1, (2,)), []), steps=2)
    worker.set_epsilon(0.0)
    with pytest.raises(ValueError, match=r"which are for Discrete spaces, not for box actions"):
        worker.set_epsilon(0.1)
