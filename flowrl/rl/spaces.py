"""Which observation and action spaces are supported, and their sizes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flowrl.rl.spec import Spaces

SUPPORTED = "Discrete actions and Box observations of integers or floats"


class UnsupportedSpace(ValueError):  # noqa: N818  (names the thing, like the spaces it speaks of)
    """A space that no policy here can observe or act in."""


def check_spaces(spaces: Spaces, where: str = "the environment") -> None:
    """Nothing, if a policy can observe and act in these spaces.

    Args:
        spaces: the observation and the action space of one policy.
        where: names the environment in the message.

    Raises:
        UnsupportedSpace: names the space, what is supported and what to do.
    """
    from gymnasium.spaces import Box, Discrete

    observation, action = spaces.observation, spaces.action
    if not isinstance(observation, Box) or observation.dtype.kind not in "iuf":
        raise _unsupported(
            "observation", observation, where, "an ObservationWrapper", "FlattenObservation gives one Box"
        )
    if math.prod(observation.shape) == 0:
        raise _unsupported("observation", observation, where, "an ObservationWrapper", "this one holds no number")
    if not isinstance(action, Discrete):
        raise _unsupported("action", action, where, "an ActionWrapper", "number the combinations that matter")


def num_actions(spaces: Spaces) -> int:
    """The number A of actions; policies know them as indices 0..A-1."""
    return int(spaces.action.n)


def action_offset(spaces: Spaces) -> int:
    """What to add to an action's index to get what the environment understands (`Discrete.start`)."""
    return int(spaces.action.start)


def obs_size(spaces: Spaces) -> int:
    """How many numbers one observation holds."""
    return math.prod(spaces.observation.shape)


def obs_dtype(spaces: Spaces) -> np.dtype[Any]:
    """The dtype of a stored observation: integers as they are, every float as float32."""
    dtype = np.dtype(spaces.observation.dtype)
    return np.dtype(np.float32) if dtype.kind == "f" else dtype


def _unsupported(role: str, space: object, where: str, wrapper: str, hint: str) -> UnsupportedSpace:
    return UnsupportedSpace(
        f"the {role} space of {where} is {space}, which is not supported; supported are {SUPPORTED}. "
        f"Wrap the environment in {wrapper} that gives such a space ({hint})"
    )
