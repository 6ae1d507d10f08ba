"""What runs around the user's object in an actor: it takes messages, fuses a shard's operators, answers records."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from flowrl.engine.failure import ErrorRecord, record_of
from flowrl.engine.record import ARGUMENT_DIED, FAILED, MISSED, STALE, Record, took
from flowrl.engine.shard import Pipeline, Shard
from flowrl.engine.transport import DependencyFailed, DependencyGone, Gone, Packed, packed_if_small, unpack, unpack_call
from flowrl.errors import ActorDied
from flowrl.handles import ActorHandle
from flowrl.metrics import Delta, deltas_of
from flowrl.ref import Answer, Info
from flowrl.shapes import describe


@dataclass(frozen=True)
class Start:
    """Everything that an actor needs to begin."""

    cls: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    pipelines: dict[str, Pipeline]


class Host:
    """What every actor runs: its methods `call` and `next` answer failures as records and never raise."""

    def __init__(self, group: str, index: int):
        self.me: ActorHandle[Any] = ActorHandle(group, index)
        self.incarnation: int | None = None
        self.object: Any = None
        self.shards: dict[str, Shard] = {}

    def call(self, message: bytes, *payloads: Any) -> tuple[Record, Any]:
        """(record, payload) of one message: tells first, then the call itself."""
        started = perf_counter()
        kind, incarnation, tells, body = pickle.loads(message)
        tell_errors: list[tuple[str, str, ErrorRecord]] = []
        deltas: list[Delta] = []
        try:
            if kind == "start":
                record, payload = self._start(incarnation, body)
            elif incarnation != self.incarnation:
                return Record(STALE), None
            else:
                for tell in tells:
                    self._tell(tell, payloads, tell_errors, deltas)
                if kind == "pull":
                    record, payload = self.shards[body].pull()
                elif kind == "ask":
                    record, payload = self._ask(body, payloads)
                elif kind == "feed":
                    record, payload = self._feed(body, payloads)
                elif kind in ("save", "restore"):
                    record, payload = self._state(kind, body)
                elif kind == "close":
                    record, payload = self._close()
                else:
                    record, payload = Record(), None
        except DependencyFailed as failed:
            record, payload = Record(FAILED, error=failed.record), failed.record
        except DependencyGone as gone:
            said = ActorDied(f"{ARGUMENT_DIED} ({gone})")
            record, payload = Record(MISSED, error=record_of(said)), Gone(str(gone))
        except BaseException as error:
            failure = record_of(error)
            record, payload = Record(FAILED, error=failure), failure
        busy_s = perf_counter() - started
        if tell_errors or deltas:
            record = record._replace(deltas=[*deltas, *record.deltas], tell_errors=tell_errors)
        return took(record, busy_s), payload

    def next(self) -> tuple[Record, Any]:
        """(record, payload) of a pull without tells, where there is one shard; no arguments: cheaper to send."""
        if len(self.shards) != 1:
            return Record(STALE), None
        started = perf_counter()
        (shard,) = self.shards.values()
        try:
            record, payload = shard.pull()
        except BaseException as error:
            failure = record_of(error)
            record, payload = Record(FAILED, error=failure), failure
        return took(record, perf_counter() - started), payload

    def _start(self, incarnation: int, body: tuple[Packed | Start, dict[str, Any]]) -> tuple[Record, Any]:
        if self.incarnation == incarnation:
            return Record(), None  # the message was delivered twice
        start: Start = body[0] if isinstance(body[0], Start) else unpack(body[0])
        self.object = start.cls(*start.args, **start.kwargs, **body[1])
        self.shards = {key: Shard(self.object, line, self.me) for key, line in start.pipelines.items()}
        self.incarnation = incarnation
        return Record(), None

    def _tell(self, tell: Any, payloads: Sequence[Any], errors: list[Any], deltas: list[Delta]) -> None:
        node, label, method, packed, first, count = tell
        try:
            args, kwargs = unpack_call(packed, payloads[first : first + count], deltas)
            answer = self._bound(method)(*args, **kwargs)
            if isinstance(answer, Answer):
                deltas.extend(deltas_of(node, answer.metrics))
        except DependencyFailed as failed:
            errors.append((node, label, failed.record))
        except DependencyGone:  # what that death means is for the driver to say
            deltas.append((node, None, "tells_lost", "sum", 1.0, 1.0))
        except BaseException as error:
            errors.append((node, label, record_of(error)))

    def _ask(self, body: tuple[str, Any, Packed], payloads: Sequence[Any]) -> tuple[Record, Any]:
        node, method, packed = body
        deltas: list[Delta] = []
        args, kwargs = unpack_call(packed, payloads, deltas)
        started = perf_counter()
        answer = self._bound(method)(*args, **kwargs)
        busy_s = perf_counter() - started
        value, version, published = answer, None, None
        info_metrics: dict[str, float] = {}
        if isinstance(answer, Answer):
            value, version, published = answer.payload, answer.policy_version, answer.published
            said = deltas_of(node, answer.metrics)
            deltas.extend(said)
            info_metrics = _plain(said)
        if published is not None:
            packed_if_small(published, "published")  # else what cannot be pickled would be lost on its way to the store
        info = Info.of(value)
        info = Info(info.env_steps, info.agent_steps, version, info.nbytes, info_metrics, info.policies)
        record = Record(
            infos=(info,),
            deltas=deltas,
            stages=((node, 0, busy_s, describe(value)),),  # an item is counted where it comes out
            inline=packed_if_small([value]),
            published_version=(0 if version is None else version) if published is not None else None,
        )
        return record, ([value], published)

    def _feed(self, body: tuple[str, Packed | None], payloads: Sequence[Any]) -> tuple[Record, Any]:
        key, packed = body
        if packed is None:
            return self.shards[key].end()
        deltas: list[Delta] = []
        args, _ = unpack_call(packed, payloads, deltas)
        record, payload = self.shards[key].feed(args)
        return (record._replace(deltas=[*deltas, *record.deltas]) if deltas else record), payload

    def _bound(self, method: Any) -> Any:
        if isinstance(method, str):
            return getattr(self.object, method)
        function = unpack(method)
        return lambda *args, **kwargs: function(self.object, *args, **kwargs)

    def _state(self, kind: str, body: dict[str, Any]) -> tuple[Record, Any]:
        from flowrl.engine.host_states import restore_host, save_host

        return Record(infos=(Info(),)), ([(save_host if kind == "save" else restore_host)(self, body)], None)

    def _close(self) -> tuple[Record, Any]:
        for shard in self.shards.values():
            shard.close()
        self.shards = {}
        close = getattr(self.object, "close", None)
        if callable(close):
            close()
        self.object = None
        return Record(), None


def _plain(deltas: Sequence[Delta]) -> dict[str, float]:
    return {
        (name if policy is None else f"{policy}/{name}"): value
        for _, policy, name, rule, value, _ in deltas
        if rule not in ("list", "moments")
    }
