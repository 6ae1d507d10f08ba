"""The cursor of operators that ask an actor: a window of calls, results in order."""

from __future__ import annotations

from collections import deque
from time import perf_counter
from typing import Any

from flowrl.engine.call import ANSWERED, LOST, Call
from flowrl.engine.cursors import BLOCKED, END, MISSING, PENDING, Cursor, Item, Signal, item_of_result
from flowrl.engine.deadline import Deadline
from flowrl.engine.failure import InNode
from flowrl.engine.kept import Keeper
from flowrl.engine.record import Record
from flowrl.engine.stage import Stage
from flowrl.errors import PayloadLost
from flowrl.handles import Pending
from flowrl.operator import AskOperator


class AskCursor(Cursor):
    """An AskOperator: its window is filled before its head comes out, results in order."""

    may_drop = True  # whether `ask` may return None

    def __init__(self, name: str, run: Any, upstream: Cursor, stage: Stage):
        super().__init__(name, run)
        assert isinstance(stage.op, AskOperator)
        self.upstream, self.stage, self.op = upstream, stage, stage.op
        self._window: deque[tuple[Pending[Any], tuple[Any, ...], int | None, int]] = deque()
        self._rest: deque[Item] = deque()
        self._size = stage.op.calls_in_flight
        self.keeper: Keeper | None = None  # of the actors that are asked, where they outlive their deaths
        within_s = stage.op.answers_within_s
        self._deadline = None if within_s is None else Deadline(run, name, within_s)
        self._waking = None if within_s is None else Deadline(run, name, within_s)  # going on from a snapshot

    def upstreams(self) -> list[Cursor]:
        return [self.upstream]

    def pull(self) -> Item | Signal:
        while True:
            if self.closed:
                return END
            why = self._fill()
            if not self._window:
                break
            pending, origins, version, steps = self._window[0]
            call: Call = pending.call
            while not call.done:  # a wait also ends when an actor has restarted
                if pending.look is not None:
                    pending.look()
                if self._deadline is not None:
                    self._deadline.watch(call)
                if not self.run.deterministic:
                    return PENDING
                self.run.wait_in_place([call, *(other.call for other in pending.beside if not other.done)])
            self._window.popleft()
            if self._deadline is not None:
                self._deadline.leave()
            if call.state is LOST and self.outlives(call):
                self._lost(steps)
                continue
            got = self._answered(pending, origins, version)
            if self.keeper is not None:
                self.keeper.answered(call.actor)
            return self.out(got)
        if self._rest:
            return self.out(self._rest.popleft())
        if why is END:
            self.closed = True
        return self.blocked() if why is BLOCKED else why

    def outlives(self, call: Call) -> bool:
        """Whether the others go on without an item whose call is lost: it is the item alone that is, or the op does."""
        actor = call.actor
        there = actor.alive or call.incarnation != actor.incarnation  # who asks one that is gone for good is told
        revived = actor.reviver is not None and actor.reviver.goes_on and there
        return self.op.outlives_losses or call.undelivered or revived

    def _lost(self, steps: int) -> None:
        """An item's call died with its actor, or the item with a node, and the others go on without it."""
        self.lost(steps)
        self.run.poll()  # settles the death, before anything else is asked of that actor

    def _nobody_there(self) -> bool:
        """Whether the actor that is asked is on its way up; a deterministic graph waits for it here."""
        keeper = self.keeper
        assert keeper is not None
        keeper.begin()
        while keeper.away:
            if self._waking is not None and keeper.calls:
                self._waking.watch(keeper.calls[0])
            if not self.run.deterministic:
                return True
            self.run.wait_in_place(keeper.calls)
        if self._waking is not None:
            self._waking.leave()
        return False

    def _fill(self) -> Signal:
        while len(self._window) < self._size and not self.stage.finished:
            if self.keeper is not None and self._nobody_there():
                return PENDING
            got = self.upstream.pull()
            if isinstance(got, Item):
                self._ask(got)
            elif got is END:
                for value, origins, version in self.stage.finish():
                    self._rest.append(item_of_result(value, origins, version))
            else:
                return got
        return END if self.stage.finished else PENDING

    def _ask(self, item: Item) -> None:
        stage = self.stage
        stage.ctx.env_steps = self.run.accounts.env_steps
        entered = stage.enter(item.origins, item.version)
        started = perf_counter()
        try:
            value = item.as_ref() if self.op.wants == "reference" else self.run.value_of(item, self.name)
        except PayloadLost:
            self._lost(item.steps)
            return
        try:
            pending = self.op.ask(value, stage.ctx)
            if not isinstance(pending, Pending) and not (pending is None and self.may_drop):
                raise TypeError(f"{self.op!r}.ask must return handle.ask(...), it returned {type(pending).__name__}")
            if stage.ctx._emitted:
                raise TypeError(f"{self.op!r}.ask used ctx.emit; the answer of its call is its only result")
        except BaseException as error:
            raise InNode(self.name, entered) from error
        stage.busy_s += self._of_driver(perf_counter() - started, pending)
        if pending is None:
            self._dropped()
            return
        ((_, origins, version),) = stage.leave((pending,))
        self._window.append((pending, origins, version, self.op.steps_asked(pending, item.steps)))
        self.run.moved += 1

    def _of_driver(self, took_s: float, pending: Pending[Any] | None) -> float:
        """What of an ask's time was the driver's: in one process its actor has worked on it meanwhile."""
        if pending is None or not self.run.backend.in_process:
            return took_s
        records = [one.call.sent.record for one in (pending, *pending.beside)]
        return max(0.0, took_s - sum(record.busy_s for record in records if isinstance(record, Record)))

    def _dropped(self) -> None:
        """Nothing is asked for an item: where it came from belongs to the next result, as for any operator."""
        self._note_metrics()
        self.run.moved += 1
        self.run.poll()  # nothing is under way; it may be long before anything is

    def _note_metrics(self) -> None:
        deltas = self.stage.ctx.metrics.take()
        if deltas:
            self.run.accounts.merge(deltas)

    def _answered(self, pending: Pending[Any], origins: tuple[Any, ...], version: int | None) -> Item:
        call: Call = pending.call
        if call.state is not ANSWERED:
            self.run.raise_failed(call, self.name)
        info = call.infos[0]
        made = MISSING if pending.make is None else pending.make(info)  # which may record metrics
        self._note_metrics()
        return Item(made, None, info, origins, version, call if made is MISSING else None)

    def close(self) -> None:
        super().close()
        for deadline in (self._deadline, self._waking):
            if deadline is not None:
                deadline.leave()
        self._window.clear()
        self._rest.clear()
        self.upstream.close()
