"""Running statistics that merge exactly, and what is divided by them: observations and rewards (NUMERICS 22)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
EPSILON = 1e-8  # added to the variance, so that a constant is not divided by zero
CLIP = 10.0  # normalized observations are clipped to it


@dataclass(frozen=True)
class RunningMoments:
    """Count, mean and M2 (the sum of squared deviations from the mean) of rows, in float64. Immutable.

    `merge` gives the moments of both sets of rows together, as if they had been seen at once (Chan, Golub
    and LeVeque, 1979), in any order and grouping up to rounding.
    """

    count: int
    mean: npt.NDArray[np.float64]
    m2: npt.NDArray[np.float64]

    @staticmethod
    def empty(shape: tuple[int, ...] = ()) -> RunningMoments:
        """The moments of no rows of this shape."""
        return RunningMoments(0, np.zeros(shape), np.zeros(shape))

    @staticmethod
    def of(rows_B: npt.ArrayLike) -> RunningMoments:
        """The moments of rows (B, ...), by the first axis; pass valid rows only.

        Raises:
            ValueError: a single number.
            FloatingPointError: a row is not finite.
        """
        rows = np.asarray(rows_B)
        if rows.ndim == 0:
            raise ValueError(f"moments are of rows (B, ...), got the single number {rows}")
        if len(rows) == 0:
            return RunningMoments.empty(rows.shape[1:])
        mean = np.asarray(rows.mean(0, dtype=np.float64))
        apart = rows - mean
        # What the rounding of the mean leaves; without it M2 is off where the mean is large.
        correction = apart.sum(0) / len(rows)
        m2 = np.asarray(np.square(apart).sum(0) - len(rows) * np.square(correction))
        if not np.isfinite(m2).all():
            raise FloatingPointError(f"{int(np.count_nonzero(~np.isfinite(m2)))} of {m2.size} columns are not finite")
        return RunningMoments(len(rows), mean + correction, np.maximum(m2, 0.0))

    def merge(self, other: RunningMoments) -> RunningMoments:
        """The moments of the rows of both.

        Raises:
            ValueError: rows of other shapes.
        """
        if self.mean.shape != other.mean.shape:
            raise ValueError(f"cannot merge moments of rows of shape {self.mean.shape} and {other.mean.shape}")
        if self.count == 0 or other.count == 0:
            return other if self.count == 0 else self
        count = self.count + other.count
        delta = other.mean - self.mean
        # Weighted from the larger side, where the rounding of the product is smallest.
        if self.count >= other.count:
            mean = self.mean + delta * (other.count / count)
        else:
            mean = other.mean - delta * (self.count / count)
        m2 = self.m2 + other.m2 + np.square(delta) * (self.count * other.count / count)
        return RunningMoments(count, mean, m2)

    def update(self, rows_B: npt.ArrayLike) -> RunningMoments:
        """These moments with more rows (B, ...)."""
        return self.merge(RunningMoments.of(rows_B))

    @property
    def var(self) -> npt.NDArray[np.float64]:
        """The variance of the rows (divided by their count); ones before the first row."""
        return self.m2 / self.count if self.count else np.ones_like(self.m2)

    @property
    def std(self) -> npt.NDArray[np.float64]:
        """The root of `var`."""
        return np.asarray(np.sqrt(self.var))

    def get_state(self) -> dict[str, Any]:
        """A number and two arrays."""
        return {"count": self.count, "mean": self.mean.copy(), "m2": self.m2.copy()}

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> RunningMoments:
        """The moments that `get_state` gave."""
        return RunningMoments(int(state["count"]), np.array(state["mean"]), np.array(state["m2"]))


def normalize(obs: Array, mean: Array, var: Array, *, clip: float = CLIP) -> Floats:
    """(obs − mean) / √(var + 1e-8), clipped to ±`clip`, in float32."""
    scaled = (obs - np.asarray(mean, np.float32)) / np.sqrt(np.asarray(var, np.float32) + np.float32(EPSILON))
    return np.clip(scaled, -clip, clip, dtype=np.float32)


class RewardScaling:
    """What a worker does to raw rewards before they are trained on: divides and clips them.

    Rewards are divided by the standard deviation of the discounted return R_t = γ R_{t-1} + r_t, which begins
    anew with every episode; their mean stays, so their sign does. The deviation is over all that `moments` holds:
    the own fragments so far, this one included, on top of what was told last of the whole run's.

    discount: γ; None does not divide. clip: afterwards rewards are clipped to ±clip; None does not.

    Raises:
        ValueError: a number out of range.
    """

    def __init__(self, num_envs: int, discount: float | None = None, clip: float | None = None):
        if discount is not None and not 0.0 <= discount <= 1.0:
            raise ValueError(f"normalize_rewards is a discount from 0 to 1, got {discount}")
        if clip is not None and not 0.0 < clip < math.inf:
            raise ValueError(f"reward_clip must be above 0 and finite, got {clip}")
        self.discount, self.clip = discount, clip
        self.moments = RunningMoments.empty()
        self._returns_N = np.zeros(num_envs)

    @property
    def active(self) -> bool:
        """Whether rewards are changed at all."""
        return self.discount is not None or self.clip is not None

    def begin(self) -> None:
        """New episodes begin in every environment."""
        self._returns_N = np.zeros_like(self._returns_N)

    def scale(
        self, rewards_TN: Array, done_TN: npt.NDArray[np.bool_], valid_TN: npt.NDArray[np.bool_]
    ) -> tuple[Array, RunningMoments | None]:
        """The rewards (T, N) to train on, and the moments that this fragment added (None without normalization)."""
        added = None
        if self.discount is not None:
            added = RunningMoments.of(self._discounted(rewards_TN, done_TN, valid_TN, self.discount)[valid_TN])
            self.moments = self.moments.merge(added)
            rewards_TN = rewards_TN / math.sqrt(float(self.moments.var) + EPSILON)
        if self.clip is not None:
            rewards_TN = np.clip(rewards_TN, -self.clip, self.clip)
        return rewards_TN, added

    def _discounted(self, rewards_TN: Array, done_TN: Array, valid_TN: Array, discount: float) -> Array:
        returns_TN = np.empty(rewards_TN.shape)
        running_N = self._returns_N
        for t in range(len(rewards_TN)):
            # A row that only resets follows a done one, so its return stands at zero.
            running_N = running_N * discount + np.where(valid_TN[t], rewards_TN[t], 0.0)
            returns_TN[t] = running_N
            running_N = np.where(done_TN[t], 0.0, running_N)
        self._returns_N = running_N
        return returns_TN

    def get_state(self) -> dict[str, Any]:
        """Moments and the returns under way."""
        return {"moments": self.moments.get_state(), "returns": self._returns_N.copy()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state; with another number of environments their returns begin anew."""
        self.moments = RunningMoments.from_state(state["moments"])
        returns_N = np.array(state["returns"])
        self._returns_N = returns_N if returns_N.shape == self._returns_N.shape else np.zeros_like(self._returns_N)
