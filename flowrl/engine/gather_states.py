"""The states of cursors over shards, by shard: those that there are no more are left out, new ones begin anew."""

from __future__ import annotations

from typing import Any

from flowrl.checkpoint import State
from flowrl.engine.aggregation import AggregateCursor, Task
from flowrl.engine.call import ERROR, ActorState, Call
from flowrl.engine.gathers import AsyncGatherCursor, GatherCursor, ShardFeed, SyncGatherCursor
from flowrl.engine.keeping import Keeper
from flowrl.engine.restoring import Restorer
from flowrl.engine.served import Turn
from flowrl.engine.stragglers import TimedSyncGatherCursor
from flowrl.ref import Ref

Place = list[Any]  # of a feed: its key and the actor's index; of one that has left also which life that was
COUNTS = ("ended", "restarts", "place", "empty", "died_at", "torn", "joins")


def _place(feed: ShardFeed) -> Place:
    state = feed.state
    return [feed.key, state.index, state.incarnation] if state.leaving else [feed.key, state.index]


def _gather(cursor: GatherCursor, keep: Keeper) -> dict[str, State]:
    feeds = []
    for feed in (*cursor.feeds, *(feed for feed in cursor.left if feed.items)):
        calls: list[Any] = [call for call in feed.calls if not isinstance(call, Turn)]
        for call in calls:
            if call.state is ERROR:
                cursor.run.raise_failed(call, feed.node)
        feeds.append(
            {
                "feed": _place(feed),
                "items": keep(list(feed.items), f"an item in node {cursor.name!r}"),
                "calls": [keep.call(call, range(len(call.infos))) for call in calls],
                "turns": len(feed.calls) - len(calls),  # steps to be asked: a server answers them, and none is begun
                "given": feed.state.given,
                **{name: getattr(feed, name) for name in COUNTS},
            }
        )
    return {"feeds": feeds}


def _set_gather(cursor: GatherCursor, state: dict[str, State], back: Restorer) -> dict[ShardFeed, State]:
    """Those feeds that go on, each with its state."""
    saved = {tuple(said["feed"]): said for said in state["feeds"]}
    going_on = {}
    for place in [place for place in saved if len(place) > 2]:
        feed = _left(cursor, *place)
        going_on[feed] = said = saved.pop(place)
        feed.ended = True
        feed.items.extend(back.items(said["items"]))
    for feed in cursor.feeds:
        said = saved.pop(tuple(_place(feed)), None)
        if said is None or feed.state not in back.continued:
            continue
        going_on[feed] = said
        for name in COUNTS:
            setattr(feed, name, said[name])
        feed.state.given = said["given"]
        feed.items.extend(back.items(said["items"]))
        for number in said["calls"]:
            call: Call = back.call(number)
            call.owner, call.arrived = feed, cursor._arrived
            feed.calls.append(call)
    back.lost_items += sum(len(said["items"]) for said in saved.values())
    return going_on


def _left(cursor: GatherCursor, key: str, index: int, life: int) -> ShardFeed:
    """A shard that there was no more, when the run was saved."""
    like = next(feed for feed in cursor.feeds if feed.key == key)
    state = ActorState.removed(like.state.group, index, like.state.actor_class)
    state.incarnation = life
    if index >= len(cursor.run.states[state.group]):
        cursor.run.gone[state.group, index] = state  # so that its items stay
    feed = ShardFeed(state, cursor.run.handle(state, cursor.name, held=True), key, like.node)
    cursor.left.append(feed)
    return feed


def _feeds(cursor: GatherCursor, places: list[Place], going_on: dict[ShardFeed, State]) -> list[ShardFeed]:
    found = {tuple(_place(feed)): feed for feed in going_on}
    return [found[tuple(place)] for place in places if tuple(place) in found]


def _sync(cursor: SyncGatherCursor, keep: Keeper) -> dict[str, State]:
    noted = [[_place(feed), [keep.metrics_of(call) for call in calls]] for feed, calls in cursor._noted.items()]
    return {
        **_gather(cursor, keep),
        "asked": cursor._asked,
        "round": [_place(feed) for feed in cursor._round],
        "noted": noted,
    }


def _set_sync(cursor: SyncGatherCursor, state: dict[str, State], back: Restorer) -> None:
    going_on = _set_gather(cursor, state, back)
    cursor._asked = state["asked"]
    cursor._round.extend(_feeds(cursor, state["round"], going_on))
    for place, calls in state["noted"]:
        feeds = _feeds(cursor, [place], going_on) or cursor.feeds[:1]  # counted once, wherever
        cursor._noted[feeds[0]].extend(back(calls))


def _timed(cursor: TimedSyncGatherCursor, keep: Keeper) -> dict[str, State]:
    return {
        **_sync(cursor, keep),
        "late": [_place(feed) for feed in cursor._late],
        "waits_s": cursor._due - cursor.run.backend.now(),
    }


def _set_timed(cursor: TimedSyncGatherCursor, state: dict[str, State], back: Restorer) -> None:
    _set_sync(cursor, state, back)
    found = {tuple(_place(feed)): feed for feed in cursor.feeds if feed.state in back.continued}
    cursor._late.update(found[tuple(place)] for place in state["late"] if tuple(place) in found)
    cursor._due = cursor.run.backend.now() + state["waits_s"]
    if cursor._asked:
        cursor._wake()


def _async(cursor: AsyncGatherCursor, keep: Keeper) -> dict[str, State]:
    return {
        **_gather(cursor, keep),
        "arrivals": [_place(feed) for feed in cursor._arrivals],
        "owed": [[_place(feed), steps] for feed, steps in cursor._owed.items()],
        "spent": None if cursor._spent is None else _place(cursor._spent),
    }


def _set_async(cursor: AsyncGatherCursor, state: dict[str, State], back: Restorer) -> None:
    going_on = _set_gather(cursor, state, back)
    cursor._arrivals.extend(_feeds(cursor, state["arrivals"], going_on))
    owed: dict[ShardFeed, int] = {}
    for place, steps in state["owed"]:
        owed |= dict.fromkeys(_feeds(cursor, [place], going_on), steps)
    for feed in cursor.feeds:
        more = going_on[feed]["turns"] if feed in going_on else cursor.num_async
        if more:
            owed[feed] = owed.get(feed, 0) + more
    cursor._owed = owed
    spent = _feeds(cursor, [] if state["spent"] is None else [state["spent"]], going_on)
    cursor._spent = spent[0] if spent else None


def go_on(cursor: Any) -> None:
    """Once all is restored: asks those shards that a round under way waits for, and that have not been asked."""
    if isinstance(cursor, AggregateCursor):
        cursor._ask_again()
        go_on(cursor.upstream)
    elif isinstance(cursor, SyncGatherCursor) and cursor._asked:
        for feed in cursor.feeds:
            cursor._ask_if_missing(feed)


def _aggregate(cursor: AggregateCursor, keep: Keeper) -> dict[str, State]:
    from flowrl.engine.cursor_states import cursor_state

    where = f"an item in node {cursor.name!r}"
    return {
        "upstream": cursor_state(cursor.upstream, keep),
        "parts": keep(cursor._parts, where),
        "ready": keep(list(cursor._ready), where),
        "tasks": [_task(task, keep, where) for task in cursor._tasks],
        "carried": [
            [state.index, [[handle.group, handle.index] for handle in origins], version]
            for state, (origins, version) in cursor._carried.items()
        ],
        "deaths": [[state.index, deaths] for state, deaths in cursor._deaths.items()],
        "holds": cursor._holds,
        "made": cursor._made,
        "ended": cursor._ended,
    }


def _task(task: Task, keep: Keeper, where: str) -> State:
    call = task.call
    return {
        "ref": keep(task.ref, where),
        "origins": [[handle.group, handle.index] for handle in task.origins],
        "version": task.version,
        "place": task.place,
        "state": None if task.state is None else task.state.index,
        # Its metrics are merged when its items come out.
        "call": None if call is None else [keep.metrics_of(call), keep.call(call, range(len(call.infos)))],
    }


def _set_aggregate(cursor: AggregateCursor, state: dict[str, State], back: Restorer) -> None:
    from flowrl.engine.cursor_states import set_cursor_state

    set_cursor_state(cursor.upstream, state["upstream"], back)
    cursor._parts.extend(back.items(state["parts"]))
    cursor._ready.extend(back.items(state["ready"]))
    cursor._holds, cursor._made, cursor._ended = state["holds"], state["made"], state["ended"]
    by_index = {actor.index: actor for actor in cursor.states if actor in back.continued}
    for said in state["tasks"]:
        ref: Ref[Any] | None = back(said["ref"])
        task = Task(ref, back.origins(said["origins"]), said["version"], said["place"])
        actor = by_index.get(said["state"])
        if actor is not None and said["call"] is not None:
            task.state, task.call = actor, back.call(said["call"][1])
            task.call.owner, task.call.arrived = task, cursor._arrived
        elif ref is None:
            continue  # it would have given what is held by an aggregator that there is no more
        cursor._tasks.append(task)
    for index, origins, version in state["carried"]:
        if index in by_index:
            cursor._carried[by_index[index]] = back.origins(origins), version
    cursor._deaths.update({by_index[index]: deaths for index, deaths in state["deaths"] if index in by_index})


GATHERS: dict[type, Any] = {
    TimedSyncGatherCursor: (_timed, _set_timed),
    SyncGatherCursor: (_sync, _set_sync),
    AsyncGatherCursor: (_async, _set_async),
    AggregateCursor: (_aggregate, _set_aggregate),
}
