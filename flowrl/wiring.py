"""What composing can get wrong, seen while composing: names used twice, items consumed twice, chains too long."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flowrl.errors import GraphError
from flowrl.graph import Apply, Duplicate, Node, Shards, groups_clash, messaged, nodes_clash, walk
from flowrl.handles import ActorGroup
from flowrl.operator import AskOperator

_SPARE_FRAMES = 300  # for what runs around a pull and inside operators


@dataclass(frozen=True)
class Known:
    """Of a checked graph: nodes by the names that the user gave, groups by full name, how deep a pull goes."""

    names: Mapping[str, Node]
    groups: Mapping[str, ActorGroup[Any]]
    depth: int


def check_names(root: Node) -> Known:
    """What a graph holds; looks only at nodes that it has not seen, so a long chain stays cheap to compose.

    Raises:
        GraphError: two nodes, or two groups, with one name given by the user; a flow whose items two others consume.
    """
    todo = [root]
    while todo:
        node = todo[-1]
        new = [above for above in node.upstream if not above.checked]
        todo.extend(new)
        if not new:
            todo.pop()
            if not node.checked:
                node.checked.append(_known(node))
    known: Known = root.checked[0]
    return known


def _known(node: Node) -> Known:
    above: list[Known] = [up.checked[0] for up in node.upstream]
    names = above[0].names if above else {}
    groups = above[0].groups if above else {}
    for other in above[1:]:
        for name, owner in other.names.items():
            names = _with(names, name, owner, nodes_clash)
        for name, group in other.groups.items():
            groups = _with(groups, name, group, groups_clash)
    if len(above) > 1:
        _check_consumed_once(node)
    if node.explicit is not None:
        names = _with(names, node.prefix + node.explicit, node, nodes_clash)
    held = [node.group, *messaged(node)] if isinstance(node, Shards) else messaged(node)
    for group in held:
        if not group.auto_named:
            groups = _with(groups, node.prefix + group.name, group, groups_clash)
    asks = isinstance(node, Apply) and isinstance(node.op, AskOperator)
    calls = 0 if node.parallel else 2 if asks else 1  # that a pull takes through it
    return Known(names, groups, calls + max((known.depth for known in above), default=0))


def _with(table: Mapping[str, Any], name: str, entry: Any, clash: Callable[[str, Any, Any], str]) -> Mapping[str, Any]:
    if name not in table:
        return {**table, name: entry}
    if table[name] is not entry:
        raise GraphError(clash(name, table[name], entry))
    return table


def _check_consumed_once(root: Node) -> None:
    consumers: dict[Node, Node] = {}
    for node in walk(root):
        for above in dict.fromkeys(node.upstream):
            if above.parallel or isinstance(above, Duplicate):
                continue  # each gather has shards of its own; each branch gets every item
            other = consumers.setdefault(above, node)
            if other is not node:
                raise GraphError(
                    f"the items of {above.explicit or above.label!r} (at {above.where}) are consumed twice, at "
                    f"{other.where} and at {node.where}; each item would go only one way: use flow.duplicate(2)"
                )


def check_depth(root: Node) -> None:
    """Sees that a pull, which passes from node to node, fits into Python's stack.

    Raises:
        GraphError: more nodes on one path than the recursion limit allows.
    """
    needed, limit = check_names(root).depth + _SPARE_FRAMES, sys.getrecursionlimit()
    if needed > limit:
        raise GraphError(
            f"the longest path of this graph is too long for Python's recursion limit of {limit}: join operators into "
            f"fewer, move them into the shards (before the gather), or call sys.setrecursionlimit({needed})"
        )
