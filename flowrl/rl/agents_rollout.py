"""Environments of several agents and the policies that play in them, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flowrl.errors import add_note
from flowrl.metrics import Listed, Sum
from flowrl.rl.agents_env import AgentsEnv, Moment
from flowrl.rl.checked import ObsCheck
from flowrl.rl.episodes import Casting, Episode, Play
from flowrl.rl.evaluation import Evaluation
from flowrl.rl.roles import Role, Row, Scripted
from flowrl.rl.vector import child


class AgentsRollout:
    """Steps environments together, each policy acting for all its agents at once; roles keep what is finished.

    stream: seeds of the episodes. first, stride: environment i's episode k is number (k N + i) stride + first of all.
    ended: the episodes that have ended; whoever reads them empties it.
    """

    def __init__(
        self,
        envs: Sequence[AgentsEnv],
        casting: Casting,
        roles: Mapping[str, Role],
        scripted: Mapping[str, Scripted],
        rng: np.random.Generator,
        stream: np.random.SeedSequence,
        *,
        name: str,
        first: int = 0,
        stride: int = 1,
        reward_clip: float | None = None,
        deterministic: bool = False,
    ):
        self.envs, self.roles, self.ended = list(envs), roles, list[Play]()
        self._casting, self._scripted, self._rng, self._stream = casting, scripted, rng, stream
        self._name, self._first, self._stride = name, first, stride
        self._clip, self._deterministic = reward_clip, deterministic
        self._checks: dict[Any, ObsCheck] = {}
        self._plays: list[Play] = []
        self._late = 0  # rewards of agents whose last transition was given out before
        self.begun = [0] * len(self.envs)  # episodes, by environment
        self._named = tuple(roles)  # whose figures are told: others come and go

    def forget(self) -> None:
        """New episodes begin at the next step; what was under way is dropped."""
        self._plays = []
        self.ended = []
        for role in self.roles.values():
            role.rows.clear()

    @property
    def plays(self) -> Sequence[Play]:
        """The episodes under way."""
        return self._plays

    @property
    def longest(self) -> int:
        """Steps so far of the longest episode under way."""
        return max((play.steps for play in self._plays), default=0)

    def step(self) -> None:
        """One step of each environment."""
        if not self._plays:
            self._plays = [self._begin(i) for i in range(len(self.envs))]
        self._step()

    def _begin(self, i: int) -> Play:
        number = self.begun[i]
        self.begun[i] += 1
        stream = child(self._stream, i, number)
        index = (number * len(self.envs) + i) * self._stride + self._first
        moment = self.envs[i].reset(int(stream.generate_state(1)[0] >> 1))
        play = Play(Episode(index, np.random.default_rng(child(stream, 0))), {}, {})
        self._take_in(i, play, moment)
        return play

    def _step(self) -> None:
        actions: list[dict[Any, Any]] = [{} for _ in self.envs]
        asked: dict[str, list[Row]] = {}
        for i, play in enumerate(self._plays):
            for agent, obs in play.acting.items():
                policy = play.policies[agent]
                play.lengths[agent] = play.lengths.get(agent, 0) + 1
                if policy in self._scripted:
                    space = self._casting.of_agent(agent).action
                    actions[i][agent] = self._scripted[policy].act(obs, space, self._rng)
                else:
                    asked.setdefault(policy, []).append(play.pending[agent])
        for policy, rows in asked.items():
            given = self.roles[policy].act(rows, self._rng, deterministic=self._deterministic)
            for row, action in zip(rows, given, strict=True):
                actions[row.slot[0]][row.slot[1]] = action
        for i, play in enumerate(self._plays):
            play.steps += 1
            try:
                moment = self.envs[i].step(actions[i])
                self._take_in(i, play, moment)
            except Exception as error:
                add_note(error, f"in environment {i}, episode {play.episode.index}, at its step {play.steps}")
                raise
            if moment.over:
                self.ended.append(play)
                self._plays[i] = self._begin(i)

    def _take_in(self, i: int, play: Play, moment: Moment) -> None:
        """What an environment gave becomes rewards, ends and beginnings of transitions."""
        for agent, reward in moment.rewards.items():
            if not np.isfinite(reward):
                raise FloatingPointError(f"environment {i} gave agent {agent!r} the reward {reward}")
            play.returns[agent] = play.returns.get(agent, 0.0) + reward
            row = play.pending.get(agent)
            if row is None and agent not in moment.acting:
                row = play.last.get(agent)  # it came after the agent's end
                if row is not None and row.gone:
                    self._late += 1
            if row is not None:
                row.reward += reward
            else:
                play.early[agent] = play.early.get(agent, 0.0) + reward
        for agent, (terminated, obs) in moment.ended.items():
            row = play.pending.pop(agent, None)
            if row is None:  # it never acted: there is no transition
                play.early.pop(agent, None)
                continue
            row.terminated, row.truncated = terminated, not terminated
            self._finish(play, agent, row, obs, moment, final=True)
        for agent, obs in moment.acting.items():
            if agent not in play.policies:
                play.policies[agent] = self._casting.policy(agent, play.episode, self.envs[i])
            self._check(agent, obs, i)
            before = play.pending.pop(agent, None)
            if before is not None:
                self._finish(play, agent, before, obs, moment, final=False)
            role = self.roles.get(play.policies[agent])
            if role is not None:
                play.pending[agent] = self._row(role, (i, agent), obs, before, play, moment)
        play.acting, play.infos = moment.acting, moment.infos

    def _row(self, role: Role, slot: tuple[int, Any], obs: Any, before: Row | None, play: Play, moment: Moment) -> Row:
        where = f"{self._name} (agent {slot[1]!r})"
        mask = role.mask_of(obs, moment.infos.get(slot[1]), where)
        row = Row(slot, role.stored(obs), mask, play.early.pop(slot[1], 0.0))
        row.starts = before is None
        row.before = role.memory() if before is None else before.after
        if before is not None:
            before.follower = row
        return row

    def _finish(self, play: Play, agent: Any, row: Row, obs: Any, moment: Moment, *, final: bool) -> None:
        role = self.roles[play.policies[agent]]
        if obs is not None and final:
            self._check(agent, obs, row.slot[0])
        row.next_obs = role.final(row, obs)
        where = f"{self._name} (agent {agent!r})"
        row.next_mask = None if obs is None else role.mask_of(obs, moment.infos.get(agent), where, final=final)
        if self._clip is not None:
            row.reward = float(np.clip(row.reward, -self._clip, self._clip))
        role.rows.append(row)
        play.last[agent] = row

    def _check(self, agent: Any, obs: Any, i: int) -> None:
        check = self._checks.get(agent)
        if check is None:
            check = self._checks[agent] = ObsCheck(self._casting.of_agent(agent).observation)
        try:
            check(obs)
        except ValueError as error:
            raise ValueError(f"environment {i}, agent {agent!r}: {error}") from None

    def metrics(self) -> dict[Any, Any]:
        """Of the episodes that have ended: of all agents together, and of each policy's agents."""
        totals = tuple(sum(play.returns.values()) for play in self.ended)
        metrics: dict[Any, Any] = {
            "episode_return": Listed(totals),
            "episode_length": Listed(tuple(play.steps for play in self.ended)),
            "episodes": Sum(len(self.ended)),
        }
        if self._late:
            metrics["late_rewards"], self._late = Sum(self._late), 0
        for name in self._named:
            agents = [
                (play.returns.get(agent, 0.0), play.lengths.get(agent, 0))
                for play in self.ended
                for agent, policy in play.policies.items()
                if policy == name
            ]
            metrics[name, "episode_return"] = Listed(tuple(value for value, _ in agents))
            metrics[name, "episode_length"] = Listed(tuple(length for _, length in agents))
        return metrics


def evaluation_of(rollout: AgentsRollout, quota: Sequence[int], max_steps: int) -> Evaluation:
    """An Evaluation of complete episodes, so many of each environment; more than those are played and left out.

    Raises:
        RuntimeError: an episode does not end within `max_steps`.
    """
    kept: list[list[Play]] = [[] for _ in quota]
    while any(len(plays) < wanted for plays, wanted in zip(kept, quota, strict=True)):
        rollout.step()
        for role in rollout.roles.values():
            role.rows.clear()
        for play in rollout.ended:
            i = play.episode.index % len(quota)
            if len(kept[i]) < quota[i]:
                kept[i].append(play)
        rollout.ended = []
        if rollout.longest > max_steps:
            raise RuntimeError(f"an episode of the evaluation goes on after {max_steps:,} steps")
    rollout.ended = [play for plays in kept for play in plays]
    found = rollout.metrics()
    policies = {
        name: Evaluation(found[name, "episode_return"].values, found[name, "episode_length"].values)
        for name in rollout.roles
        if found[name, "episode_return"].values
    }
    return Evaluation(found["episode_return"].values, found["episode_length"].values, policies)
