"""Hindsight: experience told again as if what was reached had been the goal (arXiv:1707.01495)."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from flowrl.batch import Batch
from flowrl.functions import label_of
from flowrl.numbers import check_whole
from flowrl.operator import Context, Operator

Array = npt.NDArray[Any]
OBS = ("obs/achieved_goal", "obs/desired_goal", "next_obs/achieved_goal", "next_obs/desired_goal")


@dataclass(repr=False)  # functions by name
class RelabelGoals(Operator[Batch, Batch]):
    """The time-major batch (T, N) with `copies` relabelled ones beside it, (T, N · (1 + copies)): hindsight experience.

    For goal environments, whose observations are nested, with `achieved_goal` and `desired_goal`. In a copy each row's
    goal is one that was achieved at that row or later in its episode, as far as the batch holds it; rewards are those
    for it. A relabelled row stands alone: it counts as truncated, so that NStep sums no rewards over rows of different
    goals; `values` and `next_values` remain those of the original goal.

    reward: called as reward(achieved, desired) with the goals (B, ...) achieved after the steps and the new desired
        ones; gives rewards (B,). As `compute_reward` of Gymnasium's goal environments, without its third argument.
    strategy: "future", a random row from this one on; "final", the episode's last.
    copies: relabelled rows for each original one.
    terminated: called like reward, gives whether a step ended the episode (B,); None keeps what the environment said.
    seed: which random goals; they depend on it and on the batch alone.

    Raises:
        ValueError: an unknown strategy, copies below 1, rewards of another shape, a batch that is not time-major.
    """

    reward: Callable[[Array, Array], npt.ArrayLike]
    strategy: Literal["future", "final"] = "future"
    copies: int = 4
    terminated: Callable[[Array, Array], npt.ArrayLike] | None = None
    seed: int = 0

    needs: ClassVar[frozenset[str]] = frozenset({"obs", "next_obs", "rewards", "terminated", "truncated"})
    pure: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.strategy not in ("future", "final"):
            raise ValueError(f"strategy must be 'future' or 'final', got {self.strategy!r}")
        check_whole("copies", self.copies)
        check_whole("seed", self.seed, 0)
        if not callable(self.reward):
            raise ValueError(f"reward must be a function of (achieved, desired) goals, got {self.reward!r}")
        if self.terminated is not None and not callable(self.terminated):
            raise ValueError(f"terminated must be a function of (achieved, desired) goals, got {self.terminated!r}")

    def __repr__(self) -> str:
        ends = "" if self.terminated is None else f", terminated={label_of(self.terminated)}"
        return f"RelabelGoals({label_of(self.reward)}, {self.strategy!r}, copies={self.copies}{ends}, seed={self.seed})"

    def process(self, value: Batch, ctx: Context) -> Iterable[Batch]:
        missing = [name for name in OBS if name not in value]
        if missing or not value.time_major:
            what = f"the columns {', '.join(missing)}" if missing else "a time-major batch (T, N)"
            raise ValueError(f"RelabelGoals needs {what}, got {value!r}")
        last_TN = _last_rows(value)
        achieved = value["next_obs/achieved_goal"]
        rng = np.random.default_rng([self.seed, zlib.crc32(np.ascontiguousarray(achieved).tobytes())])
        copies = [self._relabelled(value, self._rows_of_goals(last_TN, rng)) for _ in range(self.copies)]
        yield Batch.concat([value, *copies])

    def _rows_of_goals(self, last_TN: Array, rng: np.random.Generator) -> Array:
        if self.strategy == "final":
            return last_TN
        return rng.integers(np.arange(len(last_TN))[:, None], last_TN, endpoint=True)

    def _relabelled(self, batch: Batch, rows_TN: Array) -> Batch:
        achieved = batch["next_obs/achieved_goal"]
        goals = achieved[rows_TN, np.arange(rows_TN.shape[1])].astype(batch["obs/desired_goal"].dtype)
        changed = {
            "obs/desired_goal": goals,
            "next_obs/desired_goal": goals,
            "rewards": self._of(self.reward, "reward", achieved, goals).astype(batch["rewards"].dtype),
            "truncated": np.ones_like(batch["truncated"]),
        }
        if self.terminated is not None:
            changed["terminated"] = self._of(self.terminated, "terminated", achieved, goals).astype(np.bool_)
        return batch.with_columns(changed)

    def _of(self, function: Callable[[Array, Array], npt.ArrayLike], name: str, achieved: Array, goals: Array) -> Array:
        """What a function of goals gives for all rows, (T, N)."""
        shape = achieved.shape[:2]
        flat = np.asarray(function(achieved.reshape(-1, *achieved.shape[2:]), goals.reshape(-1, *goals.shape[2:])))
        if flat.shape != (shape[0] * shape[1],):
            raise ValueError(f"{name} must give one number a row, ({shape[0] * shape[1]},), got {flat.shape}")
        return flat.reshape(shape)


def _last_rows(batch: Batch) -> Array:
    """The last row (T, N) of each row's episode in the batch; invalid rows belong to none."""
    ends_TN = (batch["terminated"] | batch["truncated"]).astype(np.bool_)
    valid_TN = batch.valid
    ends_TN = ends_TN | ~valid_TN
    ends_TN[:-1] |= ~valid_TN[1:]
    ends_TN[-1] = True
    rows_TN = np.where(ends_TN, np.arange(len(ends_TN))[:, None], len(ends_TN))
    return np.minimum.accumulate(rows_TN[::-1], axis=0)[::-1]
