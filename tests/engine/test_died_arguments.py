"""Messages of which an argument was to be the answer of an actor that has died: what of them is still done."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

import flowrl
from flowrl import ActorGroup, Operator
from flowrl.backends.protocol import Sent
from flowrl.engine.record import ARGUMENT_DIED, MISSED, UNDELIVERED, Record
from flowrl.engine.transport import Gone
from flowrl.operator import Context
from flowrl.testing import Delayed
from tests.engine.test_revived import Ledger, at, ledgers, numbers


class Strict(Delayed):
    """As Ray: a message of which an argument has died does not reach its actor."""

    def send(self, actor: Any, message: bytes, payloads: Sequence[Any], *, start: bool = False) -> Sent:
        if any(isinstance(stored.load(), Gone) for stored in payloads):
            name = actor.host.me.name
            number = self._messages[name] = self._messages[name] + 1
            sent = Sent(None, None)
            self._hidden[sent] = (name, number, Record(UNDELIVERED))
            return sent
        return super().send(actor, message, payloads, start=start)


@dataclass
class Both(Operator[int, int]):
    """An heir is told each number, and asked with what a group's first answers."""

    ledgers: ActorGroup[Any]
    heirs: ActorGroup[Any]

    def process(self, value: int, ctx: Context) -> Iterable[int]:
        (heir,) = ctx.actors(self.heirs)
        heir.tell("note", value)
        heir.ask("add", ctx.actors(self.ledgers)[0].ask("add", 1000))
        yield value


@pytest.mark.parametrize("backend", [Delayed, Strict])
def test_tells_that_rode_on_a_message_whose_argument_died_are_done(backend: type[Delayed]) -> None:
    heirs = flowrl.actor(Ledger, name="heirs")
    flow = flowrl.from_items(list(range(1, 31)), num_shards=1).gather_async().for_each(Both(ledgers(), heirs))
    with flowrl.run(flow, backend(0, die=at(9)), seed=0) as run:
        run.step(30)
        book = run.actors["heirs"][0].ask("book").result()
    assert sorted(number for number in book if number < 1000) == list(range(1, 31))
    assert len(book) < 60


def test_many_calls_that_are_out_tell_a_dead_argument_from_a_failure() -> None:
    """Ray hands a callback the bare RayTaskError, not the class that is of its cause's type too."""
    from ray.exceptions import ActorDiedError, RayTaskError

    from flowrl.backends.ray_answers import what_came_instead

    bare = RayTaskError("call", "traceback", ActorDiedError())
    for error in (bare, bare.as_instanceof_cause()):
        record = what_came_instead(error)
        assert isinstance(record, Record)
        assert record.status == UNDELIVERED != MISSED
        assert record.error is not None
        assert record.error.message == ARGUMENT_DIED


def test_a_tell_that_is_missed_is_counted() -> None:
    @dataclass
    class Forwards(Both):
        def process(self, value: int, ctx: Context) -> Iterable[int]:
            ctx.actors(self.heirs)[0].tell("note", ctx.actors(self.ledgers)[0].ask("add", value))
            yield value

    heirs = flowrl.actor(Ledger, name="heirs")
    for backend in (Delayed, Strict):
        with flowrl.run(
            numbers().for_each(Forwards(ledgers(), heirs)), backend(0, likely=1.0, die=at(9)), seed=0
        ) as run:
            run.step(30)
            told = len(run.actors["heirs"][0].ask("book").result())
            assert told + run.stats().metrics["Forwards"]["tells_lost"] == 30
