"""How the observations of a space are stored: one array, or one for each part of a nested space, by path."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from flowrl.rl.actions import ActionLayout
from flowrl.rl.unsupported import UnsupportedSpace

Array = npt.NDArray[Any]
Obs = Array | dict[str, Array]
Kind = Literal["image", "numbers", "one_hot", "bits"]
MASK, NEXT_MASK = "action_mask", "next_action_mask"


@dataclass(frozen=True, eq=False)
class Leaf:
    """One part of an observation that is an array.

    path: its place in a nested space ("arm/joints"), "" where the space is not nested. keys: that place as the
    environment's own keys. kind: "numbers" go to a model as they are, "one_hot" are indices (`choices` are their
    numbers of values, `start` what they begin at), "bits" are 0 or 1, an "image" goes through convolutions.
    size: how many numbers it becomes when encoded, an image flattened. scale: what an image is divided by.
    """

    path: str
    keys: tuple[Any, ...]
    kind: Kind
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    size: int
    choices: tuple[int, ...] = ()
    start: Any = 0
    scale: float = 1.0

    @property
    def column(self) -> str:
        """The name of its column in a batch."""
        return f"obs/{self.path}" if self.path else "obs"


@dataclass(frozen=True, eq=False)
class ObsLayout:
    """The parts of one observation, those of a Dict sorted by their keys, without the action mask.

    `mask` is the leaf "action_mask" of a Dict, if there is one: it says which actions may be taken and is no part
    of what is observed.
    """

    leaves: tuple[Leaf, ...]
    nested: bool
    mask: Leaf | None

    @staticmethod
    def of(space: Any, where: str = "the environment") -> ObsLayout:
        """The layout of a Gymnasium space.

        Raises:
            UnsupportedSpace: a part is of another kind, holds no number, or two parts have one path.
        """
        from gymnasium.spaces import Dict, Tuple

        nested = isinstance(space, Dict | Tuple)
        leaves = list(_leaves(space, (), where))
        mask = next((leaf for leaf in leaves if leaf.keys == (MASK,)), None)
        seen = tuple(leaf for leaf in leaves if leaf is not mask)
        if not seen:
            raise UnsupportedSpace.of("observation", space, where, "this one holds no number")
        paths = [leaf.path for leaf in seen]
        if len(set(paths)) != len(paths):
            double = next(path for path in paths if paths.count(path) > 1)
            raise UnsupportedSpace.of("observation", space, where, f"two parts have the path {double!r}")
        return ObsLayout(seen, nested, mask)

    @property
    def size(self) -> int:
        """How many numbers an encoded observation holds, images flattened."""
        return sum(leaf.size for leaf in self.leaves)

    @property
    def images(self) -> tuple[Leaf, ...]:
        """The parts that go through convolutions."""
        return tuple(leaf for leaf in self.leaves if leaf.kind == "image")

    @property
    def plain(self) -> bool:
        """Whether an observation is one array of numbers, which need no encoding but to be flattened."""
        return not self.nested and self.leaves[0].kind in ("numbers", "bits")

    def split(self, obs: Any) -> Obs:
        """What the environment gave (one observation or a vector's) as an array, or as a dict of arrays by path."""
        if not self.nested:
            return np.asarray(obs)
        return {leaf.path: np.asarray(_at(obs, leaf.keys)) for leaf in self.leaves}

    def store(self, obs: Obs) -> Obs:
        """A copy of split observations, of the types that are stored."""
        parts = {leaf.path: self.part(leaf, obs).astype(leaf.dtype) for leaf in self.leaves}
        return parts if self.nested else parts[""]

    def empty(self, leading: tuple[int, ...]) -> Obs:
        """Memory for observations with these leading dimensions."""
        parts = {leaf.path: np.empty((*leading, *leaf.shape), leaf.dtype) for leaf in self.leaves}
        return parts if self.nested else parts[""]

    def part(self, leaf: Leaf, obs: Obs) -> Array:
        """The array of one leaf in a split observation."""
        return obs[leaf.path] if isinstance(obs, dict) else obs

    def columns(self, root: str, obs: Obs) -> dict[str, Array]:
        """Split observations as columns of a batch: `root`, or those below it by path."""
        if not isinstance(obs, dict):
            return {root: obs}
        return {f"{root}/{path}": array for path, array in obs.items()}

    def mask_of(self, obs: Any) -> Array | None:
        """The action mask in what the environment gave, as booleans; None if the space has none."""
        return None if self.mask is None else np.asarray(_at(obs, self.mask.keys)).astype(np.bool_)

    def check_mask(self, actions: ActionLayout, where: str) -> None:
        """Nothing, if the mask (if any) has a place for each choice.

        Raises:
            UnsupportedSpace: it has not, or the actions are not Discrete or MultiDiscrete.
        """
        if self.mask is None:
            return
        shape = self.mask.shape
        if not actions.choices:
            hint = f"a mask is for Discrete and MultiDiscrete actions; rename it if {MASK!r} is something else"
        elif shape != (actions.num_params,):
            hint = f"a mask of these actions has shape ({actions.num_params},)"
        else:
            return
        raise UnsupportedSpace.of("observation", f"of shape {shape}", where, hint, MASK)


def _at(obs: Any, keys: tuple[Any, ...]) -> Any:
    for key in keys:
        obs = obs[key]
    return obs


def _leaves(space: Any, keys: tuple[Any, ...], where: str) -> Iterator[Leaf]:
    from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

    if isinstance(space, Dict | Tuple):
        # Sorted, because two Dicts that are equal may have their keys in different orders.
        parts: Mapping[Any, Any] = space.spaces if isinstance(space, Dict) else dict(enumerate(space.spaces))
        for key in sorted(parts, key=str) if isinstance(space, Dict) else parts:
            yield from _leaves(parts[key], (*keys, key), where)
        return
    path = "/".join(map(str, keys))
    if isinstance(space, Discrete):
        n = int(space.n)
        yield Leaf(path, keys, "one_hot", (), np.dtype(np.int64), n, (n,), int(space.start))
    elif isinstance(space, MultiDiscrete):
        choices = tuple(int(n) for n in np.ravel(space.nvec))
        start = np.asarray(space.start, np.int64).ravel()
        yield Leaf(path, keys, "one_hot", space.shape, np.dtype(np.int64), sum(choices), choices, start)
    elif isinstance(space, MultiBinary):
        yield Leaf(path, keys, "bits", space.shape, np.dtype(np.int8), math.prod(space.shape))
    elif isinstance(space, Box) and np.dtype(space.dtype).kind in "iufb":
        if math.prod(space.shape) == 0:
            raise UnsupportedSpace.of("observation", space, where, "this one holds no number", path)
        yield _box_leaf(space, path, keys)
    else:
        raise UnsupportedSpace.of("observation", space, where, "FlattenObservation gives one Box of some spaces", path)


def _box_leaf(space: Any, path: str, keys: tuple[Any, ...]) -> Leaf:
    dtype = np.dtype(space.dtype)
    stored = np.dtype(np.float32) if dtype.kind == "f" else dtype
    if is_image(space.shape, dtype):
        scale = 1.0 if dtype.kind == "b" else max(1.0, float(np.max(space.high)))
        return Leaf(path, keys, "image", space.shape, stored, math.prod(space.shape), scale=scale)
    kind: Kind = "bits" if dtype.kind == "b" else "numbers"
    return Leaf(path, keys, kind, space.shape, stored, math.prod(space.shape))


def is_image(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Whether a Box is an image: uint8 or bool, rank 3, and at least 3 pixels a side."""
    if len(shape) != 3 or dtype.kind not in "ub" or dtype.itemsize != 1:
        return False
    return min(image_size(shape)) >= 3


def channels_first(shape: tuple[int, ...]) -> bool:
    """Whether the channels of an image (three sides) come first: the shorter of its first and last side are channels.

    Where these are equal, channels come last, as in most environments.
    """
    return shape[0] < shape[2]


def image_size(shape: tuple[int, ...]) -> tuple[int, int]:
    """Height and width of an image."""
    return (shape[1], shape[2]) if channels_first(shape) else (shape[0], shape[1])


def map_arrays(function: Callable[[Array], Any], obs: Obs) -> Any:
    """The function of an observation's array, or of each part of a nested one."""
    return {path: function(part) for path, part in obs.items()} if isinstance(obs, dict) else function(obs)


def num_rows(obs_N: Obs) -> int:
    """The leading dimension of observations."""
    return len(next(iter(obs_N.values()))) if isinstance(obs_N, dict) else len(obs_N)
