"""Observations as one vector of numbers each, in NumPy: what the default model's first layer sees in a worker."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from flowrl.rl.normalize import normalize
from flowrl.rl.observations import Leaf, Obs, ObsLayout

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]


class NumpyEncoder:
    """Observations (N, ...) of a layout without images to features (N, F); the torch `Encoder`'s twin.

    Numbers and bits are flattened, indices become one-hot, the parts follow one another in the layout's order.
    With `mean` and `var` set (float32, over all the numbers) the numbers are normalized.
    """

    def __init__(self, layout: ObsLayout):
        self._layout = layout
        self._numbers = _slices(layout)
        self._statistics: tuple[Floats, Floats] | None = None

    def normalize_by(self, mean: Floats, var: Floats) -> None:
        """From now on numbers are normalized by this mean and variance."""
        self._statistics = mean.copy(), var.copy()

    def __call__(self, obs: Obs) -> Array:
        """Features (N, F); where nothing is to be done, the observations themselves (N, ...)."""
        if isinstance(obs, np.ndarray):
            return self._part(self._layout.leaves[0], obs)
        return np.concatenate([self._part(leaf, obs[leaf.path]) for leaf in self._layout.leaves], 1, dtype=np.float32)

    def _part(self, leaf: Leaf, array_N: Array) -> Array:
        if leaf.kind == "one_hot":
            return one_hot(leaf, array_N)
        rows_NF = array_N.reshape(len(array_N), -1)
        if leaf.kind == "numbers" and self._statistics is not None:
            mean, var = self._statistics
            at = self._numbers[leaf.path]
            return normalize(rows_NF, mean[at], var[at])
        return rows_NF


def num_numbers(layout: ObsLayout) -> int:
    """How many numbers of an observation can be normalized: those of Boxes that are no images."""
    return sum(leaf.size for leaf in layout.leaves if leaf.kind == "numbers")


def numbers_of(layout: ObsLayout, obs: Obs) -> Array:
    """The numbers (B, ...) of observations (B, ...) that are normalized, side by side (B, num_numbers), float32."""
    if isinstance(obs, np.ndarray):
        return obs.reshape(len(obs), -1).astype(np.float32, copy=False)
    parts = [obs[leaf.path].reshape(len(obs[leaf.path]), -1) for leaf in layout.leaves if leaf.kind == "numbers"]
    return np.concatenate(parts, 1, dtype=np.float32)


def one_hot(leaf: Leaf, indices_N: Array) -> Floats:
    """Indices (N, ...) of a leaf as one-hot rows (N, F), side by side.

    Raises:
        ValueError: an index that the space does not hold.
    """
    rows = len(indices_N)
    shifted_NK = indices_N.reshape(rows, -1) - leaf.start
    outside_NK = (shifted_NK < 0) | (shifted_NK >= np.array(leaf.choices))
    if outside_NK.any():
        n, k = (int(i) for i in np.argwhere(outside_NK)[0])
        found = indices_N.reshape(rows, -1)[n, k]
        raise ValueError(
            f"observation {leaf.column!r} of row {n} is {found}, outside its space, which begins at "
            f"{np.ravel(leaf.start)[k % np.size(leaf.start)]} and has {leaf.choices[k]} values"
        )
    features = np.zeros((rows, leaf.size), np.float32)
    places = shifted_NK + np.cumsum((0, *leaf.choices[:-1]))
    np.put_along_axis(features, places, 1, 1)
    return features


def _slices(layout: ObsLayout) -> dict[str, slice]:
    slices, at = {}, 0
    for leaf in layout.leaves:
        if leaf.kind == "numbers":
            slices[leaf.path] = slice(at, at + leaf.size)
            at += leaf.size
    return slices
