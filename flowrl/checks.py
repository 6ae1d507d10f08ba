"""The batch columns along a graph's edges, as far as they can be known before it runs."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from flowrl import functions, graph
from flowrl.errors import GraphError
from flowrl.operator import AskOperator

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
