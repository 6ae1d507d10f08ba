"""Environments whose every number is known beforehand, and some that fail on purpose."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.utils import EzPickle


class Counting(gymnasium.Env[Any, int]):
    """Observations (episode, step), both from 0; the reward of step k is k; episodes take `lengths` in turn.

    Actions change nothing. `truncates` ends by truncation, `both` by termination and truncation at once.
    """

    def __init__(
        self,
        lengths: tuple[int, ...] = (3,),
        *,
        truncates: bool = False,
        both: bool = False,
        reuse_buffer: bool = False,
        dtype: Any = np.float32,
        start: int = 0,
        num_actions: int = 2,
    ):
        self.observation_space = Box(0, 100, (2,), dtype)
        self.action_space = Discrete(num_actions, start=start)
        self.lengths, self.truncates, self.both, self.reuse_buffer = lengths, truncates, both, reuse_buffer
        self.episode, self.step_number = -1, 0
        self.buffer = np.zeros(2, dtype)
        self.actions: list[int] = []
        self.seeds: list[int | None] = []

    def _obs(self) -> Any:
        self.buffer = self.buffer if self.reuse_buffer else self.buffer.copy()
        self.buffer[:] = self.episode, self.step_number
        return self.buffer

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.episode, self.step_number = self.episode + 1, 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(np.int64(action)), action
        self.actions.append(int(action))
        self.step_number += 1
        ended = self.step_number >= self.lengths[self.episode % len(self.lengths)]
        terminated = ended and (self.both or not self.truncates)
        truncated = ended and (self.both or self.truncates)
        return self._obs(), float(self.step_number), terminated, truncated, {}


class Faulty(Counting):
    """Counting that goes wrong at a step of each episode (0: at its reset): raises, or gives NaN in a column."""

    def __init__(self, at: int, what: str = "raise", lengths: tuple[int, ...] = (3,)):
        super().__init__(lengths)
        self.at, self.what = at, what

    def _fault(self, obs: Any, reward: float) -> tuple[Any, float]:
        if self.step_number == self.at:
            if self.what == "raise":
                raise TwoArgumentsError("the arm is stuck", self.at)
            if self.what == "obs":
                obs = np.array([obs[0], np.nan], np.float32)
            if self.what == "rewards":
                reward = float("inf")
            if self.what == "huge":
                reward = 1e300
        return obs, reward

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = super().reset(**kwargs)
        return self._fault(obs, 0.0)[0], info

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        obs, reward = self._fault(obs, reward)
        return obs, reward, terminated, truncated, info


class TwoArgumentsError(RuntimeError):
    """An exception whose constructor takes two arguments."""

    def __init__(self, what: str, step: int):
        super().__init__(what, step)


class Walk(gymnasium.Env[Any, int]):
    """A random walk whose steps, reward and end depend on its own generator and on the actions."""

    observation_space = Box(-100, 100, (3,), np.float64)
    action_space = Discrete(3)

    def __init__(self) -> None:
        self.position = np.zeros(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.position = self.np_random.normal(size=3)
        return self.position.copy(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.position[action] += self.np_random.normal()
        terminated, truncated = bool(self.position[0] > 2), bool(self.np_random.random() < 0.05)
        return self.position.copy(), float(self.position.sum()), terminated, truncated, {}


class Forgetful(Walk, EzPickle):
    """A walk that pickles as its constructor's arguments only, as wrappers of C++ simulators do."""

    def __init__(self) -> None:
        EzPickle.__init__(self)
        Walk.__init__(self)


class Locked(Walk):
    """A walk that cannot be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.stream = iter([]), (value for value in ())


def broken_constructor() -> gymnasium.Env[Any, int]:
    """A factory that fails."""
    raise TwoArgumentsError("no licence", 0)
