"""Double-buffered sampling: what a worker samples with and without it, by how long a step and a policy take.

    python benchmarks/double_buffer.py [--step-ms 0 0.5 2] [--hidden 64 1024 2048] [--envs 8] [--seconds 2]
                                       [--repeats 3]

One rollout worker in this process, its environments in processes of their own (EnvOptions(vector="async")); an
environment computes, or sleeps, so long a step. Plain and double-buffered take turns in one run; a figure is the median
over the repeats, in environment steps a second, the ratio is taken pair by pair. `sync` is the plain worker with its
environments in this process, one after the other. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import gymnasium
import numpy as np

from flowrl.rl import EnvOptions, PolicySpec, RolloutWorker

OBS = 64


class Timed(gymnasium.Env[Any, int]):
    """An environment whose step takes so long: it computes, or it sleeps, as one that waits for a simulator does."""

    def __init__(self, step_ms: float, kind: Literal["computes", "sleeps"]):
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (OBS,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(4)
        self._seconds, self._kind, self._obs = step_ms / 1e3, kind, np.ones(OBS, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """The one observation that there is."""
        return self._obs, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """The same, later."""
        if self._kind == "sleeps" and self._seconds:
            time.sleep(self._seconds)
        until = time.perf_counter() + self._seconds
        while self._kind == "computes" and time.perf_counter() < until:
            pass
        return self._obs, 1.0, False, False, {}


@contextmanager
def worker(kind: str, args: argparse.Namespace, step_ms: float, hidden: int, vector: str) -> Iterator[RolloutWorker]:
    """A warm worker, `vector` being "sync", "async" or "halves"."""
    made = RolloutWorker(
        Timed,
        PolicySpec(hidden=(hidden, hidden)),
        steps=32,
        num_envs=args.envs,
        env_kwargs={"step_ms": step_ms, "kind": kind},
        env_options=EnvOptions(vector="sync" if vector == "sync" else "async"),
        double_buffered=vector == "halves",
        seed=0,
    )
    try:
        made.sample()
        yield made
    finally:
        made.close()


def rate(made: RolloutWorker, seconds: float) -> float:
    """Environment steps a second."""
    steps, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        steps += made.sample().env_steps or 0
    return steps / (time.perf_counter() - started)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step-ms", type=float, nargs="+", default=[0.0, 0.5, 2.0])
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 1024, 2048])
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    print(f"{args.envs} environments, {os.cpu_count()} cores; environment steps a second\n")
    print("| a step | ms | hidden | sync | async | double-buffered | ratio to async |")
    print("|---|---|---|---|---|---|---|")
    for kind in ("sleeps", "computes"):
        for step_ms in args.step_ms:
            if step_ms == 0 and kind == "sleeps":
                continue
            for hidden in args.hidden:
                with (
                    worker(kind, args, step_ms, hidden, "sync") as sync,
                    worker(kind, args, step_ms, hidden, "async") as plain,
                    worker(kind, args, step_ms, hidden, "halves") as halves,
                ):
                    rounds = [[rate(one, args.seconds) for one in (sync, plain, halves)] for _ in range(args.repeats)]
                a, b, c = (statistics.median(column) for column in zip(*rounds, strict=True))
                ratio = statistics.median(row[2] / row[1] for row in rounds)
                print(
                    f"| {kind} | {step_ms:g} | 2 × {hidden} | {a:,.0f} | {b:,.0f} | {c:,.0f} | {ratio:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
