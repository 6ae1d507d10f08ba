"""Memory that frame-stacked observations take in replay, beside the bytes of their frames; adds and samples a second.

    python benchmarks/replay_frames.py [--steps 100000] [--stack 4] [--rows 32] [--envs 8]

Steps of 84×84 uint8 frames of their own each, stacked, with next observations, in fragments of rows × environments: a
shard of that capacity is filled and then a tenth more is added, so that frames are freed and used again. Prints what
the process grew by (resident memory), what the shard says that it takes, and the bytes of one frame a step; then rows
stored a second, and minibatches of 32 drawn a second. At 100,000 steps it needs 1 GB.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import numpy as np
import psutil

from flowrl import Batch
from flowrl.rl import ReplayShard

SIDE, MIB = 84, 2**20


def fragments(rows: int, envs: int, stack: int) -> Iterator[Batch]:
    """Fragments without end, of frames that never come again."""
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (rows + stack, envs, SIDE, SIDE), np.uint8)
    while True:
        stacks = np.stack([frames[k : k + rows + 1] for k in range(stack)], axis=2)
        rewards = np.zeros((rows, envs), np.float32)
        yield Batch({"obs": stacks[:-1], "next_obs": stacks[1:], "rewards": rewards}, time_major=True)
        frames = np.concatenate([frames[rows:], rng.integers(0, 256, (rows, envs, SIDE, SIDE), np.uint8)])


def main() -> None:
    """Prints a line a measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--stack", type=int, default=4)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--envs", type=int, default=8)
    given = parser.parse_args()
    source = fragments(given.rows, given.envs, given.stack)
    next(source)
    shard = ReplayShard(given.steps, frame_stack=given.stack, seed=0)
    process = psutil.Process()
    before, took, stored = process.memory_info().rss, 0.0, 0
    while stored < 1.1 * given.steps:
        batch = next(source)
        begun = time.perf_counter()
        stored += shard.add(batch)
        took += time.perf_counter() - begun
    grew = process.memory_info().rss - before
    frames = given.steps * SIDE * SIDE
    print(f"{given.steps:,} steps of 84×84×{given.stack}: one frame a step is {frames / MIB:,.0f} MiB,")
    print(
        f"the process grew by {grew / MIB:,.0f} MiB (×{grew / frames:.3f}), the shard says {shard.nbytes / MIB:,.0f};"
    )
    begun = time.perf_counter()
    for _ in range(100):
        shard.sample(32)
    drawn = 100 / (time.perf_counter() - begun)
    print(f"{stored / took:,.0f} rows stored a second, {drawn:,.0f} minibatches of 32 drawn a second")


if __name__ == "__main__":
    main()
