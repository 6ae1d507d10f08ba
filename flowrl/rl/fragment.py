"""One fragment of experience: what a worker fills step by step, and the batch and episodes made of it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flowrl.rl.checked import NotFinite
from flowrl.rl.observations import Obs, ObsLayout, map_arrays

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

    Nested observations are a dict of such arrays by path. `finals` holds (step, environment, observation) of
    episodes whose last observation the next row does not show, `final_masks` the action masks of these, if any.
    Memory is new with each fragment, because the batch is handed out without a copy.
    """

    def __init__(self, steps: int, num_envs: int, layout: ObsLayout):
        self.layout = layout
        self.obs_SN: Obs = layout.empty((steps + 1, num_envs))
        self.rewards_TN = np.empty((steps, num_envs))
        self.terminated_TN = np.empty((steps, num_envs), np.bool_)
        self.truncated_TN = np.empty((steps, num_envs), np.bool_)
        self.starts_TN = np.zeros((steps, num_envs), np.bool_)
        self.begun = False  # whether its first observations are there
        self.taken = 0  # steps, so far
        self._taken_N: npt.NDArray[np.int64] | None = None  # by environment, where parts have taken unlike many
        self.finals: list[tuple[int, int, Obs]] = []
        self.final_masks: list[npt.NDArray[np.bool_]] = []

    def put(self, step: int, obs_N: Obs) -> None:
        """Copies observations (N, ...) into row `step`."""
        if isinstance(self.obs_SN, dict):
            for path, array_N in obs_N.items():  # type: ignore[union-attr]
                self.obs_SN[path][step] = array_N
        else:
            self.obs_SN[step] = obs_N

    def at(self, step: int) -> Obs:
        """The observations (N, ...) of row `step`."""
        if isinstance(self.obs_SN, dict):
            return {path: array_SN[step] for path, array_SN in self.obs_SN.items()}
        return self.obs_SN[step]

    def part(self, rows: slice) -> Fragment:
        """Some of the environments, on this one's memory; `join` takes in what the part has of its own."""
        part = copy.copy(self)
        part.obs_SN = map_arrays(lambda array: array[:, rows], self.obs_SN)
        for name in ("rewards_TN", "terminated_TN", "truncated_TN", "starts_TN"):
            setattr(part, name, getattr(self, name)[:, rows])
        part.finals, part.final_masks = [], []
        return part

    def join(self, parts: Sequence[Fragment]) -> None:
        """Takes in parts of all the environments, in order: final observations, and the steps that all have taken."""
        self.taken = min(part.taken for part in parts)
        self._taken_N = np.repeat([part.taken for part in parts], [part.rewards_TN.shape[1] for part in parts])
        finals, first = [], 0
        for part in parts:
            masks: Sequence[Any] = part.final_masks or [None] * len(part.finals)
            finals += [(t, first + n, obs, mask) for (t, n, obs), mask in zip(part.finals, masks, strict=True)]
            first += part.rewards_TN.shape[1]
        finals.sort(key=lambda entry: entry[:2])
        self.finals = [(t, n, obs) for t, n, obs, _ in finals]
        self.final_masks = [mask for *_, mask in finals if mask is not None]

    def taken_of(self, env: int | None) -> int:
        """The steps that an environment has taken so far."""
        return self.taken if env is None or self._taken_N is None else int(self._taken_N[env])

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
        for name, obs_SN, finals in self._float_parts():
            if not np.isfinite(obs_SN[1:]).all():
                t, n, *at = (int(i) for i in np.argwhere(~np.isfinite(obs_SN[1:]))[0])
                found.append((t, n, f"{name}{at}", obs_SN[(t + 1, n, *at)]))
            for t, n, obs in finals:
                if not np.isfinite(obs).all():
                    found.append((t, n, f"the final {name}", obs[~np.isfinite(obs)][0]))
        if not found:
            return
        t, n, column, value = min(found, key=lambda entry: entry[:2])
        ends = np.flatnonzero((self.terminated_TN | self.truncated_TN)[:t, n])
        start = int(ends[-1]) + 1 if len(ends) else 0
        before = 0 if len(ends) else int(running.lengths_N[n])
        raise NotFinite.of(
            n,
            t,
            f"environment {n} gave {column} = {value}, which float32 cannot hold as a finite number, at step "
            f"{before + int(valid_TN[start : t + 1, n].sum())} of its episode, vector step {steps_before + t + 1} of "
            f"the worker; mend the environment, or wrap it so that it clips or ends the episode there",
        )

    def _float_parts(self) -> Iterator[tuple[str, Array, list[tuple[int, int, Array]]]]:
        """Each part of the observations that holds floats: its column, its array, and its final ones."""
        for leaf in self.layout.leaves:
            if leaf.dtype.kind == "f":
                finals = [(t, n, self.layout.part(leaf, obs)) for t, n, obs in self.finals]
                yield leaf.column, self.layout.part(leaf, self.obs_SN), finals

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

    def following_obs(self) -> Obs:
        """The observation that followed each step, (T, N, ...): at an episode's end the final one."""
        at_finals = self.final_obs()
        if not isinstance(self.obs_SN, dict):
            return self.following(self.obs_SN, at_finals)  # type: ignore[arg-type]
        finals = {} if at_finals is None else at_finals
        return {path: self.following(array, finals.get(path)) for path, array in self.obs_SN.items()}  # type: ignore[union-attr]

    def final_obs(self) -> Obs | None:
        """The final observations (F, ...) of `finals`, stored as the other observations are; None if there are none."""
        if not self.finals:
            return None
        observations = [obs for _, _, obs in self.finals]
        parts = {
            leaf.path: np.stack([self.layout.part(leaf, obs) for obs in observations]).astype(leaf.dtype)
            for leaf in self.layout.leaves
        }
        return parts if self.layout.nested else parts[""]

    def columns(self) -> Mapping[str, Array]:
        """The columns that the environment gave."""
        return {
            **self.layout.columns("obs", map_arrays(lambda array: array[:-1], self.obs_SN)),
            "rewards": self.rewards_TN.astype(np.float32),
            "terminated": self.terminated_TN,
            "truncated": self.truncated_TN,
        }
