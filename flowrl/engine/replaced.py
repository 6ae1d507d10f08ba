"""Actors without a state of their own, which an operator asks beside the items: what their deaths mean."""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING

from flowrl.engine.call import ActorState
from flowrl.engine.interrupts import MAIN, Mode
from flowrl.errors import ActorDied
from flowrl.failures import FailurePolicy, Ignore, Restart

if TYPE_CHECKING:
    from flowrl.engine.core import Engine

LOOK_S = 0.5  # how often who waits for an actor looks whether the run goes on at all
GRACE_S = 3.0  # how long an operator that was interrupted may still wait for an actor


class InARow:
    """How often each of some actors was started again in a row.

    Deaths are in a row while nothing is answered between them, or each comes after as many answers as the last.
    """

    def __init__(self) -> None:
        self._restarts: dict[ActorState, int] = {}
        self._lives: dict[ActorState, tuple[int, int]] = {}  # answers until the last death, and in the life it ended

    def before(self, state: ActorState, answered: int) -> int:
        """It has died, having `answered` so many messages in all its lives: how often it was started again in a row."""
        before, last = self._lives.get(state, (0, -1))
        answers = answered - before
        self._lives[state] = answered, answers
        if answers not in (0, last):
            self._restarts[state] = 0
        return self._restarts.get(state, 0)

    def again(self, state: ActorState) -> None:
        """It is started again."""
        self._restarts[state] = self._restarts.get(state, 0) + 1


class Replacer:
    """Decides what the death of such an actor means: another takes its place, with the same seed, or none does."""

    of_sources = False  # what Lives greets last
    closed = False  # it watches to the end

    def __init__(self, run: Engine, node: str, group: str, policy: FailurePolicy):
        self.run, self.node, self.group, self.policy = run, node, group, policy
        states = run.states[group]
        self._in_a_row = InARow()
        run.replaced.add(group)
        for state in states:
            run.watch(state, self)

    def died(self, state: ActorState, reason: str) -> None:
        """Its process has ended.

        Raises:
            ActorDied: the policy does not go on, it has died too often in a row, or it was the last.
        """
        run, policy = self.run, self.policy
        if isinstance(policy, Ignore):
            run.accounts.merge([(self.group, None, "actors_lost", "sum", 1.0, 1.0)])
            if any(other.up for other in run.states[self.group]):
                return
            raise ActorDied(
                f"every actor of {self.group} has died; the last was {state.name}: {reason}; node {self.node} has "
                f"on_failure={policy!r} (Restart(n) starts them again)"
            )
        tries = self._in_a_row.before(state, state.answers)
        if isinstance(policy, Restart) and tries < policy.times:
            self._in_a_row.again(state)
            run.restart(state, policy.backoff_s * 2**tries)
            return
        tried = f" after {tries} restarts" if tries else ""
        raise ActorDied(
            f"{state.name} died{tried}: {reason}; node {self.node} has on_failure={policy!r} "
            "(Restart(n) starts it again, Ignore() goes on without it)"
        )

    def restarted(self, state: ActorState) -> None:
        """It is up again: whoever asked its predecessor sees to what was lost."""


def wait_up(engine: Engine, state: ActorState, within_s: float | None = None) -> None:
    """Waits, in the middle of an item, for an actor that is on its way up, until it is up or will not come.

    Raises:
        ActorDied: it has died again, and its policy does not go on.
        TimeoutError: it was not up within_s. KeyboardInterrupt: it was not up within a grace.
        FlowError: the run is being closed. What its constructor raised, or who gave it its state.
    """
    if state.up:
        return
    items = [(stage.ctx, stage.ctx.item_id) for stage in engine.stages]  # which greetings change
    calls, clock, until = engine.calls, engine.backend.now, float("inf")
    limit = until if within_s is None else clock() + within_s
    try:
        while True:
            engine.raise_noted()  # it may have come to nothing, or the run to its end
            if not state.restarting:
                return
            due = engine.lives.fire_timers()
            engine.lives.settle_deaths(state)  # it may have died again, or found no room
            starts = [call for call in list(calls.pending.values()) if call.kind == "start" and call.actor is state]
            now = clock()
            if engine.interrupts.noted and get_ident() == MAIN:  # also one that came while nobody waited
                until = min(until, now + GRACE_S)
            if now >= until:
                raise KeyboardInterrupt
            if now >= limit:
                raise TimeoutError(
                    f"{state.name}, which is being started again, was not up within timeout_s={within_s:g}"
                )
            left = min(LOOK_S, until - now, limit - now, LOOK_S if due is None else due)
            try:
                calls.wait_or_pass(starts, left, Mode.ASKING)
            except KeyboardInterrupt:
                if not engine.interrupts.woke:
                    raise
                engine.interrupts.woke = False
    finally:
        for ctx, item in items:
            ctx.item_id = item
