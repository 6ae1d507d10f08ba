"""Soft and deterministic actors with their critics (torch): actor, then critics, then the temperature."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from flowrl.rl.actions import ActionLayout
from flowrl.rl.actor_shapes import actor_shapes, critic_shapes
from flowrl.rl.encoders import Encoder
from flowrl.rl.ensemble import Ensemble
from flowrl.rl.models import MLP, initialize
from flowrl.rl.observations import ObsLayout
from flowrl.rl.spec import PolicySpec, Spaces

Obs = Tensor | Mapping[str, Tensor]


class Actor(nn.Module):
    """Observations to params (B, P), behind an encoder of its own."""

    def __init__(self, spec: PolicySpec, spaces: Spaces):
        super().__init__()
        self.activation = spec.activation
        self.encoder = Encoder(spec, ObsLayout.of(spaces.observation))
        self.net = _perceptron(actor_shapes(spec, spaces, self.encoder.features), spec)

    def forward(self, obs: Obs) -> Tensor:
        """Params (B, P)."""
        return self.net(self.encoder(obs))


class Critics(nn.Module):
    """Observations and actions (B, D) between −1 and 1 to Q (K, B); without actions, observations to Q (K, B, A).

    The K perceptrons share an encoder, which has parameters only where there are images.
    """

    def __init__(self, spec: PolicySpec, spaces: Spaces):
        super().__init__()
        self.activation = spec.activation
        self.encoder = Encoder(spec, ObsLayout.of(spaces.observation))
        shapes = critic_shapes(spec, spaces, self.encoder.features)
        self.nets = nn.ModuleList(_perceptron(shapes, spec) for _ in range(spec.critics))

    def features(self, obs: Obs, actions_BD: Tensor | None = None) -> Tensor:
        """What the perceptrons see (B, F)."""
        x_BF = self.encoder(obs)
        return x_BF if actions_BD is None else torch.cat((x_BF, actions_BD), 1)

    def forward(self, obs: Obs, actions_BD: Tensor | None = None) -> Tensor:
        """Q (K, B), or (K, B, A) without actions."""
        x_BF = self.features(obs, actions_BD)
        q = torch.stack([net(x_BF) for net in self.nets])
        return q if actions_BD is None else q.squeeze(-1)


class Temperature(nn.Module):
    """log α (1,), of the weight of the entropy."""

    def __init__(self, initial: float):
        super().__init__()
        self.log_alpha = nn.Parameter(torch.full((1,), math.log(initial)))


class ActorAndCritics(nn.Module):
    """The parameter groups "actor", "critics" and, of a soft actor, "temperature", in this order."""

    def __init__(self, spec: PolicySpec, actor: nn.Module, critics: nn.Module):
        super().__init__()
        self.actor, self.critics = actor, critics
        if spec.head == "soft_actor":
            self.temperature = Temperature(spec.initial_temperature)

    def forward(self, obs: Obs) -> Tensor:
        """The actor's params (B, P)."""
        return self.actor(obs)

    def ensembles(self) -> tuple[Ensemble, Ensemble] | None:
        """The perceptrons of the actor and those of the critics; None with images or a module of a user's own."""
        if not isinstance(self.actor, Actor) or not isinstance(self.critics, Critics):
            return None
        if len(self.actor.encoder.images):
            return None
        nets = [net.linears for net in self.critics.nets if isinstance(net, MLP)]
        actor = Ensemble.of([self.actor.net.linears], self.actor.activation)
        return actor, Ensemble.of(nets, self.critics.activation)


def default_module(spec: PolicySpec, spaces: Spaces, seed: np.random.SeedSequence) -> ActorAndCritics:
    """The default model; its parameters are unset where workers run it in NumPy, else initialized from the seed."""
    module = ActorAndCritics(spec, Actor(spec, spaces), Critics(spec, spaces))
    if module.ensembles() is None:
        rng = np.random.default_rng(seed)
        for part in (module.actor, module.critics):
            initialize(part.encoder, rng)  # type: ignore[arg-type]
            for net in part.modules():
                if isinstance(net, MLP):
                    _fill(net, rng)
        if ActionLayout.for_policy(spec, spaces.action).kind == "box":
            actor = module.actor
            assert isinstance(actor, Actor)
            bias = actor.net.linears[-1].bias
            nn.init.constant_(bias.data[len(bias) // 2 :], spec.initial_log_std)
    return module


def of_users_module(spec: PolicySpec, made: nn.Module) -> ActorAndCritics:
    """A user's module with the submodules `actor` and `critics`.

    Raises:
        TypeError: they are missing, or there are parameters beside or shared by them.
    """
    actor, critics = getattr(made, "actor", None), getattr(made, "critics", None)
    if not isinstance(actor, nn.Module) or not isinstance(critics, nn.Module):
        raise TypeError(
            f"head={spec.head!r} needs a module with the submodules `actor` and `critics`, {spec.model!r} made "
            f"one with {sorted(name for name, _ in made.named_children())}"
        )
    mine = {id(p) for p in actor.parameters()}, {id(p) for p in critics.parameters()}
    others = [name for name, p in made.named_parameters() if id(p) not in mine[0] | mine[1]]
    if others or mine[0] & mine[1]:
        raise TypeError(
            f"with head={spec.head!r} each parameter belongs to `actor` or to `critics`, as each is trained apart; "
            f"{spec.model!r} has {others or 'some in both'}"
        )
    return ActorAndCritics(spec, actor, critics)


def _perceptron(shapes: tuple[tuple[int, int], ...], spec: PolicySpec) -> MLP:
    return MLP((shapes[0][1], *(out for out, _ in shapes)), spec.activation)


def _fill(net: MLP, rng: np.random.Generator) -> None:
    for layer in net.linears:
        bound = 1 / math.sqrt(layer.in_features)
        for parameter in (layer.weight, layer.bias):
            drawn = rng.uniform(-bound, bound, tuple(parameter.shape)).astype(np.float32)
            parameter.data.copy_(torch.from_numpy(drawn))
