"""Who moves a run: one thread at a time; those that wait come in the order in which they began to."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

SLICE_S = 0.1


def _woken(mine: SimpleQueue[None], timeout_s: float | None) -> None:
    # In slices: Python misses a signal that comes between its last look for one and the wait of a lock.
    end = None if timeout_s is None else monotonic() + timeout_s
    while True:
        left = SLICE_S if end is None else max(min(SLICE_S, end - monotonic()), 0.0)
        try:
            return mine.get(timeout=left)
        except Empty:
            if end is not None and monotonic() >= end:
                raise


def _at_once(act: Callable[[], Any]) -> Any:
    return act()


class Token:
    """A lock that is fair: a thread that gives it back and wants it again at once comes behind those that wait.

    Otherwise a run in the background would keep it for good: a thread that waits is woken, and finds it taken again.
    """

    __slots__ = ("_free", "_waiting")

    def __init__(self) -> None:
        self._free: SimpleQueue[None] = SimpleQueue()  # a lock takes three times as long, and this is once an item
        self._free.put(None)
        self._waiting: deque[SimpleQueue[None]] = deque()

    def take_at_once(self) -> bool:
        """Takes it if it is free; whether it was."""
        try:
            self._free.get_nowait()
        except Empty:
            return False
        return True

    def take(self, wait: Callable[[Callable[[], Any]], Any] = _at_once, timeout_s: float | None = None) -> bool:
        """Waits for it, in `wait(act)`; whether it came within timeout_s. What `wait` raises leaves it to others."""
        if self.take_at_once():
            return True
        mine: SimpleQueue[None] = SimpleQueue()
        self._waiting.append(mine)
        if self.take_at_once():  # given back since, by a thread that saw nobody wait
            self._waiting.remove(mine)
            return True
        try:
            wait(lambda: _woken(mine, timeout_s))
        except Empty:
            return not self._leaves(mine)
        except BaseException:
            if not self._leaves(mine):
                self.give()
            raise
        return True

    def _leaves(self, waiting: SimpleQueue[None]) -> bool:
        """A thread waits no longer; False where the token is its own meanwhile."""
        try:
            self._waiting.remove(waiting)
        except ValueError:
            return False
        return True

    def give(self) -> None:
        """Gives it back: to the one that has waited longest, if any does."""
        self._free.put(None)
        while self._waiting and self.take_at_once():
            with suppress(IndexError):  # that one has gone
                self._waiting.popleft().put(None)  # from here on it is theirs, whether or not they have woken
                return
            self._free.put(None)
