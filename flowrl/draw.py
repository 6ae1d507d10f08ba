"""A graph as text: a tree that explains what will run, and a Mermaid flowchart."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Literal

from flowrl import checks, graph
from flowrl.backends.protocol import Backend, GroupPlan
from flowrl.described import Described, class_name, clean, shortened, width
from flowrl.errors import GraphError
from flowrl.lag import worst_lags

_COLUMNS = 100
_WIDEST_NAME, _WIDEST_PLACE = 40, 24  # longer ones push their own line only


def explain(node: graph.Node, backend: Backend | None = None, counts: Mapping[str, int] = MappingProxyType({})) -> str:
    """What will run, as text: a tree from the consumer to the sources, then actors, order with worst lags, and columns.

    One line a node: name, where it runs (the driver, or the shards of a group), operator with arguments, bounds. A
    node that several consume is drawn once (●) and then referred to (○). `flowrl.lag.worst_lags` has the formula of
    the lags. With a backend, `actors` says where it will place each group, instead of what the group asks for. counts:
    how many actors groups have in a run, where that is not what was described.
    """
    drawn = Described(node, counts)
    where = [] if backend is None else [f"on {backend!r}: {clean(backend.describe())}"]
    parts = [
        [f"{drawn.names[node]}: each line gets its items from the line below it", *where],
        _tree(drawn),
        ["actors", *_actors(drawn, backend)] if drawn.groups else [],
        ["order", *_order(drawn)],
        ["columns", *_columns(drawn)] if any(isinstance(found, graph.Shards) for found in drawn.nodes) else [],
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _tree(drawn: Described) -> list[str]:
    rows = list(_rows(drawn))
    name_width, place_width = _widest(rows, 0, _WIDEST_NAME), _widest(rows, 1, _WIDEST_PLACE)
    lines = [f"{_padded(name, name_width)}  {_padded(place, place_width)}  {rest}" for name, place, rest in rows]
    return [line.rstrip() for line in lines]


def _widest(rows: list[tuple[str, str, str]], column: int, limit: int) -> int:
    return max((wide for row in rows if (wide := width(row[column])) <= limit), default=0)


def _rows(drawn: Described) -> Iterator[tuple[str, str, str]]:
    """(branch lines and name, place, operator and bounds) of each node from the root on."""
    seen: set[graph.Node] = set()
    waiting = [(drawn.root, "", "")]  # node, what stands before its own line, what before the lines after it
    while waiting:
        node, before, after = waiting.pop()
        while True:
            if node in seen:
                yield f"{before}○ {drawn.names[node]}", "", "drawn above"
                break
            seen.add(node)
            bounds = drawn.bounds(node)
            held = f"  [{', '.join(bounds)}]" if bounds else ""
            yield f"{before}● {drawn.names[node]}", drawn.place(node), drawn.text(node) + held
            if len(node.upstream) != 1:
                last = len(node.upstream) - 1
                for position in range(last, -1, -1):
                    tie, rail = ("└─", "  ") if position == last else ("├─", "│ ")
                    waiting.append((node.upstream[position], after + tie, after + rail))
                break
            node, before = node.upstream[0], after


def _padded(text: str, to: int) -> str:
    return text + " " * (to - width(text))


def _actors(drawn: Described, backend: Backend | None) -> list[str]:
    roles: dict[str, list[str]] = {name: [] for name in drawn.groups}
    for node in drawn.nodes:
        if isinstance(node, graph.Shards):
            roles[drawn.runs_in[node][0]].append(f"source of {drawn.names[node]}")
        if isinstance(node, graph.Aggregate):
            roles[drawn.runs_in[node][0]].append(f"joins in {drawn.names[node]}")
        for name, option in drawn.held(node):
            role = "asked" if drawn.asks(node) else f"held as `{option}`" if option else "held"
            roles[name].append(f"{role} by {drawn.names[node]}")
    for paced, bounds in dict.fromkeys(filter(None, map(drawn.paced, drawn.nodes))):
        roles[paced].append(f"paced: {bounds}")
    rows = []
    for name, group in drawn.groups.items():
        if backend is None:
            needs = {"cpus": group.cpus, "gpus": group.gpus, **group.resources}
            place = ", ".join(f"{what}={amount:g}" for what, amount in needs.items() if amount or what == "cpus")
        else:
            place = clean(backend.placement(_plan(drawn, name)))
        if group.on_failure is not None:
            roles[name].append(drawn.deaths(group))
        rows.append((clean(name), f"{drawn.count(name)} × {class_name(group)}", place, ", ".join(roles[name])))
    widths = [max(width(row[column]) for row in rows) for column in range(3)]
    lines = ["  ".join([*(_padded(row[i], widths[i]) for i in range(3)), row[3]]) for row in rows]
    return [wrapped for line in lines for wrapped in _wrapped(line)]


def _plan(drawn: Described, name: str) -> GroupPlan:
    group = drawn.groups[name]
    return GroupPlan(name, drawn.count(name), group.cpus, group.gpus, dict(group.resources))


def _order(drawn: Described) -> list[str]:
    if drawn.root.parallel:
        return _wrapped("not gathered yet: items stay in their shards until gather_sync() or gather_async()")
    why = graph.why_not_deterministic(drawn.root, drawn.names)
    if why is None:
        lines = ["deterministic: only sync gathers and round_robin unions, so timing cannot change the numbers"]
    else:
        lines = [f"not deterministic: {why}"]
    lines += [str(lag) for lag in worst_lags(drawn.root, drawn.names)]
    return [wrapped for line in lines for wrapped in _wrapped(line)]


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(
        line, _COLUMNS, initial_indent="  ", subsequent_indent="      ", break_long_words=False, break_on_hyphens=False
    )


def _columns(drawn: Described) -> list[str]:
    """The batch columns that come out of each gather, or the shards, and what is wrong with them, if anything."""
    lines: list[str] = []
    try:
        known = checks.columns_along(drawn.root, drawn.names)
    except GraphError as error:
        return _wrapped(f"error: {clean(str(error))}")
    for node in drawn.nodes:
        if isinstance(node, graph.Gather | graph.Replay) or (node is drawn.root and node.parallel):
            columns = known[node]
            told = "not known before the run" if columns is None else ", ".join(sorted(columns)) or "none"
            lines.append(f"{drawn.names[node]}: {clean(told)}")
    return [wrapped for line in lines for wrapped in _wrapped(line)]


# What Mermaid takes for its own inside a quoted label: entities, quotes, HTML, directives, Markdown, formulas.
_ENTITIES = str.maketrans(
    {
        "#": "#35;",
        '"': "#quot;",
        "<": "#lt;",
        ">": "#gt;",
        "&": "#amp;",
        "%": "#37;",
        "`": "#96;",
        "*": "#42;",
        "$": "#36;",
    }
)


def to_mermaid(node: graph.Node, direction: Literal["LR", "TB"] = "LR") -> str:
    """The graph as a Mermaid flowchart, from the sources (left; or top, with "TB") to the consumer.

    What runs in shards stands in a subgraph of its group; other groups are cylinders. Dotted edges lead from a node
    to the groups that it asks or holds.
    """
    drawn = Described(node)
    ids = {found: f"n{position}" for position, found in enumerate(drawn.nodes)}
    parts: dict[tuple[str, ...], list[graph.Node]] = {}
    for found in drawn.nodes:
        parts.setdefault(drawn.runs_in[found], []).append(found)
    lines = [f"flowchart {direction}"]
    targets: dict[tuple[str, ...], str] = {}
    for place, members in parts.items():
        declared = [f"{ids[found]}[{_label(drawn, found)}]" for found in members]
        if place:
            part = f"p{len(targets)}"
            targets[place] = part
            lines += [
                f"  subgraph {part}[{_quoted(drawn.place(members[0]))}]",
                *(f"    {text}" for text in declared),
                "  end",
            ]
        else:
            lines += [f"  {text}" for text in declared]
    for position, (name, group) in enumerate(drawn.groups.items()):
        if (name,) not in targets:
            targets[(name,)] = f"g{position}"
            label = _quoted(clean(name), f"{group.count} × {class_name(group)}")
            lines.append(f"  g{position}[({label})]")
    return "\n".join([*lines, *_edges(drawn, ids, targets)]) + "\n"


def longest_path(node: graph.Node) -> int:
    """How many nodes stand one behind another on the longest way from a source."""
    depths: dict[graph.Node, int] = {}
    for found in graph.names_of(node):  # each after those above it
        depths[found] = 1 + max((depths[up] for up in found.upstream), default=0)
    return depths[node]


def _edges(drawn: Described, ids: dict[graph.Node, str], targets: dict[tuple[str, ...], str]) -> Iterator[str]:
    for node in drawn.nodes:
        for position, up in enumerate(node.upstream):
            silent = isinstance(node, graph.Unite) and not node.emit[position]
            yield f"  {ids[up]} {'-->|not emitted|' if silent else '-->'} {ids[node]}"
        for name, option in drawn.held(node):
            label = "asks" if drawn.asks(node) else option
            yield f"  {ids[node]} {f'-.->|{label}|' if label else '-.->'} {targets[(name,)]}"


def _label(drawn: Described, node: graph.Node) -> str:
    detail, bounds = shortened(drawn.detail(node), _COLUMNS), ", ".join(drawn.bounds(node))
    return _quoted(drawn.names[node], *(line for line in (detail, bounds) if line))


def _quoted(*lines: str) -> str:
    return '"' + "<br/>".join(line.translate(_ENTITIES) for line in lines) + '"'
