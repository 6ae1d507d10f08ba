"""What double-buffered sampling gains: rollout workers with and without it, by turns in one process.

    python benchmarks/double_buffer.py [--num-envs 8] [--step-ms 0.1 1 5] [--kinds waits works]
                                       [--policies small images] [--vectors async sync] [--seconds 2] [--pairs 5]

An environment's step waits (`time.sleep`, as for a simulator elsewhere or one that releases Python's lock) or works (a
loop in Python, a fixed amount of it), each copy in a process of its own (async) or all in the worker's (sync). The
policy is the default one over 64 numbers, in NumPy, or the default one over 4 × 84 × 84 pixels, in torch on one thread.
Two workers of the same seed take turns in windows of `seconds`; the ratio of steps/s with and without is taken pair by
pair. "acting" is how long the actions of all and of half the environments take. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from flowrl.rl import EnvOptions, PolicySpec, RolloutWorker
from flowrl.rl.inference import make_inference

SHAPES = {"small": (64,), "images": (4, 84, 84)}
FRAGMENT_STEPS = 20


class Setting(NamedTuple):
    """One row of the table."""

    vector: str
    kind: str
    step_ms: float
    policy: str


class Step(gymnasium.Env[Any, int]):
    """An environment whose step takes so long; it always observes the same."""

    def __init__(self, setting: Setting, loops_per_ms: float):
        shape, pixels = SHAPES[setting.policy], setting.policy == "images"
        highest, dtype = (255, np.uint8) if pixels else (1, np.float32)
        self.observation_space = gymnasium.spaces.Box(0, highest, shape, dtype)  # type: ignore[arg-type]
        self.action_space = gymnasium.spaces.Discrete(6)
        self._obs = np.ones(shape, self.observation_space.dtype)
        self._setting, self._loops = setting, int(loops_per_ms * setting.step_ms)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """The one observation that there is."""
        return self._obs, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """The same, later."""
        if self._setting.kind == "waits":
            time.sleep(self._setting.step_ms / 1e3)
        else:
            work(self._loops)
        return self._obs, 1.0, False, False, {}


def work(loops: int) -> int:
    """A loop that holds Python's lock."""
    total = 0
    for i in range(loops):
        total += i & 7
    return total


def calibrated() -> float:
    """How many loops a millisecond holds, on an idle core."""
    best = min(_timed(200_000) for _ in range(5))
    return 200_000 / (best * 1e3)


def _timed(loops: int) -> float:
    started = time.perf_counter()
    work(loops)
    return time.perf_counter() - started


def acting_ms(worker: RolloutWorker, policy: str, rows: int) -> float:
    """What the outputs for so many environments take, in the median."""
    net, _ = make_inference(PolicySpec(), worker.spaces()["default"])
    obs = np.ones((rows, *SHAPES[policy]), np.uint8 if policy == "images" else np.float32)
    times = []
    for _ in range(30):
        started = time.perf_counter()
        net.forward(obs)
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e3


def rate(worker: RolloutWorker, seconds: float) -> float:
    """Environment steps a second in a window of whole fragments."""
    worker.sample()
    steps, started = 0, time.perf_counter()
    while (passed := time.perf_counter() - started) < seconds:
        steps += worker.sample().payload.env_steps
    return steps / passed


HEAD = (
    "| copies | step | ms | policy | acting on all / half, ms | plain, steps/s | double-buffered, steps/s "
    "| ratio, median of pairs (range) |\n|:--|:--|--:|:--|--:|--:|--:|:--|"
)


def measured(setting: Setting, args: argparse.Namespace, loops_per_ms: float) -> str:
    """A row: both workers by turns."""
    workers = [
        RolloutWorker(
            lambda: Step(setting, loops_per_ms),
            steps=FRAGMENT_STEPS,
            num_envs=args.num_envs,
            env_options=EnvOptions(vector=setting.vector, double_buffer=double),  # type: ignore[arg-type]
            seed=0,
        )
        for double in (False, True)
    ]
    pairs = []
    try:
        for turn in range(args.pairs):
            order = (0, 1) if turn % 2 == 0 else (1, 0)
            rates = {which: rate(workers[which], args.seconds) for which in order}
            pairs.append((rates[0], rates[1]))
        acting = [acting_ms(workers[0], setting.policy, rows) for rows in (args.num_envs, (args.num_envs + 1) // 2)]
    finally:
        for worker in workers:
            worker.close()
    plain, double = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratios = sorted(ours / theirs for theirs, ours in pairs)
    return (
        f"| {setting.vector} | {setting.kind} | {setting.step_ms:g} | {setting.policy} "
        f"| {acting[0]:.2f} / {acting[1]:.2f} | {plain:,.0f} | {double:,.0f} "
        f"| {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) |"
    )


def settings(args: argparse.Namespace) -> Iterator[Setting]:
    """The rows that were asked for."""
    for vector in args.vectors:
        for policy in args.policies:
            for kind in args.kinds:
                for step_ms in args.step_ms:
                    yield Setting(vector, kind, step_ms, policy)


def main() -> None:
    """The table, a row a line as they come."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--step-ms", type=float, nargs="+", default=[0.1, 1.0, 5.0])
    parser.add_argument("--kinds", choices=["waits", "works"], nargs="+", default=["waits", "works"])
    parser.add_argument("--policies", choices=sorted(SHAPES), nargs="+", default=["small", "images"])
    parser.add_argument("--vectors", choices=["async", "sync"], nargs="+", default=["async", "sync"])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--pairs", type=int, default=5)
    args = parser.parse_args()
    loops_per_ms = calibrated()
    print(f"{args.num_envs} environments, {os.cpu_count()} cores, {loops_per_ms:,.0f} loops a millisecond\n\n{HEAD}")
    for setting in settings(args):
        print(measured(setting, args, loops_per_ms), flush=True)


if __name__ == "__main__":
    main()
