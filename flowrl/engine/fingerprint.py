"""What a graph is, in words: its nodes and groups; and how the graph of a checkpoint differs from another."""

from __future__ import annotations

import dataclasses
import inspect
import re
import reprlib
from collections.abc import Mapping
from typing import Any

from flowrl import graph
from flowrl.errors import CheckpointError, text_of
from flowrl.handles import ActorGroup, Apart

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxtuple, _SHORT.maxlist, _SHORT.maxdict, _SHORT.maxset = 6, 20, 20, 50, 20
_SHORT.maxstring = _SHORT.maxother = 1000
MOST_NAMED = 8  # differences in one message

Words = dict[str, Any]


def fingerprint(root: graph.Node, names: Mapping[graph.Node, str], groups: Mapping[str, ActorGroup[Any]]) -> Words:
    """Nodes (what they are, what is before them, their settings) and groups (class, count, arguments), by name."""
    return {
        "nodes": {name: _of_node(node, names) for node, name in names.items()},
        "groups": {
            name: {"class": _label(group.actor_class), "count": group.count, "settings": _arguments(group)}
            for name, group in groups.items()
        },
    }


def _of_node(node: graph.Node, names: Mapping[graph.Node, str]) -> Words:
    kind = type(node).__name__
    if isinstance(node, graph.Apply):
        kind = f"{kind} {type(node.op).__name__}"
        entries = dataclasses.fields(node.op) if dataclasses.is_dataclass(node.op) else ()
        settings = {entry.name: _told(getattr(node.op, entry.name, None)) for entry in entries}
    else:
        common = {entry.name for entry in dataclasses.fields(graph.Node)}
        own = [entry.name for entry in dataclasses.fields(node) if entry.name not in common]
        settings = {name: _told(getattr(node, name)) for name in own}
    return {"kind": kind, "after": [names[up] for up in node.upstream], "settings": settings}


def _arguments(group: ActorGroup[Any]) -> Words:
    try:
        given = dict(inspect.signature(group.cls).bind_partial(*group.args, **group.kwargs).arguments)
    except (TypeError, ValueError):
        given = {**{str(at): value for at, value in enumerate(group.args)}, **group.kwargs}
    return {name: _told(value) for name, value in given.items()}


def _told(value: Any) -> str:
    """A value in words that are the same in every process."""
    if isinstance(value, Apart):
        return f"{len(value.values)} parts"
    if isinstance(value, ActorGroup):
        return value.name
    try:
        return _ADDRESS.sub("", _SHORT.repr(value))
    except Exception as error:  # a repr of the user's
        return f"<{type(value).__name__}: {text_of(error)}>"


def _label(cls: Any) -> str:
    return str(getattr(cls, "__qualname__", None) or type(cls).__qualname__)


def check_same_graph(saved: Words, here: Words) -> None:
    """Nothing, if both have the same nodes, joined in the same way, and groups of the same classes.

    Raises:
        CheckpointError: they have not; names what differs.
    """
    wrong = _missing("node", saved["nodes"], here["nodes"]) + _missing("group", saved["groups"], here["groups"])
    for name, before, now in _both(saved["nodes"], here["nodes"]):
        if before["kind"] != now["kind"]:
            wrong.append(f"node {name!r} is {now['kind']}, in the checkpoint {before['kind']}")
        elif before["after"] != now["after"]:
            wrong.append(
                f"node {name!r} stands behind {_listed(now['after'])}, in the checkpoint behind "
                f"{_listed(before['after'])}"
            )
    for name, before, now in _both(saved["groups"], here["groups"]):
        if before["class"] != now["class"]:
            wrong.append(f"group {name!r} is of {now['class']}, in the checkpoint of {before['class']}")
    if wrong:
        more = f"; and {len(wrong) - MOST_NAMED} more" if len(wrong) > MOST_NAMED else ""
        raise CheckpointError(
            f"the checkpoint is of another graph: {'; '.join(wrong[:MOST_NAMED])}{more}. Resume with the graph that "
            "was saved (settings and numbers of actors may differ)"
        )


def other_settings(saved: Words, here: Words) -> list[str]:
    """What differs of settings and counts, in words."""
    found = []
    for what in ("nodes", "groups"):
        for name, before, now in _both(saved[what], here[what]):
            keys = {**before["settings"], **now["settings"]}
            for key in keys:
                was, is_now = (of["settings"].get(key, "not given") for of in (before, now))
                if was != is_now:
                    found.append(f"{name}: {key} was {was} and is {is_now}")
            if before.get("count") != now.get("count"):
                found.append(f"{name}: {before['count']} actors were saved, {now['count']} go on")
    return found


def _both(saved: Words, here: Words) -> list[tuple[str, Words, Words]]:
    return [(name, saved[name], now) for name, now in here.items() if name in saved]


def _missing(what: str, saved: Words, here: Words) -> list[str]:
    gone = [f"the checkpoint has a {what} {name!r} that is not here" for name in saved if name not in here]
    return gone + [f"the checkpoint has no {what} {name!r}" for name in here if name not in saved]


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names)) or "nothing"
