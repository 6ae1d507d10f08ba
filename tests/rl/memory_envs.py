"""An environment that only a policy with memory can master."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Recall(gymnasium.Env[Any, Any]):
    """Shows a cue at the first step only and asks for it at the last, when all observations look alike.

    Observations are (cue is 0, cue is 1, asked); an episode has `shortest` to `longest` steps. The last action is
    worth 1 if it is the cue, else −1, all others 0: whatever a policy without memory does, its mean return is 0.
    """

    def __init__(self, shortest: int = 4, longest: int = 8):
        self.observation_space = Box(0.0, 1.0, (3,), np.float32)
        self.action_space = Discrete(2)
        self._shortest, self._longest = shortest, longest

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._cue = int(self.np_random.integers(2))
        self._left = int(self.np_random.integers(self._shortest, self._longest + 1))
        obs = np.zeros(3, np.float32)
        obs[self._cue] = 1.0
        return obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._left -= 1
        asked = self._left == 1
        done = self._left == 0
        reward = (1.0 if int(action) == self._cue else -1.0) if done else 0.0
        return np.array([0.0, 0.0, asked], np.float32), reward, done, False, {}
