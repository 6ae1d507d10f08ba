"""Ctrl-C at a safe point: while items move it is noted and raised between them, so that nothing is lost."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what signal wraps, without the enums that cost 10 µs a call
import enum
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

UNDER_WAY = "flowrl: interrupted, finishing the item at hand; press Ctrl-C again to stop at once\n"
_MAIN = threading.main_thread().ident


class Mode(enum.Enum):
    """What the main thread is doing when a SIGINT comes."""

    MOVING = "an item is under way: note it"
    WAITING = "nothing is under way: raise at once"
    ASKING = (
        "an operator waits for an answer in the middle of an item: wake it, so that it waits no longer than a grace"
    )


class Interrupts:
    """Inside `with`, in the main thread, SIGINT raises KeyboardInterrupt only where no item is under way.

    A second one raises wherever it finds the program. A handler that the user installed is left alone.
    `safe` says of the KeyboardInterrupt raised last that it tore no item; `woke` that it only ends a wait, whose owner
    catches it. (A type of its own would not do: extensions, Ray's among them, raise a KeyboardInterrupt in its place.)
    """

    def __init__(self) -> None:
        self.noted = False
        self.safe = False
        self.woke = False
        self._mode = Mode.MOVING
        self._depth = 0
        self._before: Any = None
        self._noting = self._note  # bound once

    def __enter__(self) -> Interrupts:
        if threading.get_ident() == _MAIN:
            self._depth += 1
            if self._depth == 1 and _signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                self._before = _signal.signal(signal.SIGINT, self._noting)
        return self

    def __exit__(self, *exc: object) -> None:
        if threading.get_ident() == _MAIN:
            self._depth -= 1
            if self._depth == 0 and self._before is not None:
                _signal.signal(signal.SIGINT, self._before)
                self._before = None

    @contextmanager
    def during(self, mode: Mode) -> Iterator[None]:
        """What a SIGINT does to the main thread inside this block; other threads get none."""
        if threading.get_ident() != _MAIN:
            yield
            return
        before, self._mode = self._mode, mode
        try:
            if mode is Mode.WAITING:
                self.check()  # one that came just before the mode was set
            yield
        finally:
            self._mode = before

    def check(self) -> None:
        """Raises a noted interrupt; to be called where no item is under way, and only there."""
        if self.noted and threading.get_ident() == _MAIN:
            self._raise(safe=True)

    def _raise(self, *, safe: bool) -> None:
        self.noted, self.safe = False, safe
        raise KeyboardInterrupt

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self._mode is Mode.WAITING:
            self._raise(safe=True)
        if self.noted:
            self._raise(safe=False)
        self.noted = True
        _say(UNDER_WAY)
        if self._mode is Mode.ASKING:
            self.woke = True
            raise KeyboardInterrupt


def _say(line: str) -> None:
    # There may be no stderr, or the signal may have come in the middle of a write to it.
    with suppress(AttributeError, OSError, RuntimeError, ValueError):
        sys.stderr.write(line)
        sys.stderr.flush()
