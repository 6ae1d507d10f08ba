"""Cursors over shards: rounds with a barrier, or whatever is ready."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from flowrl.engine.call import ANSWERED, ERROR, LOST, OUT, ActorState, Call
from flowrl.engine.cursors import END, PENDING, Cursor, Item, Signal, item_of_answer
from flowrl.errors import ActorDied
from flowrl.failures import FailurePolicy, Ignore, Restart
from flowrl.handles import ActorHandle


class ShardFeed:
    """One shard as the driver sees it: items that have come and not been given out, calls that are out."""

    # fmt: off
    __slots__ = (
        "calls", "died_at", "empty", "ended", "handle", "items", "joins", "key", "node", "origins", "place",
        "restarting", "restarts", "state", "torn",
    )
    # fmt: on

    def __init__(self, state: ActorState, handle: ActorHandle[Any], key: str, node: str):
        self.state, self.handle, self.key, self.node = state, handle, key, node
        self.origins = (handle,)
        self.items: deque[Item] = deque()
        self.calls: deque[Call] = deque()  # that are out, or answered before one that was asked earlier
        self.ended = False
        self.restarts = 0
        self.restarting = False
        self.place = 0  # the answers taken in: of this incarnation, or of all where a new one resumes
        self.empty = 0  # how many of them have come since the last with an item
        self.died_at = 0  # the place at the last death; where items come again, that which no answer had got beyond
        self.torn = False  # an answer was lost: those behind it are no longer the next ones
        self.joins = False  # with the next round: it was not there when the one under way began

    @property
    def out(self) -> int:
        """How many calls are out."""
        return len(self.calls)

    def lost(self) -> None:
        """The shard died: what is out is lost, and what its operators held of the answers without an item.

        Deaths are in a row while nothing has come between two, or they come at the same place: the same item, or after
        as many answers of each life.
        """
        if self.state.resumes:
            self.died_at = self.place + max(self.out, 1)  # that which killed it was out, or about to go out
            self.place -= self.empty
        else:
            if self.place and self.place != self.died_at:
                self.restarts = 0
            self.died_at, self.place = self.place or self.died_at, 0
        self.empty = 0
        self.torn = False
        self.calls.clear()


class GatherCursor(Cursor):
    """What both gathers share: asking shards, taking answers, going on after a death."""

    def __init__(self, name: str, run: Any, feeds: Sequence[ShardFeed], policy: FailurePolicy):
        super().__init__(name, run)
        self.feeds, self.policy = list(feeds), policy
        self._lost_leaving = 0  # calls of shards that leave
        self.left: list[ShardFeed] = []  # of shards that were removed: those with items that were not given out
        self._arrived, self._pull = self.arrived, run.calls.pull  # bound once
        for feed in self.feeds:
            run.watch(feed.state, self)

    def ask(self, feed: ShardFeed) -> None:
        """One more step of a shard."""
        call = self._pull(feed.state, feed.key, self.name, self.stats, feed, self._arrived)
        feed.calls.append(call)
        if call.state is not OUT:  # nobody was there to be asked
            self.arrived(call)

    def arrived(self, call: Call) -> None:
        """Takes in one answer, behind those that its shard was asked for before: a network may swap the last two."""
        feed: ShardFeed = call.owner
        calls = feed.calls  # without it, where its shard has died since
        while calls and calls[0].state is not OUT:
            self._take(feed, calls.popleft())

    def _take(self, feed: ShardFeed, call: Call) -> None:
        common = call.state is ANSWERED and not feed.torn and not self.closed
        if not common and not self._takes_all_the_same(feed, call):
            return
        infos = call.infos
        record = call.record
        if record.deltas:
            self.note_metrics(feed, call)
        feed.place += 1
        if not infos:
            feed.empty += 1
        else:
            feed.state.given += feed.empty + 1
            feed.empty = 0
        if feed.restarts and feed.state.resumes and feed.place >= feed.died_at:  # beyond what killed it
            feed.restarts = 0
        slot = 0
        for info in infos:
            feed.items.append(item_of_answer(call, slot, info, feed.origins))
            slot += 1  # noqa: SIM113  # enumerate takes longer
        if record.ended and not feed.ended:
            feed.ended = True
            what = "shards_removed" if feed.state.leaving else "shards_ended"
            self.run.accounts.merge([(self.name, None, what, "sum", 1.0, 1.0)])
        self.came(feed, len(infos))

    def _takes_all_the_same(self, feed: ShardFeed, call: Call) -> bool:
        """Deals with what is no common answer; whether it still is one."""
        if call.state is LOST:
            feed.torn = True
            self._lost_leaving += feed.state.leaving
            return False
        if self.closed or call.state is not ANSWERED:
            self.run.calls.merge_metrics(call)
            if not self.closed:
                self.run.fail(call, feed.node)
            return False
        if feed.state.resumes:  # the next life of its shard will give this item again
            self._lose(call)
            return False
        return True

    def _lose(self, call: Call) -> None:
        """An answer whose items will not be given: its steps were counted as made when it came."""
        self.run.calls.lost += 1
        if call.infos:
            lost = (("items_lost", float(len(call.infos))), ("steps_lost", float(sum(i.env_steps for i in call.infos))))
            self.run.accounts.merge([(self.name, None, what, "sum", count, 1.0) for what, count in lost])

    def came(self, feed: ShardFeed, new: int) -> None:
        """An answer of a shard was taken in."""

    def note_metrics(self, feed: ShardFeed, call: Call) -> None:
        """Merges what came with an answer, at once."""
        self.run.calls.merge_metrics(call)

    def died(self, state: ActorState, reason: str) -> None:
        """The process of a shard ended: by the failure policy it is started again, dropped, or the run stops."""
        for feed in [feed for feed in self.feeds if feed.state is state and not feed.ended]:
            for call in feed.calls:  # those that were answered stand behind one that was lost
                if call.state is ERROR:
                    self.run.fail(call, feed.node)
                elif call.state is ANSWERED:
                    self._lose(call)
            feed.lost()
            if isinstance(self.policy, Restart) and feed.restarts < self.policy.times:
                feed.restarts += 1
                feed.restarting = True
                self.run.restart(state, self.policy.backoff_s * 2 ** (feed.restarts - 1))
            elif isinstance(self.policy, Ignore):
                feed.ended = True
                self.run.accounts.merge([(self.name, None, "shards_lost", "sum", 1.0, 1.0)])
                if all(other.ended for other in self.feeds):
                    raise ActorDied(f"every shard of {self.name} has died; the last was {state.name}: {reason}")
            else:
                tried = f" after {feed.restarts} restarts" if isinstance(self.policy, Restart) else ""
                raise ActorDied(
                    f"{state.name} died{tried}: {reason}; node {self.name} has on_failure={self.policy!r} "
                    "(Restart(n) starts it again, Ignore() goes on without it)"
                )

    def restarted(self, state: ActorState) -> None:
        """A shard is up again and has been greeted: what was lost is asked for again."""
        for feed in self.feeds:
            if feed.state is state and feed.restarting:
                feed.restarting = False
                self.resume(feed)

    def resume(self, feed: ShardFeed) -> None:
        """Asks a restarted shard again."""

    # ---------------------------------------------------------------- more shards, and fewer

    def join(self, states: Sequence[ActorState]) -> None:
        """Actors are new in a group whose shards are gathered here; they are up and have been greeted."""
        if self.closed:
            return
        for key in dict.fromkeys(feed.key for feed in self.feeds if feed.state.group == states[0].group):
            at = 1 + max(place for place, feed in enumerate(self.feeds) if feed.key == key)
            node = self.feeds[at - 1].node
            new = [ShardFeed(state, self.run.handle(state, self.name, held=True), key, node) for state in states]
            self.feeds[at:at] = new
            for feed in new:
                self.joined(feed)
        for state in {feed.state: None for feed in self.feeds if feed.state in states}:
            self.run.watch(state, self)

    def joined(self, feed: ShardFeed) -> None:
        """A shard is new."""

    def stop_asking(self, states: Sequence[ActorState]) -> None:
        """Actors are leaving: of what is asked of their shards, but was not sent, nothing comes."""

    def end_shards(self, states: Sequence[ActorState]) -> None:
        """Actors that are leaving have answered all: what the operators of their shards hold is asked for."""
        if not self.closed:
            for feed in self.feeds:
                if feed.state in states and feed.state.up and not feed.ended:
                    feed.calls.append(self.run.calls.feed(feed.state, feed.key, None, self.name, feed, self._arrived))
                    self.arrived(feed.calls[-1])

    def leave(self, states: Sequence[ActorState]) -> tuple[int, int]:
        """Actors have left: how many items of theirs are still to be given out, and how many steps are lost."""
        going = [feed for feed in self.feeds if feed.state in states]
        self.feeds = [feed for feed in self.feeds if feed.state not in states]
        lost, self._lost_leaving = self._lost_leaving, 0
        for feed in going:
            lost += len(feed.calls)
            self.run.calls.lost += sum(call.state is ANSWERED for call in feed.calls)  # behind one that was lost
            feed.calls.clear()
            feed.ended, feed.restarting = True, False
        self.left = [feed for feed in (*self.left, *going) if feed.items]
        return sum(len(feed.items) for feed in going), lost

    def close(self) -> None:
        super().close()
        for feed in (*self.feeds, *self.left):
            feed.items.clear()
            feed.ended = True


class SyncGatherCursor(GatherCursor):
    """One item of each live shard a round, in shard order; the next round is asked for after the last item."""

    def __init__(self, name: str, run: Any, feeds: Sequence[ShardFeed], policy: FailurePolicy):
        super().__init__(name, run, feeds, policy)
        self._round: deque[ShardFeed] = deque()
        self._asked = False
        self._of_actor: dict[ActorState, list[ShardFeed]] = {}
        self._noted: dict[ShardFeed, list[Call]] = {feed: [] for feed in self.feeds}
        for feed in self.feeds:
            self._of_actor.setdefault(feed.state, []).append(feed)

    @property
    def in_round(self) -> bool:
        """Whether more items of this round are there."""
        return bool(self._round)

    def pull(self) -> Item | Signal:
        while not self._round:
            if self.closed or self._all_given():
                self._merge_noted()
                self.closed = True
                return END
            if not self._asked:
                self._begin_round()
            # A shard that answered without an item is asked again at once: within a round nothing is consumed.
            missing = [feed for feed in self.feeds if not feed.items and not feed.ended and not feed.joins]
            if missing:
                if not self.run.deterministic:
                    return PENDING
                self.run.wait_in_place([call for feed in missing for call in feed.calls])
                continue
            self._whole()
        return self.out(self._round.popleft().items.popleft())

    def _all_given(self) -> bool:
        """Whether nothing more will come."""
        return all(feed.ended and not feed.items for feed in self.feeds) and not any(f.items for f in self.left)

    def _begin_round(self) -> None:
        """A round begins, with those that are new."""
        self._asked = True
        for feed in self.feeds:
            feed.joins = False
        for feed in self.feeds:
            self._ask_if_missing(feed)

    def _whole(self) -> None:
        """A round is there: what shards that were removed have left comes last."""
        self._asked = False
        self._merge_noted()
        self._round.extend(feed for feed in self.feeds if feed.items)
        if self.left:
            self.left = [feed for feed in self.left if feed.items]
            self._round.extend(self.left)

    def note_metrics(self, feed: ShardFeed, call: Call) -> None:
        # Merged when the round is whole, shard by shard: in the order of arrival, timing would change the numbers.
        self._noted[feed].append(call)

    def _merge_noted(self) -> None:
        for calls in self._noted.values():
            for call in calls:
                self.run.calls.merge_metrics(call)
            calls.clear()

    def close(self) -> None:
        self._merge_noted()
        super().close()

    def came(self, feed: ShardFeed, new: int) -> None:
        # Feeds of one actor go on together: what it is asked must not depend on which of its answers is seen first.
        together = self._of_actor[feed.state]
        if not any(other.out for other in together):
            for other in together:
                self._ask_if_missing(other)

    def resume(self, feed: ShardFeed) -> None:
        if self._asked:
            self._ask_if_missing(feed)

    def _ask_if_missing(self, feed: ShardFeed) -> None:
        if not (feed.items or feed.ended or feed.restarting or feed.calls or feed.joins or feed.state.leaving):
            self.ask(feed)

    def joined(self, feed: ShardFeed) -> None:
        feed.joins = self._asked  # else the round under way would depend on when it was there
        self._of_actor.setdefault(feed.state, []).append(feed)
        self._noted[feed] = []

    def leave(self, states: Sequence[ActorState]) -> tuple[int, int]:
        for feed in [feed for feed in self.feeds if feed.state in states]:
            for call in self._noted.pop(feed):
                self.run.calls.merge_metrics(call)
            self._of_actor.pop(feed.state, None)
        return super().leave(states)


class AsyncGatherCursor(GatherCursor):
    """Items as they are ready, at most num_async steps in flight a shard; asked again once its item is consumed."""

    def __init__(self, name: str, run: Any, feeds: Sequence[ShardFeed], policy: FailurePolicy, num_async: int):
        super().__init__(name, run, feeds, policy)
        self.num_async = num_async
        self._arrivals: deque[ShardFeed] = deque()
        self._owed: dict[ShardFeed, int] = dict.fromkeys(self.feeds, num_async)  # steps to be asked at the next pull
        self._spent: ShardFeed | None = None  # whose item is being consumed

    def pull(self) -> Item | Signal:
        if self.closed:
            return END
        if self._spent is not None:
            feed, self._spent = self._spent, None
            if self._owed or feed.ended or feed.restarting or len(feed.calls) >= self.num_async:
                self._owed[feed] = self._owed.get(feed, 0) + 1
                self._ask_owed()
            else:  # as `ask` does; this is once an item
                call = self._pull(feed.state, feed.key, self.name, self.stats, feed, self._arrived)
                feed.calls.append(call)
                if call.state is not OUT:
                    self.arrived(call)
        elif self._owed:
            self._ask_owed()
        if self._arrivals:
            feed = self._arrivals.popleft()
            item = feed.items.popleft()
            if item.slot == len(item.call.infos) - 1:  # the last of its answer
                self._spent = feed
            return self.out(item)
        if all(feed.ended for feed in self.feeds):
            self.closed = True
            return END
        return PENDING

    def _ask_owed(self) -> None:
        owed, self._owed = self._owed, {}
        for feed, steps in owed.items():
            if feed.ended:
                continue
            if feed.restarting:
                self._owed[feed] = steps
                continue
            for _ in range(min(steps, self.num_async - feed.out)):
                self.ask(feed)

    def came(self, feed: ShardFeed, new: int) -> None:
        if new == 1:
            self._arrivals.append(feed)
        elif new:
            self._arrivals.extend([feed] * new)
        elif not feed.ended and not feed.state.leaving:
            self.ask(feed)

    def joined(self, feed: ShardFeed) -> None:
        self._owed[feed] = self.num_async

    def stop_asking(self, states: Sequence[ActorState]) -> None:
        for feed in [feed for feed in self._owed if feed.state in states]:
            del self._owed[feed]

    def leave(self, states: Sequence[ActorState]) -> tuple[int, int]:
        if self._spent is not None and self._spent.state in states:
            self._spent = None
        return super().leave(states)

    def resume(self, feed: ShardFeed) -> None:
        unread = sum(item.slot == len(item.call.infos) - 1 for item in feed.items) + (self._spent is feed)
        self._owed[feed] = self.num_async - feed.out - unread
