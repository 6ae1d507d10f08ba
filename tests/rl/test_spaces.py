"""Supported spaces pass, others are refused by name with the remedy."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces as gym_spaces

from flowrl.rl.spaces import UnsupportedSpace, action_offset, check_spaces, num_actions, obs_dtype, obs_size
from flowrl.rl.spec import Spaces

BOX = gym_spaces.Box(-1, 1, (4,), np.float32)
TWO = gym_spaces.Discrete(2)


@pytest.mark.parametrize(
    ("shape", "dtype", "size", "stored"),
    [
        ((4,), np.float32, 4, np.float32),
        ((2, 3), np.float64, 6, np.float32),
        ((), np.float16, 1, np.float32),
        ((8, 8, 3), np.uint8, 192, np.uint8),
        ((5,), np.int64, 5, np.int64),
    ],
)
def test_boxes_of_any_shape_and_number(shape: tuple[int, ...], dtype: type, size: int, stored: type) -> None:
    spaces = Spaces(gym_spaces.Box(0, 1, shape, dtype), gym_spaces.Discrete(3, start=-1))
    check_spaces(spaces)
    assert (obs_size(spaces), obs_dtype(spaces)) == (size, np.dtype(stored))
    assert (num_actions(spaces), action_offset(spaces)) == (3, -1)


@pytest.mark.parametrize(
    "observation",
    [gym_spaces.Discrete(4), gym_spaces.Dict(a=BOX), gym_spaces.Tuple([BOX]), gym_spaces.MultiBinary(3)],
)
def test_refuses_other_observations(observation: gym_spaces.Space) -> None:
    with pytest.raises(UnsupportedSpace) as caught:
        check_spaces(Spaces(observation, TWO), "environment 'Maze-v0'")
    text = str(caught.value)
    assert text.startswith(f"the observation space of environment 'Maze-v0' is {observation}, which is not supported")
    assert "supported are Discrete actions and Box observations" in text
    assert "ObservationWrapper" in text


@pytest.mark.parametrize("action", [BOX, gym_spaces.MultiDiscrete([2, 2]), gym_spaces.MultiBinary(2)])
def test_refuses_other_actions(action: gym_spaces.Space) -> None:
    with pytest.raises(UnsupportedSpace, match=r"the action space of the environment is .*ActionWrapper"):
        check_spaces(Spaces(BOX, action))


def test_refuses_an_observation_without_numbers() -> None:
    with pytest.raises(UnsupportedSpace, match="this one holds no number"):
        check_spaces(Spaces(gym_spaces.Box(0, 1, (0,)), TWO))


def test_unsupported_space_is_a_value_error() -> None:
    assert issubclass(UnsupportedSpace, ValueError)
