"""Environments of several agents that follow a drawn script and keep a log, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

AGENTS = ("a", "b", "c", "d")


class ScriptedAgents:
    """Agents join, act in turns, pause, leave and die together, as drawn; everything that happened is in `log`.

    An observation is (environment, agent, episode, moment). The log has a list of moments for each episode: who acts,
    rewards, terminated, truncated, final observations.
    """

    def __init__(self, env_index: int, seed: int, max_steps: int = 12):
        self.possible_agents = list(AGENTS)
        self.env_index, self.max_steps = env_index, max_steps
        self.rng = np.random.default_rng((seed, env_index))
        self.log: list[list[dict[str, Any]]] = []

    def observation_space(self, agent: str) -> Box:
        return Box(-np.inf, np.inf, (4,), np.float32)

    def action_space(self, agent: str) -> Discrete:
        return Discrete(2)

    def _obs(self, agent: str) -> Any:
        moment = len(self.log[-1])
        return np.array([self.env_index, AGENTS.index(agent), len(self.log) - 1, moment], np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.log.append([])
        self.gone: set[str] = set()
        self.joined = {agent for agent in AGENTS if self.rng.random() < 0.6}
        obs = {agent: self._obs(agent) for agent in self.joined if self.rng.random() < 0.8}
        self.acted = set(obs)
        self.log[-1].append({"acting": dict(obs), "rewards": {}, "terminated": set(), "truncated": set(), "final": {}})
        self.acting = set(obs)
        return obs, {}

    def step(self, actions: dict[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        assert set(actions) == self.acting
        draw = self.rng.random
        self.joined |= {agent for agent in AGENTS if agent not in self.gone and draw() < 0.1}
        here = sorted(self.joined - self.gone)
        rewards = {agent: float(self.rng.integers(-3, 4)) for agent in here if draw() < 0.7}
        ends = {agent for agent in here if agent in self.acted and draw() < 0.15}
        terminated = {agent for agent in ends if draw() < 0.5}
        over = draw() < 0.05 or len(self.log[-1]) >= self.max_steps
        acting = {agent for agent in here if agent not in ends and draw() < 0.6}
        final = {agent: self._obs(agent) for agent in ends if draw() < 0.7}
        whole: dict[str, tuple[bool, bool]] = {"__all__": (False, False)}
        if over:
            together = bool(draw() < 0.5)
            whole["__all__"] = (together, not together)
        obs = {**{agent: self._obs(agent) for agent in acting}, **final}
        self.log[-1].append(
            {
                "acting": {} if over else {agent: obs[agent] for agent in acting},
                "rewards": rewards,
                "terminated": terminated | (self._left(ends) if whole["__all__"][0] else set()),
                "truncated": (ends - terminated) | (self._left(ends) if whole["__all__"][1] else set()),
                "final": {**final, **({agent: obs[agent] for agent in acting} if over else {})},
            }
        )
        self.gone |= ends
        self.acted |= acting
        self.acting = set() if over else acting
        flags_terminated = {agent: agent in terminated for agent in here}
        flags_truncated = {agent: agent in ends - terminated for agent in here}
        flags_terminated["__all__"], flags_truncated["__all__"] = whole["__all__"]
        return obs, rewards, flags_terminated, flags_truncated, {}

    def _left(self, ends: set[str]) -> set[str]:
        return self.acted - self.gone - ends


def transitions(log: list[list[dict[str, Any]]]) -> list[tuple[Any, ...]]:
    """The slow and obvious reading of a log: (episode, agent, from moment, to moment, reward, terminated, truncated).

    An agent's transition goes from one moment at which it acts to its next, or to its end; it earns what came after
    its start and until its end, and what came to the agent before it first acted.
    """
    found = []
    for episode, moments in enumerate(log):
        for agent in AGENTS:
            acts = [m for m, moment in enumerate(moments) if agent in moment["acting"]]
            ends = [m for m, moment in enumerate(moments) if agent in moment["terminated"] | moment["truncated"]]
            end = ends[0] if ends else None
            begin = 0
            for start, stop in zip(acts, [*acts, end][1:], strict=True):
                if stop is None:
                    continue  # under way
                earned = sum(moments[m]["rewards"].get(agent, 0.0) for m in range(begin, stop + 1))
                begin = stop + 1
                last = stop == end
                found.append(
                    (
                        episode, agent, start, stop, earned,
                        last and agent in moments[stop]["terminated"], last and agent in moments[stop]["truncated"],
                        last and agent not in moments[stop]["final"],
                    )
                )  # fmt: skip
    return found


class Turns:
    """An AEC environment as PettingZoo makes them: agents act in turn, and each earns what it guessed.

    Agent "b" ends by termination after its second action, "a" by truncation after its third.
    """

    def __init__(self) -> None:
        self.possible_agents = ["a", "b"]
        self.agent_selection = "a"

    def observation_space(self, agent: str) -> Box:
        return Box(0, 100, (2,), np.float32)

    def action_space(self, agent: str) -> Discrete:
        return Discrete(2)

    def observe(self, agent: str) -> Any:
        return np.array([self.possible_agents.index(agent), self.moment], np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents = ["a", "b"]
        self.moment = 0
        self.count = {"a": 0, "b": 0}
        self.rewards = {"a": 0.0, "b": 0.0}
        self.terminations, self.truncations = {"a": False, "b": False}, {"a": False, "b": False}
        self.infos: dict[str, dict[str, Any]] = {"a": {}, "b": {}}
        self.agent_selection = "a"

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            assert action is None
            self.agents.remove(agent)
            self.rewards = dict.fromkeys(self.agents, 0.0)
            if self.agents:
                self.agent_selection = self.agents[0]
            return
        self.moment += 1
        self.count[agent] += 1
        other = "b" if agent == "a" else "a"
        # What one does pays the other too.
        paid = {agent: 1.0, other: 0.0 if self.terminations[other] or self.truncations[other] else 0.5}
        self.rewards = {name: value for name, value in paid.items() if name in self.agents}
        self.terminations["b"] = self.count["b"] >= 2
        self.truncations["a"] = self.count["a"] >= 3
        if other in self.agents:
            self.agent_selection = other
