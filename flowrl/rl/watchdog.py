"""A deadline for calls that nothing in their own process can interrupt: a thread that ends the process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from flowrl import process
from flowrl.rl.located import Call

LOOKS = 4  # within the time that a call may take: how late it may be noticed


class Watchdog:
    """Ends this actor's process where a reset or step of an environment takes longer than `timeout_s`.

    An environment that hangs in its own process cannot be killed alone. The driver is told why, and the failure policy
    of the gather says what the death means. `before`, if set, is called first with the method that hangs; it says more.

    Raises:
        ValueError: this process is not the actor's own.
    """

    def __init__(self, timeout_s: float):
        if not process.is_an_actors_own():
            raise ValueError(
                f"env_timeout_s={timeout_s:g} cannot end an environment that hangs in this very process, which is the "
                "driver's (Local): use EnvOptions(vector='async'), whose copies have processes of their own, or Ray"
            )
        self.timeout_s = timeout_s
        self.before: Callable[[Call], str] | None = None
        self._until: float | None = None
        self._what: tuple[Call, str] = ("step", "")
        self._closed = threading.Event()  # of the thread
        self._thread: threading.Thread | None = None

    @contextmanager
    def watching(self, call: Call, name: str) -> Iterator[None]:
        """For as long as a call lasts."""
        if self._thread is None:  # the first call, or the first after a close: environments are made anew after a fault
            self._closed = threading.Event()
            self._thread = threading.Thread(target=self._watch, args=(self._closed,), name="watchdog", daemon=True)
            self._thread.start()
        self._what, self._until = (call, name), monotonic() + self.timeout_s
        try:
            yield
        finally:
            self._until = None

    def _watch(self, closed: threading.Event) -> None:
        while not closed.wait(self.timeout_s / LOOKS):
            until = self._until
            if until is not None and monotonic() > until:
                call, name = self._what
                reason = f"environment {name} did not come back from {call} within {self.timeout_s:g} s"
                try:
                    if self.before is not None:
                        reason += f": {self.before(call)}"
                finally:
                    process.end(reason)

    def close(self) -> None:
        """Ends the thread; the next call that is to be watched begins another."""
        self._closed.set()
        self._thread = None
