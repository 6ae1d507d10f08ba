"""Rounds with a barrier, items as they are ready, shards that end, and shards that die."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Sequence
from typing import Any

import pytest

from flowrl import FlowStalled, Ignore, Local, Raise, Restart, from_actors, from_items, run
from flowrl.engine.gathers import AsyncGatherCursor
from flowrl.errors import ActorDied
from flowrl.testing import Delayed, Virtual
from tests.engine.shards import TellOrigin, counters


def pulls_take(*seconds: float) -> Any:
    """Shard i takes seconds[i] for a pull; all else takes no time."""

    def takes(group: str, index: int, kind: str, n: int) -> float:
        return seconds[index] if kind == "pull" else 0.0

    return takes


# ------------------------------------------------------------------ rounds


def test_a_round_has_one_item_of_each_shard_in_their_order_whatever_comes_first() -> None:
    flow = from_actors(counters(3), "next_item").gather_sync()
    for backend in (Local(), Delayed(1, likely=0.1), Virtual(pulls_take(3, 1, 2))):
        with run(flow, backend) as r:
            assert r.step(7) == [(0, 1), (1, 1), (2, 1), (0, 2), (1, 2), (2, 2), (0, 3)]


def test_a_round_takes_as_long_as_its_slowest_shard() -> None:
    backend = Virtual(pulls_take(1.0, 3.0, 2.0))
    with run(from_actors(counters(3), "next_item").gather_sync(), backend) as r:
        began = backend.now()
        for rounds in (1, 2, 3):
            r.step(3)
            assert backend.now() - began == 3.0 * rounds


def test_nobody_is_asked_for_the_next_round_before_the_last_item_of_this_one_is_consumed() -> None:
    with run(from_actors(counters(3), "next_item").gather_sync(), Local()) as r:
        for items, messages in ((1, 3), (3, 3), (4, 6), (6, 6), (7, 9)):
            r.step(items - r.stats().nodes["gather_sync"].items)
            assert r.stats().nodes["gather_sync"].messages == messages


def test_what_a_consumer_tells_in_a_round_precedes_the_next_round() -> None:
    flow = from_actors(counters(2), "next_item").gather_sync().for_each(TellOrigin())
    for backend in (Local(), Delayed(3)):
        with run(flow, backend) as r:
            r.step(8)
            for index, handle in enumerate(r.actors["workers"]):
                assert handle.ask("memory").result()[:3] == [(k, (index, k)) for k in (1, 2, 3)]


def test_a_step_may_give_no_item_or_several_and_a_round_still_has_one_of_each() -> None:
    flow = from_actors(counters(2, limit=5), "uneven").flatten().gather_sync()
    one = [1, 2, 2, 4, 5, 5]
    for backend in (Local(), Delayed(2)):
        with run(flow, backend) as r:
            assert list(r) == [(index, step) for step in one for index in (0, 1)]
            stats = r.stats()
            assert stats.nodes["from_actors"].items == 10
            assert stats.nodes["flatten"].items == 12


def test_a_shard_that_ends_is_dropped_from_the_rounds_and_counted() -> None:
    flow = from_items([0, 1, 2, 3, 4, 5, 6], num_shards=3).gather_sync()
    with run(flow, Local()) as r:
        assert list(r) == [0, 1, 2, 3, 4, 5, 6]
        assert r.stats().metrics["gather_sync"]["shards_ended"] == 3
        assert list(r) == []


def test_no_shard_need_have_an_item() -> None:
    assert list(run(from_items([], num_shards=2).gather_sync(), Local())) == []
    assert list(run(from_items([], num_shards=2).gather_async(), Local())) == []
    assert list(run(from_items(range(9), num_shards=2).filter(lambda x: False).gather_sync(), Delayed(0))) == []


def test_what_a_shards_batch_holds_comes_out_at_its_end() -> None:
    flow = from_items(range(8), num_shards=2).batch(3)
    assert list(run(flow.gather_sync(), Local())) == [[0, 2, 4], [1, 3, 5], [6], [7]]
    assert sorted(run(flow.gather_async(), Local())) == [[0, 2, 4], [1, 3, 5], [6], [7]]


def test_two_sources_in_one_actor_have_operators_of_their_own_behind_a_union() -> None:
    group = counters(1, limit=4)
    both = from_actors(group, "next_item").union(from_actors(group, "next_item"))
    items = list(run(both.batch(2).gather_sync(), Local()))
    assert items == [[(0, 1), (0, 3)], [(0, 2), (0, 4)]]


def test_two_sources_in_one_actor_go_on_together_whichever_answer_is_seen_first() -> None:
    group = counters(1, limit=40)
    both = from_actors(group, "next_item").union(from_actors(group, "next_item"))
    flow = both.filter(lambda pair: pair[1] % 3 == 0).gather_sync()
    expected = list(run(flow, Local()))
    assert len(expected) == 13
    for seed in range(10):
        assert list(run(flow, Delayed(seed, likely=0.3))) == expected


# ------------------------------------------------------------------ as they are ready


class Watched(Delayed):
    """Notes how many pulls of each actor are out at most."""

    def __init__(self, seed: int):
        super().__init__(seed)
        self.out: Tally[str] = Tally()
        self.most: Tally[str] = Tally()
        self._pulls: dict[Any, str] = {}

    def send(self, actor: Any, message: bytes, payloads: Sequence[Any], *, start: bool = False) -> Any:
        sent = super().send(actor, message, payloads, start=start)
        if b"pull" in message:
            name = actor.host.me.name
            self._pulls[sent] = name
            self.out[name] += 1
            self.most[name] = max(self.most[name], self.out[name])
        return sent

    def poll(self, sent: Any, timeout_s: float | None) -> Any:
        seen = super().poll(sent, timeout_s)
        self.out.subtract(self._pulls.pop(one) for one in seen if one in self._pulls)
        return seen


@pytest.mark.parametrize("num_async", [1, 2, 5])
def test_every_item_comes_once_with_at_most_num_async_pulls_out_a_shard(num_async: int) -> None:
    for seed in range(5):
        backend = Watched(seed)
        flow = from_items(range(60), num_shards=3).filter(lambda x: x % 4 != 1).gather_async(num_async=num_async)
        with run(flow, backend) as r:
            assert sorted(r) == [x for x in range(60) if x % 4 != 1]
            assert r.stats().metrics["gather_async"]["shards_ended"] == 3
            assert r.stats().nodes["from_items"].items == 60
        assert set(backend.most.values()) == {num_async}


@pytest.mark.parametrize("seed", range(5))
def test_items_of_a_shard_keep_their_order_where_a_network_swaps_its_answers(seed: int) -> None:
    with run(from_items(range(60), num_shards=3).gather_async(num_async=4), Delayed(seed, in_order=False)) as r:
        items = list(r)
    for shard in range(3):
        assert [item for item in items if item % 3 == shard] == list(range(shard, 60, 3))


def test_a_shard_is_asked_again_when_the_consumer_pulls_after_its_item_and_not_on_arrival() -> None:
    with run(from_actors(counters(2), "next_item").gather_async(num_async=1), Local()) as r:
        for items in (1, 2, 3, 10):
            r.step(items - r.stats().nodes["gather_async"].items)
            assert r.stats().nodes["gather_async"].messages == 2 + items - 1


def test_what_a_consumer_tells_an_async_shard_precedes_its_next_step() -> None:
    flow = from_actors(counters(2), "next_item").gather_async(num_async=1).for_each(TellOrigin())
    with run(flow, Delayed(4)) as r:
        r.step(20)
        for index in (0, 1):
            heard = r.actors["workers"][index].ask("memory").result()
            assert len(heard) >= 2
            assert heard == [(k + 1, (index, k + 1)) for k in range(len(heard))]


def test_an_answer_of_several_items_is_asked_after_only_once() -> None:
    flow = from_items([[1, 2, 3], [4], [], [5, 6]], num_shards=1).flatten().gather_async(num_async=1)
    with run(flow, Local()) as r:
        asked = []
        for _ in range(6):
            r.step()
            asked.append(r.stats().nodes["gather_async"].messages)
        assert asked == [1, 1, 1, 2, 4, 4]


def test_a_slow_shard_holds_up_an_async_gather_by_no_more_than_its_share() -> None:
    backend = Virtual(pulls_take(10.0, *[1.0] * 9))
    with run(from_actors(counters(10), "next_item").gather_async(), backend) as r:
        began = backend.now()
        items = r.step(910)
        assert 99.0 <= backend.now() - began <= 101.0  # nine shards give 1 a second, one gives 0.1
        shares = Tally(index for index, _ in items)
        assert shares[0] == pytest.approx(10, abs=2)
        assert all(shares[index] == pytest.approx(100, abs=2) for index in range(1, 10))


def test_the_same_shards_in_rounds_wait_for_the_slow_one() -> None:
    backend = Virtual(pulls_take(10.0, *[1.0] * 9))
    with run(from_actors(counters(10), "next_item").gather_sync(), backend) as r:
        began = backend.now()
        r.step(100)
        assert backend.now() - began == 100.0


def test_two_pulls_out_a_shard_hide_the_consumers_time() -> None:
    def seconds_for(num_async: int) -> float:
        backend = Virtual(pulls_take(1.0))
        flow = from_actors(counters(1), "next_item").gather_async(num_async=num_async)
        with run(flow.tap(lambda item: backend.pass_time(1.0)), backend) as r:
            began = backend.now()
            r.step(50)
            return backend.now() - began

    assert seconds_for(1) == pytest.approx(100.0)
    assert seconds_for(2) == pytest.approx(51.0)


# ------------------------------------------------------------------ deaths


def dies(actor: str, *at: int) -> Any:
    """The actor dies instead of working on these messages of its; its start is message 0."""
    return lambda name, n: name == actor and n in at


@pytest.mark.parametrize("gather", ["gather_sync", "gather_async"])
@pytest.mark.parametrize("seed", range(4))
def test_restart_starts_a_dead_shard_again_and_asks_for_what_was_lost(gather: str, seed: int) -> None:
    flow = getattr(from_actors(counters(2, limit=20), "next_item"), gather)(on_failure=Restart(2, backoff_s=5.0))
    backend = Delayed(seed, die=dies("workers[1]", 4, 12))
    with run(flow, backend) as r:
        items = list(r)
        assert [step for index, step in items if index == 0] == list(range(1, 21))
        steps = [step for index, step in items if index == 1]
        assert steps[-20:] == list(range(1, 21))  # started afresh, and went on to its end
        assert 20 < len(steps) <= 20 + 3 + 7
        stats = r.stats()
        assert stats.groups["workers"].deaths == 2
        assert stats.metrics["workers"]["restarts"] == 2
        assert stats.metrics[gather]["shards_ended"] == 2
        assert stats.lost_calls >= 2
        assert backend.now() >= 10.0  # the pauses


def test_restart_gives_up_after_so_many_deaths_in_a_row() -> None:
    flow = from_actors(counters(2), "next_item").gather_sync(on_failure=Restart(2, backoff_s=0.0))
    died = r"workers\[1\] died after 2 restarts: .* node gather_sync has on_failure=Restart"
    with (
        run(flow, Delayed(0, die=lambda name, n: name == "workers[1]" and n in (3, 5, 7))) as r,
        pytest.raises(ActorDied, match=died),
    ):
        r.step(100)


def test_a_shard_that_outlives_its_last_death_starts_the_count_of_restarts_anew() -> None:
    flow = from_actors(counters(1), "next_item").gather_sync(on_failure=Restart(1, backoff_s=0.0))
    with run(flow, Delayed(0, die=dies("workers[0]", 3, 8, 14, 21))) as r:  # the pulls 3, 4, 5 and 6 of each life
        r.step(20)
        assert r.stats().groups["workers"].deaths == 4


@pytest.mark.parametrize("gather", ["gather_sync", "gather_async"])
def test_deaths_of_which_each_comes_sooner_are_not_in_a_row(gather: str) -> None:
    flow = getattr(from_actors(counters(1), "next_item"), gather)(on_failure=Restart(2, backoff_s=0.0))
    with run(flow, Delayed(0, die=dies("workers[0]", 6, 12, 17, 21))) as r:  # the pulls 6, 5, 4 and 3 of each life
        r.step(20)
        assert r.stats().groups["workers"].deaths == 4


@pytest.mark.parametrize("gather", ["gather_sync", "gather_async"])
def test_a_shard_that_always_dies_at_the_same_pull_is_given_up(gather: str) -> None:
    flow = getattr(from_actors(counters(1), "next_item"), gather)(on_failure=Restart(2, backoff_s=0.0))
    backend = Delayed(0, die=dies("workers[0]", 3, 7, 11))  # the third pull of each life
    with run(flow, backend) as r, pytest.raises(ActorDied, match=r"workers\[0\] died after 2 restarts"):
        r.step(20)


@pytest.mark.parametrize("gather", ["gather_sync", "gather_async"])
@pytest.mark.parametrize("repeat", [False, True])
@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_restarted_iterator_goes_on_behind_its_items(gather: str, repeat: bool, in_order: bool, seed: int) -> None:
    source = from_items(range(12), num_shards=2, repeat=repeat).batch(2)
    flow = getattr(source, gather)(on_failure=Restart(2, backoff_s=1.0)).take(12 if repeat else 6)
    with run(flow, Delayed(seed, in_order=in_order, die=dies("from_items-shards[1]", 4, 8))) as r:
        batches = list(r)
        assert r.stats().groups["from_items-shards"].deaths >= 1
    for odd in (0, 1):
        items = [item for batch in batches for item in batch if item % 2 == odd]
        assert items == (list(range(odd, 12, 2)) * 4)[: len(items)]
        assert repeat or len(items) == 6


def test_an_item_that_kills_its_shard_every_time_ends_the_run() -> None:
    # The item behind the first three: pull 4 of the first life, and the first of all others, which resume there.
    flow = from_items(range(9), num_shards=1).gather_sync(on_failure=Restart(2, backoff_s=0.0))
    items: list[int] = []
    with (
        run(flow, Delayed(0, die=lambda name, n: name == "from_items-shards[0]" and n in (4, 6, 8))) as r,
        pytest.raises(ActorDied, match="died after 2 restarts"),
    ):
        items.extend(r)  # keeps those before the error
    assert items == [0, 1, 2]


@pytest.mark.parametrize("gather", ["gather_sync", "gather_async"])
def test_ignore_goes_on_without_a_dead_shard(gather: str) -> None:
    flow = getattr(from_actors(counters(2, limit=9), "next_item"), gather)(on_failure=Ignore())
    with run(flow, Delayed(2, die=dies("workers[0]", 3))) as r:
        items = list(r)
        assert [step for index, step in items if index == 1] == list(range(1, 10))
        assert [step for index, step in items if index == 0] in ([1], [1, 2])
        assert r.stats().metrics[gather]["shards_lost"] == 1


def test_ignore_fails_with_the_last_shard() -> None:
    flow = from_actors(counters(2), "next_item").gather_sync(on_failure=Ignore())
    with (
        run(flow, Delayed(0, die=lambda name, n: n == 3)) as r,
        pytest.raises(ActorDied, match="every shard of gather_sync has died"),
    ):
        r.step(100)


def test_raise_stops_the_run() -> None:
    flow = from_actors(counters(2), "next_item").gather_async(on_failure=Raise())
    with (
        run(flow, Delayed(0, die=dies("workers[1]", 4))) as r,
        pytest.raises(ActorDied, match=r"workers\[1\] died: .*on_failure=Raise\(\)"),
    ):
        r.step(100)


def test_a_restarted_async_shard_has_no_more_in_flight_than_before() -> None:
    for seed in range(8):
        backend = Delayed(seed)
        flow = from_actors(counters(2, limit=30), "next_item").gather_async(num_async=2, on_failure=Restart(3, 0.0))
        with run(flow, backend) as r:
            feed = next(cursor for cursor in r._engine.cursors if isinstance(cursor, AsyncGatherCursor)).feeds[0]
            r.step(7 + seed)
            backend.kill(r.actors["workers"][0])
            held = [feed.out + len(feed.items) for _ in r]
            assert max(held) <= 2
            assert r.stats().groups["workers"].deaths == 1


def test_nothing_stalls_while_a_shard_is_down() -> None:
    flow = from_actors(counters(1, limit=3), "next_item").gather_sync(on_failure=Restart(1, backoff_s=1000.0))
    backend = Delayed(0, die=dies("workers[0]", 1))
    try:
        assert list(run(flow, backend)) == [(0, 1), (0, 2), (0, 3)]
    except FlowStalled as error:
        pytest.fail(str(error))
    assert backend.now() >= 1000.0
