"""Experience as a worker gives it, made up: frames that count, stacks, episodes, reset rows, n steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flowrl import Batch

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass
class Env:
    """One environment: at each step a frame that no other has, stacked; episodes end by chance."""

    rng: np.random.Generator
    stack: int
    size: int
    ends: float
    frames: list[Array] = field(default_factory=list)

    def frame(self) -> Array:
        return self.rng.integers(0, 256, self.size, np.uint8)

    def reset(self) -> Array:
        self.frames = [self.frame()] * self.stack
        return self.obs()

    def obs(self) -> Array:
        return np.stack(self.frames) if self.stack > 1 else self.frames[0]

    def step(self) -> Array:
        self.frames = [*self.frames[1:], self.frame()]
        return self.obs()


class Stream:
    """N environments; `fragment(T)` goes on where the last ended, with a reset row after an end if `phantom`.

    lag: next observations are those `lag` steps on, or the episode's last.
    """

    def __init__(
        self,
        seed: int,
        envs: int,
        *,
        stack: int = 1,
        size: int = 64,
        ends: float = 0.1,
        phantom: bool = True,
        lag: int = 1,
    ):
        rng = np.random.default_rng(seed)
        self.envs = [Env(rng, stack, size, ends) for _ in range(envs)]
        self.rng, self.ends, self.phantom, self.lag = rng, ends, phantom, lag
        self.made: list[list[tuple[Array, Array, bool, bool]]] = [[] for _ in range(envs)]  # obs, next, end, valid
        self.given = 0
        self.now = [env.reset() for env in self.envs]
        self.over = [False] * envs
        self.number = 0

    def _step(self) -> None:
        for n, env in enumerate(self.envs):
            before = self.now[n]
            if self.over[n]:  # a reset row shows the episode's last observation and goes to the first of the next
                self.now[n] = env.reset()
                self.made[n].append((before, self.now[n], False, False))
                self.over[n] = False
                continue
            after = env.step()
            end = bool(self.rng.random() < self.ends)
            self.made[n].append((before, after, end, True))
            self.now[n] = after
            if end and self.phantom:
                self.over[n] = True
            elif end:
                self.now[n] = env.reset()

    def _following(self, n: int, t: int) -> Array:
        rows = self.made[n]
        for at in range(t, t + self.lag):
            if rows[at][2]:
                return rows[at][1]
        return rows[t + self.lag - 1][1]

    def fragment(self, steps: int) -> Batch:
        while len(self.made[0]) < self.given + steps + self.lag:
            self._step()
        times, count = range(self.given, self.given + steps), len(self.envs)
        self.given += steps
        numbers = np.arange(self.number, self.number + steps * count).reshape(steps, count)
        self.number += steps * count
        return Batch(
            {
                "obs": np.stack([np.stack([self.made[n][t][0] for n in range(count)]) for t in times]),
                "next_obs": np.stack([np.stack([self._following(n, t) for n in range(count)]) for t in times]),
                "numbers": numbers,
                "valid": np.array([[self.made[n][t][3] for n in range(count)] for t in times]),
            },
            time_major=True,
        )
