"""How the actions of a space are stored, and what the environment gets of a stored action."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from flowrl.rl.spec import ACTOR_HEADS, PolicySpec
from flowrl.rl.unsupported import UnsupportedSpace

Array = npt.NDArray[Any]
Kind = Literal["discrete", "multi_discrete", "multi_binary", "box", "scaled_box"]


@dataclass(frozen=True, eq=False)
class ActionLayout:
    """How actions of one space are stored in the column `actions`, and how many numbers describe their distribution.

    kind: "discrete": the index 0..n-1, int64, shape (). "multi_discrete": the indices, int64. "multi_binary": int8.
        "box": the Gaussian's sample, float32, neither clipped nor (with `squash`) put through tanh. "scaled_box":
        numbers from −1 (a Box's lower bound) to 1 (its upper), float32.
    shape: of one stored action. num_params: P, of one distribution. choices: the n of each index.
    low, high: a Box's bounds, flat. start: what an index lacks to be the environment's.
    noise: standard deviation of a deterministic actor's exploration, in a scaled box's units.
    """

    kind: Kind
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    env_dtype: np.dtype[Any]
    num_params: int
    choices: tuple[int, ...] = ()
    start: Any = 0
    low: Array = field(default_factory=lambda: np.zeros(0, np.float32))
    high: Array = field(default_factory=lambda: np.zeros(0, np.float32))
    squash: bool = False
    noise: float = 0.0

    @staticmethod
    def for_policy(spec: PolicySpec, space: Any, where: str = "the environment") -> ActionLayout:
        """The layout in which a policy of this specification stores its actions.

        Raises:
            UnsupportedSpace: as `of`; or a soft or deterministic actor cannot act in this space.
        """
        if spec.head not in ACTOR_HEADS:
            return ActionLayout.of(space, squash=spec.squash, where=where)
        from gymnasium.spaces import Box, Discrete

        soft = spec.head == "soft_actor"
        if soft and isinstance(space, Discrete):
            return ActionLayout.of(space, where=where)
        if not isinstance(space, Box):
            kinds, other = ("Box and Discrete", "PPO") if soft else ("Box", "DQN, SAC or PPO")
            hint = f"PolicySpec(head={spec.head!r}) is for {kinds} actions; or use {other}"
            raise UnsupportedSpace.of("action", space, where, hint, supported=kinds.replace("Box", "Box of floats"))
        layout = _box(space, True, where, f"head={spec.head!r}")
        if soft:
            return layout
        noise = spec.exploration_noise
        return replace(layout, kind="scaled_box", num_params=layout.size, squash=False, noise=noise)

    @staticmethod
    def of(space: Any, *, squash: bool = False, where: str = "the environment") -> ActionLayout:
        """The layout of a Gymnasium space.

        Raises:
            UnsupportedSpace: another kind of space, one of integers, or `squash` without finite bounds.
        """
        from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

        if squash and not isinstance(space, Box):
            raise UnsupportedSpace.of(
                "action", space, where, "PolicySpec(squash=True) is for Box actions", supported="Box of floats"
            )
        if isinstance(space, Discrete):
            n = int(space.n)
            return ActionLayout("discrete", (), INT64, INT64, n, (n,), int(space.start))
        if isinstance(space, MultiDiscrete):
            choices = tuple(int(n) for n in np.ravel(space.nvec))
            start = np.asarray(space.start, np.int64)
            return ActionLayout(
                "multi_discrete", space.shape, INT64, np.dtype(space.dtype), sum(choices), choices, start
            )
        if isinstance(space, MultiBinary):
            return ActionLayout("multi_binary", space.shape, INT8, np.dtype(space.dtype), math.prod(space.shape))
        if not isinstance(space, Box):
            raise UnsupportedSpace.of("action", space, where, "number the combinations that matter: Discrete")
        return _box(space, squash, where, "squash=True")

    @property
    def size(self) -> int:
        """How many numbers one stored action holds."""
        return math.prod(self.shape)

    @property
    def log_scale(self) -> float:
        """Σ log((high − low) / 2) of a Box's numbers: what squashing to the bounds takes from a density.

        A number whose bounds are equal has no density and adds nothing.
        """
        wide = self.high > self.low
        return float(np.log(0.5 * (self.high[wide].astype(np.float64) - self.low[wide])).sum())

    @property
    def bounded(self) -> bool:
        """Whether actions are numbers between bounds, so that they can be drawn uniformly."""
        return self.squash or self.kind == "scaled_box"

    def uniform(self, rng: np.random.Generator, leading: tuple[int, ...]) -> Array:
        """Stored actions (*leading, *shape) that are uniform between the bounds, of a layout that is `bounded`."""
        scaled = rng.uniform(-INSIDE, INSIDE, (*leading, *self.shape))
        return np.asarray(np.arctanh(scaled) if self.squash else scaled, np.float32)

    def to_env(self, actions: Array) -> Array:
        """Stored actions (..., *shape) as the environment takes them: start added; or squashed, scaled and clipped.

        Always an array of its own: what an environment does to it does not reach the batch.
        """
        if self.kind == "discrete":
            return actions + self.start if self.start else actions.copy()
        if self.kind in ("box", "scaled_box"):
            low, high = self.low.reshape(self.shape), self.high.reshape(self.shape)
            if self.squash or self.kind == "scaled_box":
                scaled = np.tanh(actions) if self.squash else actions
                actions = low + (scaled + np.float32(1)) * (np.float32(0.5) * (high - low))
            return np.clip(actions, low, high).astype(self.env_dtype, copy=False)
        if self.kind == "multi_binary":
            return actions.copy()
        return np.asarray(actions + self.start, self.env_dtype)


INSIDE = 1.0 - 1e-7  # tanh never quite reaches its bounds
INT64, INT8, FLOAT32 = np.dtype(np.int64), np.dtype(np.int8), np.dtype(np.float32)


def _box(space: Any, squash: bool, where: str, cause: str) -> ActionLayout:
    dtype, size = np.dtype(space.dtype), math.prod(space.shape)
    if dtype.kind != "f":
        raise UnsupportedSpace.of("action", space, where, "a Box of integers is a MultiDiscrete")
    if size == 0:
        raise UnsupportedSpace.of("action", space, where, "this one holds no number")
    with np.errstate(over="ignore"):  # beyond float32 they are no bounds, which is told below
        low, high = (np.asarray(bound, dtype).astype(np.float32).ravel() for bound in (space.low, space.high))
    # Bounds of doubles are rounded inwards, so that no action is outside of the space.
    inner_low = np.where(low < space.low.ravel(), np.nextafter(low, np.float32(np.inf)), low)
    inner_high = np.where(high > space.high.ravel(), np.nextafter(high, np.float32(-np.inf)), high)
    fits = (inner_low <= inner_high) & np.isfinite(low) & np.isfinite(high)
    low, high = np.where(fits, inner_low, low), np.where(fits, inner_high, high)
    with np.errstate(over="ignore"):
        scales = np.isfinite(high - low).all()
    if squash and not scales:
        raise UnsupportedSpace.of(
            "action", space, where, f"PolicySpec({cause}) scales to the bounds, so they must be finite in float32, and "
            "so must be the distance between them"
        )  # fmt: skip
    return ActionLayout("box", space.shape, FLOAT32, dtype, 2 * size, (), 0, low, high, squash)
