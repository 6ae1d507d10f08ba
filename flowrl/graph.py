"""The nodes of a graph: immutable descriptions, walked and named; nothing here runs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from flowrl.errors import GraphError
from flowrl.failures import FailurePolicy, Ignore, Restart
from flowrl.handles import ActorGroup
from flowrl.held import held_groups as held_groups
from flowrl.operator import Operator, StoreOperator


@dataclass(frozen=True, eq=False, kw_only=True)
class Node:
    """One node. `label` is its default name, `explicit` the name the user gave, `where` the user's file:line."""

    upstream: tuple[Node, ...] = ()
    label: str
    explicit: str | None = None
    where: str
    prefix: str = ""
    renamed: dict[str, Node] = field(default_factory=dict, repr=False)
    checked: list[Any] = field(default_factory=list, repr=False)  # what flowrl.wiring knows of it
    parallel: bool = field(init=False, repr=False)  # whether its items live in shards

    lives: ClassVar[Literal["as upstream", "in shards", "on the driver"]] = "as upstream"

    def __post_init__(self) -> None:
        as_upstream = bool(self.upstream) and self.upstream[0].parallel
        object.__setattr__(self, "parallel", as_upstream if self.lives == "as upstream" else self.lives == "in shards")

    def under(self, prefix: str) -> Node:
        """This graph with a prefix before every node's and group's name; shared nodes stay shared."""
        for node in walk(self):
            if prefix not in node.renamed:
                upstream = tuple(above.renamed[prefix] for above in node.upstream)
                node.renamed[prefix] = dataclasses.replace(
                    node, upstream=upstream, prefix=f"{prefix}/{node.prefix}", renamed={}, checked=[]
                )
        return self.renamed[prefix]


@dataclass(frozen=True, eq=False, kw_only=True)
class Iterate(Node):
    """Items of an iterator that the driver runs."""

    make: Callable[[], Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class Shards(Node):
    """A source in each actor of a group: a pull calls `method` once.

    served_by: a group whose actors answer the questions (`flowrl.ref.Query`) that the source asks on the way to an
    item. Their `serve(names, *questions)` gives a list of answers, and the source's method `takes` gets it and the
    place of its own in it.
    """

    lives = "in shards"
    group: ActorGroup[Any]
    method: str | Callable[..., Any]
    args: tuple[Any, ...] = ()
    served_by: ActorGroup[Any] | None = None
    takes: str | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Merge(Node):
    """The shards of several parallel flows, side by side."""

    lives = "in shards"


@dataclass(frozen=True, eq=False, kw_only=True)
class Aggregate(Node):
    """Items of `fan_in` shards joined in an actor of a group, which is the shard from here on."""

    lives = "in shards"
    group: ActorGroup[Any]
    fan_in: int
    in_flight: ClassVar[int] = 2  # joined items an actor that are out, or have come and were not given out, if not sync


@dataclass(frozen=True, eq=False, kw_only=True)
class Apply(Node):
    """An operator, on the driver or fused into the shards."""

    op: Operator[Any, Any]


@dataclass(frozen=True)
class Patience:
    """How long a round waits for its shards, how many it needs, and what becomes of items that come later."""

    timeout_s: float
    min_shards: int
    late: Literal["drop", "keep"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Gather(Node):
    """Shards to driver: a round with a barrier (sync), or whatever is ready (async)."""

    lives = "on the driver"
    mode: Literal["sync", "async"]
    num_async: int = 1
    on_failure: FailurePolicy = field(default_factory=Restart)
    patience: Patience | None = None  # None: a round waits for all


@dataclass(frozen=True, eq=False, kw_only=True)
class Replay(Node):
    """Minibatches drawn from the actors of a replay group; a source, which the group's pacing may hold back."""

    lives = "on the driver"
    group: ActorGroup[Any]
    batch: int
    batches: int
    in_flight: int
    beta: Any = None  # a number, or a function of the run's environment steps
    on_failure: FailurePolicy = field(default_factory=Ignore)


@dataclass(frozen=True, eq=False, kw_only=True)
class Take(Node):
    """The first n items; then upstream is closed."""

    n: int


@dataclass(frozen=True, eq=False, kw_only=True)
class Duplicate(Node):
    """Every item to each of n branches; no branch runs more than max_lag items ahead of another."""

    n: int
    max_lag: int
    overflow: Literal["block", "drop_oldest"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Branch(Node):
    """One branch of a Duplicate."""

    index: int


@dataclass(frozen=True, eq=False, kw_only=True)
class Unite(Node):
    """Several flows as one; only the branches in `emit` send their items out."""

    mode: Literal["round_robin", "async"]
    weights: tuple[int, ...]
    emit: tuple[bool, ...]


def walk(root: Node) -> list[Node]:
    """Every node once, each after its upstream, branches in order."""
    seen: dict[Node, None] = {}
    stack: list[tuple[Node, Iterator[Node]]] = [(root, iter(root.upstream))]
    entered = {root}
    while stack:  # not recursive: a chain may be longer than Python's stack
        node, rest = stack[-1]
        for above in rest:
            if above not in entered:
                entered.add(above)
                stack.append((above, iter(above.upstream)))
                break
        else:
            seen[node] = None
            stack.pop()
    return list(seen)


def names_of(root: Node) -> dict[Node, str]:
    """A unique name for each node: the user's, or the default with -2, -3 for repeats.

    Raises:
        GraphError: two nodes with one name given by the user.
    """
    nodes = walk(root)
    taken: dict[str, Node] = {}
    for node in nodes:
        if node.explicit is not None:
            name = node.prefix + node.explicit
            if name in taken:
                raise GraphError(nodes_clash(name, taken[name], node))
            taken[name] = node
    names = {node: name for name, node in taken.items()}
    for node in nodes:
        if node not in names:
            base = name = node.prefix + node.label
            number = 1
            while name in taken:
                number += 1
                name = f"{base}-{number}"
            taken[name] = node
            names[node] = name
    return {node: names[node] for node in nodes}


def groups_of(root: Node) -> dict[str, ActorGroup[Any]]:
    """Every actor group of a graph by its full name, sources first in order of appearance.

    Raises:
        GraphError: two descriptions with one name.
    """
    found: dict[str, ActorGroup[Any]] = {}
    sources = [(node, node.group) for node in walk(root) if isinstance(node, Shards)]
    held = [(node, group) for node in walk(root) for group in messaged(node)]
    for node, group in sources + held:
        name = full_name(node, group, found)
        if found.setdefault(name, group) is not group:
            raise GraphError(groups_clash(name, found[name], group))
    return found


def messaged(node: Node) -> list[ActorGroup[Any]]:
    """The groups that a node messages without being their shards' source."""
    if isinstance(node, Replay | Aggregate):
        return [node.group]
    if isinstance(node, Shards):
        return [] if node.served_by is None else [node.served_by]
    return held_groups(node.op) if isinstance(node, Apply) else []


def stored_in(node: Node) -> ActorGroup[Any] | None:
    """The replay group that a node stores items in, if it does."""
    return node.op.shards if isinstance(node, Apply) and isinstance(node.op, StoreOperator) else None


def full_name(node: Node, group: ActorGroup[Any], found: Mapping[str, ActorGroup[Any]]) -> str:
    """The group's name under the node's prefix; an automatic name gets -2, -3 where it is taken."""
    base = name = node.prefix + group.name
    number = 1
    while group.auto_named and name in found and found[name] is not group:
        number += 1
        name = f"{base}-{number}"
    return name


def source_group(node: Shards, groups: Mapping[str, ActorGroup[Any]]) -> str:
    """The full name of a source's group, among those that groups_of found."""
    base = node.prefix + node.group.name
    if groups.get(base) is node.group:
        return base
    numbered = re.compile(re.escape(base) + r"-\d+")
    return next(name for name, group in groups.items() if group is node.group and numbered.fullmatch(name))


def nodes_clash(name: str, one: Node, other: Node) -> str:
    """The text of an error."""
    return f"two nodes are named {name!r}: one at {one.where}, one at {other.where}; give them different names"


def groups_clash(name: str, one: ActorGroup[Any], other: ActorGroup[Any]) -> str:
    """The text of an error."""
    return (
        f"two groups are named {name!r}: one described at {one.where}, one at {other.where}; the name identifies a "
        "group, so give them different names"
    )


def shard_paths(node: Node) -> list[tuple[Shards | Aggregate, list[Apply]]]:
    """Each source below a gather (or an aggregation, which is the only one then), with the operators between."""
    operators: list[Apply] = []
    while isinstance(node, Apply):
        operators.append(node)
        node = node.upstream[0]
    operators.reverse()
    if isinstance(node, Shards | Aggregate):
        return [(node, operators)]
    assert isinstance(node, Merge), node
    return [(source, path + operators) for up in node.upstream for source, path in shard_paths(up)]


def aggregations(node: Node) -> list[Aggregate]:
    """The aggregations below a gather, the last first."""
    found: list[Aggregate] = []
    while True:
        source, _ = shard_paths(node)[0]
        if not isinstance(source, Aggregate):
            return found
        found.append(source)
        node = source.upstream[0]


def path_to(node: Node, names: Mapping[Node, str]) -> str:
    """`workers → AddAdvantages → gather_sync → …`: from the source to the node (the first branch where they join)."""
    path = [names[node]]
    while node.upstream:
        node = node.upstream[0]
        path.append(names[node])
    return " → ".join(reversed(path))


def why_not_deterministic(root: Node, names: Mapping[Node, str]) -> str | None:
    """None for a deterministic graph (sync gathers, round_robin unions), else which nodes make it depend on timing."""
    nodes = walk(root)
    timed = [names[node] for node in nodes if isinstance(node, Gather | Unite) and node.mode == "async"]
    impatient = [names[node] for node in nodes if isinstance(node, Gather) and node.patience is not None]
    why = ["items of " + ", ".join(timed) + " come in the order in which they are ready"] if timed else []
    why += [f"rounds of {', '.join(impatient)} go on without shards that are late"] if impatient else []
    return "; ".join(why) or None
