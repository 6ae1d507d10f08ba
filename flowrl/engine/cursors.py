"""Cursors: one per node of a running graph. A pull answers an item, or why there is none now."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Any

from flowrl.engine.failure import InNode
from flowrl.engine.stage import Stage
from flowrl.engine.stats import NodeStats
from flowrl.engine.transport import unpack
from flowrl.errors import PayloadLost
from flowrl.operator import ItemId
from flowrl.ref import Info, Ref, oldest
from flowrl.shapes import describe

if TYPE_CHECKING:
    from flowrl.engine.call import Call


class Signal(enum.Enum):
    """Why a cursor has no item now."""

    PENDING = "a call is out"
    BLOCKED = "a bound inside the graph holds it"
    END = "no further items"


PENDING, BLOCKED, END = Signal.PENDING, Signal.BLOCKED, Signal.END
MISSING: Any = object()  # in place of a value that was not fetched


class Item:
    """One item on the driver: a value, a reference, or one of an answer's; with where it came from."""

    __slots__ = ("_ref", "call", "info", "origins", "slot", "steps", "value", "version")

    def __init__(
        self, value: Any, ref: Ref[Any] | None, info: Info, origins: tuple[Any, ...], version: int | None,
        call: Any = None, slot: int = 0,
    ):  # fmt: skip
        self.value, self._ref, self.info, self.origins, self.version = value, ref, info, origins, version
        self.call, self.slot = call, slot
        self.steps = info.env_steps  # which every node that it passes counts

    @property
    def ref(self) -> Ref[Any] | None:
        """A reference to what does not lie on the driver; made when it is asked for."""
        if self._ref is None and self.call is not None:
            self._ref = self.call.ref(self.slot, self.info)
        return self._ref

    def get(self) -> Any:
        """The value, fetched if it was not."""
        if self.value is MISSING:
            inline = None if self.call is None else self.call.record.inline
            if inline is not None:
                self.value = unpack(inline)[self.slot]
            else:
                assert self.ref is not None
                self.value = self.ref.get()
        return self.value

    def as_ref(self) -> Ref[Any]:
        """A reference to it."""
        ref = self.ref
        return Ref.of(self.value, self.info) if ref is None else ref


def item_by_ref(ref: Ref[Any], origins: tuple[Any, ...], version: int | None) -> Item:
    """An item whose value stays where it is."""
    return Item(MISSING, ref, ref.info, origins, version)


def item_of_result(value: Any, origins: tuple[Any, ...], version: int | None) -> Item:
    """An item of an operator's result; a Ref stays a reference."""
    if isinstance(value, Ref):
        return item_by_ref(value, origins, oldest(version, value.info.policy_version))
    return Item(value, None, Info.of(value), origins, version)


_new = object.__new__  # for what is made once an item: a call of the class takes longer than all its fields


def item_of_answer(call: Call, slot: int, info: Info, origins: tuple[Any, ...]) -> Item:
    """One of an answer's items; its value stays where it is."""
    item: Item = _new(Item)
    item.value, item._ref, item.info, item.origins, item.version = MISSING, None, info, origins, info.policy_version
    item.call, item.slot, item.steps = call, slot, info.env_steps
    return item


class Cursor:
    """The base of all cursors."""

    def __init__(self, name: str, run: Any):
        self.name, self.run = name, run
        self.stats: NodeStats = run.accounts.node(name)
        self.closed = False
        self._blocked_since: float | None = None
        self.blocked_at = -1  # what had moved in the run when it was last found blocked

    def pull(self) -> Item | Signal:
        """The next item, or why there is none now. State changes only when something was really taken."""
        raise NotImplementedError

    def close(self) -> None:
        """No further item will be pulled."""
        self.closed = True

    def upstreams(self) -> list[Cursor]:
        """The cursors that this one pulls from."""
        return []

    def out(self, item: Item) -> Item:
        """Counts an item that leaves, and that something has moved."""
        self.run.moved += 1
        stats = self.stats
        stats.items += 1
        stats.steps += item.steps
        if self._blocked_since is not None:
            self._unblocked()
        return item

    def count(self, item: Item) -> Item:
        """Counts an item that was handed on as it came from upstream."""
        stats = self.stats
        stats.items += 1
        stats.steps += item.steps
        if self._blocked_since is not None:
            self._unblocked()
        return item

    def lost(self, steps: int) -> None:
        """Counts an item that was lost on its way here; the next one is pulled instead."""
        lost = (("items_lost", 1.0), ("steps_lost", float(steps)))
        self.run.accounts.merge([(self.name, None, what, "sum", count, 1.0) for what, count in lost])
        self.run.moved += 1

    def _unblocked(self) -> None:
        assert self._blocked_since is not None
        self.stats.blocked_s += perf_counter() - self._blocked_since
        self._blocked_since = None

    def blocked(self) -> Signal:
        """Notes since when it is blocked."""
        self.blocked_at = self.run.moved
        if self._blocked_since is None:
            self._blocked_since = perf_counter()
        return BLOCKED


class IterateCursor(Cursor):
    """Items of an iterable that the driver runs."""

    def __init__(self, name: str, run: Any, make: Any):
        super().__init__(name, run)
        self._make = make
        self._iterator: Iterator[Any] | None = None

    def pull(self) -> Item | Signal:
        if self.closed:
            return END
        try:
            if self._iterator is None:
                self._iterator = iter(self._make())
        except BaseException as error:  # a StopIteration too: it is no end of what was never begun
            raise InNode(self.name, ItemId(-1)) from error
        try:
            value = next(self._iterator)
        except StopIteration:
            self.closed = True
            return END
        except BaseException as error:
            raise InNode(self.name, ItemId(self.stats.items)) from error
        if self.stats.first is None:
            self.stats.first = describe(value)
        return self.out(Item(value, None, Info.of(value), (), None))

    def close(self) -> None:
        super().close()
        close = getattr(self._iterator, "close", None)
        self._iterator = None
        if callable(close):
            close()


class ApplyCursor(Cursor):
    """An operator on the driver."""

    def __init__(self, name: str, run: Any, upstream: Cursor, stage: Stage, where: str):
        super().__init__(name, run)
        self.upstream, self.stage, self.where = upstream, stage, where
        self._ready: deque[Item] = deque()
        self._wants_ref = stage.op.wants == "reference"
        self._hands_on = stage.op.hands_on
        self._pure = stage.op.pure

    def upstreams(self) -> list[Cursor]:
        return [self.upstream]

    def pull(self) -> Item | Signal:
        while True:
            if self._ready:
                return self.out(self._ready.popleft())
            if self.closed:
                return END
            got = self.upstream.pull()
            if type(got) is Item:
                self._take(got)
                if not self._ready:  # nothing is under way; it may be long before anything is
                    self.run.poll()
            elif got is END:
                if not self.stage.finished:
                    self._keep(self.stage.finish())
                    self.run.moved += 1
                    continue
                self.closed = True
                return END
            else:
                return self.blocked() if got is BLOCKED else got

    def _take(self, item: Item) -> None:
        stage = self.stage
        if self._pure and item.ref is not None and not self._wants_ref:
            stage.number += 1
            ref = item.ref.then(stage.op, name=self.name, where=self.where)
            self._ready.append(item_by_ref(ref, item.origins, item.version))
            return
        stage.ctx.env_steps = self.run.accounts.env_steps
        try:
            value = item.as_ref() if self._wants_ref else self.run.value_of(item, self.name)
        except PayloadLost:
            self.lost(item.steps)
            return
        before = stage.busy_s
        results = stage.push(value, item.origins, item.version)
        self.stats.busy_s += stage.busy_s - before
        if self._hands_on:
            self._ready.extend([item] * len(results))
            self._note_metrics()
        else:
            self._keep(results)
        self.run.moved += 1

    def _keep(self, results: list[Any]) -> None:
        for value, origins, version in results:
            self._ready.append(item_of_result(value, origins, version))
            if self.stats.first is None:
                self.stats.first = describe(value)
        self._note_metrics()

    def _note_metrics(self) -> None:
        deltas = self.stage.ctx.metrics.take()
        if deltas:
            self.run.accounts.merge(deltas)

    def close(self) -> None:
        super().close()
        self._ready.clear()
        self.upstream.close()


class TakeCursor(Cursor):
    """The first n items; then upstream is closed."""

    def __init__(self, name: str, run: Any, upstream: Cursor, n: int):
        super().__init__(name, run)
        self.upstream, self._left = upstream, n

    def upstreams(self) -> list[Cursor]:
        return [self.upstream]

    def pull(self) -> Item | Signal:
        if self.closed:
            return END
        if self._left == 0:
            self.close()
            return END
        got = self.upstream.pull()
        if type(got) is Item:
            self._left -= 1
            if self._left == 0:
                self.close()
            return self.out(got)
        if got is END:
            self.closed = True
        return self.blocked() if got is BLOCKED else got

    def close(self) -> None:
        if not self.closed:
            super().close()
            self.upstream.close()
