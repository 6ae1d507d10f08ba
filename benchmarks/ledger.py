"""Whether a run keeps its books: nothing lost between nodes, no counter that goes back. Read between two pulls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flowrl import Run, graph
from flowrl.engine.asks import AskCursor
from flowrl.engine.branches import UnionCursor
from flowrl.engine.call import ANSWERED
from flowrl.engine.cursors import ApplyCursor, Cursor
from flowrl.engine.gathers import GatherCursor
from flowrl.engine.replay import ReplayCursor, StoreCursor
from flowrl.operators import ConcatBatches, NStep, TrainOneStep

SUMMARIZED = ("iteration", "env_steps", "agent_steps", "trained_steps", "time_s", "episodes")


@dataclass(frozen=True)
class Edge:
    """What came to a node, since the run began: it went on, was dropped or lost and counted, or is held there.

    slack: by how much more may have come. unit: "steps", environment steps; "rows" of a replay shard; or "items".
    """

    node: str
    unit: str
    came: float
    went: float
    dropped: float = 0.0
    held: float = 0.0
    slack: float = 0.0

    @property
    def missing(self) -> float:
        """What is nowhere; below 0 what came from nowhere."""
        return self.came - self.went - self.dropped - self.held

    @property
    def balances(self) -> bool:
        """Whether nothing is missing."""
        return 0 <= self.missing <= self.slack

    def __str__(self) -> str:
        return (
            f"{self.came:,.0f} {self.unit} came, {self.went:,.0f} went on, {self.dropped:,.0f} dropped, "
            f"{self.held:,.0f} held: {self.missing:,.0f} missing"
        )


@dataclass(frozen=True)
class Books:
    """A run between two pulls: the edges of its nodes, and all its counters."""

    edges: tuple[Edge, ...]
    counters: Mapping[str, float]

    @property
    def totals(self) -> dict[str, float]:
        """Steps that were sampled, trained on, dropped, and are held anywhere."""
        by_steps = [edge for edge in self.edges if edge.unit == "steps"]
        said = {what: sum(getattr(edge, what) for edge in by_steps) for what in ("dropped", "held")}
        trained = next((edge.went for edge in by_steps if "trained" in edge.node), 0.0)
        return {"sampled": self.counters["env_steps"], "trained": trained, **said}


def wrong(before: Books | None, now: Books) -> Iterator[tuple[str, str]]:
    """What is wrong with the books and was not before: (node or counter, what of it)."""
    known = {} if before is None else {edge.node: edge.missing for edge in before.edges}
    for edge in now.edges:
        if not edge.balances and edge.missing != known.get(edge.node):
            yield edge.node, str(edge)
    for name, value in () if before is None else before.counters.items():
        if not now.counters.get(name, 0.0) >= value:  # NaN too
            yield name, f"went back from {value:,g} to {now.counters.get(name, 0.0):,g}"


def books_of(run: Run[Any], summary: Any) -> Books:
    """The books of a run of one of flowrl's graphs, of the thread that moves it, between two pulls."""
    metrics = run.stats().metrics

    def counted(node: str, *names: str) -> float:
        return sum(metrics.get(node, {}).get(name, 0.0) for name in names)

    edges = [edge for cursor in run._engine.cursors for edge in _edges(cursor, counted)]
    return Books(tuple(edges), _counters(run, summary))


def _edges(cursor: Cursor, counted: Any) -> Iterator[Edge]:
    name, went = cursor.name, cursor.stats
    if isinstance(cursor, GatherCursor):
        yield from _of_gather(cursor, counted)
    elif isinstance(cursor, ReplayCursor):
        yield Edge(name, "rows", cursor.limiter.sampled, went.steps, 0.0, cursor._rows * len(cursor._window))
    elif isinstance(cursor, StoreCursor):
        waiting = [*cursor._sent, *cursor._rest, *([] if cursor._next is None else [cursor._next])]
        yield Edge(name, "steps", cursor.upstream.stats.steps, went.steps, 0.0, sum(item.steps for item in waiting))
        inserted = cursor.limiter.inserted
        yield Edge(f"{name}, in shards", "rows", went.steps, inserted, counted(name, "rows_lost"))
    elif isinstance(cursor, AskCursor):
        if isinstance(cursor.op, TrainOneStep):
            yield _of_training(cursor, cursor.op, counted)
    elif isinstance(cursor, ApplyCursor):
        before, ready, op = cursor.upstream.stats, cursor._ready, cursor.stage.op
        if isinstance(op, ConcatBatches):
            held = op._steps + sum(item.steps for item in ready)
            yield Edge(name, "steps", before.steps, went.steps, 0.0, held)
        else:
            yield Edge(name, "items", before.items, went.items, 0.0, len(ready))
    elif isinstance(cursor, UnionCursor):
        came = sum(branch.stats.items for branch, emits in zip(cursor.branches, cursor.emit, strict=True) if emits)
        yield Edge(name, "items", came, went.items)


def _of_gather(cursor: GatherCursor, counted: Any) -> Iterator[Edge]:
    """What the shards made, and what came of it on the driver."""
    run, name = cursor.run, cursor.name
    _, names, groups = run.described
    node = next(node for node, called in names.items() if called == name)
    ((source, path),) = graph.shard_paths(node.upstream[0])
    assert isinstance(source, graph.Shards), source
    made = run.accounts.node(names[source])
    sent = run.accounts.node(names[path[-1]]) if path else made
    if path:
        group = groups[graph.source_group(source, groups)]
        # What an NStep holds back of each environment is lost with its process.
        carried = sum(step.op.n - 1 for step in path if isinstance(step.op, NStep))
        lives = group.count + run.accounts.groups[graph.source_group(source, groups)].deaths
        slack = carried * group.kwargs["num_envs"] * lives
        yield Edge(f"{names[source]}, in shards", "rows", made.steps, sent.steps, slack=slack)
    items = [item.steps for feed in cursor.feeds for item in feed.items]
    behind = [info for feed in cursor.feeds for call in feed.calls if call.state is ANSWERED for info in call.infos]
    held = sum(items) + sum(info.env_steps for info in behind)
    dropped = counted(name, "late_steps_dropped", "steps_lost")
    yield Edge(name, "steps", sent.steps, cursor.stats.steps, dropped, held)


def _of_training(cursor: AskCursor, op: TrainOneStep, counted: Any) -> Edge:
    # The rows of an answer count when it is taken in, which may be before its item comes out.
    held = sum(steps for pending, *_, steps in cursor._window if pending.call.state is not ANSWERED)
    held += sum(item.steps for item in cursor._rest)
    trained = counted(cursor.name, "default/trained_steps") / op.epochs
    dropped = counted(cursor.name, "dropped_steps", "steps_lost")
    return Edge(f"{cursor.name}, trained", "steps", cursor.upstream.stats.steps, trained, dropped, held)


def _counters(run: Run[Any], summary: Any) -> dict[str, float]:
    """All that may only rise."""
    stats, accounts = run.stats(), run._engine.accounts
    said: dict[str, float] = {"env_steps": stats.env_steps, "agent_steps": stats.agent_steps, "lost": stats.lost_calls}
    for name, node in stats.nodes.items():
        figures = ("items", "steps", "busy_s", "waiting_s", "blocked_s", "messages", "bytes")
        said |= {f"{name}: {figure}": getattr(node, figure) for figure in figures}
    for name, group in stats.groups.items():
        said |= {f"{name}: {figure}": getattr(group, figure) for figure in ("calls", "deaths", "busy_s")}
    with accounts.lock:
        cells = list(accounts.table._cells.items())
    said |= {f"{node}: {policy or ''}/{name}": cell.total for (node, policy, name), cell in cells if cell.rule == "sum"}
    for states in run._engine.states.values():
        said |= {f"{state.name}: version": state.published[0] for state in states if state.published is not None}
    return said | {f"summary: {name}": getattr(summary, name) for name in SUMMARIZED}
