"""The default network of values of actions without torch, for workers."""

from __future__ import annotations

import numpy as np

from flowrl.rl.acting import Acting, Floats, check_weights
from flowrl.rl.encoding import NumpyEncoder
from flowrl.rl.initial import factored_noise, num_head_weights, num_statistics, num_weights, q_shapes
from flowrl.rl.observations import Obs, ObsLayout
from flowrl.rl.perceptron import Perceptron
from flowrl.rl.spaces import obs_size
from flowrl.rl.spec import PolicySpec, Spaces


class NumpyQ(Acting):
    """The default network of head "q" without torch, equal to it within 1e-6; without images and memory."""

    def __init__(self, spec: PolicySpec, spaces: Spaces):
        super().__init__(spec, spaces)
        self._shapes = q_shapes(spec, spaces, obs_size(spaces))
        self._towers = [Perceptron(shapes, spec.activation) for shapes in self._shapes]
        self._support = support_of(spec)
        layout = ObsLayout.of(spaces.observation)
        self._encoder = None if layout.plain and not spec.normalize_obs else NumpyEncoder(layout)
        self._num_statistics = num_statistics(spec, spaces)
        self._num_heads, self._noisy = num_head_weights(spec, self._shapes), spec.noisy
        self._noise: Floats | None = None
        self.size = num_weights(spec, spaces)

    def set_weights(self, flat: Floats) -> None:
        """Copies a flat vector in.

        Raises:
            ValueError: its length is not `size`, or it is not finite.
        """
        check_weights(flat, self.size)
        self._heads = np.array(flat[: self._num_heads], np.float32)
        self._load()
        if self._encoder is not None and self._num_statistics:
            mean, var = np.split(flat[self._num_heads :], 2)
            self._encoder.normalize_by(mean, var)

    def resample(self, rng: np.random.Generator) -> None:
        """Draws the noise of noisy layers anew; before the first time there is none."""
        if self._noisy:
            self._noise = factored_noise(self._shapes, rng)
            self._load()

    def _load(self) -> None:
        weights = self._heads
        if self._noisy:
            means, scales = np.split(weights, 2)
            weights = means if self._noise is None else means + scales * self._noise
        at = 0
        for tower in self._towers:
            at += tower.load(weights[at:])

    def forward(self, obs_N: Obs) -> tuple[Floats, None]:
        """Q (N, A), valid until the next call; what values are made of."""
        x = obs_N if self._encoder is None else self._encoder(obs_N)
        q = self._towers[0](x)  # type: ignore[arg-type]
        if self._support is None:
            if len(self._towers) > 1:
                q = q - q.mean(0) + self._towers[1](x)[0]  # type: ignore[arg-type]
            return q.T, None
        logits_AKN = q.reshape(-1, len(self._support), q.shape[1])
        if len(self._towers) > 1:
            logits_AKN = logits_AKN - logits_AKN.mean(0) + self._towers[1](x)  # type: ignore[arg-type]
        p_AKN = np.exp(logits_AKN - logits_AKN.max(1, keepdims=True))
        return (np.einsum("akn,k->na", p_AKN, self._support) / p_AKN.sum(1).T), None

    def values(self, obs_N: Obs) -> Floats:
        """The greatest Q (N,)."""
        return self.forward(obs_N)[0].max(1)


def support_of(spec: PolicySpec) -> Floats | None:
    """The returns (atoms,) that a distribution is over, from the least to the greatest; None without atoms."""
    if spec.atoms is None or spec.value_range is None:
        return None
    return np.linspace(*spec.value_range, spec.atoms, dtype=np.float32)
