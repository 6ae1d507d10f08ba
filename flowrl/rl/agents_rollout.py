"""Environments of several agents and the policies that play in them, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flowrl.errors import add_note
from flowrl.metrics import Listed, Sum
from flowrl.rl.agents_env import AgentsEnv, Moment
from flowrl.rl.checked import NotFinite, ObsCheck
from flowrl.rl.episodes import Casting, Episode, Play
from flowrl.rl.evaluation import Evaluation
from flowrl.rl.global_state import GlobalState
from flowrl.rl.located import Call, Fault, Kind
from flowrl.rl.roles import Role, Scripted
from flowrl.rl.transitions import Row
from flowrl.rl.vector import child
from flowrl.rl.watchdog import Watchdog


class AgentsRollout:
    """Steps environments together, each policy acting for all its agents at once; roles keep what is finished.

    stream: seeds of the episodes. first, stride: environment i's episode k is number (k N + i) stride + first of all.
    ended: the episodes that have ended; whoever reads them empties it. plays: those under way, one an environment.
    late: rewards, so far untold, of agents whose last transition was given out before. fault: the last of an
    environment, with the episode `faulty` that it was in, if any. at: the environment that steps or resets now.
    joint: makes what rows say of the whole environment; None: they say nothing of it.
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
        watchdog: Watchdog | None = None,
        joint: GlobalState | None = None,
    ):
        self.envs, self.roles, self.ended = list(envs), roles, list[Play]()
        self._casting, self._scripted, self._rng, self._stream = casting, scripted, rng, stream
        self._name, self._first, self._stride = name, first, stride
        self._clip, self._deterministic, self._joint = reward_clip, deterministic, joint
        self.moments = 0  # steps of all environments so far
        self._checks: dict[Any, ObsCheck] = {}
        self.plays: list[Play] = []
        self.late = 0
        self.begun = [0] * len(self.envs)  # episodes, by environment
        self.fault: Fault | None = None
        self.faulty: Play | None = None
        self.at = 0
        self._watchdog = watchdog
        self._named = tuple(roles)  # whose figures are told: others come and go

    def take_up(self, plays: list[Play], late: int) -> None:
        """Goes on with the episodes of another rollout, in these environments."""
        self.plays, self.late = plays, late
        for env, play in zip(self.envs, plays, strict=True):
            for agent in play.policies:
                self._casting.meet(agent, env)

    def forget(self) -> None:
        """New episodes begin at the next step; what was under way is dropped."""
        self.plays = []
        self.ended = []
        for role in self.roles.values():
            role.rows.clear()

    @property
    def longest(self) -> int:
        """Steps so far of the longest episode under way."""
        return max((play.steps for play in self.plays), default=0)

    def step(self) -> None:
        """One step of each environment."""
        if not self.plays:
            self.plays = [self._begin(i) for i in range(len(self.envs))]
        self._step()

    def _begin(self, i: int) -> Play:
        number = self.begun[i]
        self.begun[i] += 1
        stream = child(self._stream, i, number)
        index = (number * len(self.envs) + i) * self._stride + self._first
        seed = int(stream.generate_state(1)[0] >> 1)
        play = Play(Episode(index, np.random.default_rng(child(stream, 0))), {}, {}, seed=seed)
        moment = self._called(i, play, "reset", seed)
        self._take_in(i, play, moment)
        return play

    def _called(self, i: int, play: Play, call: Call, given: Any) -> Moment:
        """What an environment gives; its error is its fault."""
        env, self.at, self.faulty = self.envs[i], i, play
        act = env.reset if call == "reset" else env.step
        try:
            if self._watchdog is None:
                return act(given)
            with self._watchdog.watching(call, self._name):
                return act(given)
        except Exception as error:
            if call == "reset":
                add_note(error, f"in reset of environment {i}, episode {play.episode.index}")
            self._blame(error, "error", call, i, play)
            raise

    def _blame(self, error: Exception, kind: Kind, call: Call, i: int, play: Play | None = None) -> None:
        self.faulty = self.plays[i] if play is None else play
        self.fault = Fault(error, kind, call, i, self.faulty.seed)

    def _step(self) -> None:
        self.moments += 1
        actions: list[dict[Any, Any]] = [{} for _ in self.envs]
        asked: dict[str, list[Row]] = {}
        for i, play in enumerate(self.plays):
            for agent, obs in play.acting.items():
                policy = play.policies[agent]
                play.lengths[agent] = play.lengths.get(agent, 0) + 1
                if policy in self._scripted:
                    space = self._casting.of_agent(agent).action
                    actions[i][agent] = self._scripted[policy].act(obs, space, self._rng)
                else:
                    asked.setdefault(policy, []).append(play.pending[agent])
        for policy, rows in asked.items():
            try:
                given = self.roles[policy].act(rows, self._rng, deterministic=self._deterministic)
            except NotFinite as error:  # what the policy was given
                self._blame(error, "not_finite", "step", error.env)
                raise
            for row, action in zip(rows, given, strict=True):
                actions[row.slot[0]][row.slot[1]] = action
        for i, play in enumerate(self.plays):
            play.steps += 1
            play.played.append(actions[i])
            try:
                moment = self._called(i, play, "step", actions[i])
                self._take_in(i, play, moment)
            except Exception as error:
                add_note(error, f"in environment {i}, episode {play.episode.index}, at its step {play.steps}")
                raise
            if moment.over:
                self.ended.append(play)
                self.plays[i] = self._begin(i)

    def _take_in(self, i: int, play: Play, moment: Moment) -> None:
        """What an environment gave becomes rewards, ends and beginnings of transitions."""
        if self._joint is not None:
            play.seen = {agent: obs for agent, obs in play.seen.items() if agent not in moment.ended} | moment.acting
            play.stand = self._joint.stand(self.moments, self.envs[i], moment, play.seen)
        for agent, reward in moment.rewards.items():
            if not np.isfinite(reward):
                error = NotFinite.of(i, None, f"environment {i} gave agent {agent!r} the reward {reward}")
                self._blame(error, "not_finite", "step", i, play)
                raise error
            play.returns[agent] = play.returns.get(agent, 0.0) + reward
            row = play.pending.get(agent)
            if row is None and agent not in moment.acting:
                row = play.last.get(agent)  # it came after the agent's end
                if row is not None and row.gone:
                    self.late += 1
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
            self._check(agent, obs, i, play)
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
        if self._joint is not None:
            row.at, row.place = play.stand, self._joint.place(slot[1])
        row.before = role.memory() if before is None else before.after
        if before is not None:
            before.follower = row
        return row

    def _finish(self, play: Play, agent: Any, row: Row, obs: Any, moment: Moment, *, final: bool) -> None:
        role = self.roles[play.policies[agent]]
        if obs is not None and final:
            self._check(agent, obs, row.slot[0], play)
        row.next_obs, row.then = role.final(row, obs), play.stand
        where = f"{self._name} (agent {agent!r})"
        row.next_mask = None if obs is None else role.mask_of(obs, moment.infos.get(agent), where, final=final)
        if self._clip is not None:
            row.reward = float(np.clip(row.reward, -self._clip, self._clip))
        role.rows.append(row)
        play.last[agent] = row

    def _check(self, agent: Any, obs: Any, i: int, play: Play) -> None:
        check = self._checks.get(agent)
        if check is None:
            check = self._checks[agent] = ObsCheck(self._casting.of_agent(agent).observation)
        try:
            check(obs)
        except ValueError as error:
            told = ValueError(f"environment {i}, agent {agent!r}: {error}")
            self._blame(told, "error", "step" if play.steps else "reset", i, play)
            raise told from None

    def metrics(self) -> dict[Any, Any]:
        """Of the episodes that have ended: of all agents together, and of each policy's agents."""
        totals = tuple(sum(play.returns.values()) for play in self.ended)
        metrics: dict[Any, Any] = {
            "episode_return": Listed(totals),
            "episode_length": Listed(tuple(play.steps for play in self.ended)),
            "episodes": Sum(len(self.ended)),
        }
        if self.late:
            metrics["late_rewards"], self.late = Sum(self.late), 0
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
