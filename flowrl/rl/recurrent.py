"""Policies with memory: an LSTM or a GRU between the encoder and the actor's and critic's perceptrons."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from flowrl.rl.actions import ActionLayout
from flowrl.rl.encoders import Encoder
from flowrl.rl.initial import orthogonal
from flowrl.rl.models import MLP, initialize, initialize_heads
from flowrl.rl.observations import ObsLayout
from flowrl.rl.spec import PolicySpec, Spaces

State = dict[str, Tensor]


class Memory(nn.Module):
    """One layer of an LSTM (Hochreiter and Schmidhuber, 1997) or a GRU (arXiv:1406.1078) over sequences with resets.

    Its state is zero where an episode starts, also inside a sequence. `state_shapes`: "h", and "c" for an LSTM.
    """

    def __init__(self, kind: Literal["lstm", "gru"], features: int, size: int):
        super().__init__()
        self.cell: nn.RNNBase = nn.LSTM(features, size) if kind == "lstm" else nn.GRU(features, size)
        self.state_shapes: dict[str, tuple[int, ...]] = {name: (size,) for name in ("hc" if kind == "lstm" else "h")}

    def forward(self, x_TNF: Tensor, state: Mapping[str, Tensor], starts_TN: Tensor) -> tuple[Tensor, State]:
        """The outputs (T, N, size), and the state (N, size) after the last step.

        state: before the first step, (N, size) each. starts_TN: true where the state is zero before the step.
        """
        parts = [state[name] for name in self.state_shapes]
        outputs = []
        for begin, end in _spans(starts_TN):
            # Not a product with 0: what was before a reset must not come through, even if it is not finite.
            parts = [part.masked_fill(starts_TN[begin].unsqueeze(-1), 0.0).unsqueeze(0) for part in parts]
            out, after = self.cell(x_TNF[begin:end], tuple(parts) if len(parts) > 1 else parts[0])
            outputs.append(out)
            parts = [part.squeeze(0) for part in (after if len(parts) > 1 else (after,))]
        whole = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return whole, dict(zip(self.state_shapes, parts, strict=True))


class RecurrentActorCritic(nn.Module):
    """The default model with memory: encoder, cell, and then actor and critic apart.

    `forward(obs, state, starts)` is what any recurrent module of a user's own gives, too: beside it, such a module
    has `state_shapes`, the shape of each part of the state of one sequence by name.
    """

    def __init__(self, spec: PolicySpec, spaces: Spaces, rng: np.random.Generator):
        super().__init__()
        if spec.recurrent is None:
            raise ValueError("a RecurrentActorCritic needs PolicySpec(recurrent='lstm' or 'gru'), got recurrent=None")
        actions = ActionLayout.of(spaces.action, squash=spec.squash)
        box = actions.kind == "box"
        self.encoder = Encoder(spec, ObsLayout.of(spaces.observation))
        self.memory = Memory(spec.recurrent, self.encoder.features, spec.recurrent_size)
        self.state_shapes = self.memory.state_shapes
        sizes = (spec.recurrent_size, *spec.hidden)
        outputs = actions.size if box else actions.num_params
        self.actor = MLP((*sizes, outputs), spec.activation, actions.size if box else 0)
        self.critic = MLP((*sizes, 1), spec.activation)
        initialize(self.encoder, rng)
        initialize_cell(self.memory.cell, rng)
        initialize_heads(self.actor, self.critic, spec, rng)

    def forward(
        self, obs: Tensor | Mapping[str, Tensor], state: Mapping[str, Tensor], starts_TN: Tensor
    ) -> tuple[Tensor, Tensor, State]:
        """Params (T, N, P), values (T, N) and the state (N, ...) after the last step, of observations (T, N, ...)."""
        rows = obs.flatten(0, 1) if isinstance(obs, Tensor) else {path: x.flatten(0, 1) for path, x in obs.items()}
        x_TNF = self.encoder(rows).unflatten(0, starts_TN.shape)
        h_TNH, after = self.memory(x_TNF, state, starts_TN)
        return self.actor(h_TNH), self.critic(h_TNH).squeeze(-1), after


def _spans(starts_TN: Tensor) -> Iterator[tuple[int, int]]:
    """The stretches of time in which no sequence is reset, but perhaps at their first step."""
    steps = len(starts_TN)
    cuts = [0, *(int(t) + 1 for t in torch.nonzero(starts_TN[1:].any(1))), steps]
    return itertools.pairwise(cuts)


def initialize_cell(cell: nn.RNNBase, rng: np.random.Generator) -> None:
    """Orthogonal weights, gate by gate; biases zero, an LSTM's forget gate one, so that it remembers at first."""
    size = cell.hidden_size
    with torch.no_grad():
        for name, parameter in cell.named_parameters():
            if name.startswith("bias"):
                parameter.zero_()
                continue
            for gate in parameter.split(size):
                gate.copy_(torch.tensor(orthogonal(size, parameter.shape[1], rng)))
        if isinstance(cell, nn.LSTM):
            cell.get_parameter("bias_ih_l0")[size : 2 * size] = 1.0
