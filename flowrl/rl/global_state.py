"""What a central critic sees of an environment of several agents, moment by moment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from flowrl.rl.agents_env import AgentsEnv, Moment
from flowrl.rl.encoding import NumpyEncoder
from flowrl.rl.observations import ObsLayout
from flowrl.rl.spec import Spaces, Team

Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]


class Stand(NamedTuple):
    """How an environment stands at one moment, told apart from all others of the worker by `number` and environment.

    state: the global state (S,). alive: (K,) of all possible agents, who acts next; at the end of an episode, whose
    part was cut short. over: whether the episode has ended.
    """

    number: int
    state: Floats
    alive: Bools
    over: bool


class GlobalState:
    """The global state: the environment's `state()`, flattened, or else all agents' observations side by side.

    Joined observations are encoded as the default model encodes them (indices one-hot), in the order of
    `possible_agents`, and followed by who has one (K numbers); an agent that has left, or has not come yet, is zeros.

    Raises:
        ValueError: there is no `state()`, and an observation holds an image.
    """

    def __init__(self, env: AgentsEnv, spaces: Mapping[Any, Spaces], name: str):
        self.agents = env.possible
        self._name = name
        self._own = env.state(seed=0)
        self._encoders: dict[Any, tuple[ObsLayout, NumpyEncoder]] = {}
        if self._own is None:
            for agent in self.agents:
                layout = ObsLayout.of(spaces[agent].observation)
                if layout.images:
                    raise ValueError(
                        f"{name} has no state(), and the observations of agent {agent!r} hold an image, so that they "
                        "are not joined into a global state: give the environment a method state()"
                    )
                self._encoders[agent] = layout, NumpyEncoder(layout)
        joined = sum(layout.size for layout, _ in self._encoders.values()) + len(self.agents)
        self.team = Team(self.agents, joined if self._own is None else len(self._own))
        self._places = {agent: k for k, agent in enumerate(self.agents)}

    def stand(self, number: int, env: AgentsEnv, moment: Moment, waiting: Mapping[Any, Any]) -> Stand:
        """How it stands at a moment; `waiting` are the last observations of those who live and do not act."""
        cut = {agent: obs for agent, (terminated, obs) in moment.ended.items() if not terminated}
        seen = {**waiting, **{agent: obs for agent, obs in cut.items() if obs is not None}, **moment.acting}
        alive = np.zeros(len(self.agents), np.bool_)
        for agent in (*moment.acting, *cut):
            alive[self.place(agent)] = True
        return Stand(number, self._state(env, seen), alive, moment.over)

    def place(self, agent: Any) -> int:
        """Which of all possible agents this is.

        Raises:
            ValueError: it is none of them.
        """
        if agent not in self._places:
            raise ValueError(f"agent {agent!r} of {self._name} is not among its possible_agents {self.agents}")
        return self._places[agent]

    def _state(self, env: AgentsEnv, seen: Mapping[Any, Any]) -> Floats:
        if self._own is not None:
            state = env.state()
            if state is None or state.shape != self._own.shape:
                got = None if state is None else state.shape
                raise ValueError(f"state() of {self._name} gave {self._own.shape} numbers before and now {got}")
            return state
        parts = []
        for agent in self.agents:
            layout, encoder = self._encoders[agent]
            if agent in seen:
                stored = layout.store(layout.split(seen[agent]))
                one = {path: part[None] for path, part in stored.items()} if isinstance(stored, dict) else stored[None]
                parts.append(encoder(one).reshape(-1))
            else:
                parts.append(np.zeros(layout.size, np.float32))
        parts.append(np.array([agent in seen for agent in self.agents], np.float32))
        return np.concatenate(parts, dtype=np.float32)
