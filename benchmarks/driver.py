"""What the driver costs an item: gather_async, duplicate and Union over shards that do nothing, beside the bare loop.

    python benchmarks/driver.py [--items 4000] [--repeats 3] [--memory-items 100000]

Prints µs of driver CPU and of wall time an item: flowrl on Ray against the same loop in bare Ray at 2, 16 and 64 calls
in flight (alternating, medians of the repeats), flowrl on Local against the same loop over Local's hosts, the growth
of memory over many items, and the CPU used while waiting. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import psutil
import ray

import flowrl
from flowrl import Flow, Local, Ray
from flowrl.engine.transport import unpack
from flowrl.operators import Union

SHARDS = {2: 1, 16: 8, 64: 32}  # calls in flight: shards, two calls each


class Nothing:
    """A shard whose items are empty."""

    def step(self) -> None:
        """The empty item."""


class Slow:
    """A shard that takes its time."""

    def step(self) -> None:
        """An item every two seconds."""
        time.sleep(2.0)


def graph(shards: int) -> Flow[Any]:
    """Each item goes through gather_async, duplicate and Union."""
    group = flowrl.actors(Nothing, count=shards, name="shards")
    kept, other = flowrl.from_actors(group, "step").gather_async(num_async=2).duplicate(2)
    return Union([kept, other], mode="async", emit=[kept])


def measured(loop: Callable[[int], None], items: int) -> tuple[float, float]:
    """(CPU, wall) µs an item."""
    loop(items // 10)
    cpu, wall = time.process_time(), time.perf_counter()
    loop(items)
    return (time.process_time() - cpu) / items * 1e6, (time.perf_counter() - wall) / items * 1e6


def flowrl_loop(run: Any) -> Callable[[int], None]:
    """Takes items of a running graph."""

    def loop(items: int) -> None:
        for _ in range(items):
            next(run)

    return loop


def bare_ray_loop(actors: list[Any]) -> Callable[[int], None]:
    """Two calls in flight an actor; each answer is fetched and the actor asked again."""

    def loop(items: int) -> None:
        pending = {actor.step.remote(): actor for actor in actors for _ in range(2)}
        for _ in range(items):
            (ready,), _ = ray.wait(list(pending), num_returns=1)
            actor = pending.pop(ready)
            ray.get(ready)
            pending[actor.step.remote()] = actor
        ray.get(list(pending))

    return loop


def bare_local_loop(run: Any) -> Callable[[int], None]:
    """The same over Local's messages: two pulls in flight an actor; record and value are read and it is asked again."""
    states = run._engine.states["shards"]
    backend = run._engine.backend

    def loop(items: int) -> None:
        pending = {backend.pull(state.actor): state for state in states for _ in range(2)}
        for _ in range(items):
            ready = backend.poll(list(pending), None)[0]
            state = pending.pop(ready)
            unpack(ready.record.inline)
            pending[backend.pull(state.actor)] = state

    return loop


def on_ray(in_flight: int, items: int, repeats: int) -> None:
    """flowrl and bare Ray in turn."""
    ours: list[tuple[float, float]] = []
    bare: list[tuple[float, float]] = []
    with flowrl.run(graph(SHARDS[in_flight]), Ray()) as run:
        cls = ray.remote(num_cpus=0)(Nothing)
        actors = [cls.remote() for _ in range(SHARDS[in_flight])]
        for _ in range(repeats):
            bare.append(measured(bare_ray_loop(actors), items))
            ours.append(measured(flowrl_loop(run), items))
            while run._engine.calls.pending:  # so that the graph's own calls do not run beside the bare loop
                run._engine.calls.wait(None, 0.1)
        for actor in actors:
            ray.kill(actor)
    show(f"Ray, {in_flight} in flight", ours, bare, "bare Ray")


def on_local(items: int, repeats: int) -> None:
    """flowrl on Local and the bare messages in turn."""
    ours: list[tuple[float, float]] = []
    bare: list[tuple[float, float]] = []
    with flowrl.run(graph(8), Local()) as run:
        for _ in range(repeats):
            bare.append(measured(bare_local_loop(run), items))
            ours.append(measured(flowrl_loop(run), items))
    show("Local, 16 in flight", ours, bare, "bare messages")


def show(what: str, ours: list[tuple[float, float]], bare: list[tuple[float, float]], against: str) -> None:
    """One line: medians, and the difference pair by pair."""
    cpu, wall = (statistics.median(pair[i] for pair in ours) for i in (0, 1))
    bare_cpu, bare_wall = (statistics.median(pair[i] for pair in bare) for i in (0, 1))
    more = statistics.median(a[0] - b[0] for a, b in zip(ours, bare, strict=True))
    print(
        f"{what}: flowrl {cpu:.0f} µs CPU, {wall:.0f} µs wall; "
        f"{against} {bare_cpu:.0f} µs CPU, {bare_wall:.0f} µs wall; "
        f"CPU more an item {more:+.0f} µs, wall ratio {wall / bare_wall:.2f}",
        flush=True,
    )


def memory(items: int) -> None:
    """Resident memory of the driver over many items."""
    process = psutil.Process()
    with flowrl.run(graph(8), Local()) as run:
        run.step(items // 10)
        gc.collect()
        before = process.memory_info().rss
        for _ in range(items):
            next(run)
        gc.collect()
        print(f"memory over {items:,} items: {(process.memory_info().rss - before) / 1e6:+.1f} MB", flush=True)


def waiting() -> None:
    """CPU of the driver while it waits for one slow answer."""
    group = flowrl.actors(Slow, count=1, name="slow")
    with flowrl.run(flowrl.from_actors(group, "step").gather_async(num_async=1), Ray()) as run:
        next(run)
        cpu, wall = time.process_time(), time.perf_counter()
        next(run)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    print(f"CPU while waiting {wall:.1f} s: {cpu:.3f} s ({cpu / wall:.1%})", flush=True)


def main() -> None:
    """Everything in turn."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--items", type=int, default=4000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory-items", type=int, default=100_000)
    args = parser.parse_args()
    on_local(args.items, args.repeats)
    memory(args.memory_items)
    for in_flight in SHARDS:
        on_ray(in_flight, args.items, args.repeats)
    waiting()
    ray.shutdown()


if __name__ == "__main__":
    main()
