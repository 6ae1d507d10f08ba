"""The batch columns along a graph's edges, as far as they can be known before it runs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flowrl import functions, graph
from flowrl.errors import GraphError
from flowrl.operator import AskOperator
from flowrl.pacing import Pacing
from flowrl.sources import Aggregator

if TYPE_CHECKING:
    from flowrl.handles import ActorGroup

Columns = frozenset[str] | None  # None: cannot be known


def check_columns(root: graph.Node, names: Mapping[graph.Node, str]) -> None:
    """Follows the batch columns along the graph.

    Raises:
        GraphError: an operator needs columns that its source does not give and nobody on the path adds; names both.
    """
    columns_along(root, names)


def check_selected(root: graph.Node, names: Mapping[graph.Node, str]) -> None:
    """Nothing, if whatever takes some policies out of multi-agent batches takes such as the sources before it have.

    Raises:
        GraphError: it names one that none of them plays: its part of the graph would wait for good.
    """
    for node in graph.walk(root):
        selected = getattr(node.op, "selects", ()) if isinstance(node, graph.Apply) else ()
        if not selected:
            continue
        played = [_policies_of(above) for above in graph.walk(node) if not above.upstream]
        known = list(dict.fromkeys(name for policies in played for name in policies or ()))
        unknown = [name for name in selected if name not in known]
        if unknown and None not in played:
            raise GraphError(
                f"node {names[node]!r} (defined at {node.where}) takes what policy {unknown[0]!r} did, which no source "
                f"before it plays; they play {', '.join(map(repr, known))}"
            )


def _policies_of(node: graph.Node) -> Mapping[str, Any] | None:
    """The policies that a source's actors were given by id; None where they were not given so."""
    if not isinstance(node, graph.Shards):
        return None
    try:
        given = inspect.signature(node.group.cls).bind_partial(*node.group.args, **node.group.kwargs).arguments
    except (TypeError, ValueError):
        return None
    policies = given.get("policies")
    return policies if isinstance(policies, Mapping) else None


def columns_along(root: graph.Node, names: Mapping[graph.Node, str]) -> dict[graph.Node, Columns]:
    """The batch columns that leave each node; None where they cannot be known.

    Raises:
        GraphError: as check_columns.
    """
    stored: dict[ActorGroup[Any], list[Columns]] = {}
    known = _along(root, names, stored)
    if any(isinstance(node, graph.Replay) for node in known):  # now that it is known what goes into the shards
        known = _along(root, names, stored)
    return known


def _along(
    root: graph.Node, names: Mapping[graph.Node, str], stored: dict[ActorGroup[Any], list[Columns]]
) -> dict[graph.Node, Columns]:
    known: dict[graph.Node, Columns] = {}
    before, now = dict(stored), stored
    now.clear()
    for node in graph.walk(root):
        above = [known[up] for up in node.upstream]
        if isinstance(node, graph.Shards):
            known[node] = source_columns(node)
        elif isinstance(node, graph.Replay):
            known[node] = _drawn(_common(before.get(node.group, [])))
        elif isinstance(node, graph.Apply):
            known[node] = _after(node, above[0], names)
            group = graph.stored_in(node)
            if group is not None:
                now.setdefault(group, []).append(above[0])
        elif isinstance(node, graph.Unite):
            known[node] = _common([cols for cols, out in zip(above, node.emit, strict=True) if out])
        elif isinstance(node, graph.Aggregate):
            own = getattr(node.group.actor_class, "aggregate", None)
            known[node] = above[0] if own is Aggregator.aggregate else None
        elif isinstance(node, graph.Merge):
            known[node] = _common(above)
        else:
            known[node] = above[0] if above else None
    return known


def _drawn(stored: Columns) -> Columns:
    """Of a sample: what was stored, for valid rows only; its priorities stand in the shard's tree."""
    return None if stored is None else (stored - {"valid", "priorities"}) | {"slots", "weights"}


def source_columns(node: graph.Shards) -> Columns:
    """The columns that a source says it gives: `batch_columns(*args, **kwargs)` of its class."""
    say = getattr(node.group.actor_class, "batch_columns", None)
    if say is None or not callable(say):
        return None
    args, kwargs = _arguments(node.group)
    return frozenset(say(*args, **kwargs))


def pacing_of(group: ActorGroup[Any]) -> Pacing:
    """What `pacing(*args, **kwargs)` of a group's class says for the described arguments; else no bound."""
    say = getattr(group.actor_class, "pacing", None)
    if say is None or not callable(say):
        return Pacing()
    args, kwargs = _arguments(group)
    said: Pacing = say(*args, **kwargs)
    return said


def _arguments(group: ActorGroup[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    made, args, kwargs = group.cls, group.args, dict(group.kwargs)
    while isinstance(made, functools.partial):
        args, kwargs = (*made.args, *args), {**made.keywords, **kwargs}
        made = made.func
    return args, kwargs


def check_replay(root: graph.Node, names: Mapping[graph.Node, str]) -> None:
    """Sees that what is drawn from a replay group can have been stored in it.

    Raises:
        GraphError: a Replay whose group nobody stores into, two of one group with different policies, or an error
            buffer with which neither a sample nor an insert might go.
    """
    groups = graph.groups_of(root)
    nodes = graph.walk(root)
    stored = {graph.full_name(node, group, groups) for node in nodes if (group := graph.stored_in(node)) is not None}
    policies: dict[str, graph.Replay] = {}
    for node in nodes:
        if not isinstance(node, graph.Replay):
            continue
        name = graph.full_name(node, node.group, groups)
        if name not in stored:
            raise GraphError(
                f"node {names[node]!r} (defined at {node.where}) draws from {name!r}, but nobody in this graph stores "
                f"anything there, so it would wait for ever: put StoreToReplay({name}) into a branch that the run "
                "reaches, as in Union([stored, trained], emit=[trained])"
            )
        other = policies.setdefault(name, node)
        if other.on_failure != node.on_failure:
            raise GraphError(
                f"nodes {names[other]!r} and {names[node]!r} draw from {name!r} with on_failure={other.on_failure!r} "
                f"and {node.on_failure!r}; one group of shards has one policy"
            )
        _check_buffer(node, names[node])


def _check_buffer(node: graph.Replay, name: str) -> None:
    pacing = pacing_of(node.group)
    ratio, buffer = pacing.samples_per_insert, pacing.error_buffer
    rows = pacing.rows_of(node.batch * node.batches)
    if ratio is not None and buffer is not None and 2 * buffer < rows + ratio:
        raise GraphError(
            f"error_buffer={buffer:g} of group {node.group.name!r} is too small for node {name!r}, which draws {rows} "
            f"rows at a time: with samples_per_insert={ratio:g} neither a sample nor an insert might be allowed; it "
            f"must be at least ({rows} + samples_per_insert · rows of an insert) / 2, or None"
        )


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
