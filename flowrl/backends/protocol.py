"""What the engine asks of a backend: make actors, send them messages, say which answers are there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from flowrl.engine.record import Record


@dataclass
class Died:
    """In place of a record: the actor's process ended (or could not be reached) before it answered."""

    reason: str


@dataclass(frozen=True)
class GroupPlan:
    """What a group needs: how many actors, and of which resources each."""

    name: str
    count: int
    cpus: float
    gpus: float
    resources: dict[str, float] = field(default_factory=dict)


class Sent:
    """A message on its way: `record` is filled when the answer is there, `payload` can be sent on at once.

    A record that has travelled comes as bytes (`flowrl.engine.record.opened`).
    """

    __slots__ = ("payload", "record", "token")

    def __init__(self, token: Any = None, payload: Any = None):
        self.token, self.payload = token, payload
        self.record: bytes | Record | Died | None = None


class NoRoom(Exception):  # noqa: N818  (the engine waits, or takes it for a death)
    """An actor cannot be started again now; says what is missing. wait_s: how long that may be waited for."""

    def __init__(self, reason: str, wait_s: float):
        super().__init__(reason)
        self.wait_s = wait_s


class Copy:
    """Holds a payload's copy on the driver's node. there: whether it has come; until then the payload may be lost."""

    __slots__ = ("held", "there")

    def __init__(self, there: bool = False):
        self.there = there
        self.held: Any = None


class Backend(Protocol):
    """A place where actors live. Calls on one actor are first in, first out."""

    in_process: bool  # whether the actors live in the driver's process

    def describe(self) -> str:
        """A few words for explain()."""
        ...

    def placement(self, plan: GroupPlan) -> str:
        """Where a group will run, for explain()."""
        ...

    def open(self, plans: Sequence[GroupPlan]) -> list[str]:
        """Joins or starts what the actors live in; returns warnings.

        Raises:
            StartError: the resources are missing; says which.
        """
        ...

    def resize(self, plan: GroupPlan) -> list[str]:
        """A group is to have another number of actors; returns warnings.

        Raises:
            StartError: the resources for them are missing; says which, and nothing has changed.
        """
        ...

    def create(self, plan: GroupPlan, index: int) -> Any:
        """Begins to start one host; does not wait. Returns what `send` takes."""
        ...

    def send(self, actor: Any, message: bytes, payloads: Sequence[Any], *, start: bool = False) -> Sent:
        """Sends one message; does not wait."""
        ...

    def pull(self, actor: Any) -> Sent:
        """Asks an actor with one shard for one step, without a message; a host that has none says that it is STALE."""
        ...

    def poll(self, sent: Sequence[Sent], timeout_s: float | None) -> list[Sent]:
        """Those of the messages that are answered; waits for one until timeout_s (None: as long as it takes).

        Their `record` is filled. Without messages it only waits. A message whose record is there is answered.
        """
        ...

    def load(self, payload: Any) -> Any:
        """The payload's value, brought to the driver.

        Raises:
            PayloadLost: the node that held it is gone.
        """
        ...

    def copy(self, payload: Any) -> Copy:
        """Begins to bring a copy of a payload to the driver's node; does not wait."""
        ...

    def store(self, value: Any) -> Any:
        """A payload of the driver's own, as if an actor had answered it."""
        ...

    def restart(self, actor: Any, plan: GroupPlan, index: int) -> Any:
        """Begins to start a host in place of one whose process ended.

        Raises:
            NoRoom: not now; it may be tried again.
        """
        ...

    def now(self) -> float:
        """Seconds on this backend's clock."""
        ...

    def kill(self, actor: Any) -> None:
        """Ends one actor's process, for good."""
        ...

    def gone(self) -> bool:
        """Whether what the actors lived in has ended by itself, so that there is nobody left to message."""
        ...

    def close(self) -> None:
        """Gives back what open() took."""
        ...
