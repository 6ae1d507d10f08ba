"""The action distributions in NumPy, for workers: noise beforehand, an action from it, and probabilities afterwards."""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from flowrl.rl.actions import ActionLayout

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
TINY = np.finfo(np.float32).tiny
MASKED = np.finfo(np.float32).min


class Sampler(Protocol):
    """What the torch distributions say, over a model's outputs (..., P) given as arrays.

    An action is a function of outputs and noise, so that noise for many steps is drawn at once. Rows have any
    leading dimensions.
    """

    def noise(self, rng: np.random.Generator, leading: tuple[int, ...]) -> Floats:
        """What `pick` needs of randomness, a row for each of `leading`."""
        ...

    def pick(self, params: Floats, noise: Floats, out: Array) -> None:
        """Writes an action a row into `out` (..., *shape): a sample, if the noise is `noise`'s."""
        ...

    def mode(self, params: Floats) -> Array:
        """The most probable actions (..., *shape)."""
        ...

    def logp(self, params: Floats, actions: Array) -> Floats:
        """Log-probabilities or log-densities (...), summed over an action's dimensions."""
        ...


def sampler_of(layout: ActionLayout) -> Sampler:
    """The sampler of a layout's actions."""
    if layout.kind == "discrete":
        return CategoricalSampler(layout)
    if layout.kind == "multi_discrete":
        return MultiCategoricalSampler(layout)
    if layout.kind == "multi_binary":
        return BernoulliSampler(layout)
    if layout.kind == "scaled_box":
        return DeterministicSampler(layout)
    return GaussianSampler(layout)


class GreedySampler:
    """The index of the greatest of the values (..., A) of actions; no noise."""

    def noise(self, rng: np.random.Generator, leading: tuple[int, ...]) -> Floats:
        """None is needed: (..., 0)."""
        return np.empty((*leading, 0), np.float32)

    def pick(self, params: Floats, noise: Floats, out: Array) -> None:
        """Writes indices (...)."""
        params.argmax(-1, out=out)

    def mode(self, params: Floats) -> Array:
        """Indices (...)."""
        return np.asarray(params.argmax(-1), np.int64)

    def logp(self, params: Floats, actions: Array) -> Floats:
        """0 for the greedy action and -inf for any other (...)."""
        return np.where(params.argmax(-1) == actions, np.float32(0), np.float32(-np.inf))


class CategoricalSampler:
    """An index from logits (..., A), by Gumbel's way: the largest of logit − log(exponential noise)."""

    def __init__(self, layout: ActionLayout):
        self._count = layout.num_params

    def noise(self, rng: np.random.Generator, leading: tuple[int, ...]) -> Floats:
        """Logarithms (..., A) of exponential noise."""
        return log_exponential(rng, (*leading, self._count))

    def pick(self, params: Floats, noise: Floats, out: Array) -> None:
        """Writes indices (...)."""
        (params - noise).argmax(-1, out=out)

    def mode(self, params: Floats) -> Array:
        """The most probable indices (...)."""
        return np.asarray(params.argmax(-1), np.int64)

    def logp(self, params: Floats, actions: Array) -> Floats:
        """Log-probabilities (...)."""
        return log_probability(params, actions)


class MultiCategoricalSampler:
    """Several indices from their logits side by side (..., sum of choices)."""

    def __init__(self, layout: ActionLayout):
        ends = np.cumsum(layout.choices).tolist()
        self._slices = [slice(end - n, end) for end, n in zip(ends, layout.choices, strict=True)]
        self._layout = layout

    def noise(self, rng: np.random.Generator, leading: tuple[int, ...]) -> Floats:
        """Logarithms (..., sum of choices) of exponential noise."""
        return log_exponential(rng, (*leading, self._layout.num_params))

    def pick(self, params: Floats, noise: Floats, out: Array) -> None:
        """Writes indices (..., *shape)."""
        out[...] = self.mode(params - noise)

    def mode(self, params: Floats) -> Array:
        """The most probable indices (..., *shape)."""
        indices = np.stack([params[..., part].argmax(-1) for part in self._slices], -1)
        return indices.reshape(*params.shape[:-1], *self._layout.shape)

    def logp(self, params: Floats, actions: Array) -> Floats:
        """Log-probabilities (...) of all the choices of a row together."""
        indices = actions.reshape(*params.shape[:-1], len(self._slices))
        each = [log_probability(params[..., part], indices[..., k]) for k, part in enumerate(self._slices)]
        return np.sum(each, 0, dtype=np.float32)


class BernoulliSampler:
    """Bits from the logit of each (..., n)."""

    def __init__(self, layout: ActionLayout):
        self._layout = layout

    def noise(self, rng: np.random.Generator, leading: tuple[int, ...]) -> Floats:
        """Uniform numbers (..., n) in [0, 1)."""
        return rng.random((*leading, self._layout.num_params), np.float32)

    def pick(self, params: Floats, noise: Floats, out: Array) -> None:
        """Writes bits (..., *shape)."""
        # u < 1 / (1 + e^-z), without overflow: at most e^88 matters, as u has no more than 24 bits.
        bits = noise * (np.exp(np.minimum(-params, np.float32(88))) + np.float32(1)) < 1
        out[...] = bits.reshape(out.shape)

    def mode(self, params: Floats) -> Array:
        """1 where that is more probable, int8 (..., *shape)."""
        return (params > 0).astype(np.int8).reshape(*params.shape[:-1], *self._layout.shape)

    def logp(self, params: Floats, actions: Array) -> Floats:
        """Log-probabilities (...) of all the bits of a row together: Σ a·z − log(1 + e^z)."""
        bits = actions.reshape(params.shape).astype(np.float32)
        return np.asarray((bits * params - np.logaddexp(np.float32(0), params)).sum(-1))


class GaussianSampler:
    """Numbers from their means and then their log standard deviations (..., 2·D); densities are after any tanh."""

    def __init__(self, layout: ActionLayout):
        self._layout = layout
        self._constant = np.float32(0.5 * math.log(2.0 * math.pi) * layout.size)
        if layout.squash:
            self._constant += np.float32(layout.log_scale)

    def noise(self, rng: np.random.Generator, leading: tuple[int, ...]) -> Floats:
        """Standard normal numbers (..., D)."""
        return rng.standard_normal((*leading, self._layout.size), np.float32)

    def pick(self, params: Floats, noise: Floats, out: Array) -> None:
        """Writes numbers (..., *shape): neither clipped nor put through tanh."""
        mean, log_std = np.split(params, 2, -1)
        out[...] = (mean + np.exp(log_std) * noise).reshape(out.shape)

    def mode(self, params: Floats) -> Array:
        """The means (..., *shape)."""
        return params[..., : self._layout.size].reshape(*params.shape[:-1], *self._layout.shape).copy()

    def logp(self, params: Floats, actions: Array) -> Floats:
        """Log-densities (...) of all the numbers of a row together."""
        mean, log_std = np.split(params, 2, -1)
        u = actions.reshape(mean.shape)
        terms = np.float32(-0.5) * np.square((u - mean) * np.exp(-log_std)) - log_std
        if self._layout.squash:
            # log of tanh's slope, 2(log 2 − u − softplus(−2u)): no cancellation at large |u|
            terms -= np.float32(2) * (np.float32(math.log(2.0)) - u - np.logaddexp(np.float32(0), np.float32(-2) * u))
        return np.asarray(terms.sum(-1) - self._constant)


class DeterministicSampler:
    """Numbers tanh(x) from outputs x (..., D), with Gaussian noise of the layout's `noise`, clipped to −1..1."""

    def __init__(self, layout: ActionLayout):
        self._layout = layout

    def noise(self, rng: np.random.Generator, leading: tuple[int, ...]) -> Floats:
        """Normal numbers (..., D)."""
        normal = rng.standard_normal((*leading, self._layout.size), np.float32)
        normal *= np.float32(self._layout.noise)
        return normal

    def pick(self, params: Floats, noise: Floats, out: Array) -> None:
        """Writes numbers (..., *shape) from −1 to 1."""
        out[...] = np.clip(np.tanh(params) + noise, -1, 1).reshape(out.shape)

    def mode(self, params: Floats) -> Array:
        """Numbers (..., *shape) without noise."""
        return np.tanh(params).reshape(*params.shape[:-1], *self._layout.shape)

    def logp(self, params: Floats, actions: Array) -> Floats:
        """Nothing: clipped noise has no density.

        Raises:
            TypeError: always.
        """
        raise TypeError("a deterministic actor's actions have no density, so there is no log-probability of them")


def log_exponential(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Logarithms of exponential noise: argmax(logits - noise) is a sample of softmax(logits) (Gumbel)."""
    noise = rng.standard_exponential(shape, dtype=np.float32)
    np.maximum(noise, TINY, out=noise)
    return np.log(noise, out=noise)


def log_probability(logits: Floats, actions: Array) -> Floats:
    """log softmax(logits)[actions] over the last axis, without overflow; float32 of the actions' shape."""
    shifted = logits.reshape(-1, logits.shape[-1])
    shifted = shifted - shifted.max(1, keepdims=True)
    chosen = shifted[np.arange(len(shifted)), actions.ravel()]
    return (chosen - np.log(np.exp(shifted).sum(1))).reshape(actions.shape)
