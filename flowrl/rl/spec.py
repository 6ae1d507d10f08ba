"""What a policy is made of, and how far training has come. No torch here: workers may do without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class PolicySpec:
    """What a policy is made of; its spaces come from the environment.

    model: a function (observation space, action space) -> torch.nn.Module that maps observations to
        (logits_BA, values_B); None builds two multilayer perceptrons, actor and critic apart.
    hidden: widths of the hidden layers of the default model.
    activation: between the layers of the default model.
    """

    model: Callable[[Any, Any], Any] | None = None
    hidden: Sequence[int] = (64, 64)
    activation: Literal["tanh", "relu"] = "tanh"

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))
        if any(width < 1 for width in self.hidden):
            raise ValueError(f"hidden widths must be at least 1, got {self.hidden}")
        if self.activation not in ("tanh", "relu"):
            raise ValueError(f"activation must be 'tanh' or 'relu', got {self.activation!r}")


@dataclass(frozen=True)
class Spaces:
    """The observation and action space (Gymnasium's) of one policy."""

    observation: Any
    action: Any


@dataclass(frozen=True)
class Progress:
    """How far training has come; schedules are functions of it (global counts)."""

    env_steps: int = 0
    updates: int = 0
