"""Calls and tells between the driver and its actors: sent, held, waited for, and accounted once."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Sequence
from time import perf_counter
from typing import Any

from flowrl.backends.protocol import Backend, Died, Sent
from flowrl.engine.call import ANSWERED, ERROR, LOST, NO_RECORD, OUT, ActorState, Arrived, Call, Fetch
from flowrl.engine.failure import ErrorRecord, record_of
from flowrl.engine.interrupts import Alarm, Interrupts, Mode
from flowrl.engine.record import FAILED, MISSED, STALE, UNDELIVERED, Record, opened
from flowrl.engine.stats import Accounts, NodeStats
from flowrl.engine.tells import Tell, collapse_into, method_label, together, wire_method
from flowrl.engine.transport import pack_call
from flowrl.engine.undelivered import REASON, Parcel, missed_tell, parcel_of
from flowrl.ref import Info, Leaf, Ref

_new = object.__new__
WAITS_A_SWEEP = 8  # of so many waits one also sees to tells: sends what is held, takes in what was received
SOON_S = 0.05  # how long a wait does not, and holds back those that were told
NO_WORK = frozenset({"start", "save", "restore"})  # kinds of messages that are none of a group's work


class Calls:
    """Sends messages and takes in answers. Thread-safe: handles of run.actors may be used from another thread.

    A thread that does not move the run takes in the answers to its own calls only, and what it learns of deaths and
    failed tells is left for the driver's next poll; so cursors change in one thread alone.
    """

    def __init__(self, backend: Backend, accounts: Accounts, interrupts: Interrupts, alarm: Alarm, fetch: Fetch):
        self.backend, self.accounts, self.interrupts = backend, accounts, interrupts
        self.alarm, self.fetch = alarm, fetch
        self.pending: dict[Sent, Call] = {}
        self.failed: list[tuple[str, str, ActorState, ErrorRecord]] = []  # to be raised at the next poll
        self.deaths: list[tuple[ActorState, int, str]] = []  # with the incarnation; settled at the next poll
        self.lost = 0
        self._mailed: dict[ActorState, None] = {}
        self._waits = 0
        self._parcels: dict[Sent, Parcel] = {}  # of messages that are out, where a part of them may be sent again
        self.lock = threading.RLock()

    def pull(self, state: ActorState, key: str, node: str, stats: NodeStats, owner: Any, arrived: Arrived) -> Call:
        """Asks a shard for one step; `stats` are those of the node, `owner` is what `arrived` knows the call by."""
        call: Call
        if state.mail:
            call = self._post(state, "pull", key, [], node, key)
            call.owner, call.arrived = owner, arrived
            return call
        # Without the lock: the driver alone pulls, and what others send meanwhile has no place in its order.
        if state.shards == 1:
            sent = self.backend.pull(state.actor)
        else:
            message = state.pull_messages.get(key)
            if message is None:
                message = state.pull_messages[key] = pickle.dumps(("pull", state.incarnation, (), key), 5)
            sent = self.backend.send(state.actor, message, ())
            stats.bytes += len(message)
        call = _new(Call)  # field by field: this is once an item, and a call of the class takes twice as long
        call.actor, call.sent, call.kind, call.node, call.label = state, sent, "pull", node, key
        call.stats, call.fetch, call.owner, call.arrived = stats, self.fetch, owner, arrived
        call.incarnation, call.state, call.reason = state.incarnation, OUT, ""
        call.record, call.infos, call.loaded = NO_RECORD, (), None
        self.pending[sent] = call
        stats.messages += 1
        stats.out += 1
        return call

    def feed(
        self, state: ActorState, key: str, args: Sequence[Any] | None, node: str, owner: Any, arrived: Arrived
    ) -> Call:
        """Gives a shard what it is to go on with, or None: nothing more will come. Answered as a pull is."""
        packed, payloads = (None, []) if args is None else pack_call(args, {}, f"{state.name}, feed {key!r}")
        call = self._post(state, "feed", (key, packed), payloads, node, key)
        call.kind, call.owner, call.arrived = "pull", owner, arrived
        return call

    def ask(self, state: ActorState, method: Any, args: Sequence[Any], kwargs: dict[str, Any], node: str) -> Call:
        """Calls a method; the tells that wait for this actor ride along."""
        packed, payloads = pack_call(args, kwargs, f"{state.name}, ask {method_label(method)!r}")
        body = (node, wire_method(method, state.actor_class), packed)
        return self._post(state, "ask", body, payloads, node, method_label(method))

    def tell(
        self, state: ActorState, method: Any, args: Sequence[Any], kwargs: dict[str, Any], node: str, *, held: bool
    ) -> None:
        """Holds a tell until the next ask, wait or close; without `held` it goes at once, behind those that wait."""
        tell = Tell(node, method, args, kwargs, state)
        with self.lock:
            if not held and (state.up or state.reviver is None) and not state.restarting:
                mail, state.mail = [*state.mail, tell], []
                self._mailed.pop(state, None)
                self._deliver(state, mail)
                return
            collapse_into(state.mail, tell)
            self._mailed[state] = None

    def start(self, state: ActorState, body: Any) -> Call:
        """Makes the actor's object (again)."""
        message = pickle.dumps(("start", state.incarnation, (), body), 5)
        state.pull_messages.clear()
        with self.lock:
            return self._send(state, message, (), "start", state.group, "start", start=True)

    def stop(self, state: ActorState) -> Call:
        """Asks the host to close the actor's object."""
        return self._post(state, "close", None, [], state.group, "close")

    def state(self, state: ActorState, kind: str, body: Any) -> Call:
        """Asks the host to save its state, or to go on from one."""
        return self._post(state, kind, body, [], state.group, kind)

    def flush(self) -> None:
        """Sends every held tell."""
        if self._mailed:
            with self.lock:
                for state in [state for state in self._mailed if state.up or not state.alive]:
                    del self._mailed[state]
                    mail, state.mail = state.mail, []
                    if mail:
                        self._deliver(state, mail)

    def _deliver(self, state: ActorState, mail: list[Tell]) -> None:
        if not state.alive:
            self.lost += 0 if state.leaving else len(mail)  # run.resize has removed it, and nobody needs them
            return
        tells, payloads = together(mail, [])
        message = pickle.dumps(("tell", state.incarnation, tells, None), 5)
        call = self._send(state, message, payloads, "tell", mail[0].node, mail[-1].label)
        if payloads:
            self._keep(call, parcel_of("tell", None, [], mail))

    def _post(self, state: ActorState, kind: str, body: Any, payloads: list[Any], node: str, label: str) -> Call:
        with self.lock:
            if not state.up:  # dead, or on its way up: a message would find nobody, or a host without an object
                return self._unsent(state, kind, node, label)
            tells: Any = ()
            parcel = None
            if state.mail:
                parcel = parcel_of(kind, body, payloads, state.mail)
                # The body's own payload positions come first, so they stay as they are.
                tells, payloads = together(state.mail, payloads)
                state.mail = []
                self._mailed.pop(state, None)
            message = pickle.dumps((kind, state.incarnation, tells, body), 5)
            call = self._send(state, message, payloads, kind, node, label)
            self._keep(call, parcel)
            return call

    def _keep(self, call: Call, parcel: Parcel | None) -> None:
        if parcel is not None:
            self._parcels[call.sent] = parcel

    def _send_again(self, call: Call, parcel: Parcel | None) -> bool:
        """Sends what is left of a message that was not delivered; False where that is nothing."""
        state = call.actor
        if parcel is None or call.incarnation != state.incarnation or not state.up:
            return False
        rest = parcel.rest
        missed = [tell for tell in parcel.mail if tell not in rest]
        if not missed:  # what it asks is what cannot be delivered
            self._deliver(state, rest)
            return False
        self.lost += 1
        self.accounts.merge([missed_tell(tell.node) for tell in missed])
        if parcel.kind == "tell" and not rest:
            return False
        tells, payloads = together(rest, parcel.payloads)
        message = pickle.dumps((parcel.kind, state.incarnation, tells, parcel.body), 5)
        call.sent = self.backend.send(state.actor, message, payloads)
        self.pending[call.sent] = call
        self._keep(call, parcel_of(parcel.kind, parcel.body, parcel.payloads, rest))
        call.stats.messages += 1
        call.stats.bytes += len(message)
        return True

    def _send(
        self, state: ActorState, message: bytes, payloads: Sequence[Any], kind: str, node: str, label: str,
        *, start: bool = False
    ) -> Call:  # fmt: skip
        sent = self.backend.send(state.actor, message, payloads, start=start)
        stats = self.accounts.node(node)
        call = self.pending[sent] = Call(state, sent, kind, node, label, stats, self.fetch)
        stats.messages += 1
        stats.bytes += len(message)
        stats.out += 1
        return call

    def _unsent(self, state: ActorState, kind: str, node: str, label: str) -> Call:
        call = Call(state, Sent(), kind, node, label, self.accounts.node(node), self.fetch)
        why = "run.resize has removed it" if state.leaving else "its process has ended"
        call.state, call.reason = LOST, "it is being started again" if state.restarting else why
        self.lost += 1
        return call

    def wait(
        self,
        calls: Sequence[Call] | None = None,
        timeout_s: float | None = None,
        *,
        mode: Mode = Mode.WAITING,
        driving: bool = True,
    ) -> int:
        """Waits until at least one call (of those given, or of all) is answered and takes it in; returns how many were.

        mode: what an interrupt may do meanwhile. driving: whether it is the driver that waits, which is accounted.
        """
        started = perf_counter()
        ready: list[Sent] = []
        if calls is None and self._may_hold(timeout_s):
            asked = [sent for sent, call in list(self.pending.items()) if call.kind != "tell"]
            if asked:
                ready = self._polled(asked, SOON_S, mode)
                timeout_s = timeout_s and timeout_s - SOON_S
        if not ready:
            self.flush()
            # Once each: several shards may wait for one answer of their server.
            targets = (
                dict.fromkeys([call.sent for call in calls if call.state is OUT]) if calls is not None else self.pending
            )
            if not targets:
                return 0
            ready = self._polled(list(targets), timeout_s, mode)
        if driving:
            self.accounts.waited(perf_counter() - started)
        return self._take(ready)

    def wait_or_pass(self, calls: Sequence[Call], timeout_s: float | None, mode: Mode) -> None:
        """Waits as `wait` does; where there is no call, lets timeout_s go by."""
        if calls:
            self.wait(calls, timeout_s, mode=mode)
        elif timeout_s is not None:
            self._polled([], timeout_s, mode)

    def _may_hold(self, timeout_s: float | None) -> bool:
        """Whether this wait may leave tells out.

        Between processes a message costs much beside what it brings. So held tells ride along with the next ask of
        their actor, if it comes soon, and that one was received, which moves nothing, ends no wait.
        """
        self._waits += 1
        soon = timeout_s is not None and timeout_s <= SOON_S
        return not (soon or self.backend.in_process or self._waits % WAITS_A_SWEEP == 0)

    def _polled(self, sent: Sequence[Sent], timeout_s: float | None, mode: Mode) -> list[Sent]:
        before = self.interrupts.begin(mode)
        try:
            return self.backend.poll(sent, timeout_s)
        finally:
            self.interrupts.end(before)

    def sweep(self) -> None:
        """Takes in the answers to what nobody may wait for, if they are there already: tells, snapshots, and asks of
        actors that are started again."""
        told = [
            sent
            for sent, call in list(self.pending.items())
            if call.kind in ("tell", "snapshot") or call.actor.reviver is not None
        ]
        if told:
            self._take(self.backend.poll(told, 0.0))

    def take(self, answered: Sequence[Sent]) -> None:
        """Takes in answers that are there."""
        self._take(answered)

    def look_for(self, *calls: Call) -> None:
        """Takes in the answers to calls that are there, without waiting."""
        out = [call.sent for call in calls if call.state is OUT]
        if out:
            self._take(self.backend.poll(out, 0.0))

    def look_for_all(self, state: ActorState) -> None:
        """Takes in all that an actor has answered, without waiting."""
        while out := [call for call in list(self.pending.values()) if call.actor is state]:
            self.look_for(*out)
            if not any(call.done for call in out):
                return

    def give_up(self, call: Call, reason: str) -> None:
        """An actor that does not answer counts as dead; settled at the next poll."""
        self.deaths.append((call.actor, call.incarnation, reason))
        self.alarm.on = True

    def merge_metrics(self, call: Call) -> None:
        """Merges the metrics that came with an answer."""
        if call.record.deltas:
            try:
                self.accounts.merge(call.record.deltas)
            except ValueError as error:  # a metric that changes its rule
                self.failed.append((call.node, f"the metrics of {call.label!r}", call.actor, record_of(error)))
                self.alarm.on = True

    def _note_tells(self, call: Call, record: Record) -> None:
        """Those that failed are raised at the next poll."""
        for node, label, failure in record.tell_errors:
            self.failed.append((node, f"the tell {label!r}", call.actor, failure))
            self.alarm.on = True

    def forget(self, state: ActorState) -> list[Call]:
        """The calls that died with an actor's incarnation; they count as lost."""
        with self.lock:
            gone = [call for call in self.pending.values() if call.actor is state]
            for call in gone:
                del self.pending[call.sent]
                self._parcels.pop(call.sent, None)
                self._lose(call, "its process has ended")
            if state.reviver is None:  # else what waits for it is for its next life
                state.mail = []
                self._mailed.pop(state, None)
        return gone

    def _take(self, ready: Sequence[Sent]) -> int:
        calls: list[Call] = []
        risen = False
        with self.lock, self.accounts.lock:
            for sent in ready:
                call = self.pending.pop(sent, None)
                if call is not None:
                    if call.kind == "start" and call.actor.restarting:
                        if risen:  # one at a time: who greets one may wait for another
                            self.pending[sent] = call
                            continue
                        risen = True
                    calls.append(call)
                    raw, sent.record, sent.token = sent.record, None, None
                    parcel = self._parcels.pop(sent, None) if self._parcels else None
                    if type(raw) is Record:
                        if raw.status == UNDELIVERED and self._send_again(call, parcel):
                            calls.pop()  # it is still out
                            continue
                        self._account(call, raw)
                    elif type(raw) is bytes:
                        self._account(call, opened(raw))
                    else:
                        assert isinstance(raw, Died)
                        self._died(call, raw)
        for call in calls:
            if call.arrived is not None:
                call.arrived(call)
        return len(calls)

    def _died(self, call: Call, died: Died) -> None:
        state = call.actor
        self._lose(call, died.reason)
        if call.incarnation == state.incarnation and state.alive and (state.up or call.kind == "start"):
            self.deaths.append((state, call.incarnation, died.reason))
            self.alarm.on = True

    def _lose(self, call: Call, reason: str) -> None:
        call.state, call.reason = LOST, reason
        self.lost += 1
        self.accounts.lost(call.stats)

    def _account(self, call: Call, record: Record) -> None:
        call.record, call.infos = record, record.infos
        status = record.status
        if status == STALE:
            self._lose(call, "its process was started anew in between")
            return
        if status == UNDELIVERED:
            self._lose(call, REASON if record.error is None else record.error.message)
            return
        if status == MISSED:
            self.merge_metrics(call)
            self._note_tells(call, record)
            assert record.error is not None
            self._lose(call, record.error.message)
            return
        call.state = ERROR if status == FAILED else ANSWERED
        if call.kind == "pull" and not record.tell_errors:
            self.accounts.answer(call.actor.group, call.stats, record)
            return  # a gather merges the metrics of its shards, in an order that timing cannot change
        self.accounts.answer(call.actor.group, call.stats, record, starting=call.kind in NO_WORK)
        if call.kind != "pull":
            call.actor.answers += call.kind == "ask"
            self.merge_metrics(call)
            if call.actor.reviver is not None:
                call.actor.reviver.answered(call)
        self._note_tells(call, record)
        if record.published_version is not None:
            known = call.actor.published
            if known is None or record.published_version >= known[0]:
                leaf = Leaf(payload=call, slot="published")
                call.actor.published = (record.published_version, Ref(leaf, Info()))
