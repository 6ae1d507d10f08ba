"""How long the call that a node's next result hangs on may take."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from flowrl.engine.call import Call

if TYPE_CHECKING:
    from flowrl.engine.core import Engine


class Deadline:
    """Gives up an actor that has not answered a call `timeout_s` after it was first waited for.

    It counts as dead: what that means its failure policy says, and an actor that is started again takes the place of
    the process that hangs. Time counts while the run is moved or not, but before it is up the answer is looked for.
    """

    def __init__(self, run: Engine, node: str, timeout_s: float):
        self.run, self.node, self.timeout_s = run, node, timeout_s
        self._call: Call | None = None
        self._timer: tuple[float, Callable[[], None]] | None = None

    def watch(self, call: Call) -> None:
        """It is waited for, unless it was already."""
        if self._call is not call:
            self.leave()
            self._call = call
            self._timer = self.run.lives.wake(self.run.backend.now() + self.timeout_s, self._passed)

    def leave(self) -> None:
        """Nothing is waited for any more."""
        if self._timer is not None:
            self.run.lives.forget(self._timer)
        self._call = self._timer = None

    def _passed(self) -> None:
        call, self._timer = self._call, None
        assert call is not None
        self.run.calls.look_for(call)
        if not call.done:
            self.run.calls.give_up(
                call,
                f"it has not answered {call.label!r} within {self.timeout_s:g} s, which is the timeout_s of node "
                f"{self.node}: allow more where that may take so long, else see what it hangs in",
            )
