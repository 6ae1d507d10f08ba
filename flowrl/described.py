"""A graph put into words for its drawings: names, operators with arguments, bounds, where nodes run, what they hold."""

from __future__ import annotations

import dataclasses
import functools
import unicodedata
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from flowrl import functions, graph
from flowrl.checks import pacing_of
from flowrl.failures import FailurePolicy, Restart
from flowrl.handles import SNAPSHOT_EVERY, ActorGroup, keeps_state
from flowrl.operator import AskOperator
from flowrl.pacing import Pacing
from flowrl.shapes import describe

_LONGEST = 60  # characters of one argument


class Described:
    """What every drawing of a graph says; `nodes` holds each node once, after its upstream.

    counts: how many actors groups have, where that is not what was described.
    """

    def __init__(self, root: graph.Node, counts: Mapping[str, int] = MappingProxyType({})):
        self.root, self._counts = root, counts
        self.nodes = graph.walk(root)
        self.names = {node: clean(name) for node, name in graph.names_of(root).items()}
        self.groups = graph.groups_of(root)
        self.runs_in = self._places()

    def _places(self) -> dict[graph.Node, tuple[str, ...]]:
        places: dict[graph.Node, tuple[str, ...]] = {}
        for node in self.nodes:
            if isinstance(node, graph.Shards):
                places[node] = (graph.source_group(node, self.groups),)
            elif isinstance(node, graph.Aggregate):
                places[node] = (graph.full_name(node, node.group, self.groups),)
            elif isinstance(node, graph.Gather):
                places[node] = ()
            else:
                places[node] = tuple(dict.fromkeys(name for up in node.upstream for name in places[up]))
        return places

    def place(self, node: graph.Node) -> str:
        """`driver`, or `2 × workers` for a node that runs in their shards."""
        groups = self.runs_in[node]
        return ", ".join(f"{self.count(name)} × {clean(name)}" for name in groups) or "driver"

    def count(self, group: str) -> int:
        """How many actors a group has."""
        return self._counts.get(group, self.groups[group].count)

    def text(self, node: graph.Node) -> str:
        """What the node does: the operator with its arguments, in one line."""
        if isinstance(node, graph.Apply):
            return self.operator(node)
        if isinstance(node, graph.Shards):
            args = ", ".join(self._value(node, arg) for arg in node.args)
            method = node.method if isinstance(node.method, str) else functions.label_of(node.method)
            served = "" if node.served_by is None else f", served by {self._value(node, node.served_by)}"
            return f"{class_name(node.group)}.{method}({args}){served}"
        if isinstance(node, graph.Aggregate):
            return f"{class_name(node.group)}.aggregate, fan_in={node.fan_in}"
        if isinstance(node, graph.Replay):
            beta = "" if node.beta is None else f", beta={self._value(node, node.beta)}"
            return f"{self._value(node, node.group)}, batch={node.batch}, batches={node.batches}{beta}"
        if isinstance(node, graph.Iterate):
            return f"iterates over {functions.label_of(node.make)}()"
        if isinstance(node, graph.Gather):
            return "rounds in shard order" if node.mode == "sync" else "items as they are ready"
        if isinstance(node, graph.Unite):
            return self._union(node)
        if isinstance(node, graph.Duplicate):
            return f"every item to {node.n} branches"
        if isinstance(node, graph.Branch):
            return f"branch {node.index} of {self.names[node.upstream[0]]}"
        if isinstance(node, graph.Take):
            return f"take({node.n})"
        assert isinstance(node, graph.Merge), node
        return f"shards of {len(node.upstream)} flows side by side"

    def _union(self, node: graph.Unite) -> str:
        parts: list[str] = [node.mode]
        if len(set(node.weights)) > 1:
            parts.append("weights " + ":".join(map(str, node.weights)))
        if not all(node.emit):
            out = [self.names[up] for up, emits in zip(node.upstream, node.emit, strict=True) if emits]
            parts.append("emits " + ", ".join(out))
        return ", ".join(parts)

    def operator(self, node: graph.Apply) -> str:
        """The operator's repr: groups by name, long values shortened, bounds and options left at None omitted."""
        op = node.op
        owner = next(kind for kind in type(op).__mro__ if "__repr__" in vars(kind))
        made = "__dataclass_params__" in vars(owner) and hasattr(vars(owner)["__repr__"], "__wrapped__")
        if not made:  # not the repr that @dataclass makes, so the author's own
            return clean(repr(op))
        shown = [entry for entry in dataclasses.fields(op) if entry.repr and not _said_elsewhere(op, entry)]
        args = ", ".join(f"{entry.name}={self._value(node, getattr(op, entry.name))}" for entry in shown)
        return f"{type(op).__name__}({args})"

    def detail(self, node: graph.Node) -> str:
        """What a drawing says under the node's name: its text, less a class name that the name already says."""
        text = self.text(node)
        if text.startswith(f"{node.label}(") and text.endswith(")"):
            text = text[len(node.label) + 1 : -1]
        return "" if text == node.label else text

    def bounds(self, node: graph.Node) -> list[str]:
        """What the node may hold or have in flight, and what it does when a shard dies."""
        if isinstance(node, graph.Gather):
            held = [f"num_async={node.num_async}"] if node.mode == "async" else []
            if node.patience is not None:
                wait = node.patience
                held = [f"timeout_s={wait.timeout_s:g}", f"min_shards={wait.min_shards}", f"late={wait.late!r}"]
            return [*held, f"on_failure={_failure(node.on_failure)}"]
        if isinstance(node, graph.Aggregate):
            return [f"in_flight={node.in_flight} an actor, or a round"]
        if isinstance(node, graph.Duplicate):
            return [f"max_lag={node.max_lag}", f"overflow={node.overflow!r}"]
        if isinstance(node, graph.Replay):
            return [f"in_flight={node.in_flight}", *self._paced_by(node), f"on_failure={_failure(node.on_failure)}"]
        if isinstance(node, graph.Apply) and isinstance(node.op, AskOperator):
            return [f"in_flight={node.op.calls_in_flight}", *self._paced_by(node)]
        if isinstance(node, graph.Apply) and node.op.replaced is not None:
            return [f"on_failure={_failure(node.op.replaced.on_failure)}"]
        return []

    @staticmethod
    def deaths(group: ActorGroup[Any]) -> str:
        """What a group's own description says of its actors' deaths."""
        policy = group.on_failure
        assert policy is not None
        every = group.snapshot_every or SNAPSHOT_EVERY
        kept = isinstance(policy, Restart) and keeps_state(group.actor_class)
        return f"on_failure={_failure(policy)}" + (f", a snapshot after {every} messages" if kept else "")

    def paced(self, node: graph.Node) -> tuple[str, str] | None:
        """The replay group that the node stores in or draws from, and the bounds that its pacing sets, if any."""
        group = node.group if isinstance(node, graph.Replay) else graph.stored_in(node)
        if group is None:
            return None
        name = self._group_name(node, group)
        bounds = self._pace(name, group)
        return (name, bounds) if bounds else None

    def _pace(self, name: str, group: ActorGroup[Any]) -> str:
        """The bounds that a replay group's pacing sets on those that store and draw; empty where it sets none."""
        pacing = pacing_of(group)
        said = [f"min_size={pacing.min_size}"] if pacing.min_size > 1 else []
        if pacing.samples_per_insert is not None:
            buffer = pacing.error_buffer
            window = self._in_flight(name, pacing) if buffer is None else f"{buffer:g} rows"
            said.append(f"samples_per_insert={pacing.samples_per_insert:g} ± {window}")
        if pacing.max_times_sampled is not None:
            said.append(f"max_times_sampled={pacing.max_times_sampled}")
        return ", ".join(said)

    def _in_flight(self, name: str, pacing: Pacing) -> str:
        """The most that the ratio may be off: what those who draw, or those who store, have out at once."""
        rows = inserts = 0
        for node in self.nodes:
            if isinstance(node, graph.Replay) and self._group_name(node, node.group) == name:
                rows += node.in_flight * pacing.rows_of(node.batch * node.batches)
            elif (group := graph.stored_in(node)) is not None and self._group_name(node, group) == name:
                assert isinstance(node, graph.Apply)
                assert isinstance(node.op, AskOperator)
                inserts += node.op.calls_in_flight
        stored = f"{inserts} insert{'s' * (inserts != 1)}"
        return f"at most max({rows} rows, {stored})"

    def _paced_by(self, node: graph.Node) -> list[str]:
        paced = self.paced(node)
        return [] if paced is None else [f"paced by {clean(paced[0])}"]

    def held(self, node: graph.Node) -> list[tuple[str, str]]:
        """The groups that the node's operator holds, and so may message: (full name, the field or "" for a closure)."""
        if isinstance(node, graph.Replay):
            return [(self._group_name(node, node.group), "group")]
        if isinstance(node, graph.Shards) and node.served_by is not None:
            return [(self._group_name(node, node.served_by), "served_by")]
        if not isinstance(node, graph.Apply):
            return []
        return [
            (self._group_name(node, group), "" if _in_closure(node.op) else _field_of(node.op, group))
            for group in graph.held_groups(node.op)
        ]

    def asks(self, node: graph.Node) -> bool:
        """Whether the node awaits answers of an actor."""
        return isinstance(node, graph.Replay | graph.Shards) or (
            isinstance(node, graph.Apply) and isinstance(node.op, AskOperator)
        )

    def _group_name(self, node: graph.Node, group: ActorGroup[Any]) -> str:
        return graph.full_name(node, group, self.groups)

    def _value(self, node: graph.Node, value: Any) -> str:
        return shortened(short(value, lambda group: clean(self._group_name(node, group))), _LONGEST)


def short(value: Any, name_of: Callable[[ActorGroup[Any]], str], depth: int = 3) -> str:
    """A value as an argument in a label: groups and callables by name, arrays by shape, the rest by repr."""
    if isinstance(value, ActorGroup):
        return name_of(value)
    if isinstance(value, functools.partial) or (callable(value) and hasattr(value, "__name__")):
        return clean(functions.label_of(value))
    if getattr(value, "ndim", 0) and hasattr(value, "dtype"):
        return clean(describe(value))
    if depth > 0 and isinstance(value, Mapping):
        inner = ", ".join(f"{key!r}: {short(entry, name_of, depth - 1)}" for key, entry in value.items())
        return clean(f"{{{inner}}}")
    if depth > 0 and type(value) in (list, tuple):
        inner = ", ".join(short(entry, name_of, depth - 1) for entry in value)
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' * (len(value) == 1)})"
    return clean(repr(value))


def class_name(group: ActorGroup[Any]) -> str:
    """The name of a group's class, or of the function that makes its actors."""
    return clean(functions.label_of(group.actor_class))


def clean(text: str) -> str:
    """The text on one line: white space as single blanks, other characters that cannot be printed as �."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in " ".join(text.split()))


def shortened(text: str, longest: int) -> str:
    """At most `longest` characters, the last … where some are missing."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def width(text: str) -> int:
    """How many columns of a terminal the text takes."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _in_closure(op: Any) -> bool:
    return isinstance(op, functions.Function | functions.Filter | functions.Tap)


def _field_of(op: Any, group: ActorGroup[Any]) -> str:
    entries = [entry.name for entry in dataclasses.fields(op)]
    return next((name for name in entries if group in graph.held_groups(_Only(getattr(op, name)))), "")


@dataclasses.dataclass
class _Only:
    value: Any


def _said_elsewhere(op: Any, entry: dataclasses.Field[Any]) -> bool:
    if isinstance(op, AskOperator) and entry.name == "in_flight":  # a bound
        return True
    if op.replaced is not None and entry.name == "on_failure":
        return True
    return entry.default is None and getattr(op, entry.name) is None


def _failure(policy: FailurePolicy) -> str:
    if not isinstance(policy, Restart):
        return repr(policy)
    pause = "" if policy.backoff_s == Restart.backoff_s else f", backoff_s={policy.backoff_s:g}"
    return f"Restart({policy.times}{pause})"
