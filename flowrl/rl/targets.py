"""When a target network takes over the weights in training: counted in updates, inside the learner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from flowrl.numbers import check_finite, check_whole
from flowrl.rl.policy import Policy


class TargetUpdates:
    """Moves a policy's target: a copy after every so many updates, or a step of `tau` of the way after each one.

    Every policy in training has a counter of its own. Without settings the target moves only when it is told to.
    """

    def __init__(self) -> None:
        self.every_updates: int | None = None
        self.tau: float | None = None
        self._since = 0  # updates since the last copy

    def set(self, every_updates: int | None, tau: float | None) -> None:
        """Takes settings; the count goes on.

        Raises:
            ValueError: both or neither are given, `every_updates` is below 1, or `tau` is not in 0..1 (0 left out).
        """
        if (every_updates is None) == (tau is None):
            raise ValueError(f"give every_updates or tau, one of them; got every_updates={every_updates}, tau={tau}")
        if every_updates is not None:
            check_whole("every_updates", every_updates)
        if tau is not None:
            check_finite("tau", tau)
            if not 0.0 < tau <= 1.0:
                raise ValueError(f"tau must be above 0 and at most 1, got {tau}")
        self.every_updates, self.tau = every_updates, tau

    def begin(self, policy: Policy) -> None:
        """The target is there from the start, if it will be moved: equal to the policy before its first update."""
        if self.every_updates is not None or self.tau is not None:
            _ = policy.target

    def after_update(self, policy: Policy) -> None:
        """Counts an update, and moves the target if it is due."""
        if self.tau is not None:
            self.move(policy, self.tau)
        elif self.every_updates is not None:
            self._since += 1
            if self._since >= self.every_updates:
                self.move(policy)

    def move(self, policy: Policy, tau: float = 1.0) -> None:
        """target ← τ · policy + (1 − τ) · target for the parameters; buffers (statistics too) are copied.

        A soft actor's target has use for its critics alone, so only those follow by a τ below 1.
        """
        self._since = 0
        target = policy.target
        with torch.no_grad():
            if tau == 1.0:
                target.flat.copy_(policy.flat)
            else:
                target.flat[policy.followed].lerp_(policy.flat[policy.followed], tau)
                target.flat[len(target.flat_parameters) :] = policy.flat[len(policy.flat_parameters) :]
        target.copy_other_buffers(policy)

    def get_state(self) -> dict[str, Any]:
        """The count."""
        return {"since": self._since}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state; the settings stay."""
        self._since = int(state["since"])
