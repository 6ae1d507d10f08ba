"""What an error of a run says beside its own text: node, the user's line, path, item, shard, policy version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NoReturn

from flowrl.engine.failure import ErrorRecord, InNode, travelling
from flowrl.errors import FlowStalled, add_note

if TYPE_CHECKING:
    from flowrl.engine.cursors import Cursor


class NodePlace:
    """Where a node stands, for errors: its name, the user's file:line, the path from the source."""

    __slots__ = ("name", "path", "where")

    def __init__(self, name: str, where: str, path: str):
        self.name, self.where, self.path = name, where, path


Places = Mapping[str, NodePlace]


def raise_record(
    places: Places, record: ErrorRecord, node: str, shard: str | None, what: str | None = None
) -> NoReturn:
    """Raises what an actor answered, with a note."""
    error = record.exception()
    add_note(error, note_of(places, record.node or node, record.item, shard, record.policy_version, what))
    raise error


def raise_located(places: Places, located: InNode) -> NoReturn:
    """Raises what an operator on the driver raised, with a note."""
    error = located.__cause__
    assert error is not None
    if isinstance(error, InNode):  # from a place nearer to the fault
        raise_located(places, error)
    told = travelling(error)
    item = located.item
    shard = ", ".join(handle.name for handle in item.origins) or None
    number = item.number if item.number >= 0 else None
    add_note(told, note_of(places, located.node, number, shard, item.policy_version))
    raise told


def note_of(
    places: Places, node: str, item: int | None, shard: str | None, version: int | None, what: str | None = None
) -> str:
    """The line that says where something went wrong."""
    parts = [f"flowrl: in node {node!r}" if what is None else f"flowrl: in {what} of node {node!r}"]
    place = places.get(node)
    if place is not None:
        parts.append(f"defined at {place.where}")
        parts.append(f"path {place.path}")
    if item is not None:
        parts.append(f"item {item}")
    if shard is not None:
        parts.append(f"shard {shard}")
    if version is not None:
        parts.append(f"policy version {version}")
    return "; ".join(parts)


def stalled(cursors: Iterable[Cursor], moved: int) -> FlowStalled:
    """What to raise when no branch can move: names the bound, and the branch that nobody drains.

    moved: what the run had moved before the pass in which nothing did; who was not asked in it holds nobody up.
    """
    from flowrl.engine.branches import DuplicateCursor
    from flowrl.engine.replay import ReplayCursor, StoreCursor

    reasons = []
    remedies: dict[str, None] = {}
    for cursor in cursors:
        if isinstance(cursor, DuplicateCursor) and cursor.lagging() and not cursor.closed:
            slow = ", ".join(cursor.lagging())
            reasons.append(f"{cursor.name} (max_lag={cursor.max_lag}) waits for {slow}, which nobody drains")
            remedies["Raise max_lag, drain the slow branch, or use overflow='drop_oldest'"] = None
        elif isinstance(cursor, StoreCursor | ReplayCursor) and not cursor.closed:
            why = cursor.why_blocked() if cursor.blocked_at == moved else None
            reasons += [] if why is None else [f"{cursor.name} waits: {why}"]
    return FlowStalled(
        "no branch can move an item and no call is out: "
        + ("; ".join(reasons) or "every branch waits for another")
        + "".join(f". {remedy}" for remedy in remedies)
    )
