"""The default network of values of actions: perceptrons behind an encoder, dueling, noisy, over atoms, with memory."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from flowrl.rl.encoders import Encoder
from flowrl.rl.initial import Shape, factored_noise, initial_heads, num_head_weights, q_shapes
from flowrl.rl.observations import ObsLayout
from flowrl.rl.recurrent import Memory, State, initialize_cell
from flowrl.rl.spec import PolicySpec, Spaces
from flowrl.rl.towers import Layers, Towers, forward_only


class QHeads(nn.Module):
    """Perceptrons side by side over the same features, whose weights are one flat parameter (`initial_heads`).

    Noisy layers have a second one, the scales of the noise: weights are then means + scales · noise
    (arXiv:1706.10295, equation 9), and before noise is drawn the means.
    """

    def __init__(self, spec: PolicySpec, shapes: tuple[tuple[Shape, ...], ...]):
        super().__init__()
        self._shapes, self._activation = shapes, spec.activation
        self._sizes = [size for tower in shapes for out, into in tower for size in (out * into, out)]
        self.weights = nn.Parameter(torch.empty(sum(self._sizes)))
        self.scales = nn.Parameter(torch.empty(sum(self._sizes))) if spec.noisy else None
        self._noise: Tensor | None = None
        self._views: tuple[int, tuple[Layers, ...]] = (0, ())

    def forward(self, x_BF: Tensor) -> tuple[Tensor, ...]:
        """The outputs (B, out) of each perceptron."""
        flat, noisy = self.weights, self.scales is not None and self._noise is not None
        if self.scales is not None and self._noise is not None:
            flat = torch.addcmul(flat, self.scales, self._noise)  # type: ignore[assignment]
        towers = self._layers(flat.detach()) if noisy else self._own_layers()
        if not torch.is_grad_enabled():
            return forward_only(x_BF, towers, self._activation)
        return Towers.apply(flat, x_BF, towers, (0,) * len(towers), self._activation)

    def _own_layers(self) -> tuple[Layers, ...]:
        # Views of the parameter's memory, which a policy moves once, when it becomes part of its flat vector.
        if self._views[0] != self.weights.data_ptr():
            self._views = self.weights.data_ptr(), self._layers(self.weights.detach())
        return self._views[1]

    def _layers(self, flat: Tensor) -> tuple[Layers, ...]:
        parts = iter(flat.split(self._sizes))
        return tuple(tuple((next(parts).view(out, into), next(parts)) for out, into in tower) for tower in self._shapes)

    def resample(self, rng: np.random.Generator) -> None:
        """Draws the noise of noisy layers anew."""
        if self.scales is not None:
            self._noise = torch.from_numpy(factored_noise(self._shapes, rng))


class QNetwork(nn.Module):
    """Observations to Q (B, A), or logits of atoms (B, A · atoms): what `PolicySpec(head="q")` builds.

    Encoder, memory if any, and perceptrons; with `dueling` Q = V + A − mean(A), atom by atom (arXiv:1511.06581,
    equation 9; with atoms arXiv:1710.02298). A network with memory takes (observations, state, starts), time-major,
    and gives (outputs, state after).
    """

    def __init__(self, spec: PolicySpec, spaces: Spaces, rng: np.random.Generator):
        super().__init__()
        self._atoms, self._dueling = spec.atoms or 1, spec.dueling
        self.encoder = Encoder(spec, ObsLayout.of(spaces.observation))
        features = self.encoder.features
        self.memory = None if spec.recurrent is None else Memory(spec.recurrent, features, spec.recurrent_size)
        if self.memory is not None:
            self.state_shapes = self.memory.state_shapes
            initialize_cell(self.memory.cell, rng)
        shapes = q_shapes(spec, spaces, features if self.memory is None else spec.recurrent_size)
        self.heads = QHeads(spec, shapes)
        with torch.no_grad():
            initial = torch.from_numpy(initial_heads(spec, shapes, rng))
            count = num_head_weights(spec, shapes)
            self.heads.weights.copy_(initial[: self.heads.weights.numel()])
            if self.heads.scales is not None:
                self.heads.scales.copy_(initial[count // 2 :])

    def forward(
        self,
        obs: Tensor | Mapping[str, Tensor],
        state: Mapping[str, Tensor] | None = None,
        starts_TN: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, State]:
        """Outputs (B, A · atoms); of a network with memory those of (T, N, ...) and the state (N, ...) after."""
        if self.memory is None:
            return self._outputs(self.encoder(obs))
        if state is None or starts_TN is None:
            raise ValueError("a network with memory needs the state before the first step and where episodes begin")
        rows = obs.flatten(0, 1) if isinstance(obs, Tensor) else {path: x.flatten(0, 1) for path, x in obs.items()}
        x_TNF = self.encoder(rows).unflatten(0, starts_TN.shape)
        h_TNH, after = self.memory(x_TNF, state, starts_TN)
        return self._outputs(h_TNH.flatten(0, 1)).unflatten(0, starts_TN.shape), after

    def _outputs(self, x_BF: Tensor) -> Tensor:
        outputs = self.heads(x_BF)
        if not self._dueling:
            return outputs[0]
        advantages_BP, value_BK = outputs
        if self._atoms == 1:
            return advantages_BP - advantages_BP.mean(-1, keepdim=True) + value_BK
        advantages_BAK = advantages_BP.unflatten(-1, (-1, self._atoms))
        return (advantages_BAK - advantages_BAK.mean(1, keepdim=True) + value_BK.unsqueeze(1)).flatten(1)

    def resample(self, rng: np.random.Generator) -> None:
        """Draws the noise of noisy layers anew."""
        self.heads.resample(rng)
