"""Several cart-poles, or pendulums, as one environment of several agents: the field's smallest test of a mix."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium

Dicts = tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, Any]]


class MultiAgentCartPole:
    """CartPole-v1 once for each agent, independent of the others; an episode ends when the last pole has fallen.

    agents: how many, or their names; numbers are named "agent_0", "agent_1", ….

    Raises:
        ValueError: no agent, or one twice.
    """

    env_id: ClassVar[str] = "CartPole-v1"

    def __init__(self, agents: int | tuple[str, ...] = 4):
        names = tuple(f"agent_{i}" for i in range(agents)) if isinstance(agents, int) else tuple(agents)
        if not names or len(set(names)) != len(names):
            raise ValueError(f"agents must be at least one name, none twice, got {agents!r}")
        self.possible_agents = list(names)
        self.agents: list[str] = []
        self.poles = {name: gymnasium.make(self.env_id) for name in names}

    def observation_space(self, agent: str) -> Any:
        """A pole's: Box (4,) of a cart-pole, (3,) of a pendulum."""
        return self.poles[agent].observation_space

    def action_space(self, agent: str) -> Any:
        """A pole's: Discrete(2) of a cart-pole, Box (1,) of a pendulum."""
        return self.poles[agent].action_space

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Every pole upright again; with a seed, each from one of its own."""
        self.agents = list(self.possible_agents)
        first = {
            agent: self.poles[agent].reset(seed=None if seed is None else seed + i)
            for i, agent in enumerate(self.agents)
        }
        return {agent: obs for agent, (obs, _) in first.items()}, {agent: info for agent, (_, info) in first.items()}

    def step(self, actions: dict[str, Any]) -> Dicts:
        """One step of the poles that stand."""
        obs: dict[str, Any] = {}
        rewards: dict[str, float] = {}
        terminated: dict[str, bool] = {}
        truncated: dict[str, bool] = {}
        infos: dict[str, Any] = {}
        for agent in self.agents:
            obs[agent], reward, terminated[agent], truncated[agent], infos[agent] = self.poles[agent].step(
                actions[agent]
            )
            rewards[agent] = float(reward)
        self.agents = [agent for agent in self.agents if not terminated[agent] and not truncated[agent]]
        return obs, rewards, terminated, truncated, infos

    def close(self) -> None:
        """Closes the poles."""
        for pole in self.poles.values():
            pole.close()


class MultiAgentPendulum(MultiAgentCartPole):
    """Pendulum-v1 once for each agent, independent of the others; an episode ends after 200 steps.

    agents: how many, or their names, as MultiAgentCartPole's.
    """

    env_id: ClassVar[str] = "Pendulum-v1"
