"""JoinAgents: what all agents of an environment did at one step, as one row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from flowrl.batch import Array, Batch, MultiAgentBatch
from flowrl.operator import Context, Operator
from flowrl.rl.observations import MASK, NEXT_MASK

ROOTS = ("obs", "next_obs", "actions", MASK, NEXT_MASK)  # those that every agent has of its own


@dataclass
class JoinAgents(Operator[Any, Batch]):
    """A row for each step of each environment, of the batches of all policies: time-major (T, N), N environments.

    Takes what `MultiAgentWorker(joint=True, next_obs=True)` samples, on the shards, where a fragment is whole. K are
    all possible agents. Columns: rewards (of the team, once), terminated and truncated (of the episode), global_state,
    next_global_state, alive and next_alive (K,), agent_rewards and agent_terminated (K,), valid, and of each agent obs,
    next_obs, actions and action masks. Of an agent that is not alive they are 0, and its mask allows everything.

    reward: what of the agents' rewards is the team's: "mean", where each is given the team's reward (it counts once),
        or "sum", where each is given its part.
    stack: whether obs, actions and so on are one column (T, N, K, ...), which takes equal spaces; else there is one for
        each agent by its number below the name: obs/0, obs/1, ….

    Raises:
        ValueError: the batches lack the joint columns, or an agent did not act at every step while it lived.
    """

    reward: Literal["mean", "sum"] = "mean"
    stack: bool = True

    def __post_init__(self) -> None:
        if self.reward not in ("mean", "sum"):
            raise ValueError(f"reward must be 'mean' or 'sum', got {self.reward!r}")

    def process(self, value: MultiAgentBatch, ctx: Context) -> Iterable[Batch]:
        """Yields the joined batch; nothing of one without rows."""
        parts = [part for part in value.values() if part.env_steps]
        if parts:
            yield Batch(self._joined(value, parts), time_major=True)

    def _joined(self, value: MultiAgentBatch, parts: list[Batch]) -> dict[str, Array]:
        flat = [_checked(part) for part in parts]
        steps = parts[0].leading[0]
        begins = min(int(rows["moment"].min()) for rows in flat)
        grid = steps, value.env_steps // steps
        agents = flat[0]["alive"].shape[1]
        made: dict[str, Array] = {}
        count = np.zeros(grid, np.float32)
        rewards = np.zeros((*grid, agents), np.float32)
        ended = np.zeros((*grid, agents), np.bool_)
        over = np.zeros(grid, np.bool_)
        for rows in flat:
            place = rows["moment"] - begins, rows["env"]
            np.add.at(count, place, 1.0)
            for name in ("global_state", "next_global_state", "alive", "next_alive"):
                _column(made, name, grid, rows[name])[place] = rows[name]
            rewards[(*place, rows["agent"])] = rows["rewards"]
            ended[(*place, rows["agent"])] = rows["terminated"]
            over[place] = rows["over"]
            self._own_columns(made, grid, agents, rows, place)
        total = rewards.sum(-1)
        goes_on = made["next_alive"].any(-1)
        _silence(made, self.stack)
        return made | {
            "rewards": total / np.maximum(count, 1.0) if self.reward == "mean" else total,
            "terminated": over & ~goes_on,
            "truncated": over & goes_on,
            "agent_rewards": rewards,
            "agent_terminated": ended,
            "valid": count > 0,
        }

    def _own_columns(
        self, made: dict[str, Array], grid: tuple[int, int], agents: int, rows: Batch, place: tuple[Array, Array]
    ) -> None:
        for name, column in rows.items():
            root, slash, path = name.partition("/")
            if root not in ROOTS:
                continue
            if self.stack:
                whole = _column(made, name, (*grid, agents), column, filled=root in (MASK, NEXT_MASK))
                if whole.shape[3:] != column.shape[1:]:
                    raise ValueError(
                        f"JoinAgents: column {name!r} has rows of shape {whole.shape[3:]} for one policy and "
                        f"{column.shape[1:]} for another; give JoinAgents(stack=False)"
                    )
                whole[(*place, rows["agent"])] = column
                continue
            for agent in range(agents):
                mine = rows["agent"] == agent
                if mine.any():
                    whole = _column(
                        made, f"{root}/{agent}{slash}{path}", grid, column, filled=root in (MASK, NEXT_MASK)
                    )
                    whole[place[0][mine], place[1][mine]] = column[mine]


def _checked(part: Batch) -> Batch:
    lacking = {"moment", "env", "agent", "alive", "next_obs"} - part.keys()
    if not part.time_major or lacking - {"next_obs"} or not any(name.startswith("next_obs") for name in part):
        raise ValueError(
            f"JoinAgents needs the time-major batches of MultiAgentWorker(joint=True, next_obs=True), got {part!r}"
        )
    rows = part.flat()
    late = np.flatnonzero(rows["took"] != 1)
    if len(late):
        raise ValueError(
            f"JoinAgents needs agents that act at every step while they live, but agent {rows['agent'][late[0]]} of "
            f"environment {rows['env'][late[0]]} acted again only after {rows['took'][late[0]]} steps"
        )
    return rows


def _column(made: dict[str, Array], name: str, grid: tuple[int, ...], like: Array, *, filled: bool = False) -> Array:
    """The column `name` of what is made, begun where it was not."""
    if name not in made:
        make: Any = np.ones if filled else np.zeros
        made[name] = make((*grid, *like.shape[1:]), like.dtype)
    return made[name]


def _silence(made: dict[str, Array], stack: bool) -> None:
    """What follows for an agent that does not go on is nothing: its last observation is in no later row."""
    gone = ~made["next_alive"]
    for name, column in made.items():
        root, _, path = name.partition("/")
        if root in ("next_obs", NEXT_MASK):
            which = gone if stack else gone[..., int(path.split("/")[0])]
            column[which] = root == NEXT_MASK
