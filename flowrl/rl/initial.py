"""The default model's shapes and its initial weights, in NumPy: the worker and the learner share them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt

from flowrl.rl.actions import ActionLayout
from flowrl.rl.encoding import num_numbers
from flowrl.rl.observations import ObsLayout
from flowrl.rl.spaces import obs_size, runs_in_numpy
from flowrl.rl.spec import PolicySpec, Spaces

Shape = tuple[int, int]
HIDDEN_GAIN, ACTOR_GAIN, CRITIC_GAIN = math.sqrt(2.0), 0.01, 1.0


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
    layers = sum(out * into + out for net in layer_shapes(spec, spaces) for out, into in net)
    return layers + num_log_stds(spaces) + 2 * num_statistics(spec, spaces)


def initial_weights(
    spec: PolicySpec, spaces: Spaces, seed: int | np.random.SeedSequence | None
) -> npt.NDArray[np.float32]:
    """The initial weights of the default model as one flat float32 vector; same seed, same vector.

    Orthogonal weights (arXiv:1312.6120) with gain sqrt(2) in hidden layers, 0.01 in the actor's head
    and 1 in the critic's; biases are zero. Layout: for actor then critic, for each layer: the weight
    of shape (out, in) in C order, then the bias (out,); behind the actor's layers the log standard
    deviations of Box actions; at the end mean and variance of normalized observations.

    Raises:
        ValueError: for a model of the user's own, with images or recurrent, which initializes itself.
    """
    if not runs_in_numpy(spec, spaces):
        raise ValueError(
            f"initial_weights is for the default model without images or memory; the model of {spec} for "
            f"{spaces.observation} initializes itself when Policy builds it"
        )
    rng = np.random.default_rng(seed)
    actor, critic = layer_shapes(spec, spaces)
    statistics = num_statistics(spec, spaces)
    parts = [
        *_layers(actor, ACTOR_GAIN, rng),
        np.full(num_log_stds(spaces), spec.initial_log_std, np.float32),
        *_layers(critic, CRITIC_GAIN, rng),
        np.zeros(statistics, np.float32),
        np.ones(statistics, np.float32),
    ]
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
