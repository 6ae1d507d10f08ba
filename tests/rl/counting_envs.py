"""Environments whose every number is known beforehand, and some that fail on purpose."""

from __future__ import annotations

import os
import threading
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


class CountingVector(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Counting as a vector environment of its own kind: all copies in two arrays, reused at every step."""

    def __init__(self, num_envs: int = 1, lengths: tuple[int, ...] = (3,), *, column: bool = False):
        self.num_envs, self.lengths, self.column = num_envs, np.array(lengths), column
        self.single_observation_space = Box(0, 100, (2,), np.float32)
        self.single_action_space = Discrete(2)
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)
        self.metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}
        self.obs = np.zeros((num_envs, 2), np.float32)
        self.ended = np.zeros(num_envs, bool)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.obs[:] = 0
        self.ended[:] = False
        return self.obs, {}

    def step(self, actions: Any) -> tuple[Any, ...]:
        assert self.action_space.contains(np.asarray(actions)), actions
        resets = self.ended.copy()
        self.obs[resets, 0] += 1
        self.obs[resets, 1] = 0
        self.obs[~resets, 1] += 1
        rewards = np.where(resets, 0.0, self.obs[:, 1])
        self.ended = ~resets & (self.obs[:, 1] >= self.lengths[self.obs[:, 0].astype(int) % len(self.lengths)])
        return self.obs, rewards[:, None] if self.column else rewards, self.ended.copy(), np.zeros_like(self.ended), {}


class Columns(Counting):
    """Counting that gives its reward as an array of shape (1,), from a buffer that it reuses, as its info."""

    def __init__(self, lengths: tuple[int, ...] = (3,), rewards: int = 1):
        super().__init__(lengths, reuse_buffer=True)
        self.reward, self.info = np.zeros(rewards), {"action_mask": np.zeros(2, np.int8)}

    def _told(self) -> dict[str, Any]:
        self.info["action_mask"][:] = (1, self.step_number % 2)
        return self.info

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        return super().reset(**kwargs)[0], self._told()

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, _ = super().step(action)
        self.reward[:] = reward
        return obs, self.reward, terminated, truncated, self._told()


class Nested(Counting):
    """Counting with its observation in a Dict and a Tuple, whose buffers are reused."""

    def __init__(self, lengths: tuple[int, ...] = (3,)):
        super().__init__(lengths, reuse_buffer=True)
        self.observation_space = gymnasium.spaces.Dict(
            {"count": self.observation_space, "pair": gymnasium.spaces.Tuple([Box(0, 100, (1,)), Discrete(50)])}
        )

    def _obs(self) -> Any:
        both = super()._obs()
        return {"count": both, "pair": (both[1:], self.episode)}


def register(env_id: str, **kwargs: Any) -> str:
    """Registers Counting with its vector entry point for the time of a test; returns the id."""
    gymnasium.registry[env_id] = gymnasium.envs.registration.EnvSpec(
        env_id, entry_point=Counting, vector_entry_point=CountingVector, disable_env_checker=True, kwargs=kwargs
    )
    return env_id


class Wordy(Counting):
    """Counting whose actions are words, which no policy here gives."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = gymnasium.spaces.Text(3)  # type: ignore[assignment]


class Mishap(Walk):
    """A random walk that does what it is told at step `at` (0: its reset) of episode `episode` (from 1; 0: of each).

    what: "raise", "hang", "exit", "nan", "inf", "shape", "dtype". most: so often, counted by the files of `marks`.
    """

    def __init__(self, what: str, at: int = 3, episode: int = 1, most: int | None = None, marks: str | None = None):
        super().__init__()
        self.what, self.at, self.begun, self.when, self.most, self.marks = what, at, 0, episode, most, marks
        self.taken = 0

    def _due(self) -> bool:
        if self.when not in (0, self.begun) or self.taken != self.at:
            return False
        if self.marks is None or self.most is None:
            return True
        there = len(os.listdir(self.marks))
        if there < self.most:
            open(os.path.join(self.marks, str(there)), "w").close()
        return there < self.most

    def _done(self, obs: Any, reward: float) -> tuple[Any, float]:
        if not self._due():
            return obs, reward
        if self.what == "raise":
            raise TwoArgumentsError("the arm is stuck", self.taken)
        if self.what == "hang":
            threading.Event().wait(600)
        if self.what == "exit":
            os._exit(7)
        if self.what == "nan":
            obs = obs * np.nan
        if self.what == "inf":
            reward = float("-inf")
        if self.what == "shape":
            obs = obs[:2]
        if self.what == "dtype":
            obs = np.array(["a", "b", "c"])
        return obs, reward

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self.begun, self.taken = self.begun + 1, 0
        obs, info = super().reset(**kwargs)
        return self._done(obs, 0.0)[0], info

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, _, _, _, info = super().step(action)
        self.taken += 1
        obs, reward = self._done(obs, float(obs.sum()))
        return obs, reward, self.taken >= 5, False, info
