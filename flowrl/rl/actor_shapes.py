"""The default models of soft and deterministic actors with their critics: shapes and initial weights, in NumPy."""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt

from flowrl.rl.actions import ActionLayout
from flowrl.rl.encoding import num_numbers
from flowrl.rl.observations import ObsLayout
from flowrl.rl.spec import PolicySpec, Spaces

Shape = tuple[int, int]
Floats = npt.NDArray[np.float32]


def actor_shapes(spec: PolicySpec, spaces: Spaces, features: int) -> tuple[Shape, ...]:
    """The (out, in) shapes of the actor's weights, first layer first, behind an encoder of so many features."""
    return _shapes(features, spec, ActionLayout.for_policy(spec, spaces.action).num_params)


def critic_shapes(spec: PolicySpec, spaces: Spaces, features: int) -> tuple[Shape, ...]:
    """The same of one critic: of observation and action to one value, or of an observation to one a Discrete action."""
    actions = ActionLayout.for_policy(spec, spaces.action)
    if actions.kind == "discrete":
        return _shapes(features, spec, actions.num_params)
    return _shapes(features + actions.size, spec, 1)


def num_acting_weights(spec: PolicySpec, spaces: Spaces) -> int:
    """How many weights acting takes, of the default model without images: the actor's and the statistics."""
    layout = ObsLayout.of(spaces.observation)
    return _count(actor_shapes(spec, spaces, layout.size)) + 2 * num_statistics(spec, layout)


def num_all_weights(spec: PolicySpec, spaces: Spaces) -> int:
    """The length of the whole flat vector (`initial_actor_and_critics` has the layout)."""
    critic = critic_shapes(spec, spaces, ObsLayout.of(spaces.observation).size)
    temperature = int(spec.head == "soft_actor")
    return num_acting_weights(spec, spaces) + spec.critics * _count(critic) + temperature


def num_statistics(spec: PolicySpec, layout: ObsLayout) -> int:
    """How many numbers of an observation are normalized, each with a mean and a variance."""
    return num_numbers(layout) if spec.normalize_obs else 0


def initial_actor_and_critics(
    spec: PolicySpec, spaces: Spaces, seed: int | np.random.SeedSequence | None, *, acting: bool = False
) -> Floats:
    """Initial weights as one flat float32 vector; same seed, same vector. `acting` leaves the critics out.

    Weights and biases are uniform within ±1/√(inputs of the layer) (arXiv:1509.02971, section 7), but for the biases
    of a soft actor's log standard deviations, which are `initial_log_std`. Layout: the actor, then each critic, layer
    by layer, the weight (out, in) in C order and the bias (out,); of a soft actor log α; mean and variance of
    normalized observations.
    """
    rng, layout = np.random.default_rng(seed), ObsLayout.of(spaces.observation)
    actions = ActionLayout.for_policy(spec, spaces.action)
    parts = uniform_layers(actor_shapes(spec, spaces, layout.size), rng)
    if actions.kind == "box":
        parts[-1][actions.size :] = spec.initial_log_std
    if not acting:
        for _ in range(spec.critics):
            parts += uniform_layers(critic_shapes(spec, spaces, layout.size), rng)
        if spec.head == "soft_actor":
            parts.append(np.full(1, math.log(spec.initial_temperature), np.float32))
    statistics = num_statistics(spec, layout)
    return np.concatenate([*parts, np.zeros(statistics, np.float32), np.ones(statistics, np.float32)])


def uniform_layers(shapes: tuple[Shape, ...], rng: np.random.Generator) -> list[Floats]:
    """Weight and bias of each layer, flat, uniform within ±1/√(inputs)."""
    parts = []
    for out, into in shapes:
        for size in (out * into, out):
            parts.append(rng.uniform(-1.0, 1.0, size).astype(np.float32) / np.float32(math.sqrt(into)))
    return parts


def _shapes(features: int, spec: PolicySpec, outputs: int) -> tuple[Shape, ...]:
    return tuple((out, into) for into, out in itertools.pairwise((features, *spec.hidden, outputs)))


def _count(shapes: tuple[Shape, ...]) -> int:
    return sum(out * into + out for out, into in shapes)
