"""IMPALA and A3C on CartPole-v1: flowrl's graphs beside hand-written Ray loops over the same classes.

    python benchmarks/async.py [--only impala] [--seconds 4] [--repeats 10]

The two alternate in one run, each warmed up before a window counts; a figure is the median over the windows, the ratio
is taken pair by pair. Setting: 2 workers × 8 environments; IMPALA with fragments of 50 steps and batches of 500, A3C
with fragments of 20. Stated together: environment steps and updates a second, the share of its time that the learner
waits, and the CPU that the driver's process takes, in cores. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import flowrl
from benchmarks.apex import WARM_UP_S, cluster
from benchmarks.async_by_hand import Counts, HandA3C, HandImpala
from flowrl import Ray
from flowrl.algorithms import A3CConfig, IMPALAConfig

LOOPS: dict[str, tuple[Any, Any]] = {"impala": (IMPALAConfig(), HandImpala), "a3c": (A3CConfig(), HandA3C)}


@dataclass(frozen=True)
class Window:
    """What one window came to: steps and updates a second, the driver's CPU in cores, the learner's idle share."""

    steps: float
    updates: float
    driver: float
    waits: float


class GraphLoop:
    """An algorithm as flowrl's graph."""

    def __init__(self, cfg: Any):
        self.run = flowrl.run(cfg.graph(), Ray(), seed=0)
        self.counts = Counts()
        next(self.run)

    def advance(self, seconds: float) -> None:
        """Moves on for so long."""
        until = time.perf_counter() + seconds
        summary = next(self.run)
        while time.perf_counter() < until:
            summary = next(self.run)
        busy_s = self.run.stats().groups["learner"].busy_s
        updates = int(summary.learner["default"]["updates"])
        self.counts = Counts(summary.env_steps, summary.trained_steps, updates, busy_s)

    def close(self) -> None:
        """Ends the run."""
        self.run.close()


def window(made: Any, seconds: float) -> Window:
    """A warm window."""
    made.advance(WARM_UP_S)
    before, began, cpu_s = replace(made.counts), time.perf_counter(), time.process_time()
    made.advance(seconds)
    took, cpu_s = time.perf_counter() - began, time.process_time() - cpu_s
    return Window(
        (made.counts.steps - before.steps) / took,
        (made.counts.updates - before.updates) / took,
        cpu_s / took,
        1.0 - (made.counts.busy_s - before.busy_s) / took,
    )


def show(name: str, found: Sequence[Window]) -> None:
    """The medians."""
    steps, updates, driver, waits = (
        statistics.median(getattr(one, what) for one in found) for what in ("steps", "updates", "driver", "waits")
    )
    print(
        f"{name}: {steps:,.0f} steps/s, {updates:,.1f} updates/s, learner waits {waits:.1%}, driver {driver:.2f} cores",
        flush=True,
    )


def compare(name: str, seconds: float, repeats: int) -> None:
    """The graph and the loop in turn."""
    cfg, by_hand = LOOPS[name]
    ours: list[Window] = []
    hand: list[Window] = []
    with closing(GraphLoop(cfg)) as graph, closing(by_hand(cfg)) as plain:
        for _ in range(repeats):
            hand.append(window(plain, seconds))
            ours.append(window(graph, seconds))
    show(f"{name}, graph", ours)
    show(f"{name}, hand-written loop", hand)
    ratios = [a.steps / b.steps for a, b in zip(ours, hand, strict=True)]
    print(
        f"{name}: ratio {statistics.median(ratios):.3f} (pairs: {', '.join(f'{one:.3f}' for one in ratios)})",
        flush=True,
    )


def main() -> None:
    """The comparisons asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(LOOPS), help="one of them; without it both")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    with cluster():
        for name in LOOPS if options.only is None else (options.only,):
            compare(name, options.seconds, options.repeats)


if __name__ == "__main__":
    main()
