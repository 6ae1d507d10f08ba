"""The network of a policy: the default multilayer perceptrons, or a user's module, built without global randomness."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from flowrl.rl.spec import PolicySpec, Spaces
from flowrl.rl.torch_state import global_generator

Layers = tuple[tuple[Tensor, Tensor], ...]

ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu}
# d loss / d input from d loss / d output and the output
ACTIVATION_BACKWARDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "tanh": torch.ops.aten.tanh_backward.default,
    "relu": lambda gradient, output: gradient * (output > 0),
}


class MLP(nn.Module):
    """A multilayer perceptron: (B, sizes[0]) to (B, sizes[-1]), the activation between its layers.

    Parameters stand layer by layer, weight (out, in) and then bias (out,). They are left unset: whoever
    builds a policy fills them.
    """

    def __init__(self, sizes: Sequence[int], activation: str = "tanh"):
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.linears = tuple(
            nn.utils.skip_init(nn.Linear, fan_in, fan_out) for fan_in, fan_out in itertools.pairwise(sizes)
        )
        self.layers = nn.ModuleList(self.linears)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs (B, sizes[-1])."""
        *hidden, last = self.linears
        for layer in hidden:
            x = self.activation(functional.linear(x, layer.weight, layer.bias))
        return functional.linear(x, last.weight, last.bias)


class ActorCritic(nn.Module):
    """The default model: actor and critic apart; observations (B, ...) to (logits (B, A), values (B,)).

    Observations are flattened and cast to float32, nothing is scaled.
    """

    def __init__(self, observation_size: int, actions: int, hidden: Sequence[int], activation: str = "tanh"):
        super().__init__()
        self.activation = activation
        self.actor = MLP((observation_size, *hidden, actions), activation)
        self.critic = MLP((observation_size, *hidden, 1), activation)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (B, A) and values (B,)."""
        x = _rows(obs)
        return self.actor(x), self.critic(x).squeeze(-1)

    def towers(self) -> tuple[Layers, Layers]:
        """Weights and biases of actor and critic, layer by layer, as views without gradient."""
        actor, critic = (
            tuple((layer.weight.detach(), layer.bias.detach()) for layer in net.linears)
            for net in (self.actor, self.critic)
        )
        return actor, critic

    def from_flat(self, flat_parameters: Tensor, towers: tuple[Layers, Layers], obs: Tensor) -> tuple[Tensor, Tensor]:
        """What `forward` gives, with its gradient for the flat vector that `towers` are views of, in one piece."""
        logits_BA, values_B1 = _Towers.apply(flat_parameters, _rows(obs), towers, self.activation)
        return logits_BA, values_B1.squeeze(-1)


class _Towers(torch.autograd.Function):
    """Perceptrons of equal depth over the same inputs, with the backward pass written out.

    The same operations as autograd's, less its bookkeeping a parameter: with 64 × 64 units and minibatches of
    128 to 512 a fifth less time forwards and backwards.
    """

    @staticmethod
    def forward(
        ctx: Any, flat_parameters: Tensor, x: Tensor, towers: tuple[Layers, ...], activation: str
    ) -> tuple[Tensor, ...]:
        activate = ACTIVATIONS[activation]
        outputs, inputs = [], []
        for layers in towers:
            h = x
            for place, (weight, bias) in enumerate(layers):
                h = activate(h) if place else h
                inputs.append(h)
                h = torch.addmm(bias, h, weight.t())
            outputs.append(h)
        ctx.save_for_backward(*inputs)
        ctx.towers, ctx.activation = towers, activation
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *doutputs: Tensor) -> tuple[Tensor | None, ...]:
        activation_backward = ACTIVATION_BACKWARDS[ctx.activation]
        inputs = list(ctx.saved_tensors)
        parts, dx = [], None  # parts from the last parameter to the first
        for layers, doutput in zip(reversed(ctx.towers), reversed(doutputs), strict=True):
            d = doutput
            for place in range(len(layers) - 1, -1, -1):
                h = inputs.pop()
                parts += [d.sum(0), d.t().mm(h).view(-1)]
                if place:
                    d = activation_backward(d.mm(layers[place][0]), h)
            if ctx.needs_input_grad[1]:
                dx_tower = d.mm(layers[0][0])
                dx = dx_tower if dx is None else dx + dx_tower
        return torch.cat(parts[::-1]), dx, None, None


def build_module(spec: PolicySpec, spaces: Spaces, seed: np.random.SeedSequence) -> nn.Module:
    """The module of a spec: the default model with its parameters unset, or the user's as its constructor made it.

    A user's constructor draws from torch's global generator; it is seeded for that and put back.

    Raises:
        TypeError: `spec.model` returned something else than a torch.nn.Module.
    """
    if spec.model is None:
        size = math.prod(spaces.observation.shape)
        return ActorCritic(size, int(spaces.action.n), tuple(spec.hidden), spec.activation)
    with global_generator(seed):
        module = spec.model(spaces.observation, spaces.action)
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"PolicySpec.model must return a torch.nn.Module, {spec.model!r} returned {type(module).__name__}"
        )
    return module


def _rows(obs: Tensor) -> Tensor:
    return obs.reshape(len(obs), -1).to(torch.float32)
