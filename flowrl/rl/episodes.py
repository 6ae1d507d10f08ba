"""The episodes of a worker whose environments have several agents: who plays which policy, and what is under way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flowrl.rl.agents_env import AgentsEnv
from flowrl.rl.global_state import Stand
from flowrl.rl.spec import Spaces
from flowrl.rl.transitions import Row

PROBED = 32  # episodes for which policy_of is asked beforehand, to see who may play what


@dataclass(frozen=True)
class Episode:
    """What `policy_of` is told of an episode: its number among all of the run's, and a generator of its own."""

    index: int
    rng: np.random.Generator = field(repr=False, compare=False)


PolicyOf = Callable[[Any, Episode], str]


@dataclass
class Play:
    """An episode under way.

    policies: by agent that has acted, its policy. pending: the transitions that have begun and not ended. last: each
    agent's newest finished one. early: rewards of agents who have not acted since. returns, lengths: raw rewards and
    actions so far, by agent. seed: of its reset. played: the actions so far, by agent. seen: the last observations of
    all who live, and stand: how the environment stands, where agents are joined.
    """

    episode: Episode
    acting: dict[Any, Any]
    infos: Mapping[Any, Any]
    policies: dict[Any, str] = field(default_factory=dict)
    pending: dict[Any, Row] = field(default_factory=dict)
    last: dict[Any, Row] = field(default_factory=dict)
    early: dict[Any, float] = field(default_factory=dict)
    returns: dict[Any, float] = field(default_factory=dict)
    lengths: dict[Any, int] = field(default_factory=dict)
    steps: int = 0
    seed: int = 0
    played: list[dict[Any, Any]] = field(default_factory=list)
    seen: dict[Any, Any] = field(default_factory=dict)
    stand: Stand | None = None


class Casting:
    """Who plays which policy: `policy_of`, asked once an agent and episode, and checked.

    Raises:
        ValueError: an agent is given a policy that is not defined, two agents of one policy have different spaces, or
            nobody plays a policy whose spaces cannot be told.
    """

    def __init__(self, policies: Sequence[str], policy_of: PolicyOf | None, env: AgentsEnv, name: str):
        if policy_of is None and len(policies) != 1:
            raise ValueError(
                f"policy_of must say who plays which of the policies {', '.join(map(repr, policies))}: "
                "policy_of(agent_id, episode) -> policy id"
            )
        self._known, self._policy_of, self._name = tuple(policies), policy_of, name
        self._players: dict[str, Any] = {}  # by policy, the agent whose spaces it has
        self._spaces: dict[str, Spaces] = {}
        self._agents: dict[Any, Spaces] = {agent: env.spaces(agent) for agent in env.possible}
        self._cast: set[tuple[str, Any]] = set()  # who has played what: to compare spaces takes longer than a step
        for number in range(PROBED if policy_of is not None else 1):
            for agent in env.possible:
                self.policy(agent, Episode(number, np.random.default_rng(number)), env)
        for policy in self._known:
            if policy not in self._spaces:
                self._spaces[policy] = self._common(policy)

    def policy(self, agent: Any, episode: Episode, env: AgentsEnv) -> str:
        """The policy that an agent plays in an episode."""
        policy = self._known[0] if self._policy_of is None else self._policy_of(agent, episode)
        if (policy, agent) in self._cast:
            return policy
        if policy not in self._known:
            raise ValueError(
                f"policy_of gave agent {agent!r} of {self._name} the policy {policy!r}, which is not defined; there "
                f"are {', '.join(map(repr, self._known))}"
            )
        spaces = self.meet(agent, env)
        first = self._players.setdefault(policy, agent)
        known = self._spaces.setdefault(policy, spaces)
        if first != agent and (known.observation != spaces.observation or known.action != spaces.action):
            what = "observation" if known.observation != spaces.observation else "action"
            raise ValueError(
                f"agents {first!r} and {agent!r} of {self._name} both play policy {policy!r}, but their {what} spaces "
                f"differ: {getattr(known, what)} and {getattr(spaces, what)}; give each its own policy"
            )
        self._cast.add((policy, agent))
        return policy

    def meet(self, agent: Any, env: AgentsEnv) -> Spaces:
        """The spaces of an agent, which is known from now on."""
        spaces = self._agents.get(agent)
        if spaces is None:
            spaces = self._agents[agent] = env.spaces(agent)
        return spaces

    @property
    def spaces(self) -> dict[str, Spaces]:
        """The spaces by policy."""
        return {policy: self._spaces[policy] for policy in self._known}

    @property
    def of_agents(self) -> dict[Any, Spaces]:
        """The spaces of all possible agents, and of those that came."""
        return dict(self._agents)

    def of_agent(self, agent: Any) -> Spaces:
        """The spaces of an agent that was cast."""
        return self._agents[agent]

    def _common(self, policy: str) -> Spaces:
        every = list(self._agents.values())
        if any(one.observation != every[0].observation or one.action != every[0].action for one in every[1:]):
            raise ValueError(
                f"policy_of gave nobody the policy {policy!r} in {PROBED} episodes, and the agents of {self._name} "
                "have different spaces, so that its own cannot be told; leave it out, or let somebody play it"
            )
        return every[0]
