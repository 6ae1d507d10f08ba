"""The greedy choice among actions by their values, as a distribution (torch)."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Greedy:
    """The action of the greatest value for each row, from values (..., A) of actions."""

    __slots__ = ("params",)

    def __init__(self, params: Tensor):
        self.params = params

    def logp(self, actions: Tensor) -> Tensor:
        """0 for the greedy action and -inf for any other (...)."""
        return torch.zeros(actions.shape).masked_fill(self.mode() != actions, -math.inf)

    def logp_and_entropy(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """The same and the entropy, 0 (...)."""
        return self.logp(actions), torch.zeros(actions.shape)

    def mode(self) -> Tensor:
        """The greedy action (...)."""
        return self.params.argmax(-1)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """The greedy action (...): exploration is what epsilon or noisy layers add."""
        return self.mode()
