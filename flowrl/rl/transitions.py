"""Transitions of agents, and what those of one moment have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from flowrl.rl.global_state import Stand
from flowrl.rl.masks import Mask
from flowrl.rl.observations import Obs

Array = npt.NDArray[Any]
Slot = tuple[int, Any]  # environment of the worker, agent


class Row:
    """One transition of an agent: from where it acts to where it acts next, or its end."""

    __slots__ = (
        "action", "after", "at", "before", "follower", "gone", "logp", "mask", "next_mask", "next_obs", "obs", "place",
        "q_taken", "reward", "slot", "starts", "terminated", "then", "truncated", "value",
    )  # fmt: skip

    def __init__(self, slot: Slot, obs: Obs, mask: Mask | None, reward: float):
        self.slot, self.obs, self.mask, self.reward = slot, obs, mask, reward
        self.gone = False  # in a batch that was given out
        self.starts = False  # whether its agent acts for the first time in this part of an episode
        self.terminated = self.truncated = False
        self.next_obs: Obs | None = None
        self.next_mask: Mask | None = None
        self.follower: Row | None = None  # its agent's next one
        self.action: Any = None  # as batches store it
        self.logp: Any = None
        self.q_taken: Any = None
        self.value: Any = None  # where it came with the policy's output
        self.before: dict[str, Array] = {}  # the policy's memory before and after
        self.after: dict[str, Array] = {}
        self.at: Stand | None = None  # how its environment stood when the agent was to act, and when this ended
        self.then: Stand | None = None
        self.place = 0  # of the agent among all possible ones


def joint_columns(rows: Sequence[Row]) -> dict[str, Array]:
    """What rows say of the whole environment, and what tells which rows belong together (`MultiAgentWorker.sample`)."""
    before = [row.at for row in rows if row.at is not None]
    after = [row.then for row in rows if row.then is not None]
    assert len(before) == len(after) == len(rows)
    return {
        "global_state": np.stack([stand.state for stand in before]),
        "next_global_state": np.stack([stand.state for stand in after]),
        "alive": np.stack([stand.alive for stand in before]),
        "next_alive": np.stack([stand.alive for stand in after]),
        "over": np.array([stand.over for stand in after]),
        "moment": np.array([stand.number for stand in before]),
        "took": np.array([then.number - at.number for at, then in zip(before, after, strict=True)]),
        "env": np.array([row.slot[0] for row in rows]),
        "agent": np.array([row.place for row in rows]),
    }
