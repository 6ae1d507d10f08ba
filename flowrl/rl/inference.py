"""Policies as workers run them: the default model in NumPy, any other module in torch, with one face."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from flowrl.rl.acting import Acting, Array, Floats, State, check_weights
from flowrl.rl.actions import ActionLayout
from flowrl.rl.actor_inference import NumpyActor
from flowrl.rl.actor_shapes import initial_actor_and_critics
from flowrl.rl.encoding import NumpyEncoder
from flowrl.rl.initial import initial_weights, layer_shapes, num_log_stds, num_statistics, num_weights
from flowrl.rl.masks import Mask
from flowrl.rl.numpy_distributions import Sampler
from flowrl.rl.observations import Obs, ObsLayout, map_arrays
from flowrl.rl.perceptron import Perceptron
from flowrl.rl.q_inference import NumpyQ
from flowrl.rl.spaces import runs_in_numpy
from flowrl.rl.spec import ACTOR_HEADS, PolicySpec, Spaces


class Inference(Protocol):
    """A policy that acts and values. Actions are as batches store them (`flowrl.rl.actions.ActionLayout`).

    size: the length of its flat vector. sampler: what makes actions of a model's outputs. state_shapes: those of
    the state that it carries from step to step, by name; empty if it keeps none. greedy: outputs are values of
    actions, and the greatest is the value. judges: whether there are values and log-probabilities at all.
    """

    size: int
    actions: ActionLayout
    sampler: Sampler
    state_shapes: Mapping[str, tuple[int, ...]]
    greedy: bool
    judges: bool

    def set_weights(self, flat: Floats) -> None:
        """Takes a flat float32 vector of length `size`; of an actor with critics also that of the whole."""

    def forward(self, obs_N: Obs) -> tuple[Floats, Floats | None]:
        """Outputs (N, P), valid until the next call; and values (N,) where they cost nothing more, else None."""

    def values(self, obs_N: Obs) -> Floats:
        """Values (N,)."""

    def step(self, obs_N: Obs, state: State, starts_N: npt.NDArray[np.bool_]) -> tuple[Floats, Floats, State]:
        """Outputs (N, P), values (N,) and the state after a step; it is zeroed before it where `starts_N` is true."""

    def resample(self, rng: np.random.Generator) -> None:
        """Draws the noise of a network that explores by noise anew; nothing for any other."""

    def initial_state(self, num_envs: int) -> State:
        """The state (N, ...) at the beginning of episodes; empty if the policy keeps none."""

    def act(
        self,
        obs_N: Obs,
        rng: np.random.Generator | None = None,
        *,
        mask: Mask | None = None,
        state: State | None = None,
        starts_N: npt.NDArray[np.bool_] | None = None,
    ) -> tuple[Array, State]:
        """Actions (N, ...), sampled with `rng` or else the most probable, and the state after the step."""


class NumpyInference(Acting):
    """The default model without torch, equal to it within 1e-6; without images and memory."""

    def __init__(self, spec: PolicySpec, spaces: Spaces):
        super().__init__(spec, spaces)
        actor, critic = layer_shapes(spec, spaces)
        self._actor, self._critic = Perceptron(actor, spec.activation), Perceptron(critic, spec.activation)
        self._num_log_stds, self._num_statistics = num_log_stds(spaces), num_statistics(spec, spaces)
        self._log_std = np.zeros(self._num_log_stds, np.float32)
        layout = ObsLayout.of(spaces.observation)
        self._encoder = None if layout.plain and not spec.normalize_obs else NumpyEncoder(layout)
        self.size = num_weights(spec, spaces)

    def set_weights(self, flat: Floats) -> None:
        """Copies a flat vector in.

        Raises:
            ValueError: its length is not `size`, or it is not finite.
        """
        check_weights(flat, self.size)
        at = self._actor.load(flat)
        self._log_std = np.array(flat[at : at + self._num_log_stds])
        at += self._num_log_stds
        at += self._critic.load(flat[at:])
        if self._encoder is not None and self._num_statistics:
            self._encoder.normalize_by(flat[at : at + self._num_statistics], flat[at + self._num_statistics :])

    def forward(self, obs_N: Obs) -> tuple[Floats, None]:
        """Outputs (N, P), valid until the next call; values cost as much again, so they are left out."""
        outputs = self._actor(obs_N if self._encoder is None else self._encoder(obs_N)).T  # type: ignore[arg-type]
        if self._num_log_stds:
            outputs = np.concatenate((outputs, np.broadcast_to(self._log_std, outputs.shape)), 1)
        return outputs, None

    def values(self, obs_N: Obs) -> Floats:
        """Values (N,)."""
        return self._critic(obs_N if self._encoder is None else self._encoder(obs_N))[0].copy()  # type: ignore[arg-type]


class TorchInference(Acting):
    """A torch module as a policy: in evaluation mode, on one thread.

    Its own initialization follows from `seed` until `set_weights`.
    """

    def __init__(self, spec: PolicySpec, spaces: Spaces, seed: np.random.SeedSequence | None = None):
        import torch

        from flowrl.rl.policy import Policy

        super().__init__(spec, spaces)
        torch.set_num_threads(1)
        self._policy = Policy(spec, spaces, seed=seed)
        self._policy.module.eval()
        self.state_shapes = self._policy.state_shapes
        self._sizes = {len(self._policy.flat), len(self._policy.acting_weights())}
        self.size = min(self._sizes)

    def set_weights(self, flat: Floats) -> None:
        """Copies a flat vector in.

        Raises:
            ValueError: its length is not `size`, or it is not finite.
        """
        check_weights(flat, len(flat) if len(flat) in self._sizes else self.size)
        self._policy.set_acting_weights(flat)

    def resample(self, rng: np.random.Generator) -> None:
        """Draws the noise of a network that explores by noise anew; nothing for any other."""
        self._policy.resample(rng)

    def get_weights(self) -> Floats:
        """A copy of what acting takes of the weights, as one flat vector."""
        return self._policy.acting_weights()

    def forward(self, obs_N: Obs) -> tuple[Floats, Floats]:
        """Outputs (N, P) and values (N,), of a policy that keeps no state."""
        import torch

        with torch.inference_mode():
            out = self._policy.run(map_arrays(torch.as_tensor, obs_N))
        return out.dist.params.numpy(), out.values.numpy()

    def values(self, obs_N: Obs) -> Floats:
        """Values (N,)."""
        return self.forward(obs_N)[1]

    def step(self, obs_N: Obs, state: State, starts_N: npt.NDArray[np.bool_]) -> tuple[Floats, Floats, State]:
        """Outputs (N, P), values (N,) and the state after a step; it is zeroed before it where `starts_N` is true."""
        import torch

        with torch.inference_mode():
            out = self._policy.run_sequence(
                map_arrays(lambda array: torch.as_tensor(array)[None], obs_N),
                None,
                {name: torch.as_tensor(h) for name, h in state.items()},
                torch.as_tensor(starts_N)[None],
            )
        after = {name: h.numpy() for name, h in out.state.items()}
        return out.dist.params[0].numpy(), out.values[0].numpy(), after


def make_inference(
    spec: PolicySpec, spaces: Spaces, seed: np.random.SeedSequence | None = None
) -> tuple[NumpyInference | NumpyQ | NumpyActor | TorchInference, Floats]:
    """NumPy inference for the default model without images and memory, torch for any other; and its initial weights."""
    if not runs_in_numpy(spec, spaces):
        torch_net = TorchInference(spec, spaces, seed)
        return torch_net, torch_net.get_weights()
    if spec.head in ACTOR_HEADS:
        actor, flat = NumpyActor(spec, spaces), initial_actor_and_critics(spec, spaces, seed, acting=True)
        actor.set_weights(flat)
        return actor, flat
    net: NumpyInference | NumpyQ = NumpyQ(spec, spaces) if spec.head == "q" else NumpyInference(spec, spaces)
    flat = initial_weights(spec, spaces, seed)
    net.set_weights(flat)
    return net, flat
