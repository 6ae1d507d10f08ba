"""Gathers over shards that ask a server on the way to each item: their questions are answered many at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from flowrl.engine.call import ANSWERED, ERROR, LOST, OUT, ActorState, Arrived, Call
from flowrl.engine.gathers import AsyncGatherCursor, GatherCursor, ShardFeed, SyncGatherCursor
from flowrl.engine.record import QUERY
from flowrl.engine.stats import NodeStats
from flowrl.errors import ActorDied
from flowrl.failures import Restart
from flowrl.ref import Leaf, Ref


class Turn:
    """One step asked of a shard, with all the questions on its way. Stands among the feed's calls as one that is out.

    call: the message that is out for it, to the shard or to the server; None while it waits for either.
    """

    __slots__ = ("begun", "call", "owner", "state")

    def __init__(self, feed: ShardFeed):
        self.owner = feed
        self.state = OUT  # until it is taken from the feed's calls
        self.begun = False
        self.call: Call | None = None

    @property
    def done(self) -> bool:
        """Whether there is nothing to wait for."""
        return self.call is None or self.call.done

    @property
    def sent(self) -> Any:
        """The message to wait for."""
        return None if self.call is None else self.call.sent


class Desk:
    """What one server has before it: turns under way, questions that wait, and the call that is out."""

    def __init__(self, state: ActorState):
        self.state = state
        self.open: dict[Turn, None] = {}
        self.waiting: dict[Turn, Ref[Any]] = {}
        self.out: Call | None = None
        self.deaths = 0  # in a row

    def drop(self) -> None:
        """Forgets turns that are under way no longer."""
        for turn in list(self.open):
            first: Any = turn.owner.calls[0] if turn.owner.calls else None
            if not turn.begun or first is not turn:
                self.leave(turn)

    def leave(self, turn: Turn) -> None:
        """A turn is over."""
        self.open.pop(turn, None)
        self.waiting.pop(turn, None)


class Served(GatherCursor):
    """Mixed into a gather: its shards answer with a Query until they answer with their items.

    A server is sent all questions that wait as soon as its call before is answered; in `lockstep`, so that timing
    cannot change which go together, not before every shard that is under way has asked.
    """

    lockstep = False

    def serve(self, servers: Mapping[str, Sequence[ActorState]]) -> None:
        """Says whose servers answer the shards' questions, by the keys of their sources; called once.

        Shard i of a source asks server i modulo their number.
        """
        self._servers = servers
        self._of_server: dict[ActorState, Desk] = {}
        self._desks: dict[ShardFeed, Desk] = {}
        for feed in self.feeds:
            self._seat(feed)
        self._send, self._pull = self._pull, self._turn

    def _seat(self, feed: ShardFeed) -> None:
        """Gives a shard its server."""
        states = self._servers.get(feed.key)
        if states is None:
            return
        state = states[feed.state.index % len(states)]
        if state not in self._of_server:
            self._of_server[state] = Desk(state)
            self.run.watch(state, self)
        self._desks[feed] = self._of_server[state]

    def joined(self, feed: ShardFeed) -> None:
        super().joined(feed)
        self._seat(feed)

    def stop_asking(self, states: Sequence[ActorState]) -> None:
        super().stop_asking(states)
        for feed in self.feeds:
            if feed.state in states and feed in self._desks:
                begun = [turn for turn in feed.calls if not isinstance(turn, Turn) or turn.begun]
                feed.calls = deque(begun)

    def leave(self, states: Sequence[ActorState]) -> tuple[int, int]:
        for feed in [feed for feed in self._desks if feed.state in states]:
            desk = self._desks.pop(feed)
            for turn in [turn for turn in desk.open if turn.owner is feed]:
                desk.leave(turn)
        return super().leave(states)

    def _turn(
        self, state: ActorState, key: str, node: str, stats: NodeStats, feed: ShardFeed, arrived: Arrived
    ) -> Call | Turn:
        """In place of a pull: a turn, which begins when the one before it is over."""
        if feed not in self._desks:  # a shard of another source, which asks nobody
            return self._send(state, key, node, stats, feed, arrived)
        turn = Turn(feed)
        if not feed.calls:
            self._begin(turn)
        return turn

    def _begin(self, turn: Turn) -> None:
        """Pulls a shard, if somebody would answer its questions."""
        feed = turn.owner
        desk = self._desks[feed]
        if turn.begun or feed.restarting or feed.state.leaving or not desk.state.up or self.run.holding:
            return
        turn.begun = True
        turn.call = self._send(feed.state, feed.key, self.name, self.stats, turn, self._arrived)
        if turn.call.state is OUT:
            desk.open[turn] = None
        else:  # nobody was there to be asked
            turn.state = LOST

    def _begin_next(self, feed: ShardFeed) -> None:
        turn: Any = feed.calls[0] if feed.calls else None
        if turn is not None:
            self._begin(turn)
            if turn.state is not OUT:
                super().arrived(turn)

    def arrived(self, call: Call) -> None:
        turn: Any = call.owner
        if not isinstance(turn, Turn):  # of a shard that asks nobody, or a turn itself
            super().arrived(call)
            return
        feed = turn.owner
        if not feed.calls or feed.calls[0] is not turn or turn.call is not call:
            self.run.calls.merge_metrics(call)  # of a turn that was given up
            return
        desk = self._desks[feed]
        if call.state is ANSWERED and call.record.status == QUERY:
            turn.call = None
            if not self.closed:
                desk.waiting[turn] = call.ref(0, call.infos[0])
                self._flush(desk)
            return
        if call.state is LOST and call.undelivered:  # the server's answer was lost with its node
            self._give_up([turn])
            return
        feed.calls.popleft()
        desk.leave(turn)
        self._take(feed, call)
        self._begin_next(feed)
        self._flush(desk)

    def _flush(self, desk: Desk) -> None:
        """Sends the questions that wait, if the server is free."""
        if desk.out is not None or not desk.waiting or not desk.state.up:
            return
        if self.lockstep and len(desk.waiting) < len(desk.open):
            return
        place = {feed: place for place, feed in enumerate(self.feeds)}
        turns = sorted(desk.waiting, key=lambda turn: place[turn.owner])
        questions = [desk.waiting[turn] for turn in turns]
        desk.waiting.clear()
        names = tuple(turn.owner.handle.name for turn in turns)
        call = self.run.calls.ask(desk.state, "serve", [names, *questions], {}, desk.state.group)
        call.owner, call.arrived = turns, self._served
        desk.out = call
        for turn in turns:
            turn.call = call
        if call.state is not OUT:
            self._served(call)

    def _served(self, call: Call) -> None:
        """Hands the answers of a server on, each shard its own."""
        desk = self._of_server[call.actor]
        if desk.out is call:
            desk.out = None
        if not self.closed and call.state is LOST and call.undelivered:  # a question was lost with its shard's node
            self._give_up([turn for turn in call.owner if turn.call is call])
        if self.closed or call.state is LOST:
            return
        if call.state is ERROR:
            self.run.fail(call, self.feeds[0].node)
            return
        desk.deaths = 0
        answers: Ref[Any] = Ref(Leaf(call, 0), call.infos[0], self.run.fetch)
        for index, turn in enumerate(call.owner):
            feed = turn.owner
            if feed.calls and feed.calls[0] is turn and turn.call is call:
                turn.call = self.run.calls.feed(feed.state, feed.key, (answers, index), self.name, turn, self._arrived)
                if turn.call.state is not OUT:
                    self.arrived(turn.call)
        self._flush(desk)

    def _give_up(self, turns: Sequence[Turn]) -> None:
        """Begins turns anew whose question or answer was lost on its way."""
        self.run.accounts.merge([(self.name, None, "turns_lost", "sum", float(len(turns)), 1.0)])
        for turn in turns:
            self._desks[turn.owner].leave(turn)
            turn.begun, turn.call = False, None
        for turn in turns:
            self._begin_next(turn.owner)
        for desk in {self._desks[turn.owner] for turn in turns}:
            self._flush(desk)

    def died(self, state: ActorState, reason: str) -> None:
        if state in self._of_server:
            self._server_died(self._of_server[state], reason)
            return
        super().died(state, reason)
        for desk in self._of_server.values():
            desk.drop()
            self._flush(desk)

    def _server_died(self, desk: Desk, reason: str) -> None:
        """Gives up the turns under way; they begin anew when the server is up again, if the policy says so."""
        state, policy = desk.state, self.policy
        desk.out = None
        for turn in desk.open:
            turn.begun, turn.call = False, None
        lost = len(desk.open)
        desk.drop()
        self.run.accounts.merge([(self.name, None, "turns_lost", "sum", float(lost), 1.0)])
        if not isinstance(policy, Restart) or desk.deaths >= policy.times:
            tried = f" after {desk.deaths} restarts" if isinstance(policy, Restart) else ""
            raise ActorDied(
                f"{state.name} died{tried}: {reason}; it answers the shards of node {self.name}, which has "
                f"on_failure={policy!r} (only Restart(n) starts a server again)"
            )
        desk.deaths += 1
        self.run.restart(state, policy.backoff_s * 2 ** (desk.deaths - 1))

    def restarted(self, state: ActorState) -> None:
        if state not in self._of_server:
            super().restarted(state)
            return
        for feed, desk in self._desks.items():
            if desk.state is state:
                self._begin_next(feed)

    def close(self) -> None:
        super().close()
        for desk in self._of_server.values():
            desk.open.clear()
            desk.waiting.clear()


class ServedSyncGatherCursor(Served, SyncGatherCursor):
    """Rounds of shards that a server answers, in lockstep where the graph is deterministic."""

    @property
    def lockstep(self) -> bool:  # type: ignore[override]
        """Whether which questions go together must not depend on timing."""
        return bool(self.run.deterministic)


class ServedAsyncGatherCursor(Served, AsyncGatherCursor):
    """Items of shards that a server answers, as they are ready."""
