"""Actors in this process: a message is worked on as it is sent, so a debugger steps from the graph into the actor."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from time import monotonic, sleep
from typing import Any

from flowrl.backends.protocol import Copy, GroupPlan, Sent
from flowrl.engine.failure import record_of
from flowrl.engine.host import Host
from flowrl.engine.record import FAILED, Record, opened, sealed
from flowrl.engine.transport import pack, unpack
from flowrl.errors import text_of


class Stored:
    """A payload as it would lie in an object store: bytes, of which every reader gets a read-only copy."""

    __slots__ = ("packed",)

    def __init__(self, value: Any):
        self.packed = pack(value)

    def load(self) -> Any:
        """The value."""
        return unpack(self.packed)


class Shared:
    """A payload handed on as the very object (`Local(isolate=False)`)."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def load(self) -> Any:
        """The value."""
        return self.value


NOTHING = Shared(None)  # of an answer that rides in its record


class _LocalActor:
    def __init__(self, host: Host):
        self.host = host
        self.lock = threading.RLock()


class Local:
    """Runs a graph in this process, one call at a time.

    isolate: payloads are copied and arrive read-only, as in Ray. False is faster, and outside the promise of equal
        numbers.
    """

    in_process = True

    def __init__(self, isolate: bool = True):
        self.isolate = isolate

    def __repr__(self) -> str:
        return "Local()" if self.isolate else "Local(isolate=False)"

    def describe(self) -> str:
        """A few words for explain()."""
        return "in this process"

    def placement(self, plan: GroupPlan) -> str:
        """Where a group will run."""
        return "in this process"

    def open(self, plans: Sequence[GroupPlan]) -> list[str]:
        """Nothing to start."""
        return []

    def resize(self, plan: GroupPlan) -> list[str]:
        """There is room for any number."""
        return []

    def create(self, plan: GroupPlan, index: int) -> _LocalActor:
        """A host in this process."""
        return _LocalActor(Host(plan.name, index))

    def send(self, actor: _LocalActor, message: bytes, payloads: Sequence[Any], *, start: bool = False) -> Sent:
        """Works on the message now."""
        with actor.lock:
            record, payload = actor.host.call(message, *[stored.load() for stored in payloads])
        return self._sent(record, payload)

    def pull(self, actor: _LocalActor) -> Sent:
        """Works on a pull now."""
        actor.lock.acquire()  # `with` takes twice as long, and this is once an item
        try:
            record, payload = actor.host.next()
        finally:
            actor.lock.release()
        return self._sent(record, payload)

    def _sent(self, record: Record, payload: Any) -> Sent:
        if record.deltas or record.tell_errors:  # what users gave: it must be able to travel, as in Ray
            raw, payload = sealed(record, payload)
            record = opened(raw)
        if payload is None:
            sent = Sent(None, NOTHING)
        elif not self.isolate:
            sent = Sent(None, Shared(payload))
        else:
            try:
                sent = Sent(None, Stored(payload))
            except Exception as error:  # as in Ray, where the actor fails to store what it answers
                failure = record_of(TypeError(f"the answer cannot be pickled: {text_of(error)}"))
                sent = Sent(None, Stored(failure))
                record = Record(FAILED, error=failure)
        sent.record = record
        return sent

    def poll(self, sent: Sequence[Sent], timeout_s: float | None) -> list[Sent]:
        """All of them: everything is answered when it is sent."""
        if not sent and timeout_s:
            sleep(timeout_s)
        return list(sent)

    def load(self, payload: Any) -> Any:
        """The payload's value."""
        return payload.load()

    def copy(self, payload: Any) -> Copy:
        """It is where the driver is."""
        return Copy(there=True)

    def store(self, value: Any) -> Any:
        """A payload of the driver's own."""
        return Stored(value) if self.isolate else Shared(value)

    def restart(self, actor: _LocalActor, plan: GroupPlan, index: int) -> _LocalActor:
        """A new host in this process."""
        return self.create(plan, index)

    def now(self) -> float:
        """Seconds of the monotonic clock."""
        return monotonic()

    def kill(self, actor: _LocalActor) -> None:
        """Forgets the actor's object."""
        actor.host.object = None
        actor.host.shards = {}

    def gone(self) -> bool:
        """Never: it is this process."""
        return False

    def close(self) -> None:
        """Nothing to give back."""
