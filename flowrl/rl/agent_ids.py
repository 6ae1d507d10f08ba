"""Observations that say whose they are, for agents that share a policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from flowrl.rl.agents_env import AgentsEnv, Moment
from flowrl.rl.spec import Spaces

AGENT = "agent"


class WithAgentIds(AgentsEnv):
    """An environment whose agents see their own number among `possible_agents` besides.

    A flat Box of numbers (D,) becomes one of (D + K,), the number one-hot behind it; a Dict gets the key "agent", a
    Discrete(K); any other space becomes a Dict of the keys "agent" and "own".
    """

    def __init__(self, env: AgentsEnv):
        self.env, self._inner, self.possible = env.env, env, env.possible
        self._numbers = {agent: k for k, agent in enumerate(self.possible)}

    def spaces(self, agent: Any) -> Spaces:
        """The spaces of an agent."""
        given = self._inner.spaces(agent)
        return replace(given, observation=self._space_with_id(given.observation))

    def _space_with_id(self, space: Any) -> Any:
        count = len(self.possible)
        if _flat(space):
            low, high = np.append(space.low, np.zeros(count)), np.append(space.high, np.ones(count))
            return Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)
        if isinstance(space, Dict):
            if AGENT in space.spaces:
                raise ValueError(f"agent_ids=True adds the key {AGENT!r} to observations, which have it: {space}")
            return Dict({**space.spaces, AGENT: Discrete(count)})
        return Dict({"own": space, AGENT: Discrete(count)})

    def reset(self, seed: int) -> Moment:
        """A new episode."""
        return self._numbered(self._inner.reset(seed))

    def step(self, actions: Mapping[Any, Any]) -> Moment:
        """The next moment."""
        return self._numbered(self._inner.step(actions))

    def _numbered(self, moment: Moment) -> Moment:
        acting = {agent: self._with_id(agent, obs) for agent, obs in moment.acting.items()}
        ended = {
            agent: (terminated, None if obs is None else self._with_id(agent, obs))
            for agent, (terminated, obs) in moment.ended.items()
        }
        return replace(moment, acting=acting, ended=ended)

    def _with_id(self, agent: Any, obs: Any) -> Any:
        space, number = self._inner.spaces(agent).observation, self._numbers[agent]
        if _flat(space):
            one_hot = np.zeros(len(self.possible), np.float32)
            one_hot[number] = 1.0
            return np.concatenate((np.asarray(obs, np.float32), one_hot))
        return {**obs, AGENT: number} if isinstance(space, Dict) else {"own": obs, AGENT: number}

    def state(self, seed: int | None = None) -> Any:
        """The global state, if the environment has one."""
        return self._inner.state(seed)


def _flat(space: Any) -> bool:
    return isinstance(space, Box) and len(space.shape) == 1 and np.dtype(space.dtype).kind == "f"
