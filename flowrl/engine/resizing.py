"""Groups that grow and shrink while a run goes on: actors join between two items, and leave when their work is in."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from threading import get_ident
from types import TracebackType

from flowrl.engine.call import LOST, ActorState, Call
from flowrl.engine.core import CLOSED_MEANWHILE, Engine
from flowrl.engine.failure import InNode
from flowrl.engine.gathers import GatherCursor
from flowrl.engine.interrupts import MAIN, Mode
from flowrl.engine.saving import all_cursors, begin_again, limiters, turns
from flowrl.errors import ActorDied, FlowError, GraphError
from flowrl.given import short, whole
from flowrl.graph import Shards, full_name, messaged, source_group
from flowrl.operator import AskOperator

_log = logging.getLogger("flowrl")
LOOK_S = 0.5  # how often who waits for new actors looks whether the run is being closed
PATIENCE_S = 2.0  # how long an actor that leaves may take to close


@dataclass(frozen=True)
class Resized:
    """What became of a group: it had `before` actors and has `after`.

    Of shards that left: `items` of theirs are there and come out as any others; `lost_steps` were not answered within
    the time that was given and are lost, also counted in `run.stats().lost_calls`; `lost_rows` went with replay shards.
    """

    group: str
    before: int
    after: int
    items: int = 0
    lost_steps: int = 0
    lost_rows: int = 0


# ---------------------------------------------------------------- what can be resized


def check_resize(engine: Engine, group: str, count: int) -> None:
    """Nothing, if a group can have so many actors.

    Raises:
        ValueError: no such group, or no such number. GraphError: its number is fixed; says why.
        FlowError: those that would be left have died.
    """
    states = engine.states.get(group)
    if states is None:
        raise ValueError(f"this run has no group {short(group)}; it has {', '.join(engine.states) or 'none'}")
    number = whole(count)
    if number is None or number < 1:
        raise ValueError(f"a group needs at least 1 actor, got count={short(count)} for {group!r}")
    why = None if number == len(states) else _why_fixed(engine, group)
    if why is not None:
        raise GraphError(
            f"group {group!r} keeps its {len(states)} actor(s): {why}. Sources (such as rollout workers) and replay "
            "shards can be resized; for another number here, save the run and resume it with a graph that has it"
        )
    if not any(state.alive for state in states[:number]):
        raise FlowError(f"the first {number} of {group!r} have died, so nobody would be left of it")


def _why_fixed(engine: Engine, group: str) -> str | None:
    """Why the number of a group's actors cannot change; None where it can."""
    _, names, groups = engine.described
    said = getattr(groups[group].actor_class, "fixed_count", None)
    if isinstance(said, str):
        return said
    in_shards = paced = False
    for node, name in names.items():
        if isinstance(node, Shards):
            in_shards = in_shards or source_group(node, groups) == group
        held = [full_name(node, one, groups) for one in messaged(node)]
        if group not in held:
            continue
        if isinstance(node, Shards):
            return f"its actors serve the shards of {name}"
        if group in limiters(engine):
            paced = True
            continue
        op = getattr(node, "op", None)
        if op is None:
            return f"its actors join the items in {name}"
        if isinstance(op, AskOperator):
            return f"{name} asks its actors, and counts on their number"
    return None if in_shards or paced else "no shard lives in it, it is only asked"


# ---------------------------------------------------------------- more


class Newcomers:
    """Inside `with`, actors that a group is to have more, made and up; `states` is empty where it is to have fewer.

    Any thread may wait for them. Where the block is left with an exception they are ended again.

    Raises:
        StartError: the resources are missing. TimeoutError: they did not come up in time.
        ActorDied: one died. The exception of a constructor, where one raised. The run goes on without them.
    """

    def __init__(self, engine: Engine, group: str, count: int, timeout_s: float):
        self._engine, self.group, self.count, self._timeout_s = engine, group, count, timeout_s
        self.states: list[ActorState] = []
        self._asked: list[Call] = []
        self._before = engine.lives.plans[group], engine.counts[group]

    def __enter__(self) -> Newcomers:
        engine, first = self._engine, len(self._engine.states[self.group])
        if self.count <= first:
            return self
        plan = replace(self._before[0], count=self.count)
        engine.accounts.warnings.extend(engine.backend.resize(plan))
        try:
            engine.lives.plans[self.group], engine.counts[self.group] = plan, self.count
            self.states = [self._described(index) for index in range(first, self.count)]
            self._bring_up(engine.backend.now() + self._timeout_s)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and self.states and self.states[0] not in self._engine.states[self.group]:
            self._end()

    def _described(self, index: int) -> ActorState:
        engine = self._engine
        like = engine.states[self.group][0]
        state = ActorState(self.group, index, like.actor_class, None)
        lives = engine.retired.get(self.group, [])
        state.incarnation = lives[index] + 1 if index < len(lives) else 0  # a life, and so a seed, that none has had
        state.shards = like.shards
        state.alive = False  # until it is part of the run: its death is none of the run's
        return state

    def _bring_up(self, until: float) -> None:
        engine = self._engine
        for state in self.states:
            state.actor = engine.backend.create(engine.lives.plans[self.group], state.index)
            self._asked.append(engine.calls.start(state, engine.lives.bodies[self.group](state)))
        while out := [call for call in self._asked if not call.done]:
            if engine.closing:
                raise FlowError(CLOSED_MEANWHILE)
            left = until - engine.backend.now()
            if not engine.calls.wait(out, min(max(left, 0.0), LOOK_S), driving=False) and left <= 0:
                late = ", ".join(call.actor.name for call in out)
                raise TimeoutError(f"{late} did not come up within timeout_s={self._timeout_s:g}; {self._as_before()}")
        for call in self._asked:
            if call.state is LOST:
                raise ActorDied(f"{call.actor.name} died as it was started: {call.reason}; {self._as_before()}")
            if call.error() is not None:
                engine.raise_failed(call, self.group)

    def _as_before(self) -> str:
        return f"the run goes on with {len(self._engine.states[self.group])}"

    def _end(self) -> None:
        """The run goes on as if they had never been."""
        engine = self._engine
        engine.lives.plans[self.group], engine.counts[self.group] = self._before
        with engine.calls.lock:
            for call in self._asked:
                if engine.calls.pending.pop(call.sent, None) is not None:
                    engine.accounts.lost(call.stats)
        for state in self.states:
            if state.actor is not None and not engine.backend.gone():
                engine.backend.kill(state.actor)
        if not engine.closing:
            engine.backend.resize(self._before[0])


def grow(engine: Engine, new: Newcomers) -> Resized:
    """Takes in actors that are up: they are greeted, and their shards asked with the next pull or round.

    Raises:
        What an operator's `actor_started` raises.
    """
    group, states = new.group, new.states
    before = engine.states[group]
    for state in states:
        state.alive = state.up = True
        engine.gone.pop((group, state.index), None)
    engine.states[group] = [*before, *states]
    engine.accounts.resized(group, new.count)
    try:
        for state in states:
            engine.lives.greet(state)
    except InNode as located:
        failed = located
    else:
        for cursor in all_cursors(engine):
            if isinstance(cursor, GatherCursor):
                cursor.join(states)
        if group in limiters(engine):
            limiters(engine)[group].join(states)
        return Resized(group, len(before), new.count)
    engine.raise_located(failed)


# ---------------------------------------------------------------- fewer


def shrink(engine: Engine, group: str, count: int, timeout_s: float) -> Resized:
    """Ends the last actors of a group: what they were asked is waited for and taken in, then they go.

    What is not there in time, or when the user interrupts, is lost and counted.
    """
    before = engine.states[group]
    going = before[count:]
    if not going:
        return Resized(group, len(before), len(before))
    plan = replace(engine.lives.plans[group], count=count)
    engine.backend.resize(plan)  # first, for it may refuse
    for state in going:
        state.leaving, state.restarting = True, False
    gathers = [cursor for cursor in all_cursors(engine) if isinstance(cursor, GatherCursor)]
    until = engine.backend.now() + timeout_s
    engine.holding = True  # no step begins in which a server is asked
    try:
        for cursor in gathers:
            cursor.stop_asking(going)
        if _drained(engine, going, until):
            for cursor in gathers:
                cursor.end_shards(going)
            _drained(engine, going, until)
        _end(engine, group, going)
        left = [cursor.leave(going) for cursor in gathers]
        rows = limiters(engine)[group].leave(going) if group in limiters(engine) else 0
    finally:
        engine.holding = False
    engine.states[group] = before[:count]
    engine.lives.plans[group], engine.counts[group] = plan, count
    engine.accounts.resized(group, count)
    begin_again(engine)
    items, lost = sum(each[0] for each in left), sum(each[1] for each in left)
    return Resized(group, len(before), count, items, lost, rows)


def _drained(engine: Engine, going: Sequence[ActorState], until: float) -> bool:
    """Waits for all that actors were asked; whether it has come."""
    engine.calls.flush()
    while True:
        if engine.interrupts.noted and get_ident() == MAIN:
            return False
        engine.poll()
        out = [call for call in list(engine.calls.pending.values()) if call.actor in going]
        out = [call for call in (*out, *turns(engine)) if not call.done]
        if not out:
            return True
        left = until - engine.backend.now()
        try:
            if not engine.calls.wait(out, max(left, 0.0), mode=Mode.ASKING) and left <= 0:
                return False
        except KeyboardInterrupt:
            if not engine.interrupts.woke:
                raise
            engine.interrupts.woke = False  # it is raised when all is in its place again
            return False


def _end(engine: Engine, group: str, going: Sequence[ActorState]) -> None:
    """Ends actors; those that have answered all are asked to close first."""
    busy = {call.actor for call in list(engine.calls.pending.values())}
    closing = [engine.calls.stop(state) for state in going if state.up and state not in busy]
    until = engine.backend.now() + PATIENCE_S
    while (out := [call for call in closing if not call.done]) and (left := until - engine.backend.now()) > 0:
        engine.calls.wait(out, left, mode=Mode.MOVING)
    for call in closing:
        if (error := call.error()) is not None:
            _log.warning("closing %s: %s: %s", call.actor.name, error.type_name, error.message)
    lives = engine.retired.get(group, [])
    lives += [0] * (len(engine.states[group]) - len(lives))
    engine.retired[group] = lives
    for state in going:
        with engine.calls.lock:
            state.alive = state.up = False
            engine.calls.forget(state)
        engine.lives.unwatch(state)
        engine.gone[group, state.index] = state
        lives[state.index] = state.incarnation
        if state.actor is not None:
            engine.backend.kill(state.actor)
            state.actor = None
