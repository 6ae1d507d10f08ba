"""Rounds that go on without the shards that are late."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowrl.engine.call import ActorState
from flowrl.engine.cursors import END, PENDING, Item, Signal
from flowrl.engine.gathers import ShardFeed, SyncGatherCursor
from flowrl.failures import FailurePolicy
from flowrl.graph import Patience


class TimedSyncGatherCursor(SyncGatherCursor):
    """A round ends when all live shards have an item, or after its time, once enough of them have one.

    An item that comes later is its shard's of the round under way (`late="keep"`), or is dropped, and its shard asked
    again. The metrics `late workers[1]` count how often a shard was missing, late_dropped and late_steps_dropped what
    was thrown away.
    """

    def __init__(self, name: str, run: Any, feeds: Sequence[ShardFeed], policy: FailurePolicy, patience: Patience):
        super().__init__(name, run, feeds, policy)
        self.patience = patience
        self._due = 0.0
        self._timer = False  # whether one is set; it sets the next itself
        self._late: set[ShardFeed] = set()  # whose call that is out is of an earlier round

    def pull(self) -> Item | Signal:
        while not self._round:
            if self.closed or self._all_given():
                self._merge_noted()
                self.closed = True
                return END
            if not self._asked:
                self._begin_round()
            missing = [feed for feed in self.feeds if not feed.items and not feed.ended and not feed.joins]
            if missing:
                if not self._over(missing):
                    return PENDING
                self._go_on_without(missing)
            self._whole()
        return self.out(self._round.popleft().items.popleft())

    def _begin_round(self) -> None:
        self._due = self.run.backend.now() + self.patience.timeout_s
        self._wake()
        super()._begin_round()

    def _wake(self) -> None:
        if not self._timer:
            self._timer = True
            self.run.lives.wake(self._due, self._woken)

    def _woken(self) -> None:
        self._timer = False
        if self._asked and not self.closed and self.run.backend.now() < self._due:
            self._wake()

    def _over(self, missing: Sequence[ShardFeed]) -> bool:
        living = sum(bool(feed.items) or not (feed.ended or feed.joins) for feed in self.feeds)
        here = living - len(missing)
        return self.run.backend.now() >= self._due and here >= max(1, min(self.patience.min_shards, living))

    def _go_on_without(self, missing: Sequence[ShardFeed]) -> None:
        self._late |= {feed for feed in missing if feed.out}
        said = [(self.name, None, f"late {feed.handle.name}", "sum", 1.0, 1.0) for feed in missing]
        self.run.accounts.merge(said)

    def came(self, feed: ShardFeed, new: int) -> None:
        if new and feed in self._late:
            self._late.discard(feed)
            if self.patience.late == "drop":
                dropped = [feed.items.pop() for _ in range(new)]
                steps = float(sum(item.steps for item in dropped))
                counted = (("late_dropped", float(new)), ("late_steps_dropped", steps))
                self.run.accounts.merge([(self.name, None, what, "sum", count, 1.0) for what, count in counted])
                self.run.moved += 1
        if self._asked:
            super().came(feed, new)

    def leave(self, states: Sequence[ActorState]) -> tuple[int, int]:
        self._late -= {feed for feed in self.feeds if feed.state in states}
        return super().leave(states)

    def died(self, state: Any, reason: str) -> None:
        self._late -= {feed for feed in self.feeds if feed.state is state}
        super().died(state, reason)
