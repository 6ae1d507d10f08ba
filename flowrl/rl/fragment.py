"""One fragment of experience: what a worker fills step by step, and the batch and episodes made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass
class Running:
    """What the episodes under way carry from one fragment to the next, each (N,).

    ended: the last step ended an episode and the next one only resets; returns: raw rewards so far;
    lengths: steps so far.
    """

    ended_N: npt.NDArray[np.bool_]
    returns_N: npt.NDArray[np.float64]
    lengths_N: npt.NDArray[np.int64]

    @staticmethod
    def fresh(num_envs: int) -> Running:
        """No episode under way."""
        return Running(np.zeros(num_envs, np.bool_), np.zeros(num_envs), np.zeros(num_envs, np.int64))


class Fragment:
    """Arrays for T steps of N environments: observations (T + 1, N, ...), the rest (T, N).

    `finals` holds (step, environment, observation) of episodes whose last observation the next row
    does not show. Memory is new with each fragment, because the batch is handed out without a copy.
    """

    def __init__(self, steps: int, num_envs: int, obs_shape: tuple[int, ...], obs_dtype: np.dtype[Any]):
        self.obs_SN = np.empty((steps + 1, num_envs, *obs_shape), obs_dtype)
        self.rewards_TN = np.empty((steps, num_envs))
        self.terminated_TN = np.empty((steps, num_envs), np.bool_)
        self.truncated_TN = np.empty((steps, num_envs), np.bool_)
        self.finals: list[tuple[int, int, Array]] = []

    def close_rows(self, running: Running, phantom_rows: bool) -> npt.NDArray[np.bool_]:
        """Which rows are transitions, (T, N); rows that only reset are cleared."""
        valid_TN = np.ones(self.rewards_TN.shape, np.bool_)
        if phantom_rows:
            valid_TN[0] = ~running.ended_N
            np.logical_not(self.terminated_TN[:-1] | self.truncated_TN[:-1], out=valid_TN[1:])
            if not valid_TN.all():
                self.rewards_TN *= valid_TN
                self.terminated_TN &= valid_TN
                self.truncated_TN &= valid_TN
        return valid_TN

    def check(self, valid_TN: npt.NDArray[np.bool_], running: Running, steps_before: int) -> None:
        """Nothing, if rewards and observations are finite.

        Raises:
            FloatingPointError: names column, value, environment, and the steps of its episode and worker.
        """
        found = []
        with np.errstate(over="ignore"):
            rewards_TN = self.rewards_TN.astype(np.float32)
        if not np.isfinite(rewards_TN).all():
            t, n = (int(i) for i in np.argwhere(~np.isfinite(rewards_TN))[0])
            found.append((t, n, "rewards", self.rewards_TN[t, n]))
        if self.obs_SN.dtype.kind == "f":
            if not np.isfinite(self.obs_SN[1:]).all():
                t, n, *at = (int(i) for i in np.argwhere(~np.isfinite(self.obs_SN[1:]))[0])
                found.append((t, n, f"obs{at}", self.obs_SN[(t + 1, n, *at)]))
            for t, n, obs in self.finals:
                if not np.isfinite(obs).all():
                    found.append((t, n, "the final obs", obs[~np.isfinite(obs)][0]))
        if not found:
            return
        t, n, column, value = min(found, key=lambda entry: entry[:2])
        ends = np.flatnonzero((self.terminated_TN | self.truncated_TN)[:t, n])
        start = int(ends[-1]) + 1 if len(ends) else 0
        before = 0 if len(ends) else int(running.lengths_N[n])
        raise FloatingPointError(
            f"environment {n} gave {column} = {value}, which float32 cannot hold as a finite number, at step "
            f"{before + int(valid_TN[start : t + 1, n].sum())} of its episode, vector step {steps_before + t + 1} of "
            f"the worker; mend the environment, or wrap it so that it clips or ends the episode there"
        )

    def episodes(self, valid_TN: npt.NDArray[np.bool_], running: Running) -> tuple[tuple[float, ...], tuple[int, ...]]:
        """Raw returns and lengths of the episodes that ended here, in order of time; `running` moves on."""
        done_TN = self.terminated_TN | self.truncated_TN
        starts = [0] * done_TN.shape[1]
        returns: list[float] = []
        lengths: list[int] = []
        for t, n in zip(*(places.tolist() for places in np.nonzero(done_TN)), strict=True):
            rows = slice(starts[n], t + 1)
            returns.append(float(running.returns_N[n] + self.rewards_TN[rows, n].sum()))
            lengths.append(int(running.lengths_N[n] + valid_TN[rows, n].sum()))
            running.returns_N[n], running.lengths_N[n], starts[n] = 0.0, 0, t + 1
        for n, start in enumerate(starts):
            running.returns_N[n] += self.rewards_TN[start:, n].sum()
            running.lengths_N[n] += valid_TN[start:, n].sum()
        running.ended_N = done_TN[-1].copy()
        return tuple(returns), tuple(lengths)

    def following(self, states_SN: Array, at_finals: Array | None) -> Array:
        """What followed each step, (T, N, ...): the next row, or its entry of `at_finals` where an episode ended."""
        if at_finals is None or not self.finals:
            return states_SN[1:]
        following_TN = states_SN[1:].copy()
        for (t, n, _), entry in zip(self.finals, at_finals, strict=True):
            following_TN[t, n] = entry
        return following_TN

    def final_obs(self) -> Array | None:
        """The final observations (F, ...) of `finals`, stored as the other observations are; None if there are none."""
        if not self.finals:
            return None
        return np.stack([obs for _, _, obs in self.finals]).astype(self.obs_SN.dtype)

    def columns(self) -> Mapping[str, Array]:
        """The columns that the environment gave."""
        return {
            "obs": self.obs_SN[:-1],
            "rewards": self.rewards_TN.astype(np.float32),
            "terminated": self.terminated_TN,
            "truncated": self.truncated_TN,
        }
