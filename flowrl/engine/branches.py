"""Cursors where a graph branches and joins: Duplicate with its branches, Union."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Literal

from flowrl.engine.cursors import BLOCKED, END, PENDING, Cursor, Item, Signal


class DuplicateCursor(Cursor):
    """The shared end of a duplicate's branches: a queue for each branch that the run reaches."""

    def __init__(self, name: str, run: Any, upstream: Cursor, max_lag: int, overflow: Literal["block", "drop_oldest"]):
        super().__init__(name, run)
        self.upstream, self.max_lag = upstream, max_lag
        self._pull = upstream.pull  # bound once
        self.queues: dict[BranchCursor, deque[Item]] = {}
        self._blocks = overflow == "block"
        self._ended = False

    def upstreams(self) -> list[Cursor]:
        return [self.upstream]

    def next_for(self, branch: BranchCursor) -> Item | Signal:
        """The next item of a branch whose queue is empty: from upstream."""
        if self._ended:
            return END
        others = branch.others
        if others is None:
            others = branch.others = [other for key, other in self.queues.items() if key is not branch]
        if self._blocks:
            for queue in others:
                if len(queue) >= self.max_lag:
                    return self.blocked()
        got = self._pull()
        if type(got) is not Item:
            self._ended = got is END
            return got
        for queue in others:
            queue.append(got)
            if len(queue) > self.max_lag:  # where it is to drop the oldest
                queue.popleft()
                self.run.accounts.merge([(self.name, None, "dropped", "sum", 1.0, 1.0)])
        return self.count(got)

    def lagging(self) -> list[str]:
        """The branches that hold the others back."""
        return [branch.name for branch, queue in self.queues.items() if len(queue) >= self.max_lag]

    def leave(self, branch: BranchCursor) -> None:
        """A branch has ended: it no longer counts towards max_lag; with the last, upstream is closed."""
        self.queues.pop(branch, None)
        for other in self.queues:
            other.others = None
        if not self.queues and not self.closed:
            self.close()
            self.upstream.close()


class BranchCursor(Cursor):
    """One branch of a duplicate."""

    def __init__(self, name: str, run: Any, shared: DuplicateCursor):
        super().__init__(name, run)
        self.shared = shared
        self.others: list[deque[Item]] | None = None  # the queues of its siblings that have not ended, once looked up
        self._queue: deque[Item] = deque()
        shared.queues[self] = self._queue
        self._next = shared.next_for  # bound once

    def upstreams(self) -> list[Cursor]:
        return [self.shared]

    def pull(self) -> Item | Signal:
        if self.closed:
            return END
        if self._queue:
            return self.out(self._queue.popleft())
        got = self._next(self)
        if type(got) is Item:
            return self.count(got)
        if got is END:
            self.close()
        return self.blocked() if got is BLOCKED else got

    def close(self) -> None:
        if not self.closed:
            super().close()
            self.shared.leave(self)


class UnionCursor(Cursor):
    """Several cursors as one. In round_robin a pending branch keeps its turn; a blocked or ended one passes it."""

    def __init__(
        self, name: str, run: Any, branches: Sequence[Cursor], mode: str, weights: Sequence[int], emit: Sequence[bool]
    ):
        super().__init__(name, run)
        self.branches, self.weights, self.emit = list(branches), list(weights), list(emit)
        self._pulls = [branch.pull for branch in self.branches]  # bound once
        self._in_turn = mode == "round_robin"
        self._turn = 0
        self._taken = 0  # items of the branch whose turn it is
        self._live = [True] * len(self.branches)
        self._emitting = sum(self.emit)  # branches in `emit` that have not ended

    def upstreams(self) -> list[Cursor]:
        return list(self.branches)

    def pull(self) -> Item | Signal:
        if self.closed:
            return END
        pulls, count, live, weights = self._pulls, len(self._pulls), self._live, self.weights
        at, passed, pending = self._turn, 0, False  # `passed`: branches in a row that had nothing
        while passed < count and self._emitting:
            got = pulls[at]() if live[at] else END
            if type(got) is Item:
                passed, pending, emits = 0, False, self.emit[at]
                self._taken += 1
                if self._taken >= weights[at]:
                    at = self._turn = (at + 1) % count
                    self._taken = 0
                if emits:
                    return self.count(got)
                if self.run.alarm.on:
                    self.run.poll()
                continue
            if got is END:
                if live[at]:
                    live[at] = False
                    self._emitting -= self.emit[at]
            elif got is PENDING:
                if self._in_turn:
                    return PENDING
                pending = True
            passed += 1
            at = self._turn = (at + 1) % count
            self._taken = 0
        if not self._emitting:
            self.close()
            return END
        return PENDING if pending else self.blocked()

    def close(self) -> None:
        if not self.closed:
            super().close()
            for branch in self.branches:
                branch.close()
