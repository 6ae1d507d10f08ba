"""What a rollout worker does about the faults of its environments: told, written down, and made anew if asked for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from flowrl.errors import add_note
from flowrl.failures import Restart
from flowrl.metrics import Sum
from flowrl.rl.action_log import ActionLog, episode_of
from flowrl.rl.checked import NotFinite
from flowrl.rl.crashes import MOST, Place, Way, write_crash
from flowrl.rl.located import Call, Fault, constructor_fault, hanging

if TYPE_CHECKING:
    from flowrl.rl.actions import ActionLayout
    from flowrl.rl.fragment import Fragment
    from flowrl.rl.halves import Halves
    from flowrl.rl.unroll import Unroll
    from flowrl.rl.vector import VectorSource

T = TypeVar("T")


class Restarts:
    """Whether a fault is outlived: up to `times` in a row, after a pause that doubles (`EnvOptions.on_fault`).

    place: of the environments, for the bundles. sleep: how pauses are made.
    """

    def __init__(self, place: Place, sleep: Callable[[float], None] = time.sleep):
        self.place, self._policy, self._sleep = place, place.options.on_fault, sleep
        self.in_a_row = 0
        self._restarts = self._discarded = 0  # since they were last told
        self._written = 0

    def goes_on(self, error: Exception, discarded: int = 0) -> bool:
        """Whether the environments are to be made anew after a fault; if so, after the pause.

        discarded: environment steps that are lost with it.
        """
        if not isinstance(self._policy, Restart):
            return False
        if self.in_a_row >= self._policy.times:
            add_note(error, f"after {self.in_a_row} restarts in a row (EnvOptions.on_fault={self._policy!r})")
            return False
        self.in_a_row += 1
        self._restarts += 1
        self._discarded += discarded
        pause_s = self._policy.backoff_s * 2 ** (self.in_a_row - 1)
        if pause_s:
            self._sleep(pause_s)
        return True

    def made(self, make: Callable[[], T]) -> T:
        """What `make` makes, tried again where the constructor of an environment fails."""
        while True:
            try:
                return make()
            except Exception as error:
                fault = constructor_fault(error)
                if fault is None:
                    raise
                self.write(fault, Way(np.zeros((0, 1))))
                if not self.goes_on(error):
                    raise

    def write(self, fault: Fault, way: Way, place: Place | None = None) -> None:
        """Leaves a bundle, if wanted, and says where in a note; `place` where it is not that of all environments."""
        folder = self.place.options.crash_dir
        if folder is None or self._written >= MOST:
            return
        self._written += 1
        path = write_crash(folder, fault, place or self.place, way)
        if path is not None:
            add_note(fault.error, f"to see it again: {_again(path, (place or self.place).env)}")

    def outlived(self) -> dict[str, Any]:
        """A whole fragment was gathered: metrics of the faults before it, if there were any."""
        self.in_a_row = 0
        if not self._restarts:
            return {}
        told = {"env_restarts": Sum(self._restarts), "steps_discarded": Sum(self._discarded)}
        self._restarts = self._discarded = 0
        return told


class Faults(Restarts):
    """The faults of a rollout worker's environments, with what it has played since they were reset."""

    def __init__(self, place: Place, sleep: Callable[[float], None] = time.sleep):
        super().__init__(place, sleep)
        self.log = ActionLog()
        self._now: tuple[Fragment, Unroll, ActionLayout] | None = None

    def watch(self, source: VectorSource | Halves) -> None:
        """Has a watchdog write its bundle before it ends the process."""
        for part in source.parts:
            if part.watchdog is not None:
                part.watchdog.before = lambda call, part=part: self._hangs(part, call)

    def fills(self, fragment: Fragment, unroll: Unroll, layout: ActionLayout) -> None:
        """A fragment is begun."""
        self._now = fragment, unroll, layout

    def told(self, error: Exception, source: VectorSource | Halves) -> Fault | None:
        """The fault behind an error, if an environment caused it; its note and bundle are made."""
        faults = [part.fault for part in source.parts if part.fault is not None and part.fault.error is error]
        row: int | None = None
        if isinstance(error, NotFinite):
            faults, row = [Fault(error, "not_finite", "reset" if error.row is None else "step", error.env)], error.row
        if not faults or self._now is None:
            return None
        fault = faults[0] if faults[0].kind == "error" else self._placed(faults[0], source)
        way = self._way(fault, source, row)
        where = "" if fault.seed is None else f"environment {fault.env} had the seed {fault.seed}"
        if fault.kind != "error":  # whose note stands already
            where = f"in environment {fault.env}, at step {way.step} of its episode, action {way.action}; {where}"
        if where:
            add_note(error, where)
        self.write(fault, way)
        return fault

    def _placed(self, fault: Fault, source: VectorSource | Halves) -> Fault:
        seed = None if fault.env is None else source.seed_of(fault.env, self.log.at_step)
        return Fault(fault.error, fault.kind, fault.call, fault.env, seed, None, fault.exit_code)

    def _way(self, fault: Fault, source: VectorSource | Halves, row: int | None) -> Way:
        """What was played up to the fault; `row` is that of the fragment, else the one that is under way."""
        assert self._now is not None
        fragment, unroll, layout = self._now
        env = fault.env
        if not fragment.begun:
            return Way(layout.to_env(unroll.actions_TN[:0, :1]), self.log.at_step)
        taken = fragment.taken_of(env) if row is None else row
        done_TN = fragment.terminated_TN[: taken + 1] | fragment.truncated_TN[: taken + 1]
        done_TN[taken:] = False
        actions, done = self.log.rows(env, unroll.actions_TN[: taken + 1], done_TN)
        first, step = episode_of(done[:, 0], len(done) - 1, phantom_rows=source.phantom_rows)
        actions = layout.to_env(actions)
        action = actions[-1] if env is None else actions[-1, 0]
        if self.log.at_step is not None or fault.generator is None or first is None:
            return Way(actions, self.log.at_step, None, step, action)
        return Way(actions[first:], None, fault.generator, step, action)

    def _hangs(self, part: VectorSource, call: Call) -> str:
        """Which environment hangs in this process, and where; called from the watchdog's thread."""
        which = hanging(part.vector)
        told = TimeoutError(f"environment {which} of {part.name} did not come back from {call}")
        fault = self._placed(Fault(told, "timeout", call, which), part)
        way = Way(np.zeros((0, 1))) if self._now is None else self._way(fault, part, None)
        self.write(fault, way)
        return f"environment {which}, seed {fault.seed}, at step {way.step} of its episode, action {way.action}"


def _again(path: Any, env: Any) -> str:
    """How a bundle is played again: a command, where an import finds what makes the environment."""
    if isinstance(env, str):
        return f"flowrl replay-crash {path}" + " --allow-import" * (":" in env)
    if getattr(env, "__module__", "__main__") == "__main__" or "<" in getattr(env, "__qualname__", "<"):
        return f"flowrl.rl.replay_crash.replay_crash({str(path)!r}, env=...) in Python, with what makes the environment"
    return f"flowrl replay-crash {path} --allow-import"
