"""The actions of a deterministic actor over a batch of its outputs (torch)."""

from __future__ import annotations

import torch
from torch import Tensor


class Deterministic:
    """Numbers tanh(x) (..., *shape) from outputs x (..., D); a sample has Gaussian noise and is clipped to −1..1."""

    __slots__ = ("_noise", "_shape", "params")

    def __init__(self, params: Tensor, shape: tuple[int, ...], noise: float):
        self.params, self._shape, self._noise = params, shape, noise

    def mode(self) -> Tensor:
        """Numbers without noise."""
        return self._shaped(torch.tanh(self.params))

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Numbers with noise, drawn with the generator."""
        noise = torch.randn(self.params.shape, generator=generator)
        return self._shaped(torch.tanh(self.params).add(noise, alpha=self._noise).clamp(-1, 1))

    def logp(self, actions: Tensor) -> Tensor:
        """Nothing: clipped noise has no density.

        Raises:
            TypeError: always.
        """
        raise TypeError("a deterministic actor's actions have no density, so there is no log-probability of them")

    def logp_and_entropy(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Nothing, as `logp`."""
        logp = self.logp(actions)
        return logp, logp

    def _shaped(self, numbers: Tensor) -> Tensor:
        return numbers.unflatten(-1, self._shape) if self._shape else numbers.squeeze(-1)
