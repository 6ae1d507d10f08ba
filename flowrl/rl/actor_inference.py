"""The default soft or deterministic actor without torch and without its critics, for workers."""

from __future__ import annotations

import numpy as np

from flowrl.rl.acting import Acting, Floats, check_weights
from flowrl.rl.actor_shapes import actor_shapes, num_acting_weights, num_all_weights, num_statistics
from flowrl.rl.encoding import NumpyEncoder
from flowrl.rl.observations import Obs, ObsLayout
from flowrl.rl.perceptron import Perceptron
from flowrl.rl.spec import PolicySpec, Spaces


class NumpyActor(Acting):
    """The default actor of heads "soft_actor" and "deterministic_actor", equal to torch's within 1e-6; no images."""

    def __init__(self, spec: PolicySpec, spaces: Spaces):
        super().__init__(spec, spaces)
        layout = ObsLayout.of(spaces.observation)
        self._actor = Perceptron(actor_shapes(spec, spaces, layout.size), spec.activation)
        self._encoder = None if layout.plain and not spec.normalize_obs else NumpyEncoder(layout)
        self._num_statistics = num_statistics(spec, layout)
        self._log_std_range = spec.log_std_range if self.actions.kind == "box" else None
        self.size, self._whole_size = num_acting_weights(spec, spaces), num_all_weights(spec, spaces)

    def set_weights(self, flat: Floats) -> None:
        """Copies the actor in, from its weights and the statistics alone or from a whole flat vector.

        Raises:
            ValueError: its length is neither's, or it is not finite.
        """
        check_weights(flat, self._whole_size if len(flat) == self._whole_size else self.size)
        self._actor.load(flat)
        if self._encoder is not None and self._num_statistics:
            mean, var = np.split(np.asarray(flat[-2 * self._num_statistics :]), 2)
            self._encoder.normalize_by(mean, var)

    def forward(self, obs_N: Obs) -> tuple[Floats, None]:
        """Outputs (N, P), valid until the next call; there are no values."""
        outputs_PN = self._actor(obs_N if self._encoder is None else self._encoder(obs_N))  # type: ignore[arg-type]
        if self._log_std_range is not None:
            log_std = outputs_PN[len(outputs_PN) // 2 :]
            np.clip(log_std, *self._log_std_range, out=log_std)
        return outputs_PN.T, None
