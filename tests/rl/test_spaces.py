"""Supported spaces pass, others are refused by name with the remedy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gym_spaces

from flowrl.rl.spaces import UnsupportedSpace, check_policy, check_spaces, num_params, obs_size, runs_in_numpy
from flowrl.rl.spec import PolicySpec, Spaces

BOX = gym_spaces.Box(-1, 1, (4,), np.float32)
TWO = gym_spaces.Discrete(2)
IMAGE = gym_spaces.Box(0, 255, (8, 8, 3), np.uint8)


@pytest.mark.parametrize(
    ("observation", "size"),
    [
        (gym_spaces.Box(0, 1, (2, 3), np.float64), 6),
        (gym_spaces.Box(0, 1, (), np.float16), 1),
        (gym_spaces.Box(0, 9, (5,), np.int64), 5),
        (IMAGE, 192),
        (gym_spaces.Discrete(4, start=-1), 4),
        (gym_spaces.MultiDiscrete([2, 3]), 5),
        (gym_spaces.MultiBinary((2, 2)), 4),
        (gym_spaces.Dict(a=BOX, b=gym_spaces.Tuple([TWO, gym_spaces.Dict(c=BOX)])), 10),
        (gym_spaces.Dict(a=BOX, action_mask=gym_spaces.MultiBinary(2)), 4),
    ],
)
def test_supported_observations(observation: gym_spaces.Space[Any], size: int) -> None:
    check_spaces(Spaces(observation, TWO))
    assert obs_size(Spaces(observation, TWO)) == size


@pytest.mark.parametrize(
    ("action", "params"),
    [
        (gym_spaces.Discrete(3, start=-1), 3),
        (gym_spaces.MultiDiscrete([2, 3, 4]), 9),
        (gym_spaces.MultiDiscrete([[2, 2], [2, 2]]), 8),
        (gym_spaces.MultiBinary((2, 3)), 6),
        (BOX, 8),
        (gym_spaces.Box(-np.inf, np.inf, (), np.float64), 2),
    ],
)
def test_supported_actions_and_how_many_numbers_describe_them(action: gym_spaces.Space[Any], params: int) -> None:
    check_spaces(Spaces(BOX, action))
    assert num_params(action) == params


@pytest.mark.parametrize(
    ("observation", "said"),
    [
        (gym_spaces.Text(5), "environment 'Maze-v0' is Text"),
        (gym_spaces.Graph(BOX, None), "environment 'Maze-v0' is Graph"),
        (gym_spaces.Sequence(BOX), "environment 'Maze-v0' is Sequence"),
        (gym_spaces.OneOf([BOX, TWO]), "environment 'Maze-v0' is OneOf"),
        (
            gym_spaces.Dict(goal=gym_spaces.Tuple([BOX, gym_spaces.Text(5)])),
            "environment 'Maze-v0' at 'goal/1' is Text",
        ),
        (gym_spaces.Dict({"a/b": BOX, "a": gym_spaces.Dict(b=TWO)}), "two parts have the path 'a/b'"),
        (gym_spaces.Box(0, 1, (0,)), "this one holds no number"),
        (gym_spaces.Dict(action_mask=gym_spaces.MultiBinary(2)), "this one holds no number"),
        (gym_spaces.Dict(a=BOX, action_mask=gym_spaces.MultiBinary(3)), "a mask of these actions has shape (2,)"),
    ],
)
def test_refuses_other_observations(observation: gym_spaces.Space[Any], said: str) -> None:
    with pytest.raises(UnsupportedSpace) as caught:
        check_spaces(Spaces(observation, TWO), "environment 'Maze-v0'")
    text = str(caught.value)
    assert text.startswith("the observation space of environment 'Maze-v0'")
    assert said in text
    assert "supported are Box of numbers of any shape, Discrete, MultiDiscrete, MultiBinary" in text
    assert "ObservationWrapper" in text


@pytest.mark.parametrize(
    ("action", "said"),
    [
        (gym_spaces.Dict(a=BOX), "number the combinations that matter"),
        (gym_spaces.Tuple([TWO, TWO]), "number the combinations that matter"),
        (gym_spaces.Text(3), "number the combinations that matter"),
        (gym_spaces.Box(0, 255, (2,), np.uint8), "a Box of integers is a MultiDiscrete"),
        (gym_spaces.Box(0, 1, (0,)), "this one holds no number"),
    ],
)
def test_refuses_other_actions(action: gym_spaces.Space[Any], said: str) -> None:
    with pytest.raises(UnsupportedSpace, match=r"the action space of the environment is .*ActionWrapper") as caught:
        check_spaces(Spaces(BOX, action))
    assert said in str(caught.value)
    assert "supported are Discrete, MultiDiscrete, MultiBinary and Box of floats" in str(caught.value)


def test_squash_needs_finite_bounds_and_a_box() -> None:
    spec = PolicySpec(squash=True)
    check_policy(spec, Spaces(BOX, BOX))
    with pytest.raises(UnsupportedSpace, match="scales to the bounds, so they must be finite"):
        check_policy(spec, Spaces(BOX, gym_spaces.Box(-1, np.inf, (2,))))
    with pytest.raises(UnsupportedSpace, match=r"squash=True\) is for Box actions\); supported are Box of floats\. "):
        check_policy(spec, Spaces(BOX, TWO))


def test_a_mask_is_for_choices() -> None:
    observation = gym_spaces.Dict(a=BOX, action_mask=gym_spaces.MultiBinary(8))
    with pytest.raises(UnsupportedSpace, match=r"at 'action_mask' .*a mask is for Discrete and MultiDiscrete actions"):
        check_spaces(Spaces(observation, BOX))


def test_which_policies_workers_run_without_torch() -> None:
    nested = gym_spaces.Dict(a=BOX, b=gym_spaces.Discrete(5))
    assert runs_in_numpy(PolicySpec(normalize_obs=True), Spaces(nested, BOX))
    assert not runs_in_numpy(PolicySpec(), Spaces(gym_spaces.Dict(a=BOX, camera=IMAGE), BOX))
    assert not runs_in_numpy(PolicySpec(recurrent="gru"), Spaces(BOX, TWO))
    assert not runs_in_numpy(PolicySpec(model=lambda o, a: None), Spaces(BOX, TWO))


def test_unsupported_space_is_a_value_error() -> None:
    assert issubclass(UnsupportedSpace, ValueError)
