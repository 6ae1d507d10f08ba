"""What can be known of a graph before it runs: columns along its edges; and one item through it, for shapes."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flowrl import functions, graph
from flowrl.errors import GraphError
from flowrl.operator import AskOperator

if TYPE_CHECKING:
    from flowrl.flow import Flow

Columns = frozenset[str] | None  # None: cannot be known


def check_columns(root: graph.Node, names: Mapping[graph.Node, str]) -> None:
    """Follows the batch columns along the graph.

    Raises:
        GraphError: an operator needs columns that its source does not give and nobody on the path adds; names both.
    """
    columns_along(root, names)


def columns_along(root: graph.Node, names: Mapping[graph.Node, str]) -> dict[graph.Node, Columns]:
    """The batch columns that leave each node; None where they cannot be known.

    Raises:
        GraphError: as check_columns.
    """
    known: dict[graph.Node, Columns] = {}
    for node in graph.walk(root):
        above = [known[up] for up in node.upstream]
        if isinstance(node, graph.Shards):
            known[node] = source_columns(node)
        elif isinstance(node, graph.Apply):
            known[node] = _after(node, above[0], names)
        elif isinstance(node, graph.Unite):
            known[node] = _common([cols for cols, out in zip(above, node.emit, strict=True) if out])
        elif isinstance(node, graph.Merge):
            known[node] = _common(above)
        else:
            known[node] = above[0] if above else None
    return known


def source_columns(node: graph.Shards) -> Columns:
    """The columns that a source says it gives: `batch_columns(*args, **kwargs)` of its class."""
    say = getattr(node.group.actor_class, "batch_columns", None)
    if say is None or not callable(say):
        return None
    made = node.group.cls
    args, kwargs = node.group.args, dict(node.group.kwargs)
    while isinstance(made, functools.partial):
        args, kwargs = (*made.args, *args), {**made.keywords, **kwargs}
        made = made.func
    return frozenset(say(*args, **kwargs))


def _after(node: graph.Apply, above: Columns, names: Mapping[graph.Node, str]) -> Columns:
    op = node.op
    needs, adds = op.required_columns(), frozenset(op.adds)
    if above is not None and not needs <= above:
        missing = ", ".join(sorted(needs - above))
        source = graph.walk(node)[0]
        raise GraphError(
            f"node {names[node]!r} (defined at {node.where}) needs the columns {missing}, "
            "which nobody on its path adds: "
            f"{graph.path_to(node, names)}; {names[source]!r} gives {', '.join(sorted(above))}. "
            "Put an operator that adds them before it"
        )
    if isinstance(op, functions.Filter | functions.Tap):
        return above
    if isinstance(op, AskOperator | functions.Function | functions.Gathered | functions.Flatten):
        return None
    # One that sees references only cannot change columns; one that declares columns says what it changes.
    keeps = op.pure or op.wants == "reference" or bool(needs or adds)
    return above | adds if above is not None and keeps else None


def _common(branches: list[Columns]) -> Columns:
    common: Columns = None
    for columns in branches:
        if columns is None:
            return None
        common = columns if common is None else common & columns
    return common


@dataclass(frozen=True)
class Edge:
    """What came out of one node for the first item."""

    node: str
    where: str
    shape: str


@dataclass(frozen=True)
class Report:
    """What `flow.check()` saw: the shape of the first result of every node, and the first item itself."""

    edges: tuple[Edge, ...]
    item: Any
    ended: bool

    def __str__(self) -> str:
        width = max((len(edge.node) for edge in self.edges), default=0)
        lines = [f"{edge.node.ljust(width)}  {edge.shape}" for edge in self.edges]
        if self.ended:
            lines.append("the flow ended before its first item")
        return "\n".join(lines)


def check(flow: Flow[Any]) -> Report:
    """One item through the whole graph on the Local backend, with one actor of each group."""
    from flowrl.backends.local import Local
    from flowrl.engine.build import build
    from flowrl.ref import Ref
    from flowrl.shapes import describe

    engine = build(flow.node, Local(), 0, one_each=True)
    try:
        got = engine.next_item()
        item = None if got is None else got.get()
        if isinstance(item, Ref):
            item = item.get()
        edges = []
        for name, place in engine.places.items():
            shape = engine.accounts.node(name).first
            if shape is None and got is not None and engine.root.name == name:
                shape = describe(item)
            edges.append(Edge(name, place.where, shape or ("as above" if got is not None else "nothing came")))
        return Report(tuple(edges), item, got is None)
    finally:
        engine.close()
