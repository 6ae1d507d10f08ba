"""A shard at work in its actor: one step of the source through its operators, or what comes of what it is fed."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any

from flowrl.engine.failure import InNode
from flowrl.engine.record import ANSWERED, QUERY, Record, made_of
from flowrl.engine.stage import Stage
from flowrl.engine.transport import packed_if_small
from flowrl.errors import EndOfStream
from flowrl.handles import ActorHandle
from flowrl.metrics import Delta, deltas_of
from flowrl.operator import Context, ItemId
from flowrl.ref import Answer, Info, Query, Ref, oldest
from flowrl.shapes import describe


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
        record = made_of(
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
