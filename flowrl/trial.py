"""A graph tried in this process: what comes out of every node first, or the error that a run would meet."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from flowrl import graph
from flowrl.places import calling_place
from flowrl.shapes import describe

if TYPE_CHECKING:
    from flowrl.engine.core import Engine
    from flowrl.engine.cursors import Cursor, Item

NOTHING = "nothing came"
_COLUMNS, _WIDEST_NAME = 100, 40
_NO_BREAK = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True)
class Edge:
    """What came out of one node for the first item; `upstream` are the names of the nodes before it."""

    node: str
    where: str
    shape: str
    upstream: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """What `flow.check()` saw: the shape of the first result of every node, and the first item itself."""

    edges: tuple[Edge, ...]
    item: Any
    ended: bool

    def __str__(self) -> str:
        """A paragraph a node, sources first; what is as it came from the node before is not said again."""
        width = min(max((len(edge.node) for edge in self.edges), default=0), _WIDEST_NAME)
        shapes = {edge.node: edge.shape for edge in self.edges}
        lines: list[str] = []
        for edge in self.edges:
            told = f"{edge.node.ljust(width)}  {_told(edge, shapes)}"
            lines += textwrap.wrap(
                told, _COLUMNS, subsequent_indent=" " * (width + 2), break_long_words=False, break_on_hyphens=False
            )
        if self.ended:
            lines.append("the flow ended before its first item")
        return "\n".join(lines).replace(_NO_BREAK, " ")


def check(root: graph.Node) -> Report:
    """One item through the whole graph on the Local backend, with one actor of each group.

    Behind a union further items are pulled, one of each branch whatever its weight, so that every branch is tried. Of a
    graph that is not gathered yet the item is the first of one shard.
    """
    from flowrl.backends.local import Local
    from flowrl.engine.branches import UnionCursor
    from flowrl.engine.build import build
    from flowrl.ref import Ref

    gathered = root
    if root.parallel:
        gathered = graph.Gather(upstream=(root,), label="gather_sync", where=calling_place(), mode="sync")
    names = graph.names_of(gathered)
    engine = build(gathered, Local(), 0, one_each=True)
    try:
        for cursor in engine.cursors:
            if isinstance(cursor, UnionCursor):
                cursor.weights = [1] * len(cursor.weights)  # else the last branch may come after a day's training
        seen = _watched(engine)
        got = engine.next_item()
        item = None if got is None else got.get()
        if isinstance(item, Ref):
            item = item.get()
        _pull_on(engine, names, seen, ended=got is None)
        edges = _edges(engine, names, seen)
        return Report(edges if gathered is root else edges[:-1], item, got is None)
    finally:
        engine.close()


def _edges(engine: Engine, names: Mapping[graph.Node, str], seen: Mapping[str, str]) -> tuple[Edge, ...]:
    shapes: dict[str, str] = {}
    for node, name in names.items():  # each after its upstream
        shape = seen.get(name) or engine.accounts.node(name).first
        if isinstance(node, graph.Merge):  # of shards side by side: no work of theirs, so that they do not count it
            shape = next((shapes[names[up]] for up in node.upstream if shapes[names[up]] != NOTHING), None)
        shapes[name] = shape or NOTHING
    return tuple(
        Edge(name, node.where, shapes[name], tuple(names[up] for up in node.upstream)) for node, name in names.items()
    )


def _watched(engine: Engine) -> Mapping[str, str]:
    """By name, what left each node of the driver first; to be filled while the engine moves."""
    seen: dict[str, str] = {}
    for cursor in engine.cursors:
        # Here alone every item is fetched where it passes: references, too, are to be described by what they hold.
        for leaves in ("out", "count"):  # as a new item, or handed on
            setattr(cursor, leaves, partial(_look, seen, cursor, getattr(cursor, leaves)))
    return seen


def _pull_on(engine: Engine, names: Mapping[graph.Node, str], seen: Mapping[str, str], *, ended: bool) -> None:
    """Pulls until every node of the driver has given something, or every branch of the unions had its turn."""
    waited_for = [name for node, name in names.items() if not node.parallel]
    turns = sum(len(node.weights) for node in names if isinstance(node, graph.Unite))
    while turns > 0 and not ended and any(name not in seen for name in waited_for):
        ended = engine.next_item() is None
        turns -= 1


def _look(seen: dict[str, str], cursor: Cursor, out: Callable[[Item], Item], item: Item) -> Item:
    if cursor.name not in seen:
        seen[cursor.name] = describe(cursor.run.value_of(item, cursor.name))
    return out(item)


def _told(edge: Edge, shapes: Mapping[str, str]) -> str:
    """The shape, shorter where a node before it gave the same, or the same columns and fewer."""
    for up in edge.upstream:
        before = shapes.get(up, NOTHING)
        if edge.shape == before != NOTHING:
            return f"as {up}"
        head, columns = _parts(edge.shape)
        head_before, columns_before = _parts(before)
        if columns_before and set(columns_before) <= set(columns):
            added = [column for column in columns if column not in columns_before]
            same = f"as {up}" if head == head_before else f"{head}: the columns of {up}"
            return f"{same} + {_listed(added)}" if added else same
    head, columns = _parts(edge.shape)
    return f"{head}: {_listed(columns)}" if columns else edge.shape


def _listed(columns: list[str]) -> str:
    return ", ".join(column.replace(" ", _NO_BREAK) for column in columns)


def _parts(shape: str) -> tuple[str, list[str]]:
    """(`Batch(8, 2)`, the columns with their kinds); no columns where the shape is of something else."""
    head, colon, columns = shape.partition(": ")
    return (head, re.split(r", (?![^\[]*\])", columns)) if colon else (shape, [])
