"""What the driver knows of an actor, and of one message to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flowrl.backends.protocol import Backend, Sent
from flowrl.engine.failure import ErrorRecord
from flowrl.engine.record import MISSED, UNDELIVERED, Record
from flowrl.engine.stats import NodeStats
from flowrl.engine.tells import Tell
from flowrl.engine.transport import item_of, unpack
from flowrl.ref import Info, Leaf, Ref
from flowrl.sources import IteratorShard

if TYPE_CHECKING:
    from flowrl.engine.revived import Reviver

Fetch = Callable[[Ref[Any]], Any]  # how a reference finds its value
Arrived = Callable[["Call"], None]

NO_RECORD = Record()
ANSWERED, LOST, ERROR, OUT = "answered", "lost", "error", "out"


class ActorState:
    """What the driver knows of one actor: its mailbox of held tells, its incarnation, whether it is up.

    up: its object is made. restarting: it died and is on its way up again. alive: neither of the two only where it is
    gone for good. answers: to what it was asked, in all lives. leaving: its group shrinks, and it is asked for nothing
    new (any more). resumes: a new incarnation goes on behind the `given` items that were taken in. reviver: who gives a
    new life the state of the last, for groups whose description says so.
    """

    __slots__ = (
        "actor", "actor_class", "alive", "answers", "given", "group", "incarnation", "index", "leaving", "mail",
        "published", "pull_messages", "restarting", "resumes", "reviver", "shards", "up",
    )  # fmt: skip

    def __init__(self, group: str, index: int, actor_class: Any, actor: Any):
        self.group, self.index, self.actor_class, self.actor = group, index, actor_class, actor
        self.incarnation = self.answers = 0
        self.alive, self.up, self.restarting, self.leaving = True, False, False, False
        self.mail: list[Tell] = []
        self.published: tuple[int, Ref[Any]] | None = None
        self.pull_messages: dict[str, bytes] = {}
        self.shards = 0  # how many sources its object is
        self.resumes, self.given = actor_class is IteratorShard, 0
        self.reviver: Reviver | None = None

    @classmethod
    def removed(cls, group: str, index: int, actor_class: Any) -> ActorState:
        """That of an actor that there is no more."""
        state = cls(group, index, actor_class, None)
        state.alive, state.leaving = False, True
        return state

    @property
    def name(self) -> str:
        """`workers[0]`."""
        return f"{self.group}[{self.index}]"


class Call:
    """One message that is out, and its answer."""

    # fmt: off
    __slots__ = (
        "actor", "arrived", "fetch", "incarnation", "infos", "kind", "label", "loaded", "node", "owner", "reason",
        "record", "sent", "state", "stats",
    )
    # fmt: on

    def __init__(
        self, actor: ActorState, sent: Sent, kind: str, node: str, label: str, stats: NodeStats, fetch: Fetch,
        owner: Any = None, arrived: Arrived | None = None,
    ):  # fmt: skip
        self.actor, self.sent, self.kind, self.node, self.label = actor, sent, kind, node, label
        self.stats, self.fetch = stats, fetch  # of its node; of its run
        self.incarnation = actor.incarnation
        self.state = OUT
        self.reason = ""  # why there is no answer, once it is lost
        self.record: Record = NO_RECORD
        self.infos: tuple[Info, ...] = ()
        self.loaded: tuple[list[Any], Any] | None = None  # items and published weights, once the driver has them
        self.owner, self.arrived = owner, arrived  # who is called when its answer is known, and what that knows it by

    @property
    def done(self) -> bool:
        """Whether the answer, or the loss of it, is known."""
        return self.state is not OUT

    @property
    def lost(self) -> bool:
        """Whether there is no answer, and will be none."""
        return self.state is LOST

    @property
    def undelivered(self) -> bool:
        """Whether it is lost though its actor lives: an argument of it died with a node or with another actor."""
        return self.record.status in (UNDELIVERED, MISSED)

    @property
    def payload(self) -> Any:
        """What the backend stores of the answer; may be sent on while the call is out."""
        return self.sent.payload

    def item(self, slot: int | str, backend: Backend) -> Any:
        """One of the answer's items, or its published weights, brought to the driver once."""
        if slot != "published" and self.record.inline is not None:
            return unpack(self.record.inline)[slot]
        if self.loaded is None:
            self.loaded = backend.load(self.sent.payload)
        return item_of(self.loaded, slot)

    def ref(self, slot: int, info: Info) -> Ref[Any]:
        """A reference to one of the answer's items."""
        return Ref(Leaf(self, slot), info, self.fetch)

    def held(self, slot: int | str) -> bool:
        """Whether the driver has the value already."""
        return self.loaded is not None or (slot != "published" and self.record.inline is not None)

    def error(self) -> ErrorRecord | None:
        """The failure that the actor answered."""
        return self.record.error
