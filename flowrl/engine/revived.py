"""Groups whose description says what a death means: an actor that is started again has the state of its last life."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

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
        states = run.states[name]
        self._answered = dict.fromkeys(states, 0)  # messages, in all lives
        self._asked_at = dict.fromkeys(states, 0)  # how many of them before the last snapshot was asked for
        self._kept_at = dict.fromkeys(states, 0)  # how many the newest snapshot has seen
        self._asked: dict[ActorState, Call] = {}  # for snapshots, which are not answered yet
        self._snapshots: dict[ActorState, Snapshots] = {}  # of those that have a state
        self._reasons: dict[ActorState, str] = {}
        self._begun = self._resumed = False
        for state in states:
            state.reviver = self
            run.watch(state, self)
            if self.starts_again and keeps_state(state.actor_class):
                self._snapshots[state] = Snapshots(run.backend)

    @property
    def goes_on(self) -> bool:
        """Whether a death may be outlived."""
        return isinstance(self.policy, Restart | Ignore)

    @property
    def starts_again(self) -> bool:
        """Whether one that dies is started again."""
        return isinstance(self.policy, Restart)

    def begin(self, *, resumed: bool) -> None:
        """The run begins: what each actor has now is its first snapshot.

        Who dies before that is known begins as it did. A run that goes on from a checkpoint waits for it.

        Raises:
            ActorDied: in such a run one has died before, and with it what the checkpoint had given it.
        """
        self._begun, self._resumed = True, resumed
        for state in self.run.states[self.name]:
            self._ask(state)
        while resumed and self._asked:
            self.run.wait(list(self._asked.values()))
            self.run.poll()

    def answered(self, call: Call) -> None:
        """It has answered a message, or done what it was told."""
        state = call.actor
        if call.kind not in ("ask", "tell"):
            return
        self._answered[state] += 1
        if state not in self._snapshots or self._answered[state] - self._asked_at[state] < self._every:
            return
        out = self._asked.get(state)
        if out is not None:  # it may be there, and nobody has waited for anything since
            self.run.calls.look_for(out)
        self._ask(state)

    def _ask(self, state: ActorState) -> None:
        """For its state; of what a function makes, first whether it has one."""
        known = state in self._snapshots
        if not self.starts_again or not state.up or state in self._asked:
            return
        if not known and isinstance(state.actor_class, type):  # it has none
            return
        method: Any = "get_state" if known else keeps_state
        with self.run.calls.lock:  # another thread, whose message was answered, may look for it
            self._asked_at[state] = self._answered[state]
            call = self._asked[state] = self.run.calls.ask(state, method, (), {}, self.name)
            call.kind = "snapshot"  # nobody waits for it
            call.arrived = self._took if known else self._learned

    def _learned(self, call: Call) -> None:
        if self._asked.pop(call.actor, None) is call and call.state is ANSWERED and call.item(0, self.run.backend):
            self._snapshots[call.actor] = Snapshots(self.run.backend)
            self._ask(call.actor)

    def _took(self, call: Call) -> None:
        state = call.actor
        if call is not self._asked.get(state):  # of a life that has ended
            return
        del self._asked[state]
        if call.state is ANSWERED:
            self._snapshots[state].add(call)
            self._kept_at[state] = self._asked_at[state]
        elif call.state is not LOST:
            self._failed(call, "get_state(), which is kept for a next life,")

    def _failed(self, call: Call, what: str) -> None:
        error = call.error()
        assert error is not None
        self.run.calls.failed.append((self.name, what, call.actor, error))
        self.run.alarm.on = True

    def died(self, state: ActorState, reason: str) -> None:
        """Its process has ended.

        Raises:
            ActorDied: the policy does not go on, it has died too often in a row, or it was the last.
        """
        run, policy = self.run, self.policy
        self._reasons[state] = reason
        asked = self._asked.pop(state, None)
        if isinstance(policy, Ignore):
            run.accounts.merge([(state.group, None, "actors_lost", "sum", 1.0, 1.0)])
            if any(other.up for other in run.states[self.name]):
                return
            raise ActorDied(f"every actor of {self.name} has died; the last was {state.name}: {reason}{self._said()}")
        if self._resumed and not self._snapshots.get(state) and (asked or state in self._snapshots):
            raise ActorDied(
                f"{state.name} died: {reason}, before what the checkpoint had given it was kept; resume once more"
                f"{self._said()}"
            )
        tries = self._in_a_row.before(state, self._answered[state])
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
        if self._begun:
            self._ask(state)

    def revives(self, state: ActorState) -> bool:
        """Its object is made again: whether it is given a state first, and `Lives.risen` is called when it has it."""
        said = f"{state.name} died ({self._reasons[state]}) and "
        if not self._snapshots.get(state):
            why = "no state of it was known yet" if state in self._snapshots else NO_STATE
            self._warn(state, f"{said}begins anew: {why}")
            self._kept_at[state] = self._answered[state]
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
                f"{self._answered[state] - self._kept_at[state]} messages that it had answered since, and those that "
                "were out, are lost",
            )
            self._kept_at[state] = self._answered[state]
            self.run.lives.risen(state, again=True)
        elif call.state is not LOST:  # else its death says what comes next
            state.restarting = False
            self._failed(call, "set_state(), by which it goes on after its death,")

    def _warn(self, state: ActorState, said: str) -> None:
        _log.warning("%s", said)
        self.run.accounts.warned(state.name, said)
