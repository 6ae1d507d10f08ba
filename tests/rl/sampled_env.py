"""An environment of any spaces, which checks that every action it gets is one of its own."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
import numpy as np


class Sampled(gymnasium.Env[Any, Any]):
    """Observations are samples of their space; episodes take `length` steps; the reward is 1.

    masks: "obs" fills the observation's `action_mask` with random masks, "info" gives them in the info; at the end
    of an episode they allow nothing. An action that the last mask forbids is an error.
    """

    def __init__(self, observation: Any, action: Any, *, length: int = 5, masks: str = ""):
        self.observation_space, self.action_space = copy.deepcopy(observation), copy.deepcopy(action)
        self.length, self.masks, self.step_number = length, masks, 0
        self.mask: Any = None

    def _seen(self, *, ended: bool = False) -> tuple[Any, dict[str, Any]]:
        obs, info = self.observation_space.sample(), {}
        if self.masks:
            choices = np.ravel(getattr(self.action_space, "nvec", getattr(self.action_space, "n", 0)))
            drawn = [self.np_random.random(n) < 0.3 for n in choices]
            for part in drawn:
                part[self.np_random.integers(len(part))] = True
            self.mask = np.zeros(choices.sum(), np.int8) if ended else np.concatenate(drawn).astype(np.int8)
            (obs if self.masks == "obs" else info)["action_mask"] = self.mask.copy()
        return obs, info

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.step_number = 0
        return self._seen()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        # A vector hands numbers of shape () over as NumPy scalars.
        assert self.action_space.contains(np.asarray(action)), action
        if self.masks:
            ends = np.cumsum(np.ravel(getattr(self.action_space, "nvec", getattr(self.action_space, "n", 0))))
            places = np.ravel(action - self.action_space.start) + np.concatenate(([0], ends[:-1]))
            assert self.mask[places].all(), (action, self.mask)
        self.step_number += 1
        ended = self.step_number >= self.length
        obs, info = self._seen(ended=ended)
        return obs, 1.0, ended, False, info
