"""What runs around the user's object in an actor: it takes messages, fuses a shard's operators, answers records."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

from flowrl.engine.failure import ErrorRecord, InNode, record_of
from flowrl.engine.stage import Stage
from flowrl.engine.transport import DependencyFailed, Packed, packed_if_small, unpack, unpack_call
from flowrl.errors import EndOfStream
from flowrl.handles import ActorHandle
from flowrl.metrics import Delta, deltas_of
from flowrl.operator import Context, ItemId
from flowrl.ref import Answer, Info, Query, Ref, oldest
from flowrl.shapes import describe

ANSWERED, FAILED, STALE, QUERY = 0, 1, 2, 3


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
_made = tuple.__new__  # a named tuple of a plain one, without a look at each of its fields


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
    infos = tuple([_made(Info, info) for info in fields[_INFOS]])
    return _made(Record, (fields[0], infos, *fields[_INFOS + 1 :]))


def _took(record: Record, busy_s: float) -> Record:
    return _made(Record, (*record[:_BUSY_S], busy_s, *record[_BUSY_S + 1 :]))


@dataclass(frozen=True)
class Pipeline:
    """A shard's share of a graph: a source method and the operators behind it, each with its node's name.

    takes: the method that is fed what the driver sends, of a shard that is not (or not only) pulled. counts: whether
    the steps in its items are new to the run.
    """

    source: str
    method: Any
    args: tuple[Any, ...]
    operators: tuple[tuple[str, Any], ...]
    takes: str | None = None
    counts: bool = True


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
                elif kind == "close":
                    record, payload = self._close()
                else:
                    record, payload = Record(), None
        except DependencyFailed as failed:
            record, payload = Record(FAILED, error=failed.record), failed.record
        except BaseException as error:
            failure = record_of(error)
            record, payload = Record(FAILED, error=failure), failure
        busy_s = perf_counter() - started
        if tell_errors or deltas:
            record = record._replace(deltas=[*deltas, *record.deltas], tell_errors=tell_errors)
        return _took(record, busy_s), payload

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
        return _took(record, perf_counter() - started), payload

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
            stages=((node, 1, busy_s, describe(value)),),
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

    def _close(self) -> tuple[Record, Any]:
        for shard in self.shards.values():
            shard.close()
        self.shards = {}
        close = getattr(self.object, "close", None)
        if callable(close):
            close()
        self.object = None
        return Record(), None


class Shard:
    """A source method of the actor's object with the operators behind it, one step a pull."""

    def __init__(self, instance: Any, line: Pipeline, me: ActorHandle[Any]):
        method = line.method
        self.name = line.source
        self.call = getattr(instance, method) if isinstance(method, str) else lambda *args: method(instance, *args)
        self.args, self.counts = line.args, line.counts
        self.takes = None if line.takes is None else getattr(instance, line.takes)
        self.origins = (me,)
        self.ended = False
        self.pulls = 0
        self.shape: str | None = None
        self.shapes: list[str | None] = [None] * len(line.operators)
        self.stages = [Stage(name, op, Context(name, actor=instance)) for name, op in line.operators]
        for stage in self.stages:
            stage.open()

    def pull(self) -> tuple[Record, Any]:
        """One step of the source through all operators: 0..n items."""
        return self._step(self.call, self.args)

    def feed(self, args: tuple[Any, ...]) -> tuple[Record, Any]:
        """What comes of what it is given: 0..n items."""
        return self._step(self.takes, args)

    def end(self) -> tuple[Record, Any]:
        """What the operators still hold, where nothing more will be given."""
        self.ended = True
        return self._answer(self._finish(), 0, 0, [], 0.0)

    def _step(self, call: Any, args: tuple[Any, ...]) -> tuple[Record, Any]:
        if self.ended:
            return Record(ended=True), None
        started = perf_counter()
        answer: Any = None
        try:
            answer = call(*args)
        except EndOfStream:
            self.ended = True
        except BaseException as error:
            raise InNode(self.name, ItemId(self.pulls)) from error
        self.pulls += 1
        source_s = perf_counter() - started
        if type(answer) is Query:
            return self._query(answer.payload, source_s)
        deltas: list[Delta] = []
        env_steps = agent_steps = 0
        if self.ended:
            results = self._finish()
        else:
            value, version, said = answer, None, None
            if isinstance(answer, Answer):
                value, version, said = answer.payload, answer.policy_version, answer.env_steps
                try:
                    deltas.extend(deltas_of(self.name, answer.metrics))
                except Exception as error:
                    raise InNode(self.name, ItemId(self.pulls - 1)) from error
            made = Info.of(value)
            if self.counts:
                env_steps = made.env_steps if said is None else said
                agent_steps = made.agent_steps
            version = made.policy_version if version is None else version
            if self.shape is None:
                self.shape = describe(value)
            results = self._through([(value, self.origins, version)], 0)
        return self._answer(results, env_steps, agent_steps, deltas, source_s)

    def _query(self, question: Any, source_s: float) -> tuple[Record, Any]:
        inline = packed_if_small([question], "question")
        stages = ((self.name, 0, source_s, None),)
        record = Record(QUERY, (Info.of(question),), stages=stages, inline=inline)
        return record, (None if inline is not None else ([question], None))

    def _through(self, results: list[Any], first: int) -> list[Any]:
        for at in range(first, len(self.stages)):
            stage = self.stages[at]
            as_ref = stage.op.wants == "reference"
            through: list[Any] = []
            for value, origins, version in results:
                made = stage.push(Ref.of(value) if as_ref else value, origins, version)
                through.extend((v.get() if isinstance(v, Ref) else v, o, ver) for v, o, ver in made)
            results = through
            if results and self.shapes[at] is None:
                self.shapes[at] = describe(results[0][0])
        return results

    def _finish(self) -> list[Any]:
        results: list[Any] = []
        for at, stage in enumerate(self.stages):
            rest = [(v.get() if isinstance(v, Ref) else v, o, ver) for v, o, ver in stage.finish()]
            results.extend(self._through(rest, at + 1))
        return results

    def _answer(
        self, results: list[Any], env_steps: int, agent_steps: int, deltas: list[Delta], source_s: float
    ) -> tuple[Record, Any]:
        stages = [(self.name, int(not self.ended), source_s, self.shape)]
        for stage, shape in zip(self.stages, self.shapes, strict=True):
            deltas.extend(stage.ctx.metrics.take())
            stages.append((stage.name, stage.made, stage.busy_s, shape))
            stage.busy_s, stage.made = 0.0, 0
        items, infos = [], []
        for value, _, version in results:
            info = Info.of(value)
            if version is not None or info.metrics:
                version = oldest(version, info.policy_version)
                info = Info(info.env_steps, info.agent_steps, version, info.nbytes, {}, info.policies)
            items.append(value)
            infos.append(info)
        inline = packed_if_small(items) if items else None
        record = _made(
            Record,
            (
                ANSWERED, tuple(infos), self.ended, env_steps, agent_steps, deltas, stages, 0.0, (), inline, None, None,
            ),
        )  # fmt: skip
        return record, (None if inline is not None or not items else (items, None))

    def close(self) -> None:
        """Closes the operators."""
        for stage in self.stages:
            stage.close()


def _plain(deltas: Sequence[Delta]) -> dict[str, float]:
    return {
        (name if policy is None else f"{policy}/{name}"): value
        for _, policy, name, rule, value, _ in deltas
        if rule not in ("list", "moments")
    }
