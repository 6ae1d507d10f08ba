"""Which observation and action spaces are supported, and their sizes."""

from __future__ import annotations

from typing import Any

from flowrl.rl.actions import ActionLayout
from flowrl.rl.observations import ObsLayout
from flowrl.rl.spec import PolicySpec, Spaces
from flowrl.rl.unsupported import UnsupportedSpace

__all__ = [
    "UnsupportedSpace",
    "check_policy",
    "check_spaces",
    "num_params",
    "obs_size",
    "runs_in_numpy",
]


def check_spaces(spaces: Spaces, where: str = "the environment") -> None:
    """Nothing, if a policy can observe and act in these spaces.

    Args:
        spaces: the observation and the action space of one policy.
        where: names the environment in the message.

    Raises:
        UnsupportedSpace: names the space (and the place in a nested one), what is supported and what to do.
    """
    layout = ObsLayout.of(spaces.observation, where)
    actions = ActionLayout.of(spaces.action, where=where)
    layout.check_mask(actions, where)


def check_policy(spec: PolicySpec, spaces: Spaces, where: str = "the environment") -> None:
    """Nothing, if a policy of this specification can observe and act in these spaces.

    Raises:
        UnsupportedSpace: as `check_spaces`, or `squash` for an action space without finite bounds.
    """
    check_spaces(spaces, where)
    actions = ActionLayout.of(spaces.action, squash=spec.squash, where=where)
    if spec.head == "q" and actions.kind != "discrete":
        raise UnsupportedSpace.of(
            "action", spaces.action, where, "PolicySpec(head='q') has a value an action; or use SAC or PPO",
            supported="Discrete",
        )  # fmt: skip


def num_params(action_space: Any) -> int:
    """P, how many numbers a model's head gives for one action.

    Discrete: n logits. MultiDiscrete: the logits of all choices, one after the other. MultiBinary: a logit a bit.
    Box: the means of all numbers and then their log standard deviations.
    """
    return ActionLayout.of(action_space).num_params


def obs_size(spaces: Spaces) -> int:
    """How many numbers one encoded observation holds: what the default model's first layer sees, images flattened."""
    return ObsLayout.of(spaces.observation).size


def runs_in_numpy(spec: PolicySpec, spaces: Spaces) -> bool:
    """Whether workers run this policy without torch: the default model without images and without memory."""
    return spec.model is None and spec.recurrent is None and not ObsLayout.of(spaces.observation).images
