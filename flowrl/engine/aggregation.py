"""The cursor of aggregators: it joins references of its shards' items and has actors join what they refer to."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from flowrl.engine.call import ANSWERED, ERROR, LOST, ActorState, Call
from flowrl.engine.cursors import END, MISSING, PENDING, Cursor, Item, Signal
from flowrl.engine.gathers import SyncGatherCursor
from flowrl.errors import ActorDied
from flowrl.failures import FailurePolicy, Ignore, Restart
from flowrl.graph import Aggregate
from flowrl.ref import Ref, oldest


class Task:
    """One item that is being joined; `ref` is None for the last one of an aggregator, which gives what is held there.

    `call` is None where nobody is asked yet, or nobody any more: its aggregator has died.
    """

    __slots__ = ("call", "origins", "place", "ref", "state", "version")

    def __init__(self, ref: Ref[Any] | None, origins: tuple[Any, ...], version: int | None, place: int):
        self.ref, self.origins, self.version, self.place = ref, origins, version, place
        self.state: ActorState | None = None
        self.call: Call | None = None


class AggregateCursor(Cursor):
    """What both aggregations share: having references joined, taking answers, going on after a death.

    It counts under the gather's name, as the gather before it does, whose own count is taken back.
    """

    def __init__(
        self, name: str, run: Any, upstream: Cursor, states: Sequence[ActorState], key: str, node: str, fan_in: int,
        policy: FailurePolicy, *, holds: bool,
    ):  # fmt: skip
        super().__init__(name, run)
        self.upstream, self.states, self.key, self.node = upstream, list(states), key, node
        self.fan_in, self.policy = fan_in, policy
        self._holds = holds  # whether operators behind it may hold something at the end
        self._parts: list[Item] = []  # that wait to be joined
        self._tasks: deque[Task] = deque()
        self._ready: deque[Item] = deque()
        self._carried: dict[ActorState, tuple[tuple[Any, ...], int | None]] = {}  # of joined items without results
        self._deaths: dict[ActorState, int] = dict.fromkeys(self.states, 0)  # in a row
        self._gone: set[ActorState] = set()
        self._made = 0
        self._ended = False  # upstream has
        for state in self.states:
            run.watch(state, self)

    def upstreams(self) -> list[Cursor]:
        return [self.upstream]

    def answered(self, task: Task) -> None:
        """A joined item has come."""

    def _finish(self) -> bool:
        """Asks for what is held behind the aggregators; whether anybody was asked."""
        if self._holds:
            self._holds = False
            for place, state in enumerate(self.states):
                if state not in self._gone:
                    self._send(Task(None, (), None, place))
        return bool(self._tasks)

    def _part(self, item: Item) -> None:
        """Takes an item of the gather, and has it joined where it is the last of `fan_in`."""
        self.stats.items -= 1
        self.stats.steps -= item.info.env_steps
        self._parts.append(item)
        if len(self._parts) == self.fan_in:
            self._join()

    def _join(self) -> None:
        """Has those that wait joined, if any do."""
        if not self._parts:
            return
        parts, self._parts = self._parts, []
        origins = tuple(dict.fromkeys(origin for part in parts for origin in part.origins))
        version: int | None = None
        for part in parts:
            version = oldest(version, part.version)
        self._send(Task(Ref.concat([part.as_ref() for part in parts]), origins, version, self._made))
        self._made += 1

    def _send(self, task: Task) -> None:
        self._tasks.append(task)
        self.run.moved += 1
        self._ask(task)

    def _ask(self, task: Task) -> None:
        """Asks the aggregator whose turn it is, or the next one that is up."""
        count = len(self.states)
        turns = [self.states[(task.place + k) % count] for k in range(1 if task.ref is None else count)]
        state = next((state for state in turns if state.up), None)
        if state is not None:
            task.state = state
            args = None if task.ref is None else (task.ref,)
            task.call = self.run.calls.feed(state, self.key, args, self.name, task, self._arrived)

    def _arrived(self, call: Call) -> None:
        task: Task = call.owner
        if self.closed or task.call is not call:
            self.run.calls.merge_metrics(call)
        elif call.state is LOST and call.undelivered:
            self._lost(task)
        elif call.state is LOST:
            task.call = None
        elif call.state is ERROR:
            self.run.calls.merge_metrics(call)
            self.run.fail(call, self.node)
        else:
            self.answered(task)

    def _lost(self, task: Task) -> None:
        """What was to be joined was lost with the node that held it: the others go on without."""
        self._tasks.remove(task)
        assert task.ref is not None
        self.lost(task.ref.info.env_steps)

    def _take(self, task: Task) -> None:
        """The items of an answer; one without items leaves its origins to the next of its aggregator."""
        call, state = task.call, task.state
        assert call is not None
        assert state is not None
        self.run.calls.merge_metrics(call)
        self._deaths[state] = 0
        if task.ref is not None:
            self.run.accounts.node(self.node).steps += task.ref.info.env_steps
        origins, version = self._carried.pop(state, ((), None))
        origins = (*origins, *(origin for origin in task.origins if origin not in origins))
        version = oldest(version, task.version)
        if not call.infos:
            self._carried[state] = origins, version
        for slot, info in enumerate(call.infos):
            made_with = oldest(version, info.policy_version)
            told = info._replace(policy_version=made_with)
            self._ready.append(Item(MISSING, None, told, origins, made_with, call, slot))

    def died(self, state: ActorState, reason: str) -> None:
        """The process of an aggregator ended: by the gather's policy it is started again, left out, or the run stops.

        What it was joining is joined by the others, or by itself when it is up again.
        """
        self._carried.pop(state, None)
        for task in [task for task in self._tasks if task.state is state]:
            if task.call is not None and task.call.state is LOST:
                task.call = None
                if task.ref is None:
                    self._tasks.remove(task)  # what it held is gone
        self._deaths[state] += 1
        if isinstance(self.policy, Restart) and self._deaths[state] <= self.policy.times:
            self.run.restart(state, self.policy.backoff_s * 2 ** (self._deaths[state] - 1))
        elif isinstance(self.policy, Ignore):
            self._gone.add(state)
            self.run.accounts.merge([(self.name, None, "aggregators_lost", "sum", 1.0, 1.0)])
            if len(self._gone) == len(self.states):
                raise ActorDied(f"every aggregator of {self.name} has died; the last was {state.name}: {reason}")
        else:
            tried = f" after {self._deaths[state] - 1} restarts" if isinstance(self.policy, Restart) else ""
            raise ActorDied(
                f"{state.name} died{tried}: {reason}; node {self.name} has on_failure={self.policy!r} "
                "(Restart(n) starts it again, Ignore() goes on without it)"
            )
        self._ask_again()

    def restarted(self, state: ActorState) -> None:
        """An aggregator is up again: what nobody could take is given to it."""
        self._ask_again()

    def _ask_again(self) -> None:
        for task in self._tasks:
            if task.call is None:
                self._ask(task)

    def close(self) -> None:
        super().close()
        self._tasks.clear()
        self._ready.clear()
        self._parts.clear()
        self.upstream.close()


class SyncAggregateCursor(AggregateCursor):
    """A round of the gather, joined in its order; the next round is asked for after the last item."""

    upstream: SyncGatherCursor | SyncAggregateCursor

    @property
    def in_round(self) -> bool:
        """Whether more items of a round may come."""
        return bool(self._tasks or self._ready)

    def pull(self) -> Item | Signal:
        while not self.closed:
            if self._ready:
                return self.out(self._ready.popleft())
            if self._tasks:
                if not self._head():
                    return PENDING
            elif self._ended:
                self.closed = not self._finish()
            elif (why := self._round()) is not None:
                return why
        return END

    def _round(self) -> Signal | None:
        """Pulls a whole round and has it joined; else why it is not there yet."""
        while not self._ended:
            got = self.upstream.pull()
            if isinstance(got, Item):
                self._part(got)
            elif got is END:
                self._ended = True
            else:
                return got
            if not self.upstream.in_round:
                break
        self._join()
        return None

    def _head(self) -> bool:
        """Takes in the oldest answer; whether it was there."""
        task = self._tasks[0]
        if task.call is None:
            self._ask(task)
        if task.call is None or not task.call.done:
            if not self.run.deterministic:
                return False
            self.run.wait_in_place([] if task.call is None else [task.call])
        elif task.call.state is ANSWERED:
            self._take(self._tasks.popleft())
        else:
            task.call = None
        return True


class AsyncAggregateCursor(AggregateCursor):
    """Whichever items of the gather come first are joined, and come out as they are ready."""

    def pull(self) -> Item | Signal:
        if self.closed:
            return END
        self._fill()
        if self._ready:
            return self.out(self._ready.popleft())
        if self._tasks or not self._ended or self._finish():
            return PENDING
        self.closed = True
        return END

    def _fill(self) -> None:
        while not self._ended and len(self._tasks) + len(self._ready) < self._room():
            got = self.upstream.pull()
            if isinstance(got, Item):
                self._part(got)
            elif got is END:
                self._ended = True
                self._join()
            else:
                return

    def _room(self) -> int:
        return Aggregate.in_flight * (len(self.states) - len(self._gone))

    def answered(self, task: Task) -> None:
        self._tasks.remove(task)
        self._take(task)
