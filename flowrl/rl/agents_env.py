"""Environments of several agents with one face: dicts by agent, PettingZoo's parallel ones, and those of turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flowrl.rl.checked import one_flag, one_reward, reset_answer, step_answer
from flowrl.rl.spec import Spaces

ALL = "__all__"
PROTOCOL = (
    "an environment of several agents has reset(seed=) -> (observations, infos) and step(actions) -> (observations, "
    "rewards, terminated, truncated, infos), dicts by agent, and observation_space(agent) and action_space(agent), or "
    "dicts of spaces by agent; PettingZoo's parallel and AEC environments are taken as they are"
)


@dataclass
class Moment:
    """What an environment gave at a reset or a step.

    acting: the observations of those who act next, by agent. rewards: since the last moment, of anybody.
    ended: whose part has ended, by agent: whether terminated (else truncated), and the final observation, None where
    there was none. infos: by agent. over: whether the episode has ended with it; then nobody acts.
    """

    acting: dict[Any, Any]
    rewards: dict[Any, float] = field(default_factory=dict)
    ended: dict[Any, tuple[bool, Any]] = field(default_factory=dict)
    infos: Mapping[Any, Any] = field(default_factory=dict)
    over: bool = False


class AgentsEnv:
    """One environment of several agents; who acts next is who has an observation.

    An agent's part ends with its `terminated` or `truncated`, and everybody's with the key "__all__" of either, with an
    empty `agents` where the environment has that attribute, and else once all who ever acted have ended.

    Raises:
        TypeError: the environment does not follow the protocol.
    """

    def __init__(self, env: Any):
        self.env = env
        if not callable(getattr(env, "reset", None)) or not callable(getattr(env, "step", None)):
            raise TypeError(f"{type(env).__qualname__} is no environment: {PROTOCOL}")
        self.possible = tuple(getattr(env, "possible_agents", ()) or _keys(env))
        if not self.possible:
            raise TypeError(f"{type(env).__qualname__} does not say who its agents are (`possible_agents`): {PROTOCOL}")
        self._live: dict[Any, None] = {}  # a set's order is another in each process, and so would be that of the rows

    def spaces(self, agent: Any) -> Spaces:
        """The observation and action space of an agent.

        Raises:
            TypeError: the environment has none for it.
        """
        return Spaces(self._space("observation", agent), self._space("action", agent))

    def _space(self, kind: str, agent: Any) -> Any:
        method = getattr(self.env, f"{kind}_space", None)
        if callable(method):
            return method(agent)
        for spaces in (method, getattr(self.env, f"{kind}_spaces", None)):
            if isinstance(spaces, Mapping) and agent in spaces:
                return spaces[agent]
        raise TypeError(f"{type(self.env).__qualname__} has no {kind} space for agent {agent!r}: {PROTOCOL}")

    def reset(self, seed: int) -> Moment:
        """A new episode."""
        obs, infos = reset_answer(self.env.reset(seed=seed))
        acting = dict(_by_agent("observations", obs))
        self._live = dict.fromkeys(acting)
        return Moment(acting, infos=infos)

    def step(self, actions: Mapping[Any, Any]) -> Moment:
        """The next moment.

        Raises:
            TypeError, ValueError: an answer is not what the protocol says.
        """
        obs, rewards, terminated, truncated, infos = step_answer(self.env.step(dict(actions)))
        acting = dict(_by_agent("observations", obs))
        earned = {agent: one_reward(reward) for agent, reward in _by_agent("rewards", rewards).items() if agent != ALL}
        ends = _flags("terminated", terminated), _flags("truncated", truncated)
        self._live |= dict.fromkeys(acting)
        ended = {
            agent: (agent in ends[0], acting.pop(agent, None))
            for agent in list(self._live)
            if agent in ends[0] or agent in ends[1]
        }
        self._live = {agent: None for agent in self._live if agent not in ended}
        over = ALL in ends[0] or ALL in ends[1] or self._deserted(terminated, truncated)
        if over:
            ended |= {agent: (ALL in ends[0], acting.get(agent)) for agent in self._live}
            acting = {}
        return Moment(acting, earned, ended, infos, over)

    def _deserted(self, terminated: Any, truncated: Any) -> bool:
        if hasattr(self.env, "agents"):
            return not self.env.agents
        return ALL not in terminated and ALL not in truncated and not self._live

    def state(self, seed: int | None = None) -> Any:
        """The environment's own global state as flat float32 numbers; None where it has none.

        seed: resets the environment before, as some have none before their first episode.
        """
        own = getattr(self.env, "state", None)
        if not callable(own):
            return None
        if seed is not None:
            self.env.reset(seed=seed)
        try:
            return np.array(own(), np.float32).reshape(-1)
        except NotImplementedError:  # PettingZoo's base class has the method
            return None

    def close(self) -> None:
        """Closes the environment, if it can be closed."""
        close = getattr(self.env, "close", None)
        if callable(close):
            close()


class TurnsEnv(AgentsEnv):
    """One of PettingZoo's AEC environments: at each moment one agent acts."""

    def reset(self, seed: int) -> Moment:
        """A new episode."""
        self.env.reset(seed=seed)
        self._told: set[Any] = set()  # of those among the environment's agents, whose end was told
        return self._look({}, {})

    def step(self, actions: Mapping[Any, Any]) -> Moment:
        """The next moment; who has ended is stepped out of the way."""
        self.env.step(actions[self.env.agent_selection])
        return self._look(self._earned(), {})

    def _look(self, rewards: dict[Any, float], ended: dict[Any, tuple[bool, Any]]) -> Moment:
        env = self.env
        while True:
            self._told &= set(env.agents)
            for agent in env.agents:
                terminated = one_flag(f"terminations[{agent!r}]", env.terminations[agent])
                truncated = one_flag(f"truncations[{agent!r}]", env.truncations[agent])
                if (terminated or truncated) and agent not in self._told:
                    ended[agent] = (terminated, env.observe(agent))
                    self._told.add(agent)
            if not env.agents:
                return Moment({}, rewards, ended, env.infos, over=True)
            agent = env.agent_selection
            if agent not in self._told:
                return Moment({agent: env.observe(agent)}, rewards, ended, env.infos)
            env.step(None)
            for other, reward in self._earned().items():
                rewards[other] = rewards.get(other, 0.0) + reward

    def _earned(self) -> dict[Any, float]:
        return {agent: one_reward(reward) for agent, reward in self.env.rewards.items()}


def agents_env(make: Callable[[], Any]) -> AgentsEnv:
    """The environment that a factory makes, under one face."""
    env = make()
    return TurnsEnv(env) if hasattr(env, "agent_selection") or hasattr(env, "agent_iter") else AgentsEnv(env)


def _keys(env: Any) -> tuple[Any, ...]:
    for name in ("observation_spaces", "observation_space"):
        if isinstance(getattr(env, name, None), Mapping):
            return tuple(getattr(env, name))
    return ()


def _by_agent(what: str, given: Any) -> Mapping[Any, Any]:
    if not isinstance(given, Mapping):
        raise TypeError(f"{what} must be a dict by agent, got {type(given).__name__}: {PROTOCOL}")
    return given


def _flags(name: str, given: Any) -> set[Any]:
    return {agent for agent, flag in _by_agent(name, given).items() if one_flag(f"{name}[{agent!r}]", flag)}
