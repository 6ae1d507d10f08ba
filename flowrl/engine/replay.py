"""Cursors at both ends of a replay group: one stores items in its shards, one draws minibatches from them."""

from __future__ import annotations

import math
import random
from collections import deque
from typing import Any

from flowrl import graph
from flowrl.engine.asks import AskCursor
from flowrl.engine.call import ANSWERED, LOST, Call
from flowrl.engine.cursors import BLOCKED, END, PENDING, Cursor, Item, Signal, item_by_ref, item_of_result
from flowrl.engine.failure import InNode
from flowrl.engine.limiter import Limiter, Stock
from flowrl.engine.stage import Stage
from flowrl.handles import ActorHandle, Pending
from flowrl.operator import ItemId
from flowrl.ref import Info, Leaf, Ref


class StoreCursor(AskCursor):
    """A StoreOperator: each item goes into a shard when the group's pacing lets it; one item waits here meanwhile."""

    may_drop = False  # what is on its way was counted before it is asked

    def __init__(self, name: str, run: Any, upstream: Cursor, stage: Stage, limiter: Limiter):
        super().__init__(name, run, upstream, stage)
        self.limiter = limiter
        self._next: Item | None = None
        self._sent: deque[Item] = deque()  # those whose calls are in the window
        limiter.stored_by(self, self._size)
        run.accounts.knobs[name] = limiter.knob_of_inserts

    def pull(self) -> Item | Signal:
        was_open = not self.closed
        got = super().pull()
        if was_open and self.closed:
            self.run.moved += 1  # whoever draws, and has been asked before it, may now know that it is at its end
        return got

    def _fill(self) -> Signal:
        while len(self._window) < self._size and not self.stage.finished:
            if self._next is None:
                got = self.upstream.pull()
                if got is END:
                    for value, origins, version in self.stage.finish():
                        self._rest.append(item_of_result(value, origins, version))
                    continue
                if not isinstance(got, Item):
                    return got
                self._next = got
            rows = self._next.info.agent_steps
            if not self.limiter.may_insert(rows):
                return BLOCKED
            item, self._next = self._next, None
            self.limiter.sent(rows)
            self._sent.append(item)
            self._ask(item)
        return END if self.stage.finished else PENDING

    def outlives(self, call: Call) -> bool:
        """Never: `_answered` counts what is lost."""
        return False

    def _lost(self, steps: int) -> None:
        """The value of the item that was about to go is not there any more."""
        rows = self._sent.pop().info.agent_steps
        self.limiter.lost(rows)
        self.run.accounts.merge([(self.name, None, "rows_lost", "sum", float(rows), 1.0)])
        super()._lost(steps)

    def _answered(self, pending: Pending[Any], origins: tuple[Any, ...], version: int | None) -> Item:
        item, call = self._sent.popleft(), pending.call
        rows = item.info.agent_steps
        if call.state is LOST:
            self.limiter.lost(rows)
            self.run.accounts.merge([(self.name, None, "rows_lost", "sum", float(rows), 1.0)])
            return Item(None if pending.make is None else pending.make(Info()), None, item.info, origins, version)
        got = super()._answered(pending, origins, version)
        self.limiter.stored(call.actor, rows, call.infos[0].metrics)
        got.info, got.steps = item.info, item.steps
        return got

    def why_blocked(self) -> str | None:
        """What holds it, where the pacing does."""
        return None if self._next is None else self.limiter.why_no_insert(self._next.info.agent_steps)

    def close(self) -> None:
        super().close()
        self._next = None
        self._sent.clear()


class ReplayCursor(Cursor):
    """A Replay node: a window of samples asked for, each of one shard; results in order, as references.

    What an answer says of its shard is taken in when its item comes out, so that the choice of shards, and with it a
    deterministic graph, does not depend on timing.
    """

    def __init__(self, name: str, run: Any, node: graph.Replay, limiter: Limiter):
        super().__init__(name, run)
        self.limiter = limiter
        self._batch, self._batches, self._beta = node.batch, node.batches, node.beta
        self._size = node.in_flight
        self._rows = limiter.pacing.rows_of(node.batch * node.batches)
        self._random = random.Random(run.seed_of(name))
        self._window: deque[tuple[Call, Stock]] = deque()
        self._handles: dict[Stock, ActorHandle[Any]] = {}
        limiter.drawn_by(self._rows, self._size)
        run.accounts.knobs[name] = limiter.knob_of_samples

    def pull(self) -> Item | Signal:
        if self.closed:
            return END
        while True:
            self._fill()
            if not self._window:
                return self._nothing()
            call, stock = self._window[0]
            while not call.done:
                if not self.run.deterministic:
                    return PENDING
                self.run.wait_in_place([call])
            self._window.popleft()
            item = self._answered(call, stock)
            if item is not None:
                return self.out(item)

    def _nothing(self) -> Signal:
        if not self.limiter.fed and self.limiter.sampled:
            self.closed = True  # whatever could be drawn was
            return END
        return self.blocked()

    def _fill(self) -> None:
        while len(self._window) < self._size and self.limiter.may_sample(self._rows):
            stock = self.limiter.choose(self._rows, self._random.random)
            self.limiter.drawn(stock, self._rows)
            pending = self._handle(stock).ask(
                "draw",
                self._batch,
                batches=self._batches,
                beta=self._exponent(),
            )
            self._window.append((pending.call, stock))
            self.run.moved += 1

    def _handle(self, stock: Stock) -> ActorHandle[Any]:
        handle = self._handles.get(stock)
        if handle is None:
            handle = self._handles[stock] = self.run.handle(stock.state, self.name, held=True)
        return handle

    def _exponent(self) -> float | None:
        if not callable(self._beta):
            return self._beta
        steps = self.run.accounts.env_steps
        try:
            value = float(self._beta(steps))
            if not 0 <= value < math.inf:
                raise ValueError(
                    f"beta must be at least 0 and finite; {self._beta!r} gave {value} at {steps} env steps"
                )
        except BaseException as error:
            raise InNode(self.name, ItemId(self.stats.items)) from error
        return value

    def _answered(self, call: Call, stock: Stock) -> Item | None:
        if call.state is LOST:
            self.limiter.undrawn(stock, self._rows)
            self.run.accounts.merge([(self.name, None, "samples_lost", "sum", float(self._rows), 1.0)])
            return None
        if call.state is not ANSWERED:
            self.run.raise_failed(call, self.name)
        info = call.infos[0]
        self.limiter.answered(stock, self._rows, info.metrics)
        ref: Ref[Any] = Ref(Leaf(call, 0), info, self.run.fetch)
        return item_by_ref(ref, (self._handle(stock),), info.policy_version)

    def why_blocked(self) -> str | None:
        """What holds it."""
        return None if self._window else self.limiter.why_no_sample(self._rows)

    def close(self) -> None:
        super().close()
        self._window.clear()
