"""What a policy is made of, and how far training has come. No torch here: workers may do without it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal

from flowrl.numbers import check_finite, check_whole

HEADS = ("actor_critic", "q", "soft_actor", "deterministic_actor")
ACTOR_HEADS = ("soft_actor", "deterministic_actor")  # those with critics that workers do without


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
    head: Literal["actor_critic", "q", "soft_actor", "deterministic_actor"] = "actor_critic"
    """"actor_critic": outputs are the parameters of a distribution over actions, and a value. "q": outputs are the
    values Q(s, a) of Discrete actions, and the greedy one is taken; a module of one's own then maps observations to
    (B, A) alone, or (B, A · atoms). "soft_actor": an actor, for Box (a squashed Gaussian whose log standard deviation
    depends on the observation) or Discrete, with critics Q of its own and a temperature (SAC). "deterministic_actor":
    tanh, scaled to a Box's bounds, with critics (TD3, DDPG). A module of one's own then has the submodules `actor`,
    observations to params (B, P), and `critics`, (observations, actions) to (K, B), or observations to (K, B, A) for
    Discrete actions; actions are in the units of −1..1 between the bounds."""
    dueling: bool = False
    """Q = V + A − mean(A), from two perceptrons behind the encoder (arXiv:1511.06581, equation 9)."""
    noisy: bool = False
    """The layers behind the encoder explore by learned noise (arXiv:1706.10295, factorized)."""
    atoms: int | None = None
    """Q is the mean of a learned distribution over so many returns (arXiv:1707.06887); None learns the mean alone."""
    value_range: tuple[float, float] | None = None
    """The least and the greatest of these returns."""
    critics: int = 2
    """K, how many critics of a soft or deterministic actor, the least of which counts."""
    log_std_range: tuple[float, float] = (-20.0, 2.0)
    """Within which a soft actor's log standard deviations are clipped."""
    initial_temperature: float = 1.0
    """α, the weight of a soft actor's entropy, before it is learned."""
    exploration_noise: float = 0.1
    """Standard deviation of the Gaussian noise that a deterministic actor's workers add to actions, in units of −1..1
    between the bounds, to which the sum is clipped."""

    def __post_init__(self) -> None:
        self._check_numbers()
        if self.activation not in ("tanh", "relu"):
            raise ValueError(f"activation must be 'tanh' or 'relu', got {self.activation!r}")
        if self.recurrent not in (None, "lstm", "gru"):
            raise ValueError(f"recurrent must be None, 'lstm' or 'gru', got {self.recurrent!r}")
        if not -20.0 <= self.initial_log_std <= 2.0:
            raise ValueError(f"initial_log_std must be from -20 to 2, got {self.initial_log_std}")
        if self.convolutions is not None:
            self._check_convolutions()
        for name in ("recurrent", "convolutions", "image_features"):
            if self.model is not None and getattr(self, name) is not None:
                raise ValueError(
                    f"{name} is for the default model and would change nothing in {self.model!r}; leave one of them out"
                )
        if self.head not in HEADS:
            raise ValueError(f"head must be one of {HEADS}, got {self.head!r}")
        self._check_values()
        self._check_actor()

    def _check_numbers(self) -> None:
        for name, kind in (("hidden", "widths"), ("value_range", "numbers"), ("log_std_range", "numbers")):
            given = getattr(self, name)
            if given is not None or name != "value_range":
                if isinstance(given, str) or not isinstance(given, Iterable):
                    raise ValueError(f"{name} must be a tuple of {kind}, got {given!r}")
                object.__setattr__(self, name, tuple(given))
        if any(isinstance(width, bool) or not isinstance(width, Integral) or width < 1 for width in self.hidden):
            raise ValueError(f"hidden widths must be at least 1, got {self.hidden}")
        for name in ("recurrent_size", "critics", "image_features"):
            if getattr(self, name) is not None or name != "image_features":
                check_whole(name, getattr(self, name))
        if self.atoms is not None:
            check_whole("atoms", self.atoms, 2)
        for name in ("initial_log_std", "initial_temperature", "exploration_noise"):
            check_finite(name, getattr(self, name))
        for name in ("value_range", "log_std_range"):
            pair = getattr(self, name)
            if pair is not None and (len(pair) != 2 or not all(isinstance(number, Real) for number in pair)):
                raise ValueError(f"{name} must be (least, greatest), got {pair!r}")

    def _check_values(self) -> None:
        for name in ("dueling", "noisy", "atoms", "value_range"):
            if getattr(self, name) and self.head != "q":
                raise ValueError(f"{name} is for head='q' and would change nothing in head={self.head!r}")
            if getattr(self, name) and self.model is not None and name in ("dueling", "noisy"):
                raise ValueError(f"{name} is for the default model and would change nothing in {self.model!r}")
        if (self.atoms is None) != (self.value_range is None):
            raise ValueError(
                f"atoms and value_range belong together, got atoms={self.atoms} and value_range={self.value_range}"
            )
        if self.atoms is None or self.value_range is None:
            return
        if not -math.inf < self.value_range[0] < self.value_range[1] < math.inf:
            raise ValueError(f"value_range must be (least, greatest), both finite, got {self.value_range}")

    def _check_actor(self) -> None:
        if self.head in ACTOR_HEADS:
            if self.recurrent is not None:
                raise ValueError(f"head={self.head!r} keeps no state between steps: recurrent must be None")
            if self.squash:
                raise ValueError(f"head={self.head!r} squashes Box actions by itself: leave squash out")
        least, greatest = self.log_std_range
        if not -math.inf < least <= self.initial_log_std <= greatest < math.inf and self.head == "soft_actor":
            raise ValueError(
                f"log_std_range must be (least, greatest), both finite, with initial_log_std={self.initial_log_std} "
                f"between them, got {self.log_std_range}"
            )
        if not 0.0 < self.initial_temperature < math.inf:
            raise ValueError(f"initial_temperature must be above 0 and finite, got {self.initial_temperature}")
        if not 0.0 <= self.exploration_noise < math.inf:
            raise ValueError(f"exploration_noise must be at least 0 and finite, got {self.exploration_noise}")

    def _check_convolutions(self) -> None:
        layers = tuple(tuple(layer) for layer in self.convolutions or ())
        object.__setattr__(self, "convolutions", layers)
        if not layers or any(len(layer) != 3 or min(layer) < 1 for layer in layers):
            raise ValueError(
                f"convolutions must be one or more (channels, kernel, stride), each at least 1, got {layers}"
            )


@dataclass(frozen=True)
class Team:
    """All possible agents of an environment, in order, and how many numbers its global state has."""

    agents: tuple[Any, ...]
    state_size: int


@dataclass(frozen=True)
class Spaces:
    """The observation and action space (Gymnasium's) of one policy; where agents are joined, of which team."""

    observation: Any
    action: Any
    team: Team | None = None


@dataclass(frozen=True)
class Progress:
    """How far training has come; schedules are functions of it (global counts)."""

    env_steps: int = 0
    updates: int = 0
