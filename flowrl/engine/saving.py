"""Saving a run: nothing new is asked, what is out is waited for and left where it is, every actor gives its state."""

from __future__ import annotations

import dataclasses
import logging
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from flowrl.backends.protocol import Died
from flowrl.checkpoint import CheckpointWriter, State, write_state
from flowrl.checkpoint.storage import Where
from flowrl.engine.aggregation import AggregateCursor
from flowrl.engine.call import LOST, ActorState, Call
from flowrl.engine.core import Engine
from flowrl.engine.cursor_states import cursor_state
from flowrl.engine.cursors import Cursor
from flowrl.engine.failure import InNode
from flowrl.engine.fingerprint import fingerprint
from flowrl.engine.interrupts import Mode
from flowrl.engine.keeping import Keeper, record_behind
from flowrl.engine.limiter import Limiter
from flowrl.engine.record import FAILED, MISSED, STALE, UNDELIVERED
from flowrl.engine.served import Served
from flowrl.errors import CheckpointError, PayloadLost

_log = logging.getLogger("flowrl")
TRIES = 3  # where actors die while they are asked for their states


class RunFailed(Exception):  # noqa: N818  (its cause is raised)
    """The run has failed by itself, as is known now; its cause is the failure."""


class DiedMeanwhile(Exception):  # noqa: N818  (caught here)
    """An actor died while it was to give its state."""


@dataclasses.dataclass(frozen=True)
class Wanted:
    """How a run is saved. pickles: those of environments, too. about: what else the manifest is to say."""

    pickles: bool
    timeout_s: float
    about: Mapping[str, Any]


def save(engine: Engine, path: Where, own: State, wanted: Wanted) -> None:
    """Writes the run's state to a directory, which is whole or not there; the run can go on as if nothing was.

    own: the state of the Run itself. To be called by the thread that has the run's turn.

    Raises:
        TimeoutError: an actor has not answered in time. RunFailed: the run is to be stopped.
        CheckpointError: a state cannot be saved without pickle; names where it stands. OSError: it cannot be written.
    """
    until = engine.backend.now() + wanted.timeout_s
    engine.holding = True
    try:
        for _ in range(TRIES):
            _settle(engine, until, wanted.timeout_s)
            try:
                with CheckpointWriter(path) as writer:
                    writer.commit(_written(engine, writer.directory, own, wanted, until))
                return
            except (DiedMeanwhile, PayloadLost) as died:
                told = str(died)
        raise CheckpointError(f"the run could not be saved: {told}, {TRIES} times in a row; try again")
    except InNode as located:
        failed = located
    finally:
        engine.holding = False
        begin_again(engine)
    engine.raise_located(failed)


def begin_again(engine: Engine) -> None:
    """Steps in which a server is asked, and that were held back, begin."""
    for cursor in all_cursors(engine):
        if isinstance(cursor, Served):
            for feed in cursor.feeds:
                cursor._begin_next(feed)


def all_cursors(engine: Engine) -> Iterator[Cursor]:
    """Every cursor, also those that aggregations pull from."""
    for cursor in engine.cursors:
        yield cursor
        while isinstance(cursor, AggregateCursor):
            cursor = cursor.upstream
            yield cursor


def limiters(engine: Engine) -> dict[str, Limiter]:
    """The pacing of each replay group."""
    found = (getattr(cursor, "limiter", None) for cursor in engine.cursors)
    return {limiter.name: limiter for limiter in found if limiter is not None}


# ---------------------------------------------------------------- what is out


def _settle(engine: Engine, until: float, timeout_s: float) -> None:
    """Waits until every call is answered. The answers stay where they are, as if they had not come yet: to take them
    in would change the order in which the run goes on."""
    calls, backend = engine.calls, engine.backend
    calls.flush()
    while True:
        try:
            engine.poll()
        except Exception as error:
            raise RunFailed from error
        left = until - backend.now()
        late = [call for call in list(calls.pending.values()) if call.sent.record is None]
        away = {state.name for states in engine.states.values() for state in states if state.restarting}
        if left <= 0 and (late or away):
            names = ", ".join(sorted({f"{call.actor.name} ({call.label})" for call in late} | away)[:8])
            raise TimeoutError(
                f"not saved: {names} has not answered within timeout_s={timeout_s:g}; the run goes on as before"
            )
        if away:
            due = engine.lives.fire_timers()
            # Everything that is out, and where nothing is, the time until somebody is started again.
            calls.wait_or_pass(list(calls.pending.values()), left if due is None else min(left, due), Mode.WAITING)
        elif steps := turns(engine):
            calls.wait(steps, left)
        elif late:
            before = engine.interrupts.begin(Mode.WAITING)
            try:
                backend.poll([call.sent for call in late], left)
            finally:
                engine.interrupts.end(before)
        elif wrong := [call for call in list(calls.pending.values()) if _is_wrong(call)]:
            calls.take([call.sent for call in wrong])
        else:
            return


def turns(engine: Engine) -> list[Call]:
    """Calls of steps in the middle of which a server is asked; they must come to their end."""
    desks = [
        desk for cursor in all_cursors(engine) if isinstance(cursor, Served) for desk in cursor._of_server.values()
    ]
    out = [turn.call for desk in desks for turn in desk.open] + [desk.out for desk in desks if desk.open]
    return [call for call in out if call is not None and not call.done]


def _is_wrong(call: Call) -> bool:
    """Whether an answer is none to be kept: the run must know of it now."""
    if isinstance(call.sent.record, Died):
        return True
    record = record_behind(call)
    return record.status in (FAILED, STALE, UNDELIVERED, MISSED) or bool(record.tell_errors)


# ---------------------------------------------------------------- states


def _written(engine: Engine, directory: str, own: State, wanted: Wanted, until: float) -> dict[str, Any]:
    """Everything but the manifest is in the directory; the manifest."""
    root, names, groups = engine.described
    known = write_state(directory, "run", {"id": uuid.uuid4().hex})
    before = set(engine.accounts.nodes)
    body = {"directory": directory, "probe": known, "pickles": wanted.pickles}
    asked = {
        state: engine.calls.state(state, "save", body)
        for states in engine.states.values()
        for state in states
        if state.up
    }
    driver = write_state(directory, "driver", _driver_state(engine, own, before))
    policies: dict[str, Any] = {}
    entries = _entries(engine, directory, asked, until, wanted, policies)
    for name in engine.accounts.nodes.keys() - before:
        del engine.accounts.nodes[name]  # of the messages that were sent here
    return {
        "run": {
            "seed": engine.seed,
            "env_steps": engine.accounts.env_steps,
            "agent_steps": engine.accounts.agent_steps,
            "deterministic": engine.deterministic,
        },
        "about": dict(wanted.about),
        "graph": fingerprint(root, names, groups),
        "groups": {
            name: {
                "incarnations": [state.incarnation for state in states] + engine.retired.get(name, [])[len(states) :],
                "actors": [entries.get(state) for state in states],
                "described": groups[name].count,  # which run.resize may have changed since
            }
            for name, states in engine.states.items()
        },
        "states": {"run": known, "driver": driver},
        "policies": policies,
    }


def _entries(
    engine: Engine,
    directory: str,
    asked: dict[ActorState, Call],
    until: float,
    wanted: Wanted,
    policies: dict[str, Any],
) -> dict[ActorState, Any]:
    """The entries of the actors' states; into `policies` go those of the policies of the groups that have one."""
    entries: dict[ActorState, Any] = {}
    while late := [call for call in asked.values() if not call.done]:
        left = until - engine.backend.now()
        if left <= 0:
            names = ", ".join(sorted(call.actor.name for call in late)[:8])
            raise TimeoutError(
                f"not saved: {names} has not given its state within timeout_s={wanted.timeout_s:g}; the run goes on as "
                "before"
            )
        engine.calls.wait(late, left)
    for state, call in asked.items():
        if call.state is LOST:
            raise DiedMeanwhile(f"{state.name} died while it was to give its state ({call.reason})")
        if call.error() is not None:
            engine.raise_failed(call, state.group)
        said = call.item(0, engine.backend)
        if not said["keeps_state"]:
            _warn(engine, state)
        entries[state] = said["entry"] if "entry" in said else write_state(directory, state.name, said["state"])
        if said.get("policy_state") is not None:
            said["policy"] = write_state(directory, f"{state.name} policy", said["policy_state"])
        if "policy" in said:
            policies[state.group] = said["policy"]
    return entries


def _warn(engine: Engine, state: ActorState) -> None:
    """Says once that an actor's class keeps nothing."""
    cls = state.actor_class
    if state.resumes or getattr(cls, "stateless", False) or state.group in engine.warned:
        return
    engine.warned.add(state.group)
    label = getattr(cls, "__qualname__", repr(cls))
    _log.warning(
        "group %r: %s has no get_state and set_state, so what its actors hold is in no checkpoint and a resumed run "
        "makes them anew; define both, or say `stateless = True` in the class",
        state.group,
        label,
    )


def _driver_state(engine: Engine, own: State, nodes: set[str]) -> State:
    keep = Keeper(engine)
    cursors = {cursor.name: cursor_state(cursor, keep) for cursor in engine.cursors}
    state = {
        "cursors": cursors,
        "limiters": {name: _limiter_state(limiter) for name, limiter in limiters(engine).items()},
        "published": [
            [state.group, state.index, state.published[0], keep(state.published[1], f"the weights of {state.name}")]
            for states in engine.states.values()
            for state in states
            if state.published is not None
        ],
        "pending": [keep.noticed(call) for call in engine.calls.pending.values() if call.kind not in ("save", "start")],
        "own": keep(own, "the run"),
        "lost_calls": engine.calls.lost,
    }
    accounts = engine.accounts
    with accounts.lock:
        state["accounts"] = {
            "env_steps": accounts.env_steps,
            "agent_steps": accounts.agent_steps,
            "elapsed_s": accounts.elapsed_s,
            "wait_s": accounts.wait_s,
            "table": accounts.table.get_state(),
            "nodes": {name: dataclasses.asdict(stats) for name, stats in accounts.nodes.items() if name in nodes},
            "groups": {name: [group.busy_s, group.calls, group.deaths] for name, group in accounts.groups.items()},
            "lived_s": {
                name: group.count * accounts.elapsed_s + group.more_s for name, group in accounts.groups.items()
            },
        }
    state["calls"] = keep.calls()
    state["items"] = keep.items
    return state


def _limiter_state(limiter: Limiter) -> State:
    return {
        "stocks": [
            [stock.state.index, stock.size, stock.mass, stock.inserted, stock.drawn, stock in limiter.living]
            for stock in limiter.stocks.values()
        ],
        "inserted": limiter.inserted,
        "sampled": limiter.sampled,
        "coming": limiter.coming,
        "largest_insert": limiter._largest_insert,
    }
