"""A run moved on by a thread, for notebooks: pause, look, resume, stop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from flowrl.errors import FlowError
from flowrl.given import seconds

if TYPE_CHECKING:
    from flowrl.engine.run import Run

T = TypeVar("T")


class Handle(Generic[T]):
    """A run in the background. `latest` is its newest item, `count` how many came, `error` what stopped it."""

    def __init__(self, run: Run[T]):
        self._run = run
        self._changed = threading.Condition()
        self._wanted: Literal["move", "pause", "stop"] = "move"
        self._moving = True  # from before the thread starts until it rests
        self.latest: T | None = None
        self.count = 0
        self.error: BaseException | None = None
        self.done = False
        self._thread = threading.Thread(target=self._drive, name="flowrl-run", daemon=True)
        self._thread.start()

    @property
    def driving(self) -> bool:
        """Whether the thread moves the run on now."""
        return self._moving

    def pause(self, timeout_s: float | None = None) -> T | None:
        """Stops after the item at hand and returns it; `run.step()` may be used until resume().

        Raises:
            TimeoutError: the item at hand took longer than timeout_s; the run still stops after it.
            ValueError: timeout_s is not a number of at least 0.
            The run's own exception, where it was stopped by one.
        """
        self._refuse_within("pause")
        limit_s = seconds(timeout_s)
        with self._changed:
            if self._wanted == "move":
                self._wanted = "pause"
                self._changed.notify_all()
            if not self._changed.wait_for(lambda: not self._moving, limit_s):
                raise TimeoutError(f"the run has not come to the end of an item within {timeout_s} s")
        return self._told()

    def resume(self) -> None:
        """Moves on after pause()."""
        with self._changed:
            if self._wanted == "pause" and not self.done:
                self._wanted, self._moving = "move", True
                self._changed.notify_all()

    def wait(self, count: int, timeout_s: float | None = None) -> T | None:
        """Waits until `count` items have come, or the run has ended; returns the newest. Interrupted, it pauses.

        Raises:
            TimeoutError: it took longer than timeout_s.
            ValueError: timeout_s is not a number of at least 0.
            The run's own exception, where it was stopped by one.
        """
        self._refuse_within("wait")
        limit_s = seconds(timeout_s)
        with self._changed:
            if not self._came(lambda: self.count >= count or self.done, limit_s):
                raise TimeoutError(f"{self.count} of {count} items have come within {timeout_s} s")
        return self._told()

    def join(self, timeout_s: float | None = None) -> T | None:
        """Waits for the run's end and returns its last item. Interrupted, it pauses.

        Raises:
            TimeoutError: it took longer than timeout_s.
            ValueError: timeout_s is not a number of at least 0.
            The run's own exception, where it was stopped by one.
        """
        self._refuse_within("join")
        limit_s = seconds(timeout_s)
        with self._changed:
            if not self._came(lambda: self.done, limit_s):
                raise TimeoutError(f"the run has not ended within {timeout_s} s")
        return self._told()

    def stop(self, timeout_s: float | None = None) -> bool:
        """Ends the thread after the item at hand; the run stays usable. False if that took longer than timeout_s.

        Raises:
            ValueError: timeout_s is not a number of at least 0.
        """
        limit_s = seconds(timeout_s)
        with self._changed:
            self._wanted = "stop"
            self._changed.notify_all()
        if threading.current_thread() is self._thread:
            return True
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def _came(self, what: Callable[[], bool], limit_s: float | None) -> bool:
        try:
            return self._changed.wait_for(what, limit_s)
        except KeyboardInterrupt:  # of the cell that waits
            if self._wanted == "move":
                self._wanted = "pause"
                self._changed.notify_all()
            raise

    def _ipython_display_(self) -> None:
        from flowrl.live import show

        show(self, self._run)

    def changed(self, count: int, timeout_s: float) -> bool:
        """Waits until more items than `count` have come, the run rests, or timeout_s; whether there are more."""
        with self._changed:
            self._changed.wait_for(lambda: self.count > count or not self._moving, timeout_s)
            return self.count > count

    @property
    def state(self) -> str:
        """Running, paused, ended, or stopped by an exception of this name."""
        if self.error is not None:
            return f"stopped by {type(self.error).__name__}"
        return "ended" if self.done else "running" if self._moving else "paused"

    def _refuse_within(self, what: str) -> None:
        if threading.current_thread() is self._thread:
            raise FlowError(
                f"an operator of this run cannot {what} its background: it would wait for itself; call handle.{what}() "
                "from another thread"
            )

    def _told(self) -> T | None:
        if self.error is not None:
            raise self.error
        return self.latest

    def __repr__(self) -> str:
        return f"Handle({self.state}, {self.count:,} items, of {self._run!r})"

    def _goes_on(self) -> bool:
        """Rests while paused; whether to move on."""
        with self._changed:
            while self._wanted == "pause":  # said again each time: it may have been resumed and paused meanwhile
                self._moving = False
                self._changed.notify_all()
                self._changed.wait()
            return self._wanted == "move"

    def _drive(self) -> None:
        error: BaseException | None = None
        try:
            while self._goes_on():
                item = self._run.advance()
                with self._changed:
                    self.latest, self.count = item, self.count + 1
                    self._changed.notify_all()
        except StopIteration:
            pass
        except BaseException as raised:
            error = raised
        finally:
            with self._changed:
                # What close() provokes in the middle of an item is no failure of the run.
                self.error = None if self._run.closed and self._wanted == "stop" else error
                self.done, self._moving = True, False
                self._changed.notify_all()
