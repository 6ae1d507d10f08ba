"""What the driver reads of an answer, and how it travels."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple

from flowrl.engine.failure import ErrorRecord, record_of
from flowrl.engine.transport import Packed
from flowrl.metrics import Delta
from flowrl.ref import Info

ANSWERED, FAILED, STALE, QUERY = 0, 1, 2, 3
UNDELIVERED = 4  # the message did not reach its actor, which lives: a payload was lost, with a node or a dead actor
ARGUMENT_DIED = "an argument of this call is the answer of an actor that died"
MISSED = 5  # its tells were done, but what it asks was not: an argument died with the actor that was to answer it


class Record(NamedTuple):
    """What the driver reads of an answer. Travels as a pickled plain tuple."""

    status: int = ANSWERED
    infos: tuple[Info, ...] = ()
    ended: bool = False
    env_steps: int = 0
    agent_steps: int = 0
    deltas: Sequence[Delta] = ()
    stages: Sequence[tuple[str, int, float, str | None]] = ()  # node, items out, busy seconds, first shape
    busy_s: float = 0.0
    tell_errors: Sequence[tuple[str, str, ErrorRecord]] = ()
    inline: Packed | None = None
    published_version: int | None = None
    error: ErrorRecord | None = None


_INFOS, _BUSY_S = (Record._fields.index(name) for name in ("infos", "busy_s"))
made_of = tuple.__new__  # a named tuple of a plain one, without a look at each of its fields


def sealed(record: Record, payload: Any) -> tuple[bytes, Any]:
    """An answer as it travels, its record as plain tuples, which pickle sooner than classes; a failure if it cannot."""
    try:
        infos = tuple([tuple(info) for info in record.infos])
        return pickle.dumps((record[0], infos, *record[_INFOS + 1 :]), 5), payload
    except BaseException as error:  # something in the record that cannot be pickled
        failure = record_of(error)
        return pickle.dumps(tuple(Record(FAILED, busy_s=record.busy_s, error=failure)), 5), failure


def opened(raw: bytes) -> Record:
    """The record of an answer that has travelled."""
    fields = pickle.loads(raw)
    infos = tuple([made_of(Info, info) for info in fields[_INFOS]])
    return made_of(Record, (fields[0], infos, *fields[_INFOS + 1 :]))


def took(record: Record, busy_s: float) -> Record:
    return made_of(Record, (*record[:_BUSY_S], busy_s, *record[_BUSY_S + 1 :]))
