"""The lives of a run's actors: started together, greeted, and after a death started again by their gathers' policy."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol

from flowrl.backends.protocol import GroupPlan, NoRoom
from flowrl.engine.blame import note_of
from flowrl.engine.call import ANSWERED, LOST, ActorState, Call
from flowrl.engine.failure import InNode
from flowrl.errors import ActorDied, add_note
from flowrl.held import held_groups
from flowrl.operator import ItemId

if TYPE_CHECKING:
    from flowrl.engine.core import Engine
    from flowrl.engine.stage import Stage


LOOK_S = 0.5  # between two looks for a place
SLOW_S = 30.0  # after which it is said that an actor has not come up

_log = logging.getLogger("flowrl")


class Watcher(Protocol):
    """Who decides what the death of an actor means."""

    closed: bool

    def died(self, state: ActorState, reason: str) -> None:
        """Its process has ended.

        Raises:
            ActorDied: the run does not go on.
        """
        ...

    def restarted(self, state: ActorState) -> None:
        """It is up again and has been greeted."""
        ...


class Lives:
    """Starts, greets and restarts. Works in the driver's thread only."""

    def __init__(self, engine: Engine):
        self._engine = engine
        self.plans: dict[str, GroupPlan] = {}
        self.bodies: dict[str, Callable[[ActorState], Any]] = {}  # what an actor of the group is started with
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self._watchers: dict[ActorState, list[Watcher]] = {}
        self._greeting = False  # only once all have come up
        self._looks: dict[Call, tuple[float, Callable[[], None]]] = {}  # timers of those that are on their way up

    def watch(self, state: ActorState, cursor: Watcher) -> None:
        """A gather, or the pacing of a replay group, wants to decide what the death of its shard means."""
        self._watchers.setdefault(state, []).append(cursor)

    def watches(self, state: ActorState) -> bool:
        """Whether anybody decides what the death of an actor means."""
        return bool(self._watchers.get(state)) or state.leaving

    def unwatch(self, state: ActorState) -> None:
        """Nobody decides about an actor any more."""
        self._watchers.pop(state, None)

    def bring_up(self) -> None:
        """Makes every actor, all at once, and waits for them; one that dies meanwhile is tried again by the policy.

        Raises:
            ActorDied: one died, and no policy goes on. The exception of a constructor, where one raised.
        """
        engine = self._engine
        for name, plan in self.plans.items():
            for state in engine.states[name]:
                state.actor = engine.backend.create(plan, state.index)
                self._start(state)
        while any(state.alive and not state.up for states in engine.states.values() for state in states):
            engine.wait(None)
            engine.poll()

    def greet_all(self) -> None:
        """Tells every operator of every actor; learners before sources, which need what those publish when greeted."""
        engine = self._engine
        self._greeting, engine.driver = True, get_ident()  # what operators ask now may outlive a death, as later on
        try:
            self._greet_all()
        finally:
            engine.driver = None

    def _greet_all(self) -> None:
        engine = self._engine
        of_sources = {state: [getattr(w, "of_sources", True) for w in ws] for state, ws in self._watchers.items()}
        sources = {state.group for state, said in of_sources.items() if any(said)}
        for name in sorted(engine.states, key=lambda group: group in sources):
            for state in engine.states[name]:
                if state.alive:
                    self.greet(state)
            if name not in sources:
                for call in [call for call in list(engine.calls.pending.values()) if call.kind == "ask"]:
                    self._await(call)

    def _await(self, call: Call) -> None:
        """Waits for what an actor was asked as another was greeted; where one dies meanwhile its policy has the say.

        Raises:
            ActorDied: no policy goes on. Whatever it raised.
        """
        engine = self._engine
        while not call.done:
            engine.wait([call])
        engine.poll()
        error = call.error()
        if error is not None and error.type_name != ActorDied.__name__:  # that of an argument is settled by now
            engine.raise_failed(call, call.node)

    def greet(self, state: ActorState) -> None:
        """Tells every operator of one actor."""
        engine = self._engine
        for stage in engine.stages:
            stage.ctx.item_id = ItemId(-1)
            handle = engine.handle(state, stage.name, held=True)
            try:
                stage.op.actor_started(handle, stage.ctx)
            except BaseException as error:
                raise InNode(stage.name, ItemId(-1, (handle,))) from error

    def _start(self, state: ActorState) -> None:
        call = self._engine.calls.start(state, self.bodies[state.group](state))
        call.arrived = self._started
        if not self._engine.backend.in_process:
            self._look_after(call)

    def _look_after(self, call: Call, waited_s: float = 0.0) -> None:
        """Says of an actor that does not come up that it does not."""

        def look() -> None:
            del self._looks[call]
            if not call.done:
                waited = waited_s + SLOW_S
                name = call.actor.name
                _log.warning(
                    "%s has been starting for %g s: is the machine busy (imports take long then), or has the cluster "
                    "no room for it (`ray status`)?",
                    name,
                    waited,
                )
                self._look_after(call, waited)

        self._looks[call] = self.wake(self._engine.backend.now() + SLOW_S, look)

    def _started(self, call: Call) -> None:
        state, engine = call.actor, self._engine
        if call in self._looks:
            self.forget(self._looks.pop(call))
        if call.state is LOST or state.leaving:
            return
        if call.state is not ANSWERED:
            state.restarting = False
            engine.fail(call, state.group)
            return
        if not (state.restarting and state.reviver is not None and state.reviver.revives(state)):
            self.risen(state, again=state.restarting)

    def risen(self, state: ActorState, *, again: bool) -> None:
        """It is up, with whatever it goes on from: it is greeted, and whoever watches over it hears of it."""
        engine = self._engine
        state.restarting, state.up = False, True
        if again:
            engine.accounts.settled(f"{state.name} waits ")
            engine.accounts.merge([(state.group, None, "restarts", "sum", 1.0, 1.0)])
        if not self._greeting:
            return
        try:
            self.greet(state)
        except InNode as located:
            engine.raise_located(located)
        for cursor in self._watchers.get(state, ()):
            cursor.restarted(state)

    def restart(self, state: ActorState, backoff_s: float) -> None:
        """Starts a dead actor again after a pause; its shards go on when it has been greeted."""
        if state.restarting:
            return
        engine = self._engine
        state.restarting = True

        began = engine.backend.now() + backoff_s

        def again() -> None:
            if state.leaving or engine.closing:
                return
            try:
                state.actor = engine.backend.restart(state.actor, self.plans[state.group], state.index)
            except NoRoom as full:
                self._has_no_room(state, full, began, again)
            else:
                self._start(state)

        self.wake(began, again)

    def _has_no_room(self, state: ActorState, full: NoRoom, since: float, again: Callable[[], None]) -> None:
        """It waits for its place as long as the backend is willing to; then it counts as dead again."""
        engine = self._engine
        now = engine.backend.now()
        if now < since + full.wait_s:
            engine.accounts.warned(state.name, f"{state.name} waits for a place to start again: {full}")
            self.wake(now + LOOK_S, again)
            return
        engine.calls.deaths.append((state, state.incarnation, str(full)))
        engine.alarm.on = True

    def wake(self, at: float, act: Callable[[], None]) -> tuple[float, Callable[[], None]]:
        """Has something done at a time of the backend's clock, which a wait of the driver then ends for."""
        timer = (at, act)
        self.timers.append(timer)
        self.timers.sort(key=lambda timer: timer[0])
        return timer

    def forget(self, timer: tuple[float, Callable[[], None]]) -> None:
        """What `wake` gave is not to be done."""
        if timer in self.timers:
            self.timers.remove(timer)

    def fire_timers(self) -> float | None:
        """Does what is due; seconds until the next timer."""
        while self.timers:
            due, fire = self.timers[0]
            left = due - self._engine.backend.now()
            if left > 0:
                return left
            self.timers.pop(0)
            fire()
        return None

    def settle_deaths(self, only: ActorState | None = None) -> None:
        """Decides on the deaths that were noticed since the last time; on those of one actor, if it is given.

        Raises:
            ActorDied: the policy does not go on, or nobody's policy covers the actor.
        """
        deaths = self._engine.calls.deaths
        while found := [death for death in deaths if only in (None, death[0])]:
            state, incarnation, reason = found[0]
            deaths.remove(found[0])
            if state.reviver is not None:  # what it has answered is in its snapshots, and must not be asked again
                self._engine.calls.look_for_all(state)
            if incarnation == state.incarnation and state.alive:
                self._died(state, reason)

    def _died(self, state: ActorState, reason: str) -> None:
        engine = self._engine
        watched = [] if state.leaving else self._watchers.get(state, [])
        with engine.calls.lock:
            state.incarnation += 1
            state.up = state.restarting = False
            lost = engine.calls.forget(state)
        if not watched:
            state.published = None
        engine.accounts.groups[state.group].deaths += 1
        try:
            for cursor in watched:
                if not cursor.closed:
                    cursor.died(state, reason)
            if not watched and not state.leaving:
                out = ", ".join(sorted({call.label for call in lost})) or "nothing"
                raise ActorDied(f"{state.name} died: {reason}; out were: {out}{self.remedy(state)}")
        except ActorDied as error:
            for node in self._nodes_of(state, lost):
                add_note(error, note_of(engine.places, node, None, state.name, None))
            raise
        finally:
            state.alive = state.restarting

    def remedy(self, state: ActorState) -> str:
        """What could be done about an actor that does not answer: where a policy could have been said that goes on."""
        if state.restarting or (state.alive and state.reviver is not None and state.reviver.starts_again):
            return "; ask it again once it is up"
        if self.watches(state):
            return "" if state.alive or state.leaving else "; ctx.living(group) has those that live"
        able = [stage.name for stage in self._holding(state.group) if hasattr(stage.op, "on_failure")]
        several = len(self._engine.states[state.group]) > 1
        said = f"{able[0]}(" if able else f"flowrl.actor{'s' * several}(..., "
        return f"; {said}on_failure=Restart(n)) starts it again"

    def _holding(self, group: str) -> list[Stage]:
        """The stages whose operators hold a group."""
        return [
            stage
            for stage in self._engine.stages
            if any(stage.ctx._run.prefix + held.name == group for held in held_groups(stage.op))
        ]

    def _nodes_of(self, state: ActorState, lost: Sequence[Call]) -> list[str]:
        """The nodes that had asked it for something; else those that say what its death means, or hold its group."""
        places = self._engine.places
        asked = dict.fromkeys(call.node for call in lost if call.node in places)
        deciding = [
            getattr(watcher, "node", None) or getattr(watcher, "name", "") for watcher in self._watchers.get(state, ())
        ]
        return (
            list(asked)
            or [node for node in dict.fromkeys(deciding) if node in places]
            or [stage.name for stage in self._holding(state.group)]
        )
