"""Ctrl-C at a safe point: while items move it is noted and raised between them, so that nothing is lost."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what signal wraps, without the enums that cost 10 µs a call
import enum
import sys
import threading
from _signal import SIGINT, default_int_handler, getsignal
from collections.abc import Callable
from contextlib import suppress
from threading import get_ident
from types import FrameType
from typing import Any, ClassVar

UNDER_WAY = "flowrl: interrupted, finishing the item at hand; press Ctrl-C again to stop at once\n"
MAIN = threading.main_thread().ident


class Mode(enum.Enum):
    """What the main thread is doing when a SIGINT comes."""

    MOVING = "an item is under way: note it"
    WAITING = "nothing is under way: raise at once"
    ASKING = (
        "an operator waits for an answer in the middle of an item: wake it, so that it waits no longer than a grace"
    )


_MOVING = Mode.MOVING  # an enum's attribute costs a call


class Alarm:
    """Whether anything has happened that the driver must heed before it moves on: one look an item instead of five."""

    __slots__ = ("on",)

    def __init__(self) -> None:
        self.on = False


class Interrupts:
    """Inside `with`, in the main thread, SIGINT raises KeyboardInterrupt only where no item is under way.

    A second one raises wherever it finds the program. A handler that the user installed is left alone. Ours stays in
    place from the first item to `release`, for to set one costs more than a small item; between items it does what
    Python's does.
    `safe` says of the KeyboardInterrupt raised last that it tore no item; `woke` that it only ends a wait, whose owner
    catches it. (A type of its own would not do: extensions, Ray's among them, raise a KeyboardInterrupt in its place.)
    """

    _moving: ClassVar[Interrupts | None] = None  # whose item is, or was last, under way in the main thread
    _installed: ClassVar[set[int]] = set()  # by id, those that need the handler

    def __init__(self, alarm: Alarm) -> None:
        self.alarm = alarm
        self.noted = False
        self.safe = False
        self.woke = False
        self.depth = 0  # above 0 while an item is under way in the main thread
        self._mode = Mode.MOVING
        self._released = False

    def __enter__(self) -> Interrupts:
        if get_ident() == MAIN:
            self.enter()
        return self

    def __exit__(self, *exc: object) -> None:
        if get_ident() == MAIN:
            self.depth -= 1
            if self.noted and self.depth == 0 and exc[0] in (None, StopIteration):
                self._raise(safe=True)  # it came too late for a poll, and there may be no further one

    def enter(self) -> None:
        """As `with` does, in the main thread; `depth -= 1` ends it."""
        if Interrupts._moving is not self or getsignal(SIGINT) is default_int_handler:
            self._take_over()
        if not self.depth:
            self._mode = _MOVING  # an interrupt may have come just before `end` put it back
        self.depth += 1  # last: what Python's handler raises until here leaves nothing behind

    def _take_over(self) -> None:
        if self._released:  # nobody would put Python's handler back
            return
        self._installed.add(id(self))
        if getsignal(SIGINT) is default_int_handler:  # at first, or a notebook put it back between two cells
            _signal.signal(SIGINT, interrupted)
        if Interrupts._moving is None or Interrupts._moving.depth == 0:  # else its operator moves this run
            Interrupts._moving = self

    def release(self) -> bool:
        """Puts Python's handler back, where no other run needs ours; in any but the main thread it stays.

        Returns whether an interrupt was noted that came too late for a poll, and is to be raised now.
        """
        self._released = True
        self._installed.discard(id(self))
        if get_ident() != MAIN:
            return False
        if Interrupts._moving is self:
            Interrupts._moving = None
        if not self._installed and getsignal(SIGINT) is interrupted:
            _signal.signal(SIGINT, default_int_handler)
        noted, self.noted = self.noted, False
        return noted

    def begin(self, mode: Mode) -> Mode:
        """What a SIGINT does to the main thread from here on; other threads get none. Returns the mode before."""
        before = self._mode
        if get_ident() == MAIN:
            self._mode = mode
            if mode is Mode.WAITING and self.noted:  # one that came just before the mode was set
                self._mode = before
                self._raise(safe=True)
        return before

    def end(self, before: Mode) -> None:
        """Back to the mode that `begin` returned."""
        if get_ident() == MAIN:
            self._mode = before

    def waiting(self, act: Callable[[], Any]) -> None:
        """Calls what may wait, where nothing is under way."""
        before = self.begin(Mode.WAITING)
        try:
            act()
        finally:
            self.end(before)

    def check(self) -> None:
        """Raises a noted interrupt; to be called where no item is under way, and only there."""
        if self.noted and get_ident() == MAIN:
            self._raise(safe=True)

    def _raise(self, *, safe: bool) -> None:
        self.noted, self.safe = False, safe
        raise KeyboardInterrupt

    def _note(self) -> None:
        if self._mode is Mode.WAITING:
            self._raise(safe=True)
        if self.noted:
            self._raise(safe=False)
        self.noted = self.alarm.on = True
        _say(UNDER_WAY)
        if self._mode is Mode.ASKING:
            self.woke = True
            raise KeyboardInterrupt


def interrupted(signum: int, frame: FrameType | None) -> None:
    """The handler: it does for the item under way what its run says, and else what Python's does."""
    moving = Interrupts._moving
    if moving is None or moving.depth == 0:
        default_int_handler(signum, frame)
    else:
        moving._note()


def _say(line: str) -> None:
    # There may be no stderr, or the signal may have come in the middle of a write to it.
    with suppress(AttributeError, OSError, RuntimeError, ValueError):
        sys.stderr.write(line)
        sys.stderr.flush()
