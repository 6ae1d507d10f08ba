"""The default model's shapes and its initial weights, in NumPy: the worker and the learner share them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt

from flowrl.rl.spaces import num_actions, obs_size
from flowrl.rl.spec import PolicySpec, Spaces

Shape = tuple[int, int]
HIDDEN_GAIN, ACTOR_GAIN, CRITIC_GAIN = math.sqrt(2.0), 0.01, 1.0


def layer_shapes(spec: PolicySpec, spaces: Spaces) -> tuple[tuple[Shape, ...], tuple[Shape, ...]]:
    """The (out, in) shapes of the weights of the default model's actor and critic, first layer first."""
    widths = (obs_size(spaces), *spec.hidden)
    trunk = tuple((out, into) for into, out in itertools.pairwise(widths))
    return (*trunk, (num_actions(spaces), widths[-1])), (*trunk, (1, widths[-1]))


def num_weights(spec: PolicySpec, spaces: Spaces) -> int:
    """The length of the default model's flat vector: for actor then critic, layer by layer, weight and bias."""
    return sum(out * into + out for net in layer_shapes(spec, spaces) for out, into in net)


def initial_weights(
    spec: PolicySpec, spaces: Spaces, seed: int | np.random.SeedSequence | None
) -> npt.NDArray[np.float32]:
    """The initial weights of the default model as one flat float32 vector; same seed, same vector.

    Orthogonal weights (arXiv:1312.6120) with gain sqrt(2) in hidden layers, 0.01 in the actor's head
    and 1 in the critic's; biases are zero. Layout: for actor then critic, for each layer: the weight
    of shape (out, in) in C order, then the bias (out,).

    Raises:
        ValueError: for a specification with a model of its own, which initializes itself.
    """
    if spec.model is not None:
        raise ValueError(
            f"initial_weights is for the default model; {spec.model!r} initializes itself when Policy builds it"
        )
    rng = np.random.default_rng(seed)
    parts: list[npt.NDArray[np.float32]] = []
    for net, head_gain in zip(layer_shapes(spec, spaces), (ACTOR_GAIN, CRITIC_GAIN), strict=True):
        for i, (out, into) in enumerate(net):
            gain = head_gain if i == len(net) - 1 else HIDDEN_GAIN
            parts.append((gain * orthogonal(out, into, rng)).astype(np.float32).ravel())
            parts.append(np.zeros(out, np.float32))
    return np.concatenate(parts)


def orthogonal(out: int, into: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """A random (out, into) matrix whose rows, or columns where they are fewer, are orthonormal."""
    gauss = rng.standard_normal((max(out, into), min(out, into)))
    q, r = np.linalg.qr(gauss)
    # Without the sign of R's diagonal the result is not uniform over orthogonal matrices.
    q = q * np.where(np.diag(r) < 0, -1.0, 1.0)
    return q if out >= into else np.ascontiguousarray(q.T)
