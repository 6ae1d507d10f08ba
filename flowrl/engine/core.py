"""The engine of one run: it owns the actors, the calls and the cursors, and moves one item at a time."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any, NoReturn

import numpy as np

from flowrl.backends.protocol import Backend
from flowrl.engine.blame import NodePlace, raise_located, raise_record, stalled
from flowrl.engine.call import ANSWERED, LOST, ActorState, Call
from flowrl.engine.calls import Calls
from flowrl.engine.cursors import BLOCKED, END, MISSING, Cursor, Item
from flowrl.engine.failure import ErrorRecord, InNode
from flowrl.engine.interrupts import Alarm, Interrupts, Mode
from flowrl.engine.lives import Lives, Watcher
from flowrl.engine.stage import Stage
from flowrl.engine.stats import Accounts
from flowrl.engine.transport import unpack
from flowrl.engine.view import HandleLink
from flowrl.errors import ActorDied, FlowError, PayloadLost, text_of
from flowrl.given import seconds
from flowrl.handles import ActorHandle
from flowrl.metrics import Delta
from flowrl.operator import ItemId
from flowrl.ref import Info, Leaf, Ref, resolve

GRACE_S = 3.0  # how long an interrupted operator may still wait for its answer
CLOSED_MEANWHILE = "this run was closed while it moved"


class Engine:
    """Everything a run moves. `flowrl.engine.build` fills it, `flowrl.engine.run.Run` shows it."""

    def __init__(self, backend: Backend, accounts: Accounts, seed: int, deterministic: bool):
        self.backend, self.accounts, self.seed = backend, accounts, seed
        self.deterministic = deterministic
        self.alarm = Alarm()
        self.interrupts = Interrupts(self.alarm)
        self.calls = Calls(backend, accounts, self.interrupts, self.alarm, self.fetch)
        self.lives = Lives(self)
        self.moved = 0  # items that any cursor moved; what "stalled" is judged by
        self.root: Cursor
        self.cursors: list[Cursor] = []
        self.stages: list[Stage] = []
        self.places: dict[str, NodePlace] = {}
        self.states: dict[str, list[ActorState]] = {}
        self.described: Any = None  # (root, names, groups) of the graph
        self.counts: dict[str, int] = {}  # by group, as constructors are told
        self.holding = False  # while it is saved: no step begins in which a server is asked
        self.replaced: set[str] = set()  # groups of whose actors every life has the same seed
        self.retired: dict[str, list[int]] = {}  # incarnations by group and index, of those gone too
        self.gone: dict[tuple[str, int], ActorState] = {}  # removed by run.resize, and not replaced
        self.resizing = threading.Lock()
        self.warned: set[str] = set()  # groups of which was said that they keep no state
        self.closing = False  # from the first moment of closing: what a pull answers then may be cut short
        self.closed = False
        self.interrupted = False  # as it was closed, which went on; whoever closes it raises that
        self.patience_s = 2.0
        self.driver: int | None = None  # the thread that moves items now
        self._failures: list[tuple[ErrorRecord, str, ActorState]] = []

    # ---------------------------------------------------------------- moving items

    @property
    def moves_here(self) -> bool:
        """Whether the calling thread is in the middle of moving an item: it is an operator's code that asks."""
        return self.driver == get_ident()

    def next_value(self, thread: int) -> Any:
        """The next item's value, or END at the end of the run's flow; moved by the calling `thread`.

        In the main thread it is called between `interrupts.enter()` and the end of that.

        Raises:
            KeyboardInterrupt: with `interrupts.safe`, nothing is lost and the next call goes on.
        """
        self.driver = thread
        try:
            while True:
                item = self.next_item()
                if item is None:
                    return END
                if item.value is not MISSING:
                    return item.value
                inline = None if item.call is None else item.call.record.inline
                if inline is not None and inline[0] is None:  # a plain number, which lies in its record
                    return inline[1][item.slot]
                try:
                    return self._root_value(item)
                except PayloadLost:
                    self.root.lost(item.steps)
        finally:
            self.driver = None

    def next_item(self) -> Item | None:
        """The next item of the run's flow, or None at its end."""
        try:
            while True:
                if self.alarm.on:
                    self.poll()
                before = self.moved
                got = self.root.pull()
                if type(got) is Item and not self.closing:
                    return got
                self.poll()
                if got is END:
                    return None
                if got is BLOCKED and self.moved != before:
                    continue
                if self.calls.pending or self.lives.timers:
                    self.wait(None)
                elif self.moved == before:
                    raise stalled(self.cursors, before)
        except InNode as located:
            failed = located
        self.raise_located(failed)  # outside the except block, so that the user's exception has no context of ours

    def _root_value(self, item: Item) -> Any:
        try:
            return self.value_of(item, self.root.name)
        except InNode as located:
            failed = located
        self.raise_located(failed)

    def wait_in_place(self, calls: Sequence[Call]) -> None:
        """For deterministic graphs: waits until one of these calls is answered (or a restart came up)."""
        self.wait(calls)
        self.calls.sweep()
        self.poll()

    def wait(self, calls: Sequence[Call] | None) -> None:
        """Waits for an answer, or for the next timer. The driver's only wait."""
        if self.calls.deaths or self.calls.failed:
            return
        timeout_s = self.lives.fire_timers()
        if self.calls.deaths:  # somebody was given up
            return
        if calls is None:
            idle = not self.calls.pending
            targets = None
        else:
            starts = [call for call in list(self.calls.pending.values()) if call.kind == "start"]
            targets = [call for call in (*calls, *starts) if not call.done]
            idle = not targets
        if not idle:
            self.calls.wait(targets, timeout_s)
        elif timeout_s is not None:
            self.interrupts.waiting(lambda: self.backend.poll([], timeout_s))

    def poll(self) -> None:
        """Raises what has failed since the last poll, if anything has: interrupts, deaths, calls, tells."""
        if not self.alarm.on:
            return
        self.interrupts.check()
        self.alarm.on = False  # before the looks: what another thread says from here on rings again
        if self.interrupts.noted:  # it is for the main thread, and this is another
            self.alarm.on = True
        if self.closing:
            self.alarm.on = True
        self.raise_noted()
        if self.calls.deaths:
            self.lives.settle_deaths()

    def raise_noted(self) -> None:
        """Raises what has failed, or that the run is being closed: what may be said in the middle of an item, too."""
        if self.closing:
            raise FlowError(CLOSED_MEANWHILE)
        if self._failures:
            record, node, state = self._failures.pop(0)
            raise_record(self.places, record, node, state.name)
        if self.calls.failed:
            node, what, state, record = self.calls.failed.pop(0)
            raise_record(self.places, record, node, state.name, what)

    # ---------------------------------------------------------------- values

    def value_of(self, item: Item, node: str) -> Any:
        """An item's value for a node on the driver; an error of a deferred operator names this node too.

        Raises:
            PayloadLost: its node is gone; who pulled the item counts it and goes on with the next.
        """
        try:
            return item.get()
        except PayloadLost:
            raise
        except BaseException as error:
            raise InNode(node, ItemId(-1, item.origins, item.version)) from error

    def fetch(self, ref: Ref[Any]) -> Any:
        """A reference's value, brought to the driver."""
        tree = ref._tree
        if type(tree) is Leaf:
            return self._load(tree)
        deltas: list[Delta] = []
        value = resolve(tree, self._load, deltas)
        if deltas:
            self.accounts.merge(deltas)
        return value

    def _load(self, leaf: Leaf) -> Any:
        if leaf.payload is None:
            return leaf.value
        call: Call = leaf.payload
        if call.record.inline is not None and leaf.slot != "published":
            return unpack(call.record.inline)[leaf.slot]
        if call.state is not ANSWERED:
            self._see_answered(call)
        if self.closed and not call.held(leaf.slot):
            raise FlowError("the run that holds this item is closed; fetch its value before closing the run")
        return call.item(leaf.slot, self.backend)

    def _see_answered(self, call: Call) -> None:
        """Waits for the answer of a call whose value the driver wants.

        Raises:
            PayloadLost: there will be none, and the run goes on without. What came in its place.
        """
        try:
            self.await_call(call)
        except ActorDied as error:
            reviver = call.actor.reviver
            if call.undelivered:
                raise PayloadLost(str(error)) from error
            if call.lost and reviver is not None and reviver.goes_on:
                raise PayloadLost(f"{error}; only .result() of a Pending asks again") from error
            raise

    def ref_to(self, call: Call) -> Ref[Any]:
        """A reference to an answer, also while it is out."""
        info = call.infos[0] if call.infos else Info()
        return Ref(Leaf(call, 0), info, self.fetch)

    def await_call(self, call: Call, timeout_s: float | None = None) -> None:
        """Waits for one call.

        Raises:
            TimeoutError: it was not answered in time; it stays out.
            ValueError: the timeout is not a number.
            KeyboardInterrupt: it stays out. In an operator only if no answer came within a grace.
        """
        if self.moves_here:
            self._await(call, timeout_s, Mode.ASKING)
        else:
            with self.interrupts:
                self._await(call, timeout_s, Mode.WAITING)
        if call.state is not ANSWERED:
            self.raise_failed(call, call.node)

    def _await(self, call: Call, timeout_s: float | None, mode: Mode) -> None:
        timeout_s = seconds(timeout_s)
        until = None if timeout_s is None else self.backend.now() + timeout_s
        interrupted = False
        while not call.done:
            if self.closed:
                raise FlowError(f"the run is closed; the call {call.label!r} of {call.actor.name} has no answer")
            left = None if until is None else until - self.backend.now()
            if left is not None and left <= 0:
                if interrupted:
                    raise KeyboardInterrupt
                raise TimeoutError(
                    f"{call.actor.name} has not answered {call.label!r} within {timeout_s} s; it stays out"
                )
            try:
                self.calls.wait([call], left, mode=mode, driving=mode is Mode.ASKING)
            except KeyboardInterrupt:
                if not self.interrupts.woke:
                    raise
                self.interrupts.woke = False
                interrupted = True
                grace = self.backend.now() + GRACE_S
                until = grace if until is None else min(until, grace)

    # ---------------------------------------------------------------- actors

    def state_of(self, handle: ActorHandle[Any]) -> ActorState:
        """What the driver knows of a handle's actor."""
        if self.closed:
            raise FlowError(
                f"the run is closed; {handle.name} is gone: take policy(), evaluate(), ask and tell before close(), or "
                "before the end of `with`"
            )
        return self.known(handle)

    def known(self, handle: ActorHandle[Any]) -> ActorState:
        """The same, also of an actor that `run.resize` has removed."""
        states = self.states[handle.group]
        return states[handle.index] if handle.index < len(states) else self.gone[handle.group, handle.index]

    def handle(self, state: ActorState, node: str, *, held: bool) -> ActorHandle[Any]:
        """A live handle; one of an operator (held) keeps its tells until the next message."""
        return ActorHandle(state.group, state.index, HandleLink(self, node, held=held))

    def seed_of(self, name: str, index: int = 0, incarnation: int = 0) -> int:
        """A seed of its own for everything that draws: by name, index and incarnation."""
        key = (zlib.crc32(name.encode()), index, incarnation)
        state = np.random.SeedSequence(self.seed, spawn_key=key).generate_state(2, np.uint32)
        return (int(state[0]) << 31) ^ int(state[1])

    def watch(self, state: ActorState, cursor: Watcher) -> None:
        """A gather wants to decide what its shard's death means."""
        self.lives.watch(state, cursor)

    def restart(self, state: ActorState, backoff_s: float) -> None:
        """Starts a dead actor again after a pause; its shards go on when it has been greeted."""
        self.lives.restart(state, backoff_s)

    # ---------------------------------------------------------------- failures

    def fail(self, call: Call, node: str) -> None:
        """Notes a call that was answered with an error; it is raised at the next poll."""
        error = call.error()
        assert error is not None
        self._failures.append((error, node, call.actor))
        self.alarm.on = True

    def raise_failed(self, call: Call, node: str) -> NoReturn:
        """Raises what came instead of an answer."""
        if call.state is LOST:
            remedy = self.lives.remedy(call.actor)
            raise ActorDied(f"{call.actor.name} cannot answer {call.label!r} (node {node!r}): {call.reason}{remedy}")
        error = call.error()
        assert error is not None
        raise_record(self.places, error, node, call.actor.name)

    def raise_located(self, located: InNode) -> NoReturn:
        """Raises what an operator on the driver raised."""
        raise_located(self.places, located)

    # ---------------------------------------------------------------- the end

    def close(self, wait_s: float | None = None) -> list[str]:
        """Delivers held tells, closes operators and actors, gives the backend back. Returns what went wrong on the way.

        wait_s: how long actors may take to finish what they do and to close (`patience_s` where it is not said); then
            their processes are ended.
        """
        if self.closed:
            return []
        self.closing = self.alarm.on = True
        wait_s = self.patience_s if wait_s is None else wait_s
        problems: list[str] = []
        for stage in self.stages:
            self._attempt(problems, stage.close)
        for cursor in self.cursors:
            if not cursor.upstreams():
                self._attempt(problems, cursor.close)
        gone = self.backend.gone()
        if wait_s > 0 and not gone:
            self._attempt(problems, lambda: self._stop_actors(wait_s, problems))
        self.closed = True
        for states in self.states.values():
            for state in states:
                state.alive = state.up = False
                if state.actor is not None and not gone:
                    self._attempt(problems, lambda state=state: self.backend.kill(state.actor))  # type: ignore[misc]
        self._attempt(problems, self.backend.close)
        self.calls.pending.clear()
        if self.interrupts.release():
            self.interrupted = True
        return problems

    def _stop_actors(self, wait_s: float, problems: list[str]) -> None:
        self.calls.flush()
        out = [self.calls.stop(state) for states in self.states.values() for state in states if state.up]
        until = self.backend.now() + wait_s
        while any(not call.done for call in out) and (left := until - self.backend.now()) > 0:
            self.calls.wait([call for call in out if not call.done], left)
        for call in out:
            error = call.error()
            if error is not None:
                problems.append(f"closing {call.actor.name}: {error.type_name}: {error.message}")

    def _attempt(self, problems: list[str], act: Callable[[], Any]) -> None:
        try:
            act()
        except KeyboardInterrupt:
            self.interrupted = True
        except BaseException as error:  # whatever it is, a SystemExit too: what is left must end
            problems.append(f"{type(error).__name__}: {text_of(error)}")
