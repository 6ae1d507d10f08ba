"""Actors that an operator asks and that are started again when they die: a lone one goes on from a snapshot."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flowrl.engine.call import ANSWERED, LOST, OUT, ActorState, Call
from flowrl.engine.snapshots import Snapshots
from flowrl.errors import ActorDied
from flowrl.failures import FailurePolicy, Ignore, Restart
from flowrl.operator import Kept

if TYPE_CHECKING:
    from flowrl.engine.core import Engine

_log = logging.getLogger("flowrl")


class Keeper:
    """Decides what the death of such an actor means, and keeps the newest snapshot of a lone one's state.

    A snapshot is the answer to `get_state()`, asked for after every `every` answers: it stays in the object store, with
    a copy on the driver's node where the actor lives on another. When the actor is up again and has been greeted, it is
    asked `resume(state, at_least)`, with the newest version that its predecessor published; until that is answered,
    nobody asks it for anything else. Of several actors the others go on meanwhile, from whom it can learn.
    """

    of_sources = False  # what Lives greets last
    closed = False

    def __init__(self, run: Engine, node: str, states: Sequence[ActorState], kept: Kept):
        self.run, self.node, self.states, self.policy, self.every = run, node, states, kept.on_failure, kept.every
        self._lone = len(states) == 1
        self._answers = 0
        self._asked: Call | None = None  # for a snapshot, which is not answered yet
        self._snapshots = Snapshots(run.backend)  # the newest that were
        self._resuming: Call | None = None
        self._restarts = dict.fromkeys(states, 0)  # in a row
        self._reason = ""
        for state in states:
            run.watch(state, self)

    @property
    def policy_goes_on(self) -> bool:
        """Whether a death may be outlived."""
        return isinstance(self.policy, Restart | Ignore)

    @property
    def away(self) -> bool:
        """Whether the lone actor is on its way up, so that whoever wants to ask it must wait."""
        return self._lone and (self._resuming is not None or self.states[0].restarting)

    @property
    def calls(self) -> list[Call]:
        """What is awaited where it is away."""
        return [] if self._resuming is None else [self._resuming]

    def begin(self) -> None:
        """Before its first call: what it begins with is the first snapshot."""
        if self._lone and isinstance(self.policy, Restart) and not self._snapshots and self._asked is None:
            self._ask_snapshot()

    def answered(self, state: ActorState) -> None:
        """It has answered a call."""
        self._restarts[state] = 0
        if not self._lone or not isinstance(self.policy, Restart):
            return
        self._answers += 1
        if self._answers >= self.every and self._asked is None:
            self._ask_snapshot()

    def _ask_snapshot(self) -> None:
        state = self.states[0]
        self._answers = 0
        self._asked = self.run.calls.ask(state, "get_state", (), {}, state.group)
        self._asked.kind = "snapshot"  # nobody waits for it
        if self._asked.state is OUT:
            self._asked.arrived = self._took
        else:
            self._took(self._asked)

    def _took(self, call: Call) -> None:
        if call is self._asked:
            self._asked = None
        if call.state is ANSWERED:
            self._snapshots.add(call)
        elif call.state is not LOST:
            self.run.fail(call, self.node)

    def died(self, state: ActorState, reason: str) -> None:
        """Its process has ended.

        Raises:
            ActorDied: the policy does not go on, it has died too often in a row, or there is nothing to go on from.
        """
        policy: FailurePolicy = self.policy
        self._reason, self._resuming, self._asked = reason, None, None
        others = any(other.up for other in self.states)
        if isinstance(policy, Ignore) and others:
            self.run.accounts.merge([(state.group, None, "actors_lost", "sum", 1.0, 1.0)])
            return
        tries = self._restarts[state]
        known = others or (self._lone and bool(self._snapshots))
        if isinstance(policy, Restart) and tries < policy.times and known:
            self._restarts[state] += 1
            self.run.restart(state, policy.backoff_s * 2**tries)
            return
        tried = f" after {tries} restarts" if tries else ""
        why = "" if known or not isinstance(policy, Restart) else "; nobody is left who has its state"
        raise ActorDied(
            f"{state.name} died{tried}: {reason}{why}; node {self.node} has on_failure={policy!r} "
            "(Restart(n) starts it again)"
        )

    def restarted(self, state: ActorState) -> None:
        """It is up again and has been greeted."""
        if self._lone:
            self._resume(state)

    def _resume(self, state: ActorState) -> None:
        version = 0 if state.published is None else state.published[0]
        given = (self.run.ref_to(self._snapshots.newest), version)
        call = self.run.calls.ask(state, "resume", given, {}, state.group)
        self._resuming = call
        if call.state is OUT:
            call.arrived = self._resumed

    def _resumed(self, call: Call) -> None:
        if call is not self._resuming:  # it died again meanwhile
            return
        if call.state is LOST and call.undelivered:
            self._snapshots.drop_newest()
            if not self._snapshots:
                raise ActorDied(
                    f"{call.actor.name} died: {self._reason}; its snapshots were lost with the node that it was on, "
                    "before a copy of one had come to the driver's node, so nobody is left who has its state; node "
                    f"{self.node} has on_failure={self.policy!r}"
                )
            self._resume(call.actor)
            return
        if call.state is LOST:
            return  # its death says what comes next
        self._resuming = None
        if call.state is not ANSWERED:
            self.run.fail(call, self.node)
            return
        lost = sum(number for name, number in call.infos[0].metrics.items() if name.endswith("updates_lost"))
        said = (
            f"{call.actor.name} died ({self._reason}) and goes on from its last snapshot; {lost:.0f} updates are lost"
        )
        _log.warning("%s", said)
        self.run.accounts.warned(call.actor.name, said)
        self._ask_snapshot()
