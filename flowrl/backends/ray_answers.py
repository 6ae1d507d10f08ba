"""What a Ray task comes to: a record, a failure in its place, or the death of its actor and its last words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowrl.backends.protocol import Died, Sent
from flowrl.engine.failure import record_of
from flowrl.engine.record import FAILED, UNDELIVERED, Record
from flowrl.errors import ActorDied

LAST_WORDS = "flowrl:last-words:"  # of an actor, by its id


def fill(ready: Sequence[Sent], refs: Sequence[Any]) -> None:
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
    from ray.exceptions import (
        ActorUnschedulableError,
        ObjectLostError,
        RayActorError,
        RayTaskError,
        WorkerCrashedError,
    )

    lost = error.cause if isinstance(error, RayTaskError) else error
    if isinstance(lost, ObjectLostError):
        # A host answers its own failures, so what failed is an argument, or the record itself with the actor's node.
        return Record(UNDELIVERED) if lost is not error else Died(first_line(error))
    # A RayTaskError comes from a living actor, also where its cause is the death of one that an argument came from.
    # One that its node took with it before it had begun could not be scheduled.
    deaths = RayActorError | WorkerCrashedError | ActorUnschedulableError
    if isinstance(error, deaths) and not isinstance(error, RayTaskError):
        said = _said_last(getattr(error, "actor_id", None))
        return Died(first_line(error) if said is None else said)
    return Record(FAILED, error=record_of(_plainly(error)))


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


def _plainly(error: BaseException) -> BaseException:
    from ray.exceptions import RayActorError, RayTaskError

    if isinstance(error, RayTaskError) and isinstance(error, RayActorError):
        return ActorDied("an argument of this call is the answer of an actor that died")
    return error
