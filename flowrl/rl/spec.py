"""What a policy is made of, and how far training has come. No torch here: workers may do without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class PolicySpec:
    """What a policy is made of; its spaces come from the environment.

    Raises:
        ValueError: a value out of its range, or a setting of the default model beside a `model` of one's own.
    """

    model: Callable[[Any, Any], Any] | None = None
    """A function (observation space, action space) -> torch.nn.Module that maps observations to (params (B, P),
    values (B,)), P = `flowrl.rl.spaces.num_params(action space)` (logits, or means and then log standard deviations).
    Nested observations come as a dict of tensors by path ("arm/joints"), without the action mask. A module with memory
    has `state_shapes`, as `flowrl.rl.recurrent.RecurrentActorCritic` has. None builds multilayer perceptrons, actor and
    critic apart, on the encoded observation."""
    hidden: Sequence[int] = (64, 64)
    """Widths of the hidden layers of the default model, behind the convolutions where there are images."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Between the layers of the default model."""
    squash: bool = False
    """Box actions are tanh of a Gaussian, scaled to the bounds; otherwise a Gaussian, clipped for the environment
    only."""
    initial_log_std: float = 0.0
    """What the default model's log standard deviations of Box actions begin with."""
    normalize_obs: bool = False
    """Observations (Box ones, images aside) are shifted and scaled by their running mean and variance, which the
    learner keeps, and clipped to ±10."""
    recurrent: Literal["lstm", "gru"] | None = None
    """The default model gets a cell of this kind behind its encoder, shared by actor and critic."""
    recurrent_size: int = 64
    """The width of that cell."""
    convolutions: Sequence[tuple[int, int, int]] | None = None
    """(channels, kernel, stride) of each convolution over images; None chooses by the image's size."""
    image_features: int | None = None
    """The width of the layer behind the convolutions; None chooses by the image's size."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))
        if any(width < 1 for width in self.hidden):
            raise ValueError(f"hidden widths must be at least 1, got {self.hidden}")
        if self.activation not in ("tanh", "relu"):
            raise ValueError(f"activation must be 'tanh' or 'relu', got {self.activation!r}")
        if self.recurrent not in (None, "lstm", "gru"):
            raise ValueError(f"recurrent must be None, 'lstm' or 'gru', got {self.recurrent!r}")
        if self.recurrent_size < 1:
            raise ValueError(f"recurrent_size must be at least 1, got {self.recurrent_size}")
        if not -20.0 <= self.initial_log_std <= 2.0:
            raise ValueError(f"initial_log_std must be from -20 to 2, got {self.initial_log_std}")
        if self.image_features is not None and self.image_features < 1:
            raise ValueError(f"image_features must be at least 1, got {self.image_features}")
        if self.convolutions is not None:
            self._check_convolutions()
        for name in ("recurrent", "convolutions", "image_features"):
            if self.model is not None and getattr(self, name) is not None:
                raise ValueError(
                    f"{name} is for the default model and would change nothing in {self.model!r}; leave one of them out"
                )

    def _check_convolutions(self) -> None:
        layers = tuple(tuple(layer) for layer in self.convolutions or ())
        object.__setattr__(self, "convolutions", layers)
        if not layers or any(len(layer) != 3 or min(layer) < 1 for layer in layers):
            raise ValueError(
                f"convolutions must be one or more (channels, kernel, stride), each at least 1, got {layers}"
            )


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
