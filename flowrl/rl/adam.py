"""Adam over one flat vector (arXiv:1412.6980, algorithm 1)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

BETA1, BETA2 = 0.9, 0.999


class Adam:
    """The moments of one flat vector of parameters; `step` moves the parameters.

    The numbers of `torch.optim.Adam` in half its time a step: that one keeps books for many parameters.
    """

    __slots__ = ("count", "eps", "mean", "square")

    def __init__(self, size: int, *, eps: float):
        self.eps = eps
        self.count = 0
        self.mean = torch.zeros(size)
        self.square = torch.zeros(size)

    def step(self, parameters: Tensor, gradient: Tensor, learning_rate: float) -> None:
        """Moves the parameters in place against the gradient."""
        self.count += 1
        self.mean.lerp_(gradient, 1 - BETA1)
        self.square.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
        # Both corrections of the bias are moved out of the vector operations (section 2 of the paper, at its end).
        correction = math.sqrt(1 - BETA2**self.count)
        scale = self.square.sqrt().add_(self.eps * correction)
        parameters.addcdiv_(self.mean, scale, value=-learning_rate * correction / (1 - BETA1**self.count))

    def get_state(self) -> dict[str, Any]:
        """Copies of both moments (float32, one number a parameter) and the count of steps."""
        return {"count": self.count, "mean": self.mean.numpy().copy(), "square": self.square.numpy().copy()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on from a state.

        Raises:
            ValueError: the moments are of another length.
        """
        for name in ("mean", "square"):
            found = torch.tensor(state[name])
            if found.shape != self.mean.shape:
                raise ValueError(f"Adam's {name} has {len(self.mean)} numbers, the state has {len(found)}")
            setattr(self, name, found)
        self.count = int(state["count"])
