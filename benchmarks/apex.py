"""Ape-X on CartPole-v1: flowrl's graph beside a hand-written Ray loop over the same worker, replay and learner classes.

    python benchmarks/apex.py [--seconds 4] [--repeats 10] [--samples-per-step 4]
    python benchmarks/apex.py --dqn [--seconds 4] [--repeats 10] [--batch 64]

The two alternate in one run, each warmed up before a window counts; a figure is the median over the windows, the ratio
is taken pair by pair. Setting: ApexConfig's defaults, 2 workers × 8 environments, without the evaluations beside it.
Stated together: environment steps and rows trained on a second, the share of its time that the learner waits for
batches, and the CPU that the driver's process takes, in cores (on Local all work is the driver's). --dqn: DQNConfig at
8 rows trained on for each environment step, on both backends. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import ray

import flowrl
from benchmarks.apex_by_hand import Counts, HandLoop
from flowrl import Local, Ray
from flowrl.algorithms import ApexConfig, DQNConfig
from flowrl.rl import PolicySpec

WARM_UP_S = 0.5
SETTINGS = {"samples_per_step": float, "batch": int, "batches": int, "unroll": int, "in_flight": int}
DQN_POLICIES = {
    "64 × 64": PolicySpec(head="q", hidden=(64, 64), activation="relu"),
    "the default network": DQNConfig().policy,
}
DQN_BATCHES = (32, 64, 128)


@dataclass(frozen=True)
class Window:
    """What one window came to: steps and samples a second, the driver's CPU in cores, the learner's idle share."""

    steps: float
    samples: float
    driver: float
    waits: float


class GraphLoop:
    """An algorithm as flowrl's graph."""

    def __init__(self, cfg: ApexConfig | DQNConfig, backend: Any = None):
        self.run = flowrl.run(cfg.graph(), backend or Ray(), seed=0)
        self.counts = Counts()
        while not self.counts.samples:
            self.advance(WARM_UP_S)

    def advance(self, seconds: float) -> None:
        """Moves on for so long."""
        until = time.perf_counter() + seconds
        while True:
            summary = next(self.run)
            if time.perf_counter() >= until:
                break
        busy_s = self.run.stats().groups["learner"].busy_s
        self.counts = Counts(summary.env_steps, summary.trained_steps, busy_s)

    def close(self) -> None:
        """Ends the run."""
        self.run.close()


def window(made: HandLoop | GraphLoop, seconds: float) -> Window:
    """A warm window."""
    made.advance(WARM_UP_S)
    before, began, cpu_s = replace(made.counts), time.perf_counter(), time.process_time()
    made.advance(seconds)
    took, cpu_s = time.perf_counter() - began, time.process_time() - cpu_s
    return Window(
        (made.counts.steps - before.steps) / took,
        (made.counts.samples - before.samples) / took,
        cpu_s / took,
        1.0 - (made.counts.busy_s - before.busy_s) / took,
    )


@contextmanager
def cluster() -> Iterator[None]:
    """A Ray of our own."""
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        yield
    finally:
        ray.shutdown()


def show(name: str, found: Sequence[Window]) -> None:
    """The medians."""
    steps, samples, driver, waits = (
        statistics.median(getattr(one, what) for one in found) for what in ("steps", "samples", "driver", "waits")
    )
    print(
        f"{name}: {steps:,.0f} steps/s and {samples:,.0f} samples/s, learner waits {waits:.1%}, "
        f"driver {driver:.2f} cores",
        flush=True,
    )


def apex(cfg: ApexConfig, seconds: float, repeats: int) -> None:
    """The two in turn."""
    ours: list[Window] = []
    hand: list[Window] = []
    with cluster(), closing(GraphLoop(cfg)) as graph, closing(HandLoop(cfg)) as plain:
        for _ in range(repeats):
            hand.append(window(plain, seconds))
            ours.append(window(graph, seconds))
    show("graph", ours)
    show("hand-written loop", hand)
    for what in ("steps", "samples"):
        ratios = [getattr(a, what) / getattr(b, what) for a, b in zip(ours, hand, strict=True)]
        print(
            f"{what}: ratio {statistics.median(ratios):.3f} (pairs: {', '.join(f'{one:.3f}' for one in ratios)})",
            flush=True,
        )


def dqn(given: dict[str, Any], seconds: float, repeats: int) -> None:
    """DQN on each backend, with two networks and several sizes of minibatches, all at 8 rows trained on a step."""
    with cluster():
        for name, policy in DQN_POLICIES.items():
            for batch in [given["batch"]] if "batch" in given else DQN_BATCHES:
                sizes = {"samples_per_step": 8.0, "batches": 1024 // batch, **given, "batch": batch}
                cfg = DQNConfig(policy=policy, **sizes)
                for backend in (Local(), Ray()):
                    with closing(GraphLoop(cfg, backend)) as graph:
                        found = [window(graph, seconds) for _ in range(repeats)]
                    show(f"DQN, {name}, minibatches of {batch}, {type(backend).__name__}", found)


def main() -> None:
    """Ape-X beside the loop, or DQN."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, kind in SETTINGS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, help="instead of the config's")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--dqn", action="store_true")
    options = parser.parse_args()
    given = {name: value for name in SETTINGS if (value := getattr(options, name)) is not None}
    if options.dqn:
        dqn(given, options.seconds, options.repeats)
    else:
        apex(ApexConfig(evaluate_every_env_steps=None, **given), options.seconds, options.repeats)


if __name__ == "__main__":
    main()
