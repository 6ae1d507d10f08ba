"""What `keeping` made plain, as items, references, handles and calls of another run."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, Any

from flowrl.backends.protocol import Sent
from flowrl.checkpoint import State
from flowrl.engine.call import ANSWERED, LOST, OUT, ActorState, Call
from flowrl.engine.cursors import MISSING, Item
from flowrl.engine.keeping import PUBLISHED
from flowrl.engine.record import UNDELIVERED, Record
from flowrl.engine.transport import packed_if_small
from flowrl.errors import CheckpointError
from flowrl.handles import ActorHandle, Pending
from flowrl.operator import ItemId, Operator
from flowrl.plain import from_plain
from flowrl.ref import Info, Joined, Leaf, Ref, Then

if TYPE_CHECKING:
    from flowrl.engine.core import Engine


STATES = {state: state for state in (ANSWERED, LOST)}  # the very strings: they are compared by identity


class HandleRestorer:
    """The values of a shard's operators again: handles are names, references hold values."""

    def __call__(self, state: State) -> Any:
        """The value that was made plain."""
        return from_plain(state, self._special)

    def _special(self, kind: str, of: Any) -> Any:
        if kind == "actor":
            return self.handle(*of)
        if kind == "item id":
            number, origins, version = of
            return ItemId(number, self.origins(origins), version)
        if kind == "ref":
            return self.ref(of[0], Info(*self(of[1])))
        raise CheckpointError(f"the checkpoint holds a {kind!r} in a place where there can be none")

    def ref(self, tree: State, info: Info) -> Ref[Any]:
        """A reference."""
        return Ref(self.tree(tree), info)

    def handle(self, group: str, index: int) -> ActorHandle[Any]:
        """A handle."""
        return ActorHandle(group, index)

    def origins(self, origins: Sequence[Sequence[Any]]) -> tuple[ActorHandle[Any], ...]:
        """The handles that there are."""
        return tuple(self.handle(group, index) for group, index in origins)

    def tree(self, said: State) -> Any:
        """The tree of a reference."""
        if "joined" in said:
            infos = tuple(Info(*info) for info in self(said["infos"]))
            return Joined(tuple(self.tree(part) for part in said["joined"]), infos)
        if "then" in said:
            op = self.operator(said["op"], said["name"])
            return Then(self.tree(said["then"]), op, said["name"], said["where"])
        if "value" in said:
            return Leaf(value=self(said["value"]))
        return Leaf(self.call(said["call"]), said["slot"])

    def operator(self, said: State, name: str) -> Any:
        """A deferred operator."""
        op = self(said)
        if not (isinstance(op, Operator) and op.pure):
            raise CheckpointError(f"the checkpoint has a deferred operator {name!r} that is no pure Operator")
        op.open()
        return op

    def call(self, number: int) -> Any:
        """A call by its number."""
        raise CheckpointError("the checkpoint has a reference to a call where there can be none")


class Restorer(HandleRestorer):
    """The driver's again. What came from actors that there are no more is left out, as `gone` says.

    continued: the actors that go on where they ended; others are new. lost_items: those left out.
    """

    def __init__(self, engine: Engine, continued: Set[ActorState], calls: Sequence[State], items: Sequence[State]):
        self._engine, self.continued = engine, continued
        self._said_items = items
        self._items: dict[int, Item] = {}
        self.lost_items = 0
        self.calls = [self._call(said) for said in calls]

    def _special(self, kind: str, of: Any) -> Any:
        if kind == "item":
            return self.item(of)
        if kind == "call":
            return self.call(of)
        if kind == "pending":
            return Pending(self.call(of), self._engine)
        if kind == "actor state":
            return self.state(*of)
        return super()._special(kind, of)

    def state(self, group: str, index: int) -> ActorState | None:
        """What the driver knows of an actor; None where there is none of this index any more."""
        states = self._engine.states.get(group, ())
        return states[index] if index < len(states) else self._engine.gone.get((group, index))

    def ref(self, tree: State, info: Info) -> Ref[Any]:
        return Ref(self.tree(tree), info, self._engine.fetch)

    def handle(self, group: str, index: int, node: str = "") -> ActorHandle[Any]:
        state = self.state(group, index)
        return ActorHandle(group, index) if state is None else self._engine.handle(state, node or group, held=True)

    def origins(self, origins: Sequence[Sequence[Any]]) -> tuple[ActorHandle[Any], ...]:
        return tuple(self.handle(group, index) for group, index in origins if self.state(group, index) is not None)

    def gone(self, origins: Sequence[Sequence[Any]]) -> bool:
        """Whether what has these origins came from nobody that there is any more."""
        return bool(origins) and not any(self.state(group, index) is not None for group, index in origins)

    def operator(self, said: State, name: str) -> Any:
        if said is not None:
            return super().operator(said, name)
        for stage in self._engine.stages:
            if stage.name == name:
                return stage.op
        raise CheckpointError(f"the checkpoint has an item for the deferred node {name!r}, which this graph lacks")

    def call(self, number: int) -> Any:
        call = self.calls[number]
        if call is None:
            raise CheckpointError("the checkpoint refers to an answer of an actor that there is no more")
        return call

    # ---------------------------------------------------------------- items

    def items(self, numbered: Sequence[State]) -> list[Item]:
        """Those items whose origins there still are."""
        found = [said["of"] for said in numbered]
        kept = [number for number in found if not self.gone(self._said_items[number]["origins"])]
        self.lost_items += len(found) - len(kept)
        return [self.item(number) for number in kept]

    def item(self, number: int) -> Item:
        """An item, the same one wherever it is referred to."""
        known = self._items.get(number)
        if known is None:
            known = self._items[number] = self._made(self._said_items[number])
        return known

    def _made(self, said: State) -> Item:
        info = Info(*self(said["info"]))
        origins, version = self.origins(said["origins"]), said["version"]
        call = self.call(said["call"]) if "call" in said else None
        ref = self(said["ref"]) if "ref" in said else None
        value = self(said["value"]) if "value" in said else MISSING
        item = Item(value, ref, info, origins, version, call, said.get("slot", 0))
        item.steps = said["steps"]
        return item

    def hollow(self, said: State) -> Item:
        """An item of which nobody wants the payload any more."""
        return Item(None, None, Info(*self(said["info"])), self.origins(said["origins"]), said["version"])

    # ---------------------------------------------------------------- calls

    def _call(self, said: State) -> Call | None:
        engine, (group, index) = self._engine, said["actor"]
        state = self.state(group, index)
        if state is None:
            state = ActorState(group, index, None, None)  # of an actor that there is no more: only its answer counts
            state.alive = False
        infos = tuple(Info(*self(info)) for info in said["infos"])
        values = self(said["values"])
        ended, env_steps, agent_steps, stages, busy_s = self(said["record"])
        record = Record(
            infos=infos, ended=ended, env_steps=env_steps, agent_steps=agent_steps, deltas=self(said["deltas"]),
            stages=stages, busy_s=busy_s, published_version=said["version"],
        )  # fmt: skip
        sent = Sent()
        published = values.pop(PUBLISHED, None)
        items = [values.get(slot) for slot in range(len(infos))]
        if said["inline"]:
            record = record._replace(inline=packed_if_small(items))
        if published is not None or (items and record.inline is None):
            sent.payload = engine.backend.store((items, published))
        call = Call(state, sent, said["kind"], said["node"], said["label"], engine.accounts.node(said["node"]),
                    engine.fetch)  # fmt: skip
        if said["state"] == OUT:
            sent.record = record
            call.stats.out += 1
        else:
            call.state, call.reason = STATES[said["state"]], said["reason"]
            if call.state is not LOST:
                call.record, call.infos = record, infos
            elif said.get("undelivered"):
                call.record = Record(UNDELIVERED)
        return call
