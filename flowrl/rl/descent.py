"""From a gradient to new parameters: a clip by global norm and an Adam for each parameter group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from flowrl.rl.adam import Adam


class Descent:
    """The optimizers of a policy, one a parameter group, made at a group's first step.

    max_grad_norm: a gradient's global norm is clipped to it; None leaves it.
    adam_eps: Adam's epsilon.
    """

    def __init__(self, *, max_grad_norm: float | None, adam_eps: float):
        self.max_grad_norm = max_grad_norm
        self.adam_eps = adam_eps
        self._optimizers: dict[str, Adam] = {}

    def step(self, group: str, parameters: Tensor, gradient: Tensor, norm: float, learning_rate: float) -> None:
        """Moves a group's parameters in place against their gradient, which is clipped in place; `norm` is its norm."""
        if self.max_grad_norm is not None and norm > self.max_grad_norm:
            gradient.mul_(self.max_grad_norm / (norm + 1e-6))
        self._optimizer(group, len(parameters)).step(parameters, gradient, learning_rate)

    def get_state(self) -> dict[str, Any]:
        """The state of each group's Adam."""
        return {group: adam.get_state() for group, adam in self._optimizers.items()}

    def set_state(self, state: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
        """Goes on from a state; `sizes` are the lengths of its groups.

        Raises:
            ValueError: a group has another length in the state.
        """
        self._optimizers = {}
        for group, moments in state.items():
            self._optimizer(group, sizes[group]).set_state(moments)

    def _optimizer(self, group: str, size: int) -> Adam:
        if group not in self._optimizers:
            self._optimizers[group] = Adam(size, eps=self.adam_eps)
        return self._optimizers[group]


class EarlyStop:
    """Says when a policy has moved too far from the one that acted, to be trained on the same batch any longer.

    target_kl: how far it may move, by the metric `kl` that a loss gives of a minibatch; None: as far as it will.
    """

    def __init__(self, target_kl: float | None):
        self.target_kl = target_kl
        self.stopped = False

    def begin(self) -> None:
        """A new batch, on which the policy has not moved."""
        self.stopped = False

    def check(self, metrics: Mapping[str, Tensor | float]) -> bool:
        """Whether training on this batch ends before the update that these metrics belong to.

        They are means over the whole minibatch, all its parts: it is decided once, for all of them.

        Raises:
            KeyError: the loss gave no `kl`.
        """
        if self.target_kl is None or self.stopped:
            return self.stopped
        if "kl" not in metrics:
            raise KeyError(
                f"target_kl={self.target_kl} needs a loss with the metric 'kl', this one gave {sorted(metrics)}"
            )
        self.stopped = float(metrics["kl"]) > self.target_kl
        return self.stopped
