"""Where the time goes: counted as calls and items pass, read as a table with a verdict."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flowrl.engine.record import Record
from flowrl.metrics import Delta, Table


@dataclass(slots=True)
class NodeStats:
    """One node's figures since the run began.

    items: results that left it. steps: environment steps in them. busy_s: time spent computing, on the driver or in the
    actor. waiting_s: time the driver waited while a call of this node was out. blocked_s: time it could not move
    because of a bound inside the graph. messages, bytes: what the driver sent for it and the size of what came back.
    first: what its first result looked like.
    """

    items: int = 0
    steps: int = 0
    busy_s: float = 0.0
    waiting_s: float = 0.0
    blocked_s: float = 0.0
    messages: int = 0
    bytes: int = 0
    first: str | None = None
    out: int = 0


@dataclass(slots=True)
class GroupStats:
    """One actor group's figures: how many actors, how long they were busy together, calls answered, deaths.

    more_s: the actors' time since the run began is count times the run's, and this, where the group was resized.
    """

    count: int
    busy_s: float = 0.0
    calls: int = 0
    deaths: int = 0
    role: str = "asked"
    more_s: float = 0.0

    def use(self, elapsed_s: float) -> float:
        """The share of its actors' time that it was busy, 0 to 1."""
        lived_s = self.count * elapsed_s + self.more_s
        return self.busy_s / lived_s if lived_s > 0 else 0.0


class Accounts:
    """The running figures of one run. Thread-safe: a look from another thread sees them whole."""

    def __init__(
        self, nodes: Sequence[str], groups: Mapping[str, int], sources: frozenset[str], clock: Callable[[], float]
    ):
        self.clock = clock
        self.graph = tuple(nodes)
        self.nodes = {name: NodeStats() for name in nodes}
        self.groups = {
            name: GroupStats(count, role="source" if name in sources else "asked") for name, count in groups.items()
        }
        self.table = Table()
        self.env_steps = 0
        self.agent_steps = 0
        self.wait_s = 0.0
        self.started = clock()
        self.warnings: list[str] = []
        self.knobs: dict[str, str] = {}  # of nodes that a bound may hold back: what to turn
        self.lock = threading.RLock()

    def begin(self) -> None:
        """The actors are up and greeted: what that took, in time and messages, does not count."""
        with self.lock:
            self.started, self.wait_s = self.clock(), 0.0
            self.nodes = {name: self.nodes[name] for name in self.graph}
            for stats in self.nodes.values():
                stats.items = stats.steps = stats.messages = stats.bytes = 0
                stats.busy_s = stats.waiting_s = 0.0
            for group in self.groups.values():
                group.busy_s, group.calls = 0.0, 0

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run began."""
        return self.clock() - self.started

    def node(self, name: str) -> NodeStats:
        """A node's figures; a message from outside the graph counts under its own name."""
        found = self.nodes.get(name)
        if found is None:
            with self.lock:
                found = self.nodes.setdefault(name, NodeStats())
        return found

    def lost(self, stats: NodeStats) -> None:
        """A message of a node has no answer."""
        with self.lock:
            stats.out -= 1

    def waited(self, seconds: float) -> None:
        """The driver waited; so did each node with a call out."""
        with self.lock:
            self.wait_s += seconds
            for stats in self.nodes.values():
                if stats.out > 0:
                    stats.waiting_s += seconds

    def answer(self, group: str, stats: NodeStats, record: Record, *, starting: bool = False) -> None:
        """An answer's figures; the caller holds `lock`, for many at once.

        The making of an actor's object is no work of its group; metrics merge by themselves.
        """
        stats.out -= 1
        if not starting:
            actors = self.groups[group]
            actors.busy_s += record.busy_s
            actors.calls += 1
        for info in record.infos:
            stats.bytes += info.nbytes
        for name, items, busy_s, first in record.stages:
            stage = self.nodes.get(name) or self.node(name)
            stage.items += items
            stage.busy_s += busy_s
            if stage.first is None:
                stage.first = first
        if record.env_steps or record.agent_steps:
            self._count_steps(record)

    def _count_steps(self, record: Record) -> None:
        self.env_steps += record.env_steps
        self.agent_steps += record.agent_steps
        if record.env_steps and record.stages:
            self.node(record.stages[0][0]).steps += record.env_steps  # the source's
            if len(record.stages) > 1:
                self.node(record.stages[-1][0]).steps += sum(info.env_steps for info in record.infos)

    def warned(self, about: str, said: str) -> None:
        """A warning that takes the place of the one before about the same actor."""
        with self.lock:
            self.warnings[:] = [warning for warning in self.warnings if not warning.startswith(f"{about} ")]
            self.warnings.append(said)

    def settled(self, about: str) -> None:
        """Takes back the warnings that begin so."""
        with self.lock:
            self.warnings[:] = [warning for warning in self.warnings if not warning.startswith(about)]

    def resized(self, name: str, count: int) -> None:
        """A group has another number of actors from now on."""
        with self.lock:
            group = self.groups[name]
            group.more_s += (group.count - count) * self.elapsed_s
            group.count = count

    def merge(self, deltas: Sequence[Delta]) -> None:
        """Metrics that were recorded on the driver, or came with an answer; each is to be merged exactly once."""
        with self.lock:
            self.table.merge(deltas)


@dataclass(frozen=True)
class Stats:
    """A snapshot: per node and per group, the time since the run began, and what limits it.

    `verdict` names the limit and the knob to turn.
    """

    elapsed_s: float
    env_steps: int
    agent_steps: int
    driver_busy_s: float
    driver_wait_s: float
    nodes: Mapping[str, NodeStats]
    groups: Mapping[str, GroupStats]
    lost_calls: int
    verdict: str
    warnings: tuple[str, ...] = ()
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def utilization(self, group: str) -> float:
        """The share of its actors' time that a group was busy, 0 to 1."""
        return self.groups[group].use(self.elapsed_s)

    def __str__(self) -> str:
        head = ("node", "items", "steps", "busy s", "waiting s", "blocked s", "messages", "bytes")
        rows = [
            (name, f"{n.items:,}", f"{n.steps:,}", f"{n.busy_s:.2f}", f"{n.waiting_s:.2f}", f"{n.blocked_s:.2f}",
             f"{n.messages:,}", f"{n.bytes:,}")
            for name, n in self.nodes.items()
        ]  # fmt: skip
        lines = table_lines(head, rows)
        for name, group in self.groups.items():
            lines.append(f"{name}: {group.count} actor(s), busy {self.utilization(name):.0%}, {group.calls:,} calls")
        lines.append(f"{self.env_steps:,} env steps in {self.elapsed_s:.1f} s; lost calls: {self.lost_calls}")
        lines.extend(f"warning: {warning}" for warning in self.warnings)
        lines.append(self.verdict)
        return "\n".join(lines)


def table_lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A plain table, the first column to the left, the others to the right."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    return [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in (head, *rows)
    ]


def snapshot(accounts: Accounts, now: float, lost: int, driver_busy_s: float) -> Stats:
    """The figures as they stand."""
    with accounts.lock:
        return _snapshot(accounts, now, lost, driver_busy_s)


def _snapshot(accounts: Accounts, now: float, lost: int, driver_busy_s: float) -> Stats:
    elapsed = max(now - accounts.started, 1e-9)
    return Stats(
        elapsed_s=elapsed,
        env_steps=accounts.env_steps,
        agent_steps=accounts.agent_steps,
        driver_busy_s=driver_busy_s,
        driver_wait_s=accounts.wait_s,
        nodes={name: replace(stats) for name, stats in accounts.nodes.items()},
        groups={name: replace(stats) for name, stats in accounts.groups.items()},
        lost_calls=lost,
        verdict=_verdict(accounts, elapsed, driver_busy_s),
        warnings=tuple(accounts.warnings),
        metrics=accounts.table.by_node(),
    )


def _verdict(accounts: Accounts, elapsed: float, driver_busy_s: float) -> str:
    use: dict[str, float] = {name: group.use(elapsed) for name, group in accounts.groups.items()}
    driver = driver_busy_s / elapsed
    blocked = {name: stats.blocked_s / elapsed for name, stats in accounts.nodes.items() if stats.blocked_s > 0}
    if not any(group.calls for group in accounts.groups.values()) and not any(n.items for n in accounts.nodes.values()):
        return "nothing has run yet"
    top: Any = max(use, key=lambda name: use[name], default=None)
    shares = ", ".join(f"{name} {share:.0%}" for name, share in use.items())
    if driver > 0.5 and (top is None or driver >= use[top]):
        return (
            f"limited by the driver (busy {driver:.0%}): make items fewer and larger, or move operators into the shards"
        )
    if top is None:
        return f"the driver is busy {driver:.0%} of the time"
    if use[top] >= 0.75:
        knob = (
            "more actors in the group, or more environments in each"
            if accounts.groups[top].role == "source"
            else "less work a call (for a learner fewer epochs or larger minibatches), or calls to more actors"
        )
        return f"limited by {top} (busy {use[top]:.0%}): {knob}"
    if blocked and max(blocked.values()) > 0.3:
        # Who waits for a node that waits is blocked as long, or longer: the reason stands where a knob is.
        long = [name for name in blocked if blocked[name] > max(blocked.values()) / 2]
        name = max(long, key=lambda n: (n in accounts.knobs, blocked[n]))
        knob = accounts.knobs.get(name, "raise max_lag, or drain its sibling faster")
        return f"limited by a bound at {name} (blocked {blocked[name]:.0%}): {knob}"
    if len(use) > 1 and sum(use.values()) > 0.75:
        return (
            f"the groups take turns ({shares}): gather_async or a larger in_flight would overlap them, at the price of "
            "older weights and an order that depends on timing"
        )
    return f"nobody is busy ({shares}): messages are the work; make items larger (more steps a pull)"
