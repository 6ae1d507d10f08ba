"""What collecting costs: environments that sleep, by gather_sync and gather_async, against a hand-written Ray loop.

    python benchmarks/env_cost.py [--sleep-ms 0 0.1 1 10] [--nbytes 16 65536 1048576] [--workers 1 2 4 8 16]
                                  [--seconds 2] [--repeats 2]

An environment sleeps so long a step, always the same (constant) or drawn from a lognormal distribution of that mean
(σ = 1), and observes so many bytes; a worker steps one and answers fragments, which stay in the object store. The
graph and the loop take turns in windows of `seconds`, over equal actors, in one run. A figure is the median over the
repeats, in percent of the theoretical rate: what a worker alone in this process does with constant times, times the
workers, or what the cores can do. The ratio of graph to loop is taken pair by pair. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import gymnasium
import numpy as np
import ray

import flowrl
from flowrl import Answer, Batch, Context, Operator, Ray
from flowrl.rl.envs import make_vector_env

SIGMA = 1.0
FRAGMENT_S, MOST_STEPS, MOST_BYTES = 0.08, 1024, 8 << 20  # a fragment takes about so long, but is no larger than this
NUM_ASYNC = 2
CORES = os.cpu_count() or 1


class Setting(NamedTuple):
    """One environment of the sweep."""

    sleep_ms: float
    kind: str
    nbytes: int

    @property
    def steps(self) -> int:
        """Of a fragment."""
        by_time = int(FRAGMENT_S / max(self.sleep_ms / 1e3, 1e-5))
        return max(1, min(by_time, MOST_STEPS, MOST_BYTES // self.nbytes))


class Sleeper(gymnasium.Env[Any, int]):
    """Sleeps at each step."""

    def __init__(self, setting: Setting, seed: int):
        self.observation_space = gymnasium.spaces.Box(0, 255, (setting.nbytes,), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._setting, self._draws = setting, np.random.default_rng(seed)
        self._obs = self._draws.integers(0, 255, setting.nbytes, np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """The one observation that there is."""
        return self._obs, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """The same, later."""
        seconds = self._setting.sleep_ms / 1e3
        if self._setting.kind == "lognormal":
            seconds *= self._draws.lognormal(-(SIGMA**2) / 2, SIGMA)
        if seconds > 0:
            time.sleep(seconds)
        return self._obs, 1.0, False, False, {}


class Stepper:
    """A worker without a policy: what it costs is the environment and the way of its fragments."""

    def __init__(self, index: int):
        self.index = index
        self.configure(Setting(0.0, "constant", 16))

    def configure(self, setting: Setting) -> None:
        """Goes on with another environment."""
        self.steps = setting.steps
        self.source = make_vector_env(lambda: Sleeper(setting, self.index), 1, seeds=np.random.SeedSequence(self.index))
        self.obs = np.array(self.source.reset())

    def sample(self) -> Answer[Batch]:
        """A fragment (T, 1)."""
        obs_TN = np.empty((self.steps, *self.obs.shape), self.obs.dtype)
        rewards_TN = np.empty((self.steps, 1), np.float32)
        actions = np.zeros(1, np.int64)
        for t in range(self.steps):
            obs_TN[t] = self.obs
            self.obs, rewards_TN[t], *_ = self.source.step(actions)
        return Answer(Batch({"obs": obs_TN, "rewards": rewards_TN}, time_major=True), policy_version=0)


class HandStepper(Stepper):
    """The same for a hand-written loop: a fragment, and its steps."""

    def fragment(self) -> tuple[Batch, int]:
        """Two returns: one stays in the store, one is read."""
        batch = self.sample().payload
        return batch, batch.env_steps


@dataclass
class Steps(Operator[Batch, int]):
    """The steps of an item, which is not fetched."""

    wants: ClassVar[Any] = "reference"

    def process(self, value: Any, ctx: Context) -> Iterable[int]:
        yield value.info.env_steps


class HandLoop:
    """Rollouts as a plain loop over actors."""

    def __init__(self, gather: str, count: int):
        made = ray.remote(num_cpus=0)(HandStepper)
        self.count, self.gather = count, gather
        self.actors = [made.remote(index) for index in range(count)]
        self.samples = [actor.fragment.options(num_returns=2) for actor in self.actors]

    def configure(self, setting: Setting) -> None:
        """All actors take another environment."""
        ray.get([actor.configure.remote(setting) for actor in self.actors])

    def rate(self, seconds: float) -> float:
        """Steps a second; what is in flight is taken in before and after."""
        items = self._sync() if self.gather == "sync" else self._async()
        found = rate(items, seconds, self.count)
        items.close()  # type: ignore[attr-defined]
        return found

    def close(self) -> None:
        """Ends the actors."""
        for actor in self.actors:
            ray.kill(actor)

    def _sync(self) -> Iterator[int]:
        while True:
            out = [sample.remote() for sample in self.samples]
            yield from ray.get([steps for _, steps in out])

    def _async(self) -> Iterator[int]:
        out: dict[Any, tuple[Any, int]] = {}

        def ask(index: int) -> None:
            batch, steps = self.samples[index].remote()
            out[steps] = (batch, index)

        for _ in range(NUM_ASYNC):
            for index in range(self.count):
                ask(index)
        try:
            ready: deque[Any] = deque()
            while True:
                if not ready:
                    ready.extend(ray.wait(list(out), num_returns=1)[0])
                steps = ready.popleft()
                _, index = out.pop(steps)
                yield ray.get(steps)
                ask(index)
        finally:
            ray.get(list(out))


class GraphLoop:
    """The same as a graph."""

    def __init__(self, gather: str, count: int):
        self.count = count
        shards = flowrl.from_actors(flowrl.actors(Stepper, count=count, cpus=0, name="workers"), "sample")
        flow = shards.gather_sync() if gather == "sync" else shards.gather_async(num_async=NUM_ASYNC)
        self.run = flowrl.run(flow.for_each(Steps()), Ray(), seed=0)

    def configure(self, setting: Setting) -> None:
        """All actors take another environment."""
        for pending in [actor.ask("configure", setting) for actor in self.run.actors["workers"]]:
            pending.result()

    def rate(self, seconds: float) -> float:
        """Steps a second."""
        return rate(self.run, seconds, self.count)

    def close(self) -> None:
        """Ends the run."""
        self.run.close()


def rate(items: Iterator[int], seconds: float, count: int) -> float:
    """Steps a second in a window of whole rounds, after what was in flight."""
    for _ in range((NUM_ASYNC + 1) * count):
        next(items)
    steps, started = 0, time.perf_counter()
    while (passed := time.perf_counter() - started) < seconds:
        steps += sum(next(items) for _ in range(count))
    return steps / passed


def alone(setting: Setting, seconds: float) -> float:
    """Steps a second of one worker in this process."""
    worker = Stepper(0)
    worker.configure(setting)
    worker.sample()
    steps, started = 0, time.perf_counter()
    while (passed := time.perf_counter() - started) < seconds:
        steps += worker.sample().payload.env_steps
    return steps / passed


class Result(NamedTuple):
    """Rates of one setting."""

    setting: Setting
    workers: int
    gather: str
    ideal: float
    hand: float
    graph: float
    ratio: float

    def line(self) -> str:
        """A row of the table."""
        s = self.setting
        return (
            f"| {s.sleep_ms:g} | {s.kind} | {s.nbytes:,} | {self.workers} | {self.gather} | {self.ideal:,.0f} "
            f"| {self.hand / self.ideal:.1%} | {self.graph / self.ideal:.1%} | {self.ratio:.3f} |"
        )


HEAD = (
    "| sleep ms | times | bytes | workers | gather | theory steps/s | loop | graph | graph / loop |\n"
    "|--:|:--|--:|--:|:--|--:|--:|--:|--:|"
)


def measure(args: argparse.Namespace, settings: list[Setting]) -> Iterator[Result]:
    """Every setting with every number of workers and both gathers."""
    solo = {s: alone(s._replace(kind="constant"), min(args.seconds, 1.0)) for s in settings}
    busy = {s.nbytes: alone(s._replace(sleep_ms=0.0, kind="constant"), min(args.seconds, 1.0)) for s in settings}
    for count in args.workers:
        for gather in args.gathers:
            # Both anew, for actors get faster with age: memory that they share with the object store is touched once.
            hand, graph = HandLoop(gather, count), GraphLoop(gather, count)
            for setting in settings:
                hand.configure(setting)
                graph.configure(setting)
                pairs = []
                for turn in range(args.repeats):
                    sides = (hand, graph) if turn % 2 == 0 else (graph, hand)
                    rates = {side: side.rate(args.seconds) for side in sides}
                    pairs.append((rates[hand], rates[graph]))
                ideal = min(count * solo[setting], CORES * busy[setting.nbytes])
                loop, ours = (statistics.median(side) for side in zip(*pairs, strict=True))
                ratio = statistics.median(ours / theirs for theirs, ours in pairs)
                yield Result(setting, count, gather, ideal, loop, ours, ratio)
            hand.close()
            graph.close()


def conclude(results: list[Result]) -> None:
    """The worst ratios, and what gather_async gains where times vary."""
    worst = sorted(results, key=lambda result: result.ratio)[:3]
    print("\nlowest graph / loop: " + "; ".join(f"{r.ratio:.3f} ({r.line().strip('| ')})" for r in worst))
    print(f"median graph / loop: {statistics.median(r.ratio for r in results):.3f} over {len(results)} settings")
    by_key = {(r.setting, r.workers, r.gather): r.graph for r in results}
    for kind in sorted({r.setting.kind for r in results}):
        gains = [
            rate_ / by_key[setting, workers, "sync"]
            for (setting, workers, gather), rate_ in by_key.items()
            if gather == "async" and workers > 1 and setting.kind == kind and (setting, workers, "sync") in by_key
        ]
        if gains:
            print(
                f"gather_async / gather_sync, {kind}, 2 workers and more: median {statistics.median(gains):.2f}, "
                f"from {min(gains):.2f} to {max(gains):.2f}"
            )


def main() -> None:
    """The sweep, a row a line as they come."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sleep-ms", type=float, nargs="+", default=[0.0, 0.1, 1.0, 10.0])
    parser.add_argument("--kinds", nargs="+", choices=["constant", "lognormal"], default=["constant", "lognormal"])
    parser.add_argument("--nbytes", type=int, nargs="+", default=[16, 65_536, 1_048_576])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--gathers", nargs="+", choices=["sync", "async"], default=["sync", "async"])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--repeats", type=int, default=2)
    args = parser.parse_args()
    settings = [
        Setting(sleep, kind, nbytes)
        for sleep in args.sleep_ms
        for kind in (args.kinds if sleep > 0 else ["constant"])
        for nbytes in args.nbytes
    ]
    ray.init(num_cpus=CORES, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    print(HEAD)
    results = []
    for result in measure(args, settings):
        results.append(result)
        print(result.line(), flush=True)
    conclude(results)
    ray.shutdown()


if __name__ == "__main__":
    main()
