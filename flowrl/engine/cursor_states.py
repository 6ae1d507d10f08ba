"""The states of cursors: what each holds between two items, taken without changing it, and given to another run's."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from flowrl.checkpoint import State
from flowrl.engine.asks import AskCursor
from flowrl.engine.branches import BranchCursor, DuplicateCursor, UnionCursor
from flowrl.engine.call import ERROR, LOST, Call
from flowrl.engine.cursors import ApplyCursor, Cursor, IterateCursor, TakeCursor
from flowrl.engine.failure import InNode
from flowrl.engine.keeping import HandleKeeper, Keeper, record_behind
from flowrl.engine.replay import ReplayCursor, StoreCursor
from flowrl.engine.restoring import HandleRestorer, Restorer
from flowrl.engine.stage import Stage
from flowrl.handles import Pending
from flowrl.metrics import Delta
from flowrl.operator import Context, ItemId
from flowrl.ref import Info

Take = Callable[[Any, Keeper], dict[str, State]]
Give = Callable[[Any, dict[str, State], Restorer], None]


def stage_state(stage: Stage, keep: HandleKeeper) -> State:
    """An operator's state, and where the inputs since its last result came from."""
    where = f"the state of node {stage.name!r}"
    try:
        own = stage.op.get_state()
    except Exception as error:
        raise InNode(stage.name, ItemId(-1)) from error
    return {
        "op": keep(own, where),
        "number": stage.number,
        "made": stage.made,
        "finished": stage.finished,
        "origins": [[handle.group, handle.index] for handle in stage._origins],
        "version": stage._version,
        "busy_s": stage.busy_s,
    }


def set_stage_state(stage: Stage, state: State, back: HandleRestorer) -> None:
    """Goes on from a state; to be called after `open`."""
    try:
        stage.op.set_state(back(state["op"]))
    except Exception as error:
        raise InNode(stage.name, ItemId(-1)) from error
    stage.number, stage.made, stage.finished = state["number"], state["made"], state["finished"]
    stage._origins, stage._version, stage.busy_s = back.origins(state["origins"]), state["version"], state["busy_s"]


class Made:
    """The `make` of a call whose value was made before, when it was saved; its metrics are told when it comes."""

    def __init__(self, value: Any, deltas: list[Delta], ctx: Context):
        self.value, self.deltas, self._ctx = value, deltas, ctx

    def __call__(self, info: Info) -> Any:
        self._ctx.metrics._deltas.extend(self.deltas)
        return self.value


def cursor_state(cursor: Cursor, keep: Keeper) -> State:
    """All that a cursor holds."""
    return {"closed": cursor.closed, **_ways(cursor)[0](cursor, keep)}


def set_cursor_state(cursor: Cursor, state: State, back: Restorer) -> None:
    """Goes on from a state."""
    cursor.closed = state["closed"]
    _ways(cursor)[1](cursor, state, back)


def _ways(cursor: Cursor) -> tuple[Take, Give]:
    from flowrl.engine.gather_states import GATHERS

    ways = {**_WAYS, **GATHERS}
    return next(ways[kind] for kind in type(cursor).__mro__ if kind in ways)


# ---------------------------------------------------------------- one upstream


def _iterate(cursor: IterateCursor, keep: Keeper) -> dict[str, State]:
    return {"taken": cursor.stats.items}


def _set_iterate(cursor: IterateCursor, state: dict[str, State], back: Restorer) -> None:
    if cursor.closed or not state["taken"]:
        return
    try:
        cursor._iterator = iter(cursor._make())
        next(islice(cursor._iterator, state["taken"], state["taken"]), None)  # goes on behind those that have come
    except Exception as error:
        raise InNode(cursor.name, ItemId(-1)) from error


def _apply(cursor: ApplyCursor, keep: Keeper) -> dict[str, State]:
    where = f"an item in node {cursor.name!r}"
    return {"ready": keep(list(cursor._ready), where), "stage": stage_state(cursor.stage, keep)}


def _set_apply(cursor: ApplyCursor, state: dict[str, State], back: Restorer) -> None:
    cursor._ready.extend(back.items(state["ready"]))
    set_stage_state(cursor.stage, state["stage"], back)


def _take(cursor: TakeCursor, keep: Keeper) -> dict[str, State]:
    return {"left": cursor._left}


def _set_take(cursor: TakeCursor, state: dict[str, State], back: Restorer) -> None:
    cursor._left = state["left"]


# ---------------------------------------------------------------- branches


def _duplicate(cursor: DuplicateCursor, keep: Keeper) -> dict[str, State]:
    return {"ended": cursor._ended}


def _set_duplicate(cursor: DuplicateCursor, state: dict[str, State], back: Restorer) -> None:
    cursor._ended = state["ended"]


def _branch(cursor: BranchCursor, keep: Keeper) -> dict[str, State]:
    return {"queue": keep(list(cursor._queue), f"an item in node {cursor.name!r}")}


def _set_branch(cursor: BranchCursor, state: dict[str, State], back: Restorer) -> None:
    cursor._queue.extend(back.items(state["queue"]))
    if cursor.closed:
        cursor.shared.queues.pop(cursor, None)


def _union(cursor: UnionCursor, keep: Keeper) -> dict[str, State]:
    return {"turn": cursor._turn, "taken": cursor._taken, "live": list(cursor._live)}


def _set_union(cursor: UnionCursor, state: dict[str, State], back: Restorer) -> None:
    cursor._turn, cursor._taken, cursor._live = state["turn"], state["taken"], list(state["live"])
    cursor._emitting = sum(emits and live for emits, live in zip(cursor.emit, cursor._live, strict=True))


# ---------------------------------------------------------------- operators that ask


def _ask(cursor: AskCursor, keep: Keeper) -> dict[str, State]:
    for pending, *_ in cursor._window:
        if pending.call.state is ERROR:
            cursor.run.raise_failed(pending.call, cursor.name)
    window = [_waiting(cursor, at, keep) for at in range(len(cursor._window))]
    rest = keep(list(cursor._rest), f"an item in node {cursor.name!r}")
    # Last: what is made of the answers now is part of the operator's state.
    return {"window": window, "rest": rest, "stage": stage_state(cursor.stage, keep)}


def _waiting(cursor: AskCursor, at: int, keep: Keeper) -> State:
    """One call of the window, and how the value is made of its answer."""
    pending, origins, version, steps = cursor._window[at]
    call: Call = pending.call
    where = f"a value in node {cursor.name!r}"
    said: dict[str, Any] = {
        "call": keep.call(call, (0,)),
        "origins": [[handle.group, handle.index] for handle in origins],
        "version": version,
        "steps": steps,
    }
    make = pending.make
    if make is None:
        return said
    kept = None if isinstance(make, Made) else cursor.op.pending_state(make)
    if kept is not None:
        return {**said, "kept": keep(kept, where)}
    if not isinstance(make, Made):
        infos = () if call.state is LOST else record_behind(call).infos
        value = make(infos[0] if infos else Info())
        make = Made(value, cursor.stage.ctx.metrics.take(), cursor.stage.ctx)
        cursor._window[at] = Pending(call, cursor.run, make), origins, version, steps
    return {**said, "made": keep(make.value, where), "deltas": keep(make.deltas, where)}


def _set_ask(cursor: AskCursor, state: dict[str, State], back: Restorer) -> None:
    set_stage_state(cursor.stage, state["stage"], back)
    window = [said for said in state["window"] if not back.gone(said["origins"])]
    back.lost_items += len(state["window"]) - len(window)
    _set_window(cursor, window, back)
    cursor._rest.extend(back.items(state["rest"]))


def _set_window(cursor: AskCursor, window: list[State], back: Restorer) -> None:
    op, ctx = cursor.op, cursor.stage.ctx
    for said in window:
        pending: Pending[Any] = Pending(back.call(said["call"]), cursor.run)
        if "kept" in said:
            pending = pending.made_from_info(op.remade(back(said["kept"]), pending, ctx))
        elif "made" in said:
            pending = pending.made_from_info(Made(back(said["made"]), back(said["deltas"]), ctx))
        cursor._window.append((pending, back.origins(said["origins"]), said["version"], said["steps"]))


def _store(cursor: StoreCursor, keep: Keeper) -> dict[str, State]:
    where = f"an item in node {cursor.name!r}"
    return {
        **_ask(cursor, keep),
        "next": keep(cursor._next, where),
        "sent": [keep.hollow(item, where) for item in cursor._sent],
    }


def _set_store(cursor: StoreCursor, state: dict[str, State], back: Restorer) -> None:
    set_stage_state(cursor.stage, state["stage"], back)
    for said, item in zip(state["window"], [back.hollow(said) for said in state["sent"]], strict=True):
        if back.call(said["call"]).actor in cursor.limiter.stocks:
            _set_window(cursor, [said], back)
            cursor._sent.append(item)
        else:  # it lies in a shard that there is no more
            cursor.limiter.coming -= item.info.agent_steps
            cursor.limiter.inserted += item.info.agent_steps
    cursor._rest.extend(back.items(state["rest"]))
    waiting = back.items([] if state["next"] is None else [state["next"]])
    cursor._next = waiting[0] if waiting else None


def _replay(cursor: ReplayCursor, keep: Keeper) -> dict[str, State]:
    for call, _ in cursor._window:
        if call.state is ERROR:
            cursor.run.raise_failed(call, cursor.name)
    window = [keep.call(call, (0,)) for call, _ in cursor._window]
    return {"random": cursor._random.getstate(), "window": window}


def _set_replay(cursor: ReplayCursor, state: dict[str, State], back: Restorer) -> None:
    cursor._random.setstate(state["random"])
    for number in state["window"]:
        call = back.call(number)
        stock = cursor.limiter.stocks.get(call.actor)
        if stock is not None:
            cursor._window.append((call, stock))
        else:
            cursor.limiter.sampled -= cursor._rows
            back.lost_items += 1


_WAYS: dict[type, tuple[Take, Give]] = {
    IterateCursor: (_iterate, _set_iterate),
    ApplyCursor: (_apply, _set_apply),
    TakeCursor: (_take, _set_take),
    DuplicateCursor: (_duplicate, _set_duplicate),
    BranchCursor: (_branch, _set_branch),
    UnionCursor: (_union, _set_union),
    AskCursor: (_ask, _set_ask),
    StoreCursor: (_store, _set_store),
    ReplayCursor: (_replay, _set_replay),
}
