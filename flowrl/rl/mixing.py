"""How the values of a team's agents become the value of the team (QMIX, arXiv:1803.11485)."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from flowrl.rl.flat import FlatModule
from flowrl.rl.initial import HIDDEN_GAIN
from flowrl.rl.models import MLP, fill
from flowrl.rl.policy import Policy
from flowrl.rl.spec import Team


class MonotonicNet(nn.Module):
    """Q_tot (B,) of the agents' values (B, K), which rises with each of them, whatever the global state (B, S).

    Q_tot = w2(s) · elu(W1(s) q + b1(s)) + v(s) (section 4.1): W1 and w2 are absolute values of linear functions of the
    state, so never negative; b1 is linear in it, v a perceptron of one hidden layer.
    """

    def __init__(self, agents: int, state_size: int, embedding: int, rng: np.random.Generator):
        super().__init__()
        self._shape = agents, embedding
        self.first = MLP((state_size, agents * embedding))
        self.bias = MLP((state_size, embedding))
        self.second = MLP((state_size, embedding))
        self.value = MLP((state_size, embedding, 1), "relu")
        for net in (self.first, self.bias, self.second, self.value):
            for layer in net.linears:
                fill(layer, rng, HIDDEN_GAIN if layer is not net.linears[-1] else 1.0)
        # Where the state is 0, all weights would be: a team whose value no agent's value moves.
        for net in (self.first, self.second):
            nn.init.constant_(net.linears[-1].bias, 1.0 / embedding)

    def forward(self, q_BK: Tensor, state_BS: Tensor) -> Tensor:
        """Q_tot (B,)."""
        return mixed(
            q_BK,
            self.first(state_BS).unflatten(-1, self._shape),
            self.bias(state_BS),
            self.second(state_BS),
            self.value(state_BS).squeeze(-1),
        )


def mixed(q_BK: Tensor, first_BKE: Tensor, bias_BE: Tensor, second_BE: Tensor, value_B: Tensor) -> Tensor:
    """|second| · elu(q |first| + bias) + value (B,): equation 4 of arXiv:1803.11485 holds, as no weight is negative."""
    hidden_BE = functional.elu(torch.einsum("bk,bke->be", q_BK, first_BKE.abs()) + bias_BE)
    return (hidden_BE * second_BE.abs()).sum(-1) + value_B


class Mixer(FlatModule):
    """A mixing network as one flat vector of weights, with a target."""

    def __init__(self, team: Team, embedding: int, seed: np.random.SeedSequence):
        self._adopt(MonotonicNet(len(team.agents), team.state_size, embedding, np.random.default_rng(seed)), None)
        self._target: Mixer | None = None

    def __call__(self, q_BK: Tensor, state_BS: Tensor) -> Tensor:
        """Q_tot (B,) of the agents' values and the global state."""
        return cast("Tensor", self.module(q_BK, state_BS))

    @property
    def target(self) -> Mixer:
        """A copy as it stood when it was first asked for."""
        if self._target is None:
            other = object.__new__(Mixer)
            other._target = None
            other._adopt(copy.deepcopy(self.module), None)
            self._target = other
        return self._target

    @property
    def followed(self) -> slice:
        """The parameters that the target follows: all."""
        return self.span("all")


@dataclass(frozen=True)
class TeamValues:
    """A team: the policy that its agents share, and what mixes their values; None adds them up (VDN)."""

    policy: Policy
    mixer: Mixer | None

    def total(self, q_BK: Tensor, state_BS: Tensor, *, of_target: bool = False) -> Tensor:
        """Q_tot (B,)."""
        if self.mixer is None:
            return q_BK.sum(-1)
        return (self.mixer.target if of_target else self.mixer)(q_BK, state_BS)

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """The flat gradients of a scalar over the parameters of the policy and of the mixer."""
        modules: list[FlatModule] = [self.policy, *([] if self.mixer is None else [self.mixer])]
        parameters = [parameter for module in modules for parameter in module.parameters]
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
        flat = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]
        parts, at = [], 0
        for module in modules:
            end = at + len(module.parameters)
            parts.append(torch.cat([gradient.reshape(-1) for gradient in flat[at:end]]))
            at = end
        return parts
