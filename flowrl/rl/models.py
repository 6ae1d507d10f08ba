"""The network of a policy: the default multilayer perceptrons, or a user's module, built without global randomness."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from flowrl.rl.actions import ActionLayout
from flowrl.rl.encoders import Encoder
from flowrl.rl.initial import ACTOR_GAIN, CRITIC_GAIN, HIDDEN_GAIN, orthogonal
from flowrl.rl.observations import ObsLayout
from flowrl.rl.spec import ACTOR_HEADS, PolicySpec, Spaces
from flowrl.rl.torch_state import global_generator
from flowrl.rl.towers import ACTIVATIONS, Layers, Towers


class LogStd(nn.Module):
    """Log standard deviations (D,) that no observation changes."""

    def __init__(self, size: int):
        super().__init__()
        self.log_std = nn.Parameter(torch.zeros(size))


class MLP(nn.Module):
    """A multilayer perceptron: (B, sizes[0]) to (B, sizes[-1]), the activation between its layers.

    Parameters stand layer by layer, weight (out, in) and then bias (out,). They are left unset: whoever
    builds a policy fills them. With `log_stds` there are as many more parameters at the end, which are appended
    to every row.
    """

    def __init__(self, sizes: Sequence[int], activation: str = "tanh", log_stds: int = 0):
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.linears = tuple(
            nn.utils.skip_init(nn.Linear, fan_in, fan_out) for fan_in, fan_out in itertools.pairwise(sizes)
        )
        self.layers = nn.ModuleList(self.linears)
        self.noise = LogStd(log_stds) if log_stds else None

    def forward(self, x: Tensor) -> Tensor:
        """The outputs (B, sizes[-1] + log_stds)."""
        *hidden, last = self.linears
        for layer in hidden:
            x = self.activation(functional.linear(x, layer.weight, layer.bias))
        out = functional.linear(x, last.weight, last.bias)
        return out if self.noise is None else with_log_std(out, self.noise.log_std)


class ActorCritic(nn.Module):
    """The default model: actor and critic apart, on one encoder; observations to (params (B, P), values (B,)).

    Without images the encoder has no parameters: observations are flattened and cast to float32, nothing is scaled.
    """

    def __init__(self, spec: PolicySpec, spaces: Spaces):
        super().__init__()
        actions = ActionLayout.of(spaces.action, squash=spec.squash)
        self.activation = spec.activation
        self.encoder = Encoder(spec, ObsLayout.of(spaces.observation))
        sizes = (self.encoder.features, *spec.hidden)
        box = actions.kind == "box"
        outputs = actions.size if box else actions.num_params
        self.actor = MLP((*sizes, outputs), spec.activation, actions.size if box else 0)
        self.critic = MLP((*sizes, 1), spec.activation)

    def forward(self, obs: Tensor | Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Params (B, P) and values (B,)."""
        x = self.encoder(obs)
        return self.actor(x), self.critic(x).squeeze(-1)

    def towers(self) -> tuple[Layers, Layers] | None:
        """Weights and biases of actor and critic, layer by layer, as views without gradient; None with images."""
        if len(self.encoder.images):
            return None
        actor, critic = (
            tuple((layer.weight.detach(), layer.bias.detach()) for layer in net.linears)
            for net in (self.actor, self.critic)
        )
        return actor, critic

    def from_flat(
        self, flat_parameters: Tensor, towers: tuple[Layers, Layers], obs: Tensor | Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """What `forward` gives, with its gradient for the flat vector that `towers` are views of, in one piece."""
        noise = 0 if self.actor.noise is None else self.actor.noise.log_std.numel()
        params_BP, values_B1 = Towers.apply(flat_parameters, self.encoder(obs), towers, (noise, 0), self.activation)
        if noise:
            end = sum(weight.numel() + bias.numel() for weight, bias in towers[0])
            params_BP = with_log_std(params_BP, flat_parameters[end : end + noise])
        return params_BP, values_B1.squeeze(-1)


def with_log_std(mean_BD: Tensor, log_std_D: Tensor) -> Tensor:
    """Means (B, D) and then the same log standard deviations in every row: (B, 2·D)."""
    return torch.cat((mean_BD, log_std_D.expand_as(mean_BD)), -1)


def build_module(spec: PolicySpec, spaces: Spaces, seed: np.random.SeedSequence) -> nn.Module:
    """The module of a spec: the default model, initialized from the seed, or the user's as its constructor made it.

    A user's constructor draws from torch's global generator; it is seeded for that and put back. The default model
    that workers run in NumPy has its parameters unset: `initial_weights` gives them.

    Raises:
        TypeError: `spec.model` returned something else than a torch.nn.Module, or not what its head needs.
    """
    from flowrl.rl.critics import default_module, of_users_module

    if spec.model is not None:
        with global_generator(seed):
            module = spec.model(spaces.observation, spaces.action)
        if not isinstance(module, nn.Module):
            raise TypeError(
                f"PolicySpec.model must return a torch.nn.Module, {spec.model!r} returned {type(module).__name__}"
            )
        return of_users_module(spec, module) if spec.head in ACTOR_HEADS else module
    if spec.head in ACTOR_HEADS:
        return default_module(spec, spaces, seed)
    if spec.head == "q":
        from flowrl.rl.q_models import QNetwork

        network = QNetwork(spec, spaces, np.random.default_rng(seed.generate_state(4)))
        initialize(network.encoder, np.random.default_rng(seed))
        return network
    if spec.recurrent is not None:
        from flowrl.rl.recurrent import RecurrentActorCritic

        return RecurrentActorCritic(spec, spaces, np.random.default_rng(seed))
    made = ActorCritic(spec, spaces)
    if made.towers() is None:
        initialize(made.encoder, np.random.default_rng(seed))
        initialize_heads(made.actor, made.critic, spec, np.random.default_rng(seed.generate_state(4)))
    return made


def initialize(module: nn.Module, rng: np.random.Generator, gain: float = HIDDEN_GAIN) -> None:
    """Fills every linear and convolutional layer below: orthogonal weights with this gain, biases zero."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            fill(layer, rng, gain)


def initialize_heads(actor: MLP, critic: MLP, spec: PolicySpec, rng: np.random.Generator) -> None:
    """Fills both perceptrons as `flowrl.rl.initial.initial_weights` does: gain 0.01 ends the actor, 1 the critic."""
    for net, head_gain in ((actor, ACTOR_GAIN), (critic, CRITIC_GAIN)):
        for layer in net.linears:
            fill(layer, rng, head_gain if layer is net.linears[-1] else HIDDEN_GAIN)
    if actor.noise is not None:
        nn.init.constant_(actor.noise.log_std, spec.initial_log_std)


def fill(layer: nn.Linear | nn.Conv2d, rng: np.random.Generator, gain: float) -> None:
    """Orthogonal weights (arXiv:1312.6120), a convolution's as (out, in × height × width); the bias is zero."""
    out = len(layer.weight)
    weight = orthogonal(out, layer.weight.numel() // out, rng)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(gain * weight).reshape(layer.weight.shape))
        if layer.bias is not None:
            layer.bias.zero_()
