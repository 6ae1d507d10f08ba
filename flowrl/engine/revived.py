"""Groups whose description says what a death means: an actor that is started again has the state of its last life."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from flowrl.engine.call import ANSWERED, LOST, OUT, ActorState, Call
from flowrl.engine.replaced import InARow
from flowrl.engine.snapshots import Snapshots
from flowrl.errors import ActorDied
from flowrl.failures import FailurePolicy, Ignore, Restart
from flowrl.handles import SNAPSHOT_EVERY, ActorGroup, keeps_state

if TYPE_CHECKING:
    from flowrl.engine.core import Engine

NO_STATE = "its class has no get_state() and set_state()"

_log = logging.getLogger("flowrl")


class Reviver:
    """Decides what the death of such an actor means, and keeps the newest snapshot of each actor's state.

    A snapshot is the answer to `get_state()`, asked for after every `snapshot_every` messages; it stays in the object
    store, with a copy on the driver's node where the actor lives on another. A new life is given it by `set_state`
    before it is greeted, and until then nothing else reaches it.
    """

    of_sources = False  # what Lives greets last
    closed = False  # it watches to the end

    def __init__(self, run: Engine, name: str, group: ActorGroup[object], policy: FailurePolicy):
        self.run, self.name, self.policy = run, name, policy
        self._every = group.snapshot_every or SNAPSHOT_EVERY
        self._place = group.where
        self._in_a_row = InARow()
        self._told: dict[ActorState, int] = {}  # messages since the last snapshot
        self._asked: dict[ActorState, Call] = {}  # for snapshots, which are not answered yet
        self._snapshots: dict[ActorState, Snapshots] = {}
        self._reasons: dict[ActorState, str] = {}
        for state in run.states[name]:
            state.reviver = self
            run.watch(state, self)

    @property
    def goes_on(self) -> bool:
        """Whether a death may be outlived."""
        return isinstance(self.policy, Restart | Ignore)

    def begin(self, *, resumed: bool) -> None:
        """The run begins: what each actor has now is its first snapshot.

        Who dies before that is known begins as it did; not so in a run that goes on from a checkpoint, which waits.
        """
        for state in self.run.states[self.name]:
            if isinstance(self.policy, Restart) and keeps_state(state.actor_class):
                self._snapshots[state] = Snapshots(self.run.backend)
                self._ask_snapshot(state)
        while resumed and self._asked:
            self.run.wait(list(self._asked.values()))
            self.run.poll()

    def answered(self, call: Call) -> None:
        """It has answered a message, or done what it was told."""
        state = call.actor
        if state not in self._snapshots or call.kind not in ("ask", "tell"):
            return
        self._told[state] = self._told.get(state, 0) + 1
        if self._told[state] >= self._every and state not in self._asked and state.up:
            self._ask_snapshot(state)

    def _ask_snapshot(self, state: ActorState) -> None:
        self._told[state] = 0
        call = self._asked[state] = self.run.calls.ask(state, "get_state", (), {}, self.name)
        call.kind = "snapshot"  # nobody waits for it
        if call.state is OUT:
            call.arrived = self._took
        else:
            self._took(call)

    def _took(self, call: Call) -> None:
        if call is self._asked.get(call.actor):
            del self._asked[call.actor]
        if call.state is ANSWERED:
            self._snapshots[call.actor].add(call)
        elif call.state is not LOST:
            self.run.fail(call, self.name)

    def died(self, state: ActorState, reason: str) -> None:
        """Its process has ended.

        Raises:
            ActorDied: the policy does not go on, it has died too often in a row, or it was the last.
        """
        run, policy = self.run, self.policy
        self._reasons[state] = reason
        self._asked.pop(state, None)
        if isinstance(policy, Ignore):
            run.accounts.merge([(state.group, None, "actors_lost", "sum", 1.0, 1.0)])
            if any(other.up for other in run.states[self.name]):
                return
            raise ActorDied(f"every actor of {self.name} has died; the last was {state.name}: {reason}{self._said()}")
        tries = self._in_a_row.before(state)
        if isinstance(policy, Restart) and tries < policy.times:
            self._in_a_row.again(state)
            run.restart(state, policy.backoff_s * 2**tries)
            return
        tried = f" after {tries} restarts" if tries else ""
        raise ActorDied(f"{state.name} died{tried}: {reason}{self._said()}")

    def _said(self) -> str:
        return f"; its group (described at {self._place}) has on_failure={self.policy!r}"

    def restarted(self, state: ActorState) -> None:
        """It is up again and has been greeted."""

    def revives(self, state: ActorState) -> bool:
        """Its object is made again: whether it is given a state first, and `Lives.risen` is called when it has it."""
        said = f"{state.name} died ({self._reasons[state]}) and "
        if not self._snapshots.get(state):
            why = "no state of it was known yet" if state in self._snapshots else NO_STATE
            self._warn(state, f"{said}begins anew: {why}")
            return False
        self._give(state)
        return True

    def _give(self, state: ActorState) -> None:
        calls = self.run.calls
        with calls.lock:  # what waits for it comes behind, and so does whatever another thread asks
            mail, state.mail, state.up = state.mail, [], True
            newest = self.run.ref_to(self._snapshots[state].newest)
            call = calls.ask(state, "set_state", (newest,), {}, self.name)
            call.kind = "start"  # it is not up until this is answered
            state.mail, state.up = mail, False
        if call.state is OUT:
            call.arrived = self._given
        else:
            self._given(call)

    def _given(self, call: Call) -> None:
        state = call.actor
        if call.incarnation != state.incarnation or state.leaving:  # it died again meanwhile
            return
        if call.state is LOST and call.undelivered:
            self._snapshots[state].drop_newest()
            if not self._snapshots[state]:
                raise ActorDied(
                    f"{state.name} died: {self._reasons[state]}; its snapshots were lost with the node that it was on, "
                    f"before a copy of one had come to the driver's node{self._said()}"
                )
            self._give(state)
        elif call.state is ANSWERED:
            self._warn(
                state,
                f"{state.name} died ({self._reasons[state]}) and goes on from its last snapshot; up to "
                f"{self._told.get(state, 0)} messages that it had answered since, and those that were out, are lost",
            )
            self.run.lives.risen(state, again=True)
            self._ask_snapshot(state)
        elif call.state is not LOST:  # else its death says what comes next
            self.run.fail(call, self.name)

    def _warn(self, state: ActorState, said: str) -> None:
        _log.warning("%s", said)
        self.run.accounts.warned(state.name, said)
