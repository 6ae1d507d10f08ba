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
        self.upstream, self.max_lag, self.overflow = upstream, max_lag, overflow
        self.queues: dict[BranchCursor, deque[Item]] = {}
        self._others: dict[BranchCursor, list[deque[Item]]] = {}  # each branch's siblings that have not ended
        self._ended = False

    def upstreams(self) -> list[Cursor]:
        return [self.upstream]

    def next_for(self, branch: BranchCursor) -> Item | Signal:
        """The branch's next item; from upstream where it is the leading one."""
        queue = self.queues[branch]
        if queue:
            return queue.popleft()
        if self._ended:
            return END
        others = self._others.get(branch)
        if others is None:
            others = self._others[branch] = [other for key, other in self.queues.items() if key is not branch]
        if self.overflow == "block":
            for other in others:
                if len(other) >= self.max_lag:
                    return self.blocked()
        got = self.upstream.pull()
        if type(got) is not Item:
            self._ended = got is END
            return got
        for other in others:
            if len(other) >= self.max_lag:
                other.popleft()
                self.run.accounts.merge([(self.name, None, "dropped", "sum", 1.0, 1.0)])
            other.append(got)
        return self.out(got)

    def lagging(self) -> list[str]:
        """The branches that hold the others back."""
        return [branch.name for branch, queue in self.queues.items() if len(queue) >= self.max_lag]

    def leave(self, branch: BranchCursor) -> None:
        """A branch has ended: it no longer counts towards max_lag; with the last, upstream is closed."""
        self.queues.pop(branch, None)
        self._others.clear()
        if not self.queues and not self.closed:
            self.close()
            self.upstream.close()


class BranchCursor(Cursor):
    """One branch of a duplicate."""

    def __init__(self, name: str, run: Any, shared: DuplicateCursor):
        super().__init__(name, run)
        self.shared = shared
        shared.queues[self] = deque()

    def upstreams(self) -> list[Cursor]:
        return [self.shared]

    def pull(self) -> Item | Signal:
        if self.closed:
            return END
        got = self.shared.next_for(self)
        if type(got) is Item:
            return self.out(got)
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
        passed, pending = 0, False  # branches in a row that had nothing
        while passed < len(self.branches):
            if not self._emitting:
                self.close()
                return END
            at = self._turn
            got: Item | Signal = self.branches[at].pull() if self._live[at] else END
            if type(got) is Item:
                passed, pending = 0, False
                self._taken += 1
                if self._taken >= self.weights[at]:
                    self._next()
                if self.emit[at]:
                    return self.out(got)
                self.run.poll()
                continue
            if got is END:
                if self._live[at]:
                    self._live[at] = False
                    self._emitting -= self.emit[at]
            elif got is PENDING:
                if self._in_turn:
                    return PENDING
                pending = True
            passed += 1
            self._next()
        if not self._emitting:
            self.close()
            return END
        return PENDING if pending else self.blocked()

    def _next(self) -> None:
        self._turn = (self._turn + 1) % len(self.branches)
        self._taken = 0

    def close(self) -> None:
        if not self.closed:
            super().close()
            for branch in self.branches:
                branch.close()
