"""The rollout worker of one player of a league: the others at the table are members that the league names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from flowrl.metrics import Listed
from flowrl.rl.agents_env import AgentsEnv
from flowrl.rl.agents_rollout import AgentsRollout
from flowrl.rl.envs import EnvSource
from flowrl.rl.episodes import Casting, Episode, Play
from flowrl.rl.league import Lineup, Report
from flowrl.rl.multi_agent_worker import MultiAgentWorker
from flowrl.rl.roles import Role
from flowrl.rl.spec import PolicySpec, Spaces

_GOLDEN = 0x9E3779B1  # Knuth's multiplier: neighbouring episodes get seats as if drawn


class LeagueCasting(Casting):
    """Who plays which member: one seat, another from episode to episode, is the player's; the others are drawn.

    lineup: the members, of which one is drawn for each other seat, by the episode's own generator.
    """

    lineup: tuple[str, ...] = ()

    def policy(self, agent: Any, episode: Episode, env: AgentsEnv) -> str:
        """The member that an agent plays in an episode."""
        player = super().policy(agent, episode, env)
        if not self.lineup or agent == self.seat(episode, env):
            return player
        return self.lineup[int(episode.rng.integers(len(self.lineup)))]

    @staticmethod
    def seat(episode: Episode, env: AgentsEnv) -> Any:
        """The player's agent."""
        mixed = (episode.index * _GOLDEN) & 0xFFFFFFFF
        return env.possible[(mixed >> 16) % len(env.possible)]


class LeagueWorker(MultiAgentWorker):
    """A MultiAgentWorker in which one player of a league learns, against members of the league.

    One agent, another from episode to episode, is the player's. Each other plays a member of the newest lineup for the
    whole episode, or the player's own policy, where the lineup names the player; its experience is then gathered too.
    Before the first lineup all do. Members are made of the same PolicySpec.

    The metric episode_return is of the player's agent, in games against others.

    Args:
        env, steps, num_envs, env_kwargs, reward_clip, next_obs, index, count, seed: as MultiAgentWorker's.
        player: the player's id, which is also its policy's.
        policy: what its policy is made of, and those of all members.
        players: all players of the league, to whose learners this worker may be the one that says the spaces.

    Raises:
        ValueError: a number below 1, or agents of different spaces.
        TypeError: the environment does not follow the protocol.
    """

    casting: ClassVar[type[Casting]] = LeagueCasting

    def __init__(
        self,
        env: EnvSource,
        player: str,
        policy: PolicySpec,
        *,
        players: tuple[str, ...] = (),
        steps: int = 128,
        num_envs: int = 1,
        env_kwargs: Mapping[str, Any] | None = None,
        reward_clip: float | None = None,
        next_obs: bool = False,
        index: int = 0,
        count: int = 1,
        seed: int | np.random.SeedSequence | None = None,
    ):
        super().__init__(
            env, {player: policy}, steps=steps, num_envs=num_envs, env_kwargs=env_kwargs, reward_clip=reward_clip,
            next_obs=next_obs, index=index, count=count, seed=seed,
        )  # fmt: skip
        self._player, self._players = player, (player, *players)
        self._playing = dict(self._roles)  # the player's, and those of members
        self._rollout.roles = self._playing
        self._idle: list[Role] = []  # of members that are gone, to be used again
        self._tally: dict[str, tuple[int, float, float]] = {}

    def spaces(self) -> dict[str, Spaces]:
        """The spaces by player; all have the same."""
        return dict.fromkeys(self._players, super().spaces()[self._player])

    # the league
    def match_report(self) -> Report:
        """The results since the last report, and which members' weights are here."""
        results, self._tally = self._tally, {}
        has = {name: role.version for name, role in self._playing.items() if name != self._player}
        return Report(self._player, tuple((name, *found) for name, found in results.items()), has)

    def set_lineup(self, lineup: Lineup) -> None:
        """Whom the player plays in the episodes that begin from here on.

        Raises:
            ValueError: a member's weights are neither here nor in it.
        """
        wanted = dict.fromkeys(lineup.members)
        for name in wanted:
            if name in lineup.weights:
                version, flat = lineup.weights[name]
                self._member(name).set_weights(flat, version)
            elif name not in self._playing:
                raise ValueError(f"the lineup names {name!r}, whose weights neither came with it nor are here")
        self._casting.lineup = lineup.members  # type: ignore[attr-defined]
        used = {policy for play in self._rollout.plays for policy in play.policies.values()}
        for name in set(self._playing) - set(wanted) - used - {self._player}:
            self._idle.append(self._playing.pop(name))

    def _member(self, name: str) -> Role:
        if name not in self._playing:
            role = self._idle.pop() if self._idle else self._roles[self._player].for_evaluation()
            role.policy_id = name
            self._playing[name] = role
        return self._playing[name]

    def _metrics(self, rollout: AgentsRollout) -> dict[Any, Any]:
        gains = [gain for play in rollout.ended for gain in self._results(play)]
        return {**rollout.metrics(), "episode_return": Listed(tuple(gains))}

    def _results(self, play: Play) -> list[float]:
        """Notes an episode's results; the returns of the player's agents, if it was against others."""
        mine = [agent for agent, policy in play.policies.items() if policy == self._player]
        others = [(agent, policy) for agent, policy in play.policies.items() if policy != self._player]
        for agent in mine if others else ():
            gain = play.returns.get(agent, 0.0)
            for other, member in others:
                theirs = play.returns.get(other, 0.0)
                games, score, gains = self._tally.get(member, (0, 0.0, 0.0))
                won = 0.5 if gain == theirs else float(gain > theirs)
                self._tally[member] = (games + 1, score + won, gains + gain)
        return [play.returns.get(agent, 0.0) for agent in mine] if others else []

    # state
    def get_state(self) -> dict[str, Any]:
        """A MultiAgentWorker's, the members that are here, and the results that the league has not been told."""
        return {
            **super().get_state(),
            "tally": [[name, *found] for name, found in self._tally.items()],
            "lineup": list(self._casting.lineup),  # type: ignore[attr-defined]
            "members": {
                name: {"weights": role.flat.copy(), "version": role.version}
                for name, role in self._playing.items()
                if name != self._player
            },
        }

    def set_state(self, state: Mapping[str, Any]) -> bool:
        """Goes on from a state, as a MultiAgentWorker does."""
        for name in set(self._playing) - {self._player}:
            self._idle.append(self._playing.pop(name))
        for name, member in state["members"].items():  # first: episodes under way have them
            self._member(name).set_weights(np.asarray(member["weights"]), int(member["version"]))
        self._casting.lineup = tuple(state["lineup"])  # type: ignore[attr-defined]
        self._tally = {name: (int(games), float(score), float(gain)) for name, games, score, gain in state["tally"]}
        return super().set_state(state)
