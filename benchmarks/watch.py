"""What watches a long run from beside it: what its processes hold, whether it goes on, what it leaves behind."""

from __future__ import annotations

import faulthandler
import gc
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import psutil

import flowrl
from benchmarks.trend import MIB, Holdings

EVERY_S = 1.0
LEAVES_S = 20.0  # how long processes may take to end behind a run


@dataclass
class Violations:
    """What is wrong, said as soon as it is seen."""

    began: float
    found: list[dict[str, Any]] = field(default_factory=list)
    growing: set[str] = field(default_factory=set)

    def add(self, whose: str, said: str) -> None:
        """One more."""
        at_s = monotonic() - self.began
        self.found.append({"at_s": round(at_s, 1), "node": whose, "said": said})
        print(f"VIOLATION at {at_s:.1f} s, {whose}: {said}", flush=True)

    def add_growing(self, holdings: Holdings) -> None:
        """Who grows, once each."""
        for whose, said in holdings.growing():
            key = f"{whose} {said.split(':')[0]}"
            if key not in self.growing:
                self.growing.add(key)
                self.add(whose, said)


class Watch(threading.Thread):
    """Reads what the processes hold, and sees that the run goes on; `beaten` after each item."""

    def __init__(self, run: flowrl.Run[Any], violations: Violations, holdings: Holdings, stall_s: float):
        super().__init__(name="watch", daemon=True)
        self._run, self._violations, self.holdings, self._stall_s = run, violations, holdings, stall_s
        self._over = threading.Event()
        self._exit = threading.Timer(LEAVES_S, os._exit, (1,))  # where even closing hangs
        self._exit.daemon = True
        self.pids: Mapping[str, int] = {}
        self.beat = monotonic()
        self.longest_s = 0.0  # between two items

    def beaten(self) -> None:
        """An item has come."""
        now = monotonic()
        self.longest_s, self.beat = max(self.longest_s, now - self.beat), now

    def run(self) -> None:
        """Until `end`."""
        while not self._over.wait(EVERY_S):
            now = monotonic()
            ours = {"driver": os.getpid(), **self.pids}
            self.holdings.read(now - self._violations.began, ours, held_by_ray())
            if now - self.beat > self._stall_s:
                self._stalled(now - self.beat)
                return

    def _stalled(self, seconds: float) -> None:
        stats = self._run.stats()
        out = {name: node.out for name, node in stats.nodes.items() if node.out}
        self._violations.add("run", f"no item for {seconds:.0f} s; calls that are out: {out}; {stats.verdict}")
        faulthandler.dump_traceback(all_threads=True)
        self._exit.start()
        self._run.close()

    def end(self) -> None:
        """Nothing more is read."""
        self._over.set()
        if self.is_alive():
            self.join(LEAVES_S)
        self._exit.cancel()
        if self._exit.is_alive():
            self._exit.join()


def references() -> int:
    """How many objects of Ray this process refers to."""
    import ray

    return len(ray._private.worker.global_worker.core_worker.get_all_reference_counts())


def held_by_ray() -> dict[str, float]:
    """Counts that belong to no actor."""
    import ray

    there, free = ray.cluster_resources(), ray.available_resources()
    stored = there["object_store_memory"] - free.get("object_store_memory", there["object_store_memory"])
    rays = 0.0
    for child in psutil.Process().children():
        try:
            rays += child.memory_info().rss / MIB if child.name() in ("raylet", "gcs_server") else 0.0
        except psutil.Error:
            continue
    return {"references": references(), "MiB in the object store": stored / MIB, "MiB of Ray": rays}


def left_behind(pids: Mapping[str, int], before: int) -> list[tuple[str, str]]:
    """What a closed run has left: processes that do not end, and references."""
    processes = {}
    for name, pid in pids.items():
        try:
            processes[psutil.Process(pid)] = name
        except psutil.Error:
            continue
    _, alive = psutil.wait_procs(list(processes), timeout=LEAVES_S)
    found = [(processes[one], f"process {one.pid} is still there {LEAVES_S:g} s after the run") for one in alive]
    gc.collect()
    more = references() - before
    return [*found, *([("references", f"{more} more than before the run")] if more > 0 else [])]
