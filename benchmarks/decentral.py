"""Bytes and messages an update of the decentralized graphs of docs/, beside their formulas, on Ray.

    python benchmarks/decentral.py [--updates 300] [--hidden 256 256] [--shards 1 2 4 8] [--learners 4]

Runs the parameter server of docs/parameter_server.md with each number of shards, and the gossip of docs/gossip.md, as
the pages define them. What the driver sent, and what came back as figures or into the object store, is counted by
`run.stats()`, from a tenth of the updates on; P is the number of weights. Prints a table for RESULTS.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import time
from pathlib import Path
from typing import Any

import flowrl
from flowrl import Flow, Ray, Run, rl, run

DOCS = Path(__file__).resolve().parent.parent / "docs"


def defined_in(page: str) -> dict[str, Any]:
    """What the blocks of a page define; those that run something are left out."""
    namespace: dict[str, Any] = {"__name__": page}
    for block in re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL):
        if "with run(" not in block and "def " in block:
            exec(compile(block, page, "exec", dont_inherit=True), namespace)
    return namespace


def totals(running: Run[Any]) -> tuple[int, int]:
    """Messages and bytes of all nodes since the run began."""
    nodes = running.stats().nodes.values()
    return sum(node.messages for node in nodes), sum(node.bytes for node in nodes)


def measure(flow: Flow[Any], updates: int) -> tuple[float, float, float, float]:
    """Messages and bytes an update, updates a second, environment steps a second."""
    with run(flow, Ray(), seed=0) as running:
        running.step(updates // 10)
        before, steps, started = totals(running), running.stats().env_steps, time.perf_counter()
        running.step(updates)
        seconds = time.perf_counter() - started
        after = totals(running)
        collected = running.stats().env_steps - steps
    messages, size = ((b - a) / updates for a, b in zip(before, after, strict=True))
    return messages, size, updates / seconds, collected / seconds


def weights_in(hidden: tuple[int, ...]) -> int:
    """P, of a policy for CartPole-v1."""
    spec = rl.PolicySpec(hidden=hidden)
    return len(rl.Policy(spec, rl.RolloutWorker("CartPole-v1", spec).spaces()["default"]).get_weights())


def row(what: str, found: tuple[float, float, float, float], messages: str, size: int, formula: str) -> None:
    """One line of the table."""
    print(
        f"| {what} | {found[0]:.2f} | {messages} | {found[1]:,.0f} | {formula} = {size:,} | "
        f"{found[1] / size - 1:+.2%} | {found[2]:,.0f} | {found[3]:,.0f} |",
        flush=True,
    )


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--updates", type=int, default=300)
    parser.add_argument("--hidden", type=int, nargs="+", default=[256, 256])
    parser.add_argument("--shards", type=int, nargs="*", default=[1, 2, 4, 8])
    parser.add_argument("--learners", type=int, default=4)
    given = parser.parse_args()
    hidden, updates = tuple(given.hidden), given.updates
    count = weights_in(hidden)
    print(f"CartPole-v1, {' × '.join(map(str, hidden))} hidden units in actor and critic each: P = {count:,} weights\n")
    print("| graph | messages an update | formula | bytes an update | formula | apart | updates/s | steps/s |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    parameter_server = defined_in("parameter_server.md")["parameter_server"]
    for shards in given.shards:
        found = measure(parameter_server(shards=shards, hidden=hidden), updates)
        row(f"parameter server, {shards} shards", found, f"1 + 2 · {shards} = {1 + 2 * shards}", 8 * count, "8 P")
    gossip = defined_in("gossip.md")["gossip"]
    whole = updates - updates % given.learners
    found = measure(gossip(learners=given.learners, hidden=hidden), whole)
    row(f"gossip, {given.learners} learners", found, "2", 4 * count, "4 P")
    print(
        f"\n`python benchmarks/decentral.py` on Ray, {os.cpu_count()} cores ({platform.machine()}), flowrl "
        f"{flowrl.__version__}; {updates} updates each."
    )


if __name__ == "__main__":
    main()
