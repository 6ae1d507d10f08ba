"""What a Ray task comes to: a record, a failure in its place, or the death of its actor and its last words."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from time import sleep
from typing import Any

from flowrl.backends.looks import Looks
from flowrl.backends.protocol import Died, Sent
from flowrl.engine.failure import record_of
from flowrl.engine.record import ARGUMENT_DIED, FAILED, UNDELIVERED, Record
from flowrl.errors import ActorDied

MANY = 256  # above so many pending calls ray.wait costs more than completion callbacks
LAST_WORDS = "flowrl:last-words:"  # of an actor, by its id


class Answers:
    """Waits for the answers of one run, with ray.wait, or with completion callbacks where many calls are out."""

    def __init__(self) -> None:
        self._hooked: dict[Sent, Any] = {}  # messages whose completion calls back, with their references
        self._news = threading.Condition()
        self._looks = Looks()

    def wait(self, sent: Sequence[Sent], timeout_s: float | None) -> list[Sent]:
        """Those of the messages that are answered, their records filled; waits for one. Several threads may wait."""
        import ray

        if not sent:
            if timeout_s:
                sleep(timeout_s)
            return []
        here = [one for one in sent if one.record is not None or one.token is None]  # None: taken in by another thread
        if here:
            return here
        if len(sent) > MANY or any(one in self._hooked for one in sent):
            return self._wait_hooked(sent, timeout_s)
        by_ref = {one.token: one for one in sent}
        refs = list(by_ref)
        ready, rest = ray.wait(refs, num_returns=1, timeout=timeout_s)
        if ready and rest and self._looks.due():
            # Waiting for one and then looking at the rest is cheaper than to look first and then to wait.
            more = ray.wait(rest, num_returns=len(rest), timeout=0)[0]
            self._looks.found(len(more))
            ready = ready + more
        if ready:
            _fill([by_ref[ref] for ref in ready], ready)
        return [by_ref[ref] for ref in ready]

    def _wait_hooked(self, sent: Sequence[Sent], timeout_s: float | None) -> list[Sent]:
        for one in sent:
            token = one.token
            if one.record is None and token is not None and one not in self._hooked:
                self._hook(one, token)

        def answered() -> list[Sent]:
            return [one for one in sent if one.record is not None or one.token is None]

        with self._news:
            self._news.wait_for(answered, timeout_s)
            return answered()

    def _hook(self, one: Sent, token: Any) -> None:
        def arrived(result: Any) -> None:
            record = what_came_instead(result) if isinstance(result, BaseException) else result
            with self._news:
                self._hooked.pop(one, None)
                if one.token is not None:  # else another thread has taken it in
                    one.record = record
                self._news.notify_all()

        self._hooked[one] = token
        token._on_completed(arrived)


def _fill(ready: Sequence[Sent], refs: Sequence[Any]) -> None:
    import ray

    try:
        for one, record in zip(ready, ray.get(list(refs)), strict=True):
            one.record = record
    except Exception:
        for one, ref in zip(ready, refs, strict=True):
            try:
                one.record = ray.get(ref)
            except Exception as error:
                one.record = what_came_instead(error)


def what_came_instead(error: BaseException) -> Record | Died:
    """The record of an exception that Ray gives in the place of an answer, or that its actor has died."""
    from ray.exceptions import (
        ActorUnschedulableError,
        ObjectLostError,
        RayActorError,
        RayTaskError,
        WorkerCrashedError,
    )

    if isinstance(error, RayTaskError) and isinstance(error.cause, RayActorError):
        return Record(UNDELIVERED, error=record_of(ActorDied(ARGUMENT_DIED)))
    lost = error.cause if isinstance(error, RayTaskError) else error
    if isinstance(lost, ObjectLostError):
        # A host answers its own failures, so what failed is an argument, or the record itself with the actor's node.
        return Record(UNDELIVERED) if lost is not error else Died(first_line(error))
    # A RayTaskError comes from a living actor. One that its node took with it before it had begun could not be
    # scheduled.
    deaths = RayActorError | WorkerCrashedError | ActorUnschedulableError
    if isinstance(error, deaths) and not isinstance(error, RayTaskError):
        said = _said_last(getattr(error, "actor_id", None))
        return Died(first_line(error) if said is None else said)
    return Record(FAILED, error=record_of(error))


def first_line(error: BaseException) -> str:
    """What an exception of Ray says, without the lines of advice behind it."""
    return str(error).strip().split("\n")[0]


def last_words(reason: str) -> None:
    """Leaves, in the cluster, why this actor's process is about to end itself."""
    import ray
    from ray.experimental import internal_kv

    internal_kv._internal_kv_put(f"{LAST_WORDS}{ray.get_runtime_context().get_actor_id()}", reason)


def _said_last(actor_id: str | None) -> str | None:
    """What an actor whose process has ended left to be said."""
    from ray.experimental import internal_kv

    if actor_id is None:
        return None
    try:
        said = internal_kv._internal_kv_get(f"{LAST_WORDS}{actor_id}")
    except Exception:  # no cluster any more, or another Ray's way
        return None
    return None if said is None else said.decode()
