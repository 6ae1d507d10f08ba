"""What the driver holds, as plain values: items, references, handles and calls, each payload once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from flowrl.checkpoint import State
from flowrl.engine.call import LOST, OUT, ActorState, Call
from flowrl.engine.cursors import MISSING, Item
from flowrl.engine.record import Record, opened
from flowrl.engine.transport import unpack
from flowrl.errors import CheckpointError
from flowrl.handles import ActorHandle, Pending
from flowrl.operator import ItemId
from flowrl.plain import TAG, to_plain
from flowrl.ref import Joined, Leaf, Ref, Then

if TYPE_CHECKING:
    from flowrl.engine.core import Engine

PUBLISHED = "published"


def record_behind(call: Call) -> Record:
    """What a call was answered, also where that was not taken in yet; nothing of it changes."""
    raw = call.sent.record
    if call.state is not OUT or raw is None:
        return call.record
    if isinstance(raw, Record):
        return raw
    assert isinstance(raw, bytes), raw
    return opened(raw)


def plain_tree(tree: Any, keep: HandleKeeper, where: str) -> State:
    """The tree of a reference; its calls and operators by `keep`."""
    if isinstance(tree, Joined):
        infos = keep(tree.infos, where)
        return {"joined": [plain_tree(part, keep, where) for part in tree.trees], "infos": infos}
    if isinstance(tree, Then):
        return {
            "then": plain_tree(tree.tree, keep, where),
            "op": keep.operator(tree, where),
            "name": tree.name,
            "where": tree.where,
        }
    assert isinstance(tree, Leaf)
    if tree.payload is None:
        return {"value": keep(tree.value, where)}
    return {"call": keep.call(tree.payload, (tree.slot,)), "slot": tree.slot}


class HandleKeeper:
    """Makes states plain that may hold handles of actors and references to values: those of a shard's operators."""

    def __call__(self, value: Any, where: str) -> State:
        """The value as a checkpoint can hold it."""
        return to_plain(value, where, self._special)

    def _special(self, value: Any, where: str) -> State:
        if isinstance(value, ActorHandle):
            return {TAG: "actor", "of": [value.group, value.index]}
        if isinstance(value, ItemId):
            of = [value.number, [[each.group, each.index] for each in value.origins], value.policy_version]
            return {TAG: "item id", "of": of}
        if isinstance(value, Ref):
            return {TAG: "ref", "of": [plain_tree(value._tree, self, where), self(tuple(value.info), where)]}
        return NotImplemented

    def operator(self, then: Then, where: str) -> State:
        """A deferred operator."""
        return self(then.op, f"the deferred operator {then.name!r} in {where}")

    def call(self, call: Any, slots: Iterable[int | str]) -> int:
        """A call by its number."""
        raise CheckpointError("an operator in a shard holds a reference to the answer of another actor")


class Keeper(HandleKeeper):
    """Those of the driver. `calls` and `items` are what it came upon, each once, to be saved beside."""

    def __init__(self, engine: Engine):
        self._engine = engine
        self._calls: dict[int, tuple[int, Call]] = {}
        self._wanted: dict[int, set[int | str]] = {}  # of each call: slots
        self._with_deltas: set[int] = set()
        self._items: dict[int, tuple[int, Item]] = {}
        self.items: list[State] = []

    def _special(self, value: Any, where: str) -> State:
        if isinstance(value, Item):
            return {TAG: "item", "of": self._item(value, where)}
        if isinstance(value, Call):
            return {TAG: "call", "of": self.call(value, ())}
        if isinstance(value, Pending):
            if value.make is not None:
                raise CheckpointError(f"{where} holds a Pending with a value made from its Info, which cannot be saved")
            return {TAG: "pending", "of": self.call(value.call, (0,))}
        if isinstance(value, ActorState):
            return {TAG: "actor state", "of": [value.group, value.index]}
        return super()._special(value, where)

    def operator(self, then: Then, where: str) -> State:
        if any(stage.op is then.op for stage in self._engine.stages):
            return None  # it is that of the node of this name
        return super().operator(then, where)

    def call(self, call: Any, slots: Iterable[int | str]) -> int:
        number = self.noticed(call)
        self._wanted[number].update(slots)
        if call.state is OUT:  # whoever waits for it wants all
            self._wanted[number].update(range(len(record_behind(call).infos)))
        return number

    def noticed(self, call: Call) -> int:
        """A call that counts, but of which nobody wants the payload."""
        number, _ = self._calls.setdefault(id(call), (len(self._calls), call))
        self._wanted.setdefault(number, set())
        return number

    def metrics_of(self, call: Call) -> State:
        """A call that was taken in, but not its metrics."""
        number = self.noticed(call)
        self._with_deltas.add(number)
        return {TAG: "call", "of": number}

    def _item(self, item: Item, where: str) -> int:
        known = self._items.get(id(item))
        if known is not None:
            return known[0]
        number = len(self._items)
        self._items[id(item)] = number, item
        self.items.append(None)
        said: dict[str, Any] = {
            "info": self(tuple(item.info), where),
            "origins": [[handle.group, handle.index] for handle in item.origins],
            "version": item.version,
            "steps": item.steps,
        }
        if item.call is not None:
            said |= {"call": self.call(item.call, (item.slot,)), "slot": item.slot}
        elif item._ref is not None:
            said["ref"] = self(item._ref, where)
        if item.call is None and item.value is not MISSING:
            said["value"] = self(item.value, where)
        self.items[number] = said
        return number

    def hollow(self, item: Item, where: str) -> State:
        """An item of which nobody wants the payload any more."""
        origins = [[handle.group, handle.index] for handle in item.origins]
        return {"info": self(tuple(item.info), where), "origins": origins, "version": item.version}

    def calls(self) -> list[State]:
        """All calls that came up; to be made last."""
        made: list[State] = []
        while len(made) < len(self._calls):
            number, call = list(self._calls.values())[len(made)]
            made.append(self._plain_call(number, call))
        return made

    def _plain_call(self, number: int, call: Call) -> State:
        record, where = record_behind(call), f"an answer of {call.actor.name} ({call.label})"
        out = call.state is OUT
        slots = set(self._wanted[number])
        if out and record.published_version is not None:
            slots.add(PUBLISHED)
        infos = record.infos if out else call.infos
        kept = out or number in self._with_deltas
        said = {
            "actor": [call.actor.group, call.actor.index],
            "kind": call.kind,
            "label": call.label,
            "node": call.node,
            "state": call.state,
            "reason": call.reason,
            "undelivered": call.undelivered,
            "infos": [self(tuple(info), where) for info in infos],
            "deltas": self(list(record.deltas), where) if kept else [],
            "record": self((*record[2:5], list(record.stages) if out else [], record.busy_s), where),
            "version": record.published_version,
            "inline": record.inline is not None,
            "values": {},
        }
        if call.state is LOST:
            return said
        values = self._values(call, record, slots)
        said["values"] = {TAG: "dict", "of": [(slot, self(value, where)) for slot, value in values.items()]}
        return said

    def _values(self, call: Call, record: Record, slots: set[int | str]) -> dict[int | str, Any]:
        found: dict[int | str, Any] = {}
        wanted = {slot for slot in slots if slot == PUBLISHED or slot < len(record.infos)}  # type: ignore[operator]
        if record.inline is not None:
            inline = unpack(record.inline)
            found |= {slot: inline[slot] for slot in wanted if slot != PUBLISHED}
        if wanted - found.keys():
            items, published = self._engine.backend.load(call.payload)
            found |= {slot: published if slot == PUBLISHED else items[slot] for slot in wanted - found.keys()}
        return dict(sorted(found.items(), key=lambda entry: str(entry[0])))
