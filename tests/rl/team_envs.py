"""Small environments of teams whose answers are known."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete


class Team:
    """Agents "a" and "b" (and so on) act together at every step."""

    count = 2

    def __init__(self, seed: int = 0) -> None:
        self.possible_agents = list("abc"[: self.count])
        self.agents: list[str] = []
        self.rng = np.random.default_rng(seed)

    def observation_space(self, agent: str) -> Any:
        return Box(-1.0, 1.0, (1,), np.float32)

    def action_space(self, agent: str) -> Any:
        return Discrete(2)

    def begin(self, seed: int | None) -> None:
        self.agents, self.steps = list(self.possible_agents), 0
        if seed is not None:
            self.rng = np.random.default_rng(seed)


class Signals(Team):
    """Each agent sees a bit and is to answer with it; the team is rewarded for every right answer, 10 a step a team."""

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.begin(seed)
        return self._obs(), {}

    def _obs(self) -> dict[str, Any]:
        self.bits = {agent: int(self.rng.integers(2)) for agent in self.possible_agents}
        return {agent: np.array([2.0 * bit - 1.0], np.float32) for agent, bit in self.bits.items()}

    def step(self, actions: dict[str, int]) -> tuple[Any, Any, Any, Any, Any]:
        self.steps += 1
        right = sum(10.0 * (actions[agent] == bit) for agent, bit in self.bits.items()) / self.count
        over = self.steps == 8
        flags = dict.fromkeys(self.agents, over)
        rewards = dict.fromkeys(self.agents, right)
        if over:
            self.agents = []
        return self._obs(), rewards, flags, dict.fromkeys(flags, False), {}


class Falling(Team):
    """Three agents, of whom agent k is terminated with the (k + 1)-th step; "c" is cut short at the third.

    Observations are (step + number / 10); rewards 1, 2, 3 by agent. `state()` gives (step, 7) if asked to have one.
    """

    count = 3

    def __init__(self, own_state: bool = False):
        super().__init__()
        self.own_state = own_state

    def state(self) -> Any:
        if not self.own_state:
            raise NotImplementedError
        return np.array([self.steps, 7], np.int64)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.begin(seed)
        return self._obs(), {}

    def observation_space(self, agent: str) -> Any:
        return Box(0.0, 9.0, (1,), np.float32)

    def _obs(self) -> dict[str, Any]:
        number = self.possible_agents.index
        return {agent: np.array([self.steps + number(agent) / 10], np.float32) for agent in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[Any, Any, Any, Any, Any]:
        self.steps += 1
        obs, here = self._obs(), self.agents
        ends = {agent: self.steps == self.possible_agents.index(agent) + 1 for agent in here}
        self.agents = [agent for agent in here if not ends[agent]]
        rewards = {agent: 1.0 + self.possible_agents.index(agent) for agent in here}
        terminated = {agent: end and agent != "c" for agent, end in ends.items()}
        return obs, rewards, terminated, {agent: end and agent == "c" for agent, end in ends.items()}, {}


class TwoStep(Team):
    """The two-step game (arXiv:1803.11485, section 5): "a" chooses a matrix, both then an entry of it; the best is 8.

    State 2A pays 7 whatever they do, 2B pays 0, 1, 1 and 8. Both see which state it is, one-hot (3,).
    """

    payoffs = (((7.0, 7.0), (7.0, 7.0)), ((0.0, 1.0), (1.0, 8.0)))

    def observation_space(self, agent: str) -> Any:
        return Box(0.0, 1.0, (3,), np.float32)

    def state(self) -> Any:
        return np.eye(3, dtype=np.float32)[self.stage]

    def _obs(self) -> dict[str, Any]:
        return {agent: self.state() for agent in self.possible_agents}

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.begin(seed)
        self.stage = 0
        return self._obs(), {}

    def step(self, actions: dict[str, int]) -> tuple[Any, Any, Any, Any, Any]:
        reward, over = 0.0, self.stage > 0
        if over:
            reward, self.agents = self.payoffs[self.stage - 1][actions["a"]][actions["b"]], []
        else:
            self.stage = 1 + actions["a"]
        flags = dict.fromkeys(self.possible_agents, over)
        return self._obs(), dict.fromkeys(flags, reward), flags, dict.fromkeys(flags, False), {}


class Shares(Team):
    """Both see x and give a and b, at once: −(a + b − x)² − 0.1 (a − b)², greatest, 0, at a = b = x / 2."""

    def action_space(self, agent: str) -> Any:
        return Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.begin(seed)
        self.x = float(self.rng.uniform(-1.0, 1.0))
        return self._obs(), {}

    def _obs(self) -> dict[str, Any]:
        return {agent: np.array([self.x], np.float32) for agent in self.possible_agents}

    def step(self, actions: dict[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        a, b = (float(actions[agent][0]) for agent in "ab")
        reward = -((a + b - self.x) ** 2) - 0.1 * (a - b) ** 2
        self.agents = []
        flags = dict.fromkeys(self.possible_agents, True)
        return self._obs(), dict.fromkeys(flags, reward), flags, dict.fromkeys(flags, False), {}
