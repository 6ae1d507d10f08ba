"""Prioritized replay of rows: samples with new priorities, and adds, beside cpprb, tianshou and torchrl.

    pip install cpprb tianshou torchrl     # those that are missing are left out
    python benchmarks/replay.py [--capacity 100000] [--seconds 0.5] [--rounds 7]

Rows are those of CartPole (4 floats, their successors, an action, a reward, an end); every buffer is full. A turn of
each buffer is `--seconds` long; turns alternate in one process, so that all see the same machine. Prints medians over
the rounds: batches/s of sample + update for several batch sizes, adds in thousand rows/s for chunks of 1,000 rows and
of 8, and the median ratio of flowrl to each, taken round by round. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

SIZES, CHUNKS = (32, 256, 512), (1000, 8)
ALPHA, BETA = 0.6, 0.4
Array = np.ndarray[Any, np.dtype[Any]]


def rows(count: int, seed: int = 0) -> dict[str, Array]:
    """Made-up transitions of CartPole's kind."""
    rng = np.random.default_rng(seed)
    return {
        "obs": rng.normal(size=(count, 4)).astype(np.float32),
        "next_obs": rng.normal(size=(count, 4)).astype(np.float32),
        "actions": rng.integers(0, 2, count),
        "rewards": np.ones(count, np.float32),
        "terminated": rng.random(count) < 0.05,
    }


class Flowrl:
    """flowrl.rl.ReplayShard."""

    def __init__(self, capacity: int):
        from flowrl.rl import ReplayShard

        self.shard = ReplayShard(capacity, prioritized=True, alpha=ALPHA, beta=BETA, seed=0)

    def prepared(self, columns: Mapping[str, Array]) -> Any:
        from flowrl import Batch

        return Batch(columns)

    def add(self, prepared: Any) -> None:
        self.shard.add(prepared)

    def sample_and_update(self, n: int, priorities: Array) -> None:
        batch = self.shard.sample(n)
        self.shard.update_priorities(batch["slots"], priorities)


class Cpprb:
    """cpprb.PrioritizedReplayBuffer (C++)."""

    def __init__(self, capacity: int):
        from cpprb import PrioritizedReplayBuffer

        env = {
            "obs": {"shape": 4, "dtype": np.float32},
            "next_obs": {"shape": 4, "dtype": np.float32},
            "actions": {"dtype": np.int64},
            "rewards": {"dtype": np.float32},
            "terminated": {"dtype": np.bool_},
        }
        self.buffer = PrioritizedReplayBuffer(capacity, env, alpha=ALPHA)

    def prepared(self, columns: Mapping[str, Array]) -> Any:
        return dict(columns)

    def add(self, prepared: Any) -> None:
        self.buffer.add(**prepared)

    def sample_and_update(self, n: int, priorities: Array) -> None:
        batch = self.buffer.sample(n, beta=BETA)
        self.buffer.update_priorities(batch["indexes"], priorities)


class Tianshou:
    """tianshou.data.PrioritizedReplayBuffer (NumPy, Numba)."""

    def __init__(self, capacity: int):
        from tianshou.data import PrioritizedReplayBuffer

        self.buffer = PrioritizedReplayBuffer(capacity, alpha=ALPHA, beta=BETA)

    def prepared(self, columns: Mapping[str, Array]) -> Any:
        from tianshou.data import Batch

        names = {"obs": "obs", "next_obs": "obs_next", "actions": "act", "rewards": "rew", "terminated": "terminated"}
        each = {theirs: columns[ours] for ours, theirs in names.items()}
        each["truncated"] = np.zeros(len(columns["obs"]), np.bool_)
        return [Batch(**{name: array[i] for name, array in each.items()}) for i in range(len(columns["obs"]))]

    def add(self, prepared: Any) -> None:
        for row in prepared:  # it takes one row of one environment at a time
            self.buffer.add(row)

    def sample_and_update(self, n: int, priorities: Array) -> None:
        _, indices = self.buffer.sample(n)
        self.buffer.update_weight(indices, priorities)


class Torchrl:
    """torchrl.data.TensorDictPrioritizedReplayBuffer (C++)."""

    def __init__(self, capacity: int):
        from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer

        self.buffer = TensorDictPrioritizedReplayBuffer(
            alpha=ALPHA, beta=BETA, storage=LazyTensorStorage(capacity), batch_size=32
        )

    def prepared(self, columns: Mapping[str, Array]) -> Any:
        from tensordict import TensorDict

        return TensorDict(dict(columns), batch_size=[len(columns["obs"])])

    def add(self, prepared: Any) -> None:
        self.buffer.extend(prepared)

    def sample_and_update(self, n: int, priorities: Array) -> None:
        import torch

        batch = self.buffer.sample(n)
        self.buffer.update_priority(batch["index"], torch.from_numpy(priorities))


LIBRARIES: dict[str, Callable[[int], Any]] = {"cpprb": Cpprb, "tianshou": Tianshou, "torchrl": Torchrl}


def rate(turn: Callable[[], None], seconds: float) -> float:
    """How often a second `turn` can be taken."""
    done, begun = 0, time.perf_counter()
    while (taken := time.perf_counter() - begun) < seconds:
        turn()
        done += 1
    return done / taken


def compare(name: str, turns: Mapping[str, Callable[[], None]], seconds: float, rounds: int, unit: float = 1.0) -> None:
    """Prints the median rate of each, and of flowrl's ratio to it."""
    found: dict[str, list[float]] = {library: [] for library in turns}
    for turn in turns.values():
        rate(turn, seconds / 4)
    for at in range(rounds):
        for library in [*turns][at % len(turns) :] + [*turns][: at % len(turns)]:
            found[library].append(rate(turns[library], seconds) * unit)
    ours = found["flowrl"]
    print(f"{name:22}", end="")
    for library, rates in found.items():
        ratio = statistics.median(mine / other for mine, other in zip(ours, rates, strict=True))
        print(
            f"  {library} {statistics.median(rates):9,.1f}" + (f" (×{ratio:.2f})" if library != "flowrl" else ""),
            end="",
        )
    print(flush=True)


def buffers(capacity: int) -> dict[str, Any]:
    """A buffer of each library that is installed and works."""
    made: dict[str, Any] = {"flowrl": Flowrl(capacity)}
    for name, make in LIBRARIES.items():
        try:
            made[name] = make(capacity)
        except (ImportError, RuntimeError) as error:  # torchrl says so late that its C++ part does not fit torch
            print(f"left out: {name} ({error})")
    return made


def main() -> None:
    """Prints a line a measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capacity", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    made = buffers(given.capacity)
    rng = np.random.default_rng(0)
    whole = rows(given.capacity)
    for buffer in made.values():
        buffer.add(buffer.prepared(whole))
    print(f"prioritized, full, capacity {given.capacity:,}, NumPy {np.__version__}; medians of {given.rounds} rounds")
    for n in SIZES:
        priorities = rng.random(n) + 0.01
        turns = {name: lambda b=buffer: b.sample_and_update(n, priorities) for name, buffer in made.items()}  # noqa: B023
        compare(f"batches/s of {n}", turns, given.seconds, given.rounds)
    for n in CHUNKS:
        chunks = {name: buffer.prepared(rows(n, 1)) for name, buffer in made.items()}
        turns = {name: lambda b=buffer, c=chunks[name]: b.add(c) for name, buffer in made.items()}
        compare(f"1,000 rows/s, by {n}", turns, given.seconds, given.rounds, n / 1000)


if __name__ == "__main__":
    main()
