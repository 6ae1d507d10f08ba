"""Policies as workers run them: the default model in NumPy, any other module in torch, with one face."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from flowrl.rl.initial import initial_weights, layer_shapes, num_weights
from flowrl.rl.perceptron import Perceptron
from flowrl.rl.spaces import num_actions
from flowrl.rl.spec import PolicySpec, Spaces

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]
TINY = np.finfo(np.float32).tiny


class Inference(Protocol):
    """A policy that acts and values. Actions are indices 0..A-1, whatever `Discrete.start` says."""

    size: int

    def set_weights(self, flat: Floats) -> None:
        """Takes a flat float32 vector of length `size`."""

    def forward(self, obs_N: Array) -> tuple[Floats, Floats | None]:
        """Logits (N, A), valid until the next call; and values (N,) where they cost nothing more, else None."""

    def values(self, obs_N: Array) -> Floats:
        """Values (N,)."""

    def sample(self, obs_N: Array, rng: np.random.Generator) -> tuple[Indices, Floats, Floats]:
        """Actions sampled with `rng`, their log-probabilities, and values, each (N,)."""

    def greedy(self, obs_N: Array) -> Indices:
        """The most probable actions (N,)."""


class LogitsInference:
    """What is common to policies over Discrete actions: sampling and picking from `forward`'s logits."""

    size: int

    def forward(self, obs_N: Array) -> tuple[Floats, Floats | None]:
        raise NotImplementedError

    def values(self, obs_N: Array) -> Floats:
        raise NotImplementedError

    def sample(self, obs_N: Array, rng: np.random.Generator) -> tuple[Indices, Floats, Floats]:
        """Actions sampled with `rng`, their log-probabilities, and values, each (N,).

        Raises:
            FloatingPointError: the logits or values are not finite.
        """
        logits, values = self.forward(obs_N)
        check_finite("logits", logits)
        actions = np.asarray((logits - log_exponential(rng, logits.shape)).argmax(1), np.int64)
        logp = log_probability(logits, actions)
        if values is None:
            values = self.values(obs_N)
        check_finite("values", values)
        return actions, logp, values

    def greedy(self, obs_N: Array) -> Indices:
        """The most probable actions (N,).

        Raises:
            FloatingPointError: the logits are not finite.
        """
        logits, _ = self.forward(obs_N)
        check_finite("logits", logits)
        return np.asarray(logits.argmax(1), np.int64)


class NumpyInference(LogitsInference):
    """The default model without torch, equal to it within 1e-6."""

    def __init__(self, spec: PolicySpec, spaces: Spaces):
        actor, critic = layer_shapes(spec, spaces)
        self._actor, self._critic = Perceptron(actor, spec.activation), Perceptron(critic, spec.activation)
        self.size = num_weights(spec, spaces)

    def set_weights(self, flat: Floats) -> None:
        """Copies a flat vector in.

        Raises:
            ValueError: its length is not `size`, or it is not finite.
        """
        check_weights(flat, self.size)
        self._critic.load(flat[self._actor.load(flat) :])

    def forward(self, obs_N: Array) -> tuple[Floats, None]:
        """Logits (N, A), valid until the next call; values cost as much again, so they are left out."""
        return self._actor(obs_N).T, None

    def values(self, obs_N: Array) -> Floats:
        """Values (N,)."""
        return self._critic(obs_N)[0].copy()


class Unroll:
    """The actions of one fragment, step by step, and afterwards their log-probabilities and the values.

    The noise is drawn beforehand and the probabilities are computed once for the whole fragment:
    between two steps of the environment only a forward pass and an argmax (Gumbel's) remain.
    `epsilon` mixes in uniform actions; log-probabilities are then those of the mixture.
    """

    def __init__(
        self, net: Inference, spaces: Spaces, steps: int, num_envs: int, rng: np.random.Generator, epsilon: float = 0.0
    ):
        count = num_actions(spaces)
        self.actions_TN: Indices = np.empty((steps, num_envs), np.int64)
        self._net, self._epsilon, self._count = net, epsilon, count
        self._log_noise = log_exponential(rng, (steps, num_envs, count))
        self._logits = np.empty((steps, num_envs, count), np.float32)
        self._values: Floats = np.empty((steps + 1, num_envs), np.float32)
        self._values_known = False
        if epsilon > 0.0:
            self._explore = rng.random((steps, num_envs)) < epsilon
            self._uniform = rng.integers(count, size=(steps, num_envs))

    def act(self, t: int, obs_N: Array) -> Indices:
        """The actions (N,) of step t; rows of `actions_TN`."""
        logits, values = self._net.forward(obs_N)
        self._logits[t] = logits
        actions = self.actions_TN[t]
        (self._logits[t] - self._log_noise[t]).argmax(1, out=actions)
        if values is not None:
            self._values[t] = values
            self._values_known = True
        if self._epsilon > 0.0:
            np.copyto(actions, self._uniform[t], where=self._explore[t])
        return actions

    def finish(self, obs_SN: Array) -> tuple[Floats, Floats]:
        """Log-probabilities (T, N) and values (T + 1, N) of all T + 1 observations.

        Raises:
            FloatingPointError: the logits or values are not finite; names step and environment.
        """
        check_finite("logits", self._logits)
        logp_TN = log_probability(self._logits, self.actions_TN)
        if self._epsilon > 0.0:
            mixed = (1.0 - self._epsilon) * np.exp(logp_TN, dtype=np.float64) + self._epsilon / self._count
            logp_TN = np.log(mixed).astype(np.float32)
        if self._values_known:
            self._values[-1] = self._net.values(obs_SN[-1])
        else:
            rows = obs_SN.reshape(-1, *obs_SN.shape[2:])
            self._values = self._net.values(rows).reshape(obs_SN.shape[:2])
        check_finite("values", self._values)
        return logp_TN, self._values


class TorchInference(LogitsInference):
    """A torch module as a policy: in evaluation mode, on one thread.

    Its own initialization follows from `seed` until `set_weights`.
    """

    def __init__(self, spec: PolicySpec, spaces: Spaces, seed: np.random.SeedSequence | None = None):
        import torch

        from flowrl.rl.policy import Policy

        torch.set_num_threads(1)
        self._policy = Policy(spec, spaces, seed=seed)
        self._policy.module.eval()
        self.size = len(self._policy.get_weights())

    def set_weights(self, flat: Floats) -> None:
        """Copies a flat vector in.

        Raises:
            ValueError: its length is not `size`, or it is not finite.
        """
        check_weights(flat, self.size)
        self._policy.set_weights(flat)

    def get_weights(self) -> Floats:
        """A copy of the weights as one flat vector."""
        return self._policy.get_weights()

    def forward(self, obs_N: Array) -> tuple[Floats, Floats]:
        """Logits (N, A) and values (N,)."""
        import torch

        with torch.inference_mode():
            out = self._policy.forward({"obs": torch.as_tensor(obs_N)})
        return out.logits.numpy(), out.values.numpy()

    def values(self, obs_N: Array) -> Floats:
        """Values (N,)."""
        return self.forward(obs_N)[1]


def make_inference(
    spec: PolicySpec, spaces: Spaces, seed: np.random.SeedSequence | None = None
) -> tuple[Inference, Floats]:
    """NumPy inference for the default model, torch for any other; and its initial weights, which it has."""
    if spec.model is not None:
        torch_net = TorchInference(spec, spaces, seed)
        return torch_net, torch_net.get_weights()
    net, flat = NumpyInference(spec, spaces), initial_weights(spec, spaces, seed)
    net.set_weights(flat)
    return net, flat


def log_exponential(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Logarithms of exponential noise: argmax(logits - noise) is a sample of softmax(logits) (Gumbel)."""
    noise = rng.standard_exponential(shape, dtype=np.float32)
    np.maximum(noise, TINY, out=noise)
    return np.log(noise, out=noise)


def log_probability(logits: Floats, actions: Indices) -> Floats:
    """log softmax(logits)[actions] over the last axis, without overflow; float32 of the actions' shape."""
    shifted = logits.reshape(-1, logits.shape[-1])
    shifted = shifted - shifted.max(1, keepdims=True)
    chosen = shifted[np.arange(len(shifted)), actions.ravel()]
    return (chosen - np.log(np.exp(shifted).sum(1))).reshape(actions.shape)


def check_weights(flat: Floats, size: int) -> None:
    """Nothing, if `flat` is a finite vector of this length.

    Raises:
        ValueError: names both lengths, or says how many numbers are not finite.
    """
    if np.shape(flat) != (size,):
        raise ValueError(f"this policy has {size:,} weights in one flat vector, got an array of shape {np.shape(flat)}")
    if not np.isfinite(flat).all():
        bad = int(np.count_nonzero(~np.isfinite(flat)))
        raise ValueError(f"{bad:,} of {size:,} weights are not finite; the update that made them has diverged")


def check_finite(what: str, array: Floats) -> None:
    """Nothing, if all numbers are finite.

    Raises:
        FloatingPointError: names the value and its row: (environment,) or (step, environment).
    """
    if np.isfinite(array).all():
        return
    at = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
    row = at[:-1] if what == "logits" else at
    raise FloatingPointError(
        f"the policy gave {what} of {array[at]} at row {row} (step of the fragment first, environment last): "
        f"its weights or the observation are non-finite or too large; lower the learning rate or scale the observation"
    )
