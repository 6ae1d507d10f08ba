"""The default model's shapes and its initial weights, in NumPy: the worker and the learner share them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt

from flowrl.rl.actions import ActionLayout
from flowrl.rl.actor_shapes import initial_actor_and_critics, num_all_weights
from flowrl.rl.encoding import num_numbers
from flowrl.rl.observations import ObsLayout
from flowrl.rl.spaces import obs_size, runs_in_numpy
from flowrl.rl.spec import ACTOR_HEADS, PolicySpec, Spaces

Shape = tuple[int, int]
HIDDEN_GAIN, ACTOR_GAIN, CRITIC_GAIN = math.sqrt(2.0), 0.01, 1.0
NOISE = 0.5  # σ0 of noisy layers


def layer_shapes(spec: PolicySpec, spaces: Spaces) -> tuple[tuple[Shape, ...], tuple[Shape, ...]]:
    """The (out, in) shapes of the weights of the default model's actor and critic, first layer first."""
    widths = (obs_size(spaces), *spec.hidden)
    trunk = tuple((out, into) for into, out in itertools.pairwise(widths))
    actions = ActionLayout.of(spaces.action, squash=spec.squash)
    outputs = actions.size if actions.kind == "box" else actions.num_params
    return (*trunk, (outputs, widths[-1])), (*trunk, (1, widths[-1]))


def num_log_stds(spaces: Spaces) -> int:
    """How many log standard deviations stand behind the default actor's layers: one a number of a Box action."""
    actions = ActionLayout.of(spaces.action)
    return actions.size if actions.kind == "box" else 0


def num_statistics(spec: PolicySpec, spaces: Spaces) -> int:
    """How many numbers of an observation are normalized, each with a mean and a variance."""
    return num_numbers(ObsLayout.of(spaces.observation)) if spec.normalize_obs else 0


def num_weights(spec: PolicySpec, spaces: Spaces) -> int:
    """The length of the default model's flat vector (`initial_weights` has the layout)."""
    if spec.head in ACTOR_HEADS:
        return num_all_weights(spec, spaces)
    if spec.head == "q":
        heads = num_head_weights(spec, q_shapes(spec, spaces, obs_size(spaces)))
        return heads + 2 * num_statistics(spec, spaces)
    layers = sum(out * into + out for net in layer_shapes(spec, spaces) for out, into in net)
    return layers + num_log_stds(spaces) + 2 * num_statistics(spec, spaces)


def initial_weights(
    spec: PolicySpec, spaces: Spaces, seed: int | np.random.SeedSequence | None
) -> npt.NDArray[np.float32]:
    """The initial weights of the default model as one flat float32 vector; same seed, same vector.

    Orthogonal weights (arXiv:1312.6120) with gain sqrt(2) in hidden layers, 0.01 in the actor's head
    and 1 in the critic's; biases are zero. Layout: for actor then critic, for each layer: the weight
    of shape (out, in) in C order, then the bias (out,); behind the actor's layers the log standard
    deviations of Box actions; at the end mean and variance of normalized observations. With head "q" there is no
    actor and no critic: `initial_heads` has the layout of what stands in their place. Soft and deterministic actors
    begin otherwise: `flowrl.rl.actor_shapes.initial_actor_and_critics`.

    Raises:
        ValueError: for a model of the user's own, with images or recurrent, which initializes itself.
    """
    if not runs_in_numpy(spec, spaces):
        raise ValueError(
            f"initial_weights is for the default model without images or memory; the model of {spec} for "
            f"{spaces.observation} initializes itself when Policy builds it"
        )
    if spec.head in ACTOR_HEADS:
        return initial_actor_and_critics(spec, spaces, seed)
    rng = np.random.default_rng(seed)
    statistics = num_statistics(spec, spaces)
    normal = [np.zeros(statistics, np.float32), np.ones(statistics, np.float32)]
    if spec.head == "q":
        return np.concatenate([initial_heads(spec, q_shapes(spec, spaces, obs_size(spaces)), rng), *normal])
    actor, critic = layer_shapes(spec, spaces)
    parts = [
        *_layers(actor, ACTOR_GAIN, rng),
        np.full(num_log_stds(spaces), spec.initial_log_std, np.float32),
        *_layers(critic, CRITIC_GAIN, rng),
        *normal,
    ]
    return np.concatenate(parts)


def q_shapes(spec: PolicySpec, spaces: Spaces, features: int) -> tuple[tuple[Shape, ...], ...]:
    """The (out, in) shapes of the perceptrons that give values of actions from so many features, first layer first.

    One gives Q (A · atoms outputs); with `dueling` it gives the advantages, and a second one the state's value (atoms).
    """
    widths, atoms = (features, *spec.hidden), spec.atoms or 1
    trunk = tuple((out, into) for into, out in itertools.pairwise(widths))
    outputs = [ActionLayout.of(spaces.action).num_params * atoms, *([atoms] if spec.dueling else [])]
    return tuple((*trunk, (out, widths[-1])) for out in outputs)


def num_head_weights(spec: PolicySpec, shapes: tuple[tuple[Shape, ...], ...]) -> int:
    """How many weights these perceptrons have: twice as many as their layers hold where these are noisy."""
    layers = sum(out * into + out for tower in shapes for out, into in tower)
    return 2 * layers if spec.noisy else layers


def initial_heads(
    spec: PolicySpec, shapes: tuple[tuple[Shape, ...], ...], rng: np.random.Generator
) -> npt.NDArray[np.float32]:
    """The initial weights of perceptrons that give values of actions, flat: tower by tower, layer by layer.

    Orthogonal, with gain 0.01 at the end so that no action looks good by chance. Noisy layers: means uniform within
    ±1/√p, p the layer's inputs, and behind those of all layers the scales of the noise, 0.5/√p (arXiv:1706.10295, 3.2).
    """
    if not spec.noisy:
        return np.concatenate([part for tower in shapes for part in _layers(tower, ACTOR_GAIN, rng)])
    counts = [(out * into + out, into) for tower in shapes for out, into in tower]
    means = [rng.uniform(-1, 1, count) / math.sqrt(into) for count, into in counts]
    scales = [np.full(count, NOISE / math.sqrt(into)) for count, into in counts]
    return np.concatenate(means + scales).astype(np.float32)


def factored_noise(shapes: tuple[tuple[Shape, ...], ...], rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """Noise for each weight of noisy layers, in their order: f(ε_out) f(ε_in)ᵀ a weight and f(ε_out) a bias.

    f(x) = sign(x) √|x| of standard normal numbers (arXiv:1706.10295, equations 10 and 11).
    """
    layers = [shape for tower in shapes for shape in tower]
    drawn = rng.standard_normal(sum(out + into for out, into in layers), np.float32)
    drawn = np.copysign(np.sqrt(np.abs(drawn)), drawn)
    parts, at = [], 0
    for out, into in layers:
        for_out, for_in = drawn[at : at + out], drawn[at + out : at + out + into]
        parts += [np.multiply.outer(for_out, for_in).ravel(), for_out]
        at += out + into
    return np.concatenate(parts)


def _layers(shapes: tuple[Shape, ...], head_gain: float, rng: np.random.Generator) -> list[npt.NDArray[np.float32]]:
    parts = []
    for i, (out, into) in enumerate(shapes):
        gain = head_gain if i == len(shapes) - 1 else HIDDEN_GAIN
        parts += [(gain * orthogonal(out, into, rng)).astype(np.float32).ravel(), np.zeros(out, np.float32)]
    return parts


def orthogonal(out: int, into: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """A random (out, into) matrix whose rows, or columns where they are fewer, are orthonormal."""
    gauss = rng.standard_normal((max(out, into), min(out, into)))
    q, r = np.linalg.qr(gauss)
    # Without the sign of R's diagonal the result is not uniform over orthogonal matrices.
    q = q * np.where(np.diag(r) < 0, -1.0, 1.0)
    return q if out >= into else np.ascontiguousarray(q.T)
