"""Groups that grow and shrink while a run goes on: who joins when, what leaving shards have made, who is refused."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowrl
from flowrl import ActorDied, Context, EndOfStream, Flow, FlowError, Local, Operator, ParallelFlow, Run, actors, run
from flowrl.backends.protocol import Backend
from flowrl.engine.resizing import Resized
from flowrl.errors import GraphError
from flowrl.handles import ActorGroup, ActorHandle
from flowrl.live import table
from flowrl.testing import Delayed, Virtual
from tests.engine.shards import Counter, Echo, TellOrigin, counters
from tests.engine.shelves import rollouts, shelves, stored_and_drawn
from tests.engine.test_served import served


class Life:
    """Gives (index, life, 1), (index, life, 2), …; knows with what it was made and what it was told."""

    made: list[dict[str, Any]] = []  # noqa: RUF012  (of all, in this process)

    def __init__(self, limit: int = 10**9, *, index: int, count: int, seed: int, incarnation: int):
        self.me, self.limit, self.step = (index, incarnation), limit, 0
        self.given = {"index": index, "count": count, "seed": seed, "incarnation": incarnation}
        Life.made.append(self.given)
        self.heard: list[tuple[int, Any]] = []

    def next_item(self) -> tuple[int, int, int]:
        """The next triple."""
        if self.step == self.limit:
            raise EndOfStream
        self.step += 1
        return (*self.me, self.step)

    def hear(self, value: Any) -> None:
        """Takes a message in, with the step."""
        self.heard.append((self.step, value))

    def get_state(self) -> dict[str, Any]:
        """How far it is."""
        return {"step": self.step}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on."""
        self.step = state["step"]


@dataclass
class Greet(Operator[Any, Any]):
    """The same items; who starts is told how many came before."""

    group: ActorGroup[Any]

    def open(self) -> None:
        self._seen = 0

    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        self._seen += 1
        yield value

    def actor_started(self, handle: ActorHandle[Any], ctx: Context) -> None:
        if handle in ctx.actors(self.group):
            handle.tell("hear", self._seen)


def lives(count: int = 2, limit: int = 10**9) -> ActorGroup[Life]:
    return actors(Life, limit, count=count, name="workers")


def source(group: ActorGroup[Any]) -> ParallelFlow[Any]:
    return flowrl.from_actors(group, "next_item")


# ------------------------------------------------------------------ more


def test_new_shards_are_part_of_the_next_round(backend: Backend) -> None:
    with run(source(counters(2)).gather_sync(), backend) as r:
        assert r.step(3) == [(0, 1), (1, 1), (0, 2)]
        assert r.resize("workers", 4) == Resized("workers", 2, 4)
        assert r.step(6) == [(1, 2), (0, 3), (1, 3), (2, 1), (3, 1), (0, 4)]
        assert len(r.actors["workers"]) == 4
        assert r.actors["workers"][3].ask("memory").result() == []


def test_new_shards_are_asked_as_often_as_any_by_an_asynchronous_gather() -> None:
    takes = Virtual(lambda group, index, kind, number: 1.0 if kind == "pull" else 0.0)
    with run(source(counters(1)).gather_async(num_async=2), takes) as r:
        r.step(3)
        r.resize("workers", 3)
        began, got = takes.now(), []
        while takes.now() < began + 10:
            got.append(next(r))
        assert all(9 <= sum(item[0] == index for item in got) <= 10 for index in range(3))


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_who_is_new_is_greeted_before_it_is_asked(mode: str) -> None:
    group = lives(1)
    for backend in (Local(), Delayed(3)):
        flow = source(group).gather_sync() if mode == "sync" else source(group).gather_async(num_async=1)
        with run(flow.for_each(Greet(group)), backend) as r:
            r.step(3)
            r.resize("workers", 2)
            while next(r)[0] != 1:
                pass
            heard = r.actors["workers"][1].ask(lambda life: life.heard).result()
            assert heard == [(0, 3)]  # once, before its first step, what was true then


def test_seeds_are_those_that_a_build_gives_and_no_life_has_that_of_another() -> None:
    def made(changes: list[int], count: int) -> list[dict[str, Any]]:
        Life.made.clear()
        with run(source(lives(count)).gather_sync(), Local(), seed=7) as r:
            for number in changes:
                r.step(2)
                r.resize("workers", number)
        return list(Life.made)

    grown, built = made([4], 2), made([], 4)
    assert [one["seed"] for one in grown] == [one["seed"] for one in built]
    assert [one["count"] for one in grown] == [2, 2, 4, 4]
    changed = made([4, 1, 3, 2, 5], 2)
    assert [(one["index"], one["incarnation"]) for one in changed] == [
        (0, 0), (1, 0), (2, 0), (3, 0), (1, 1), (2, 1), (2, 2), (3, 1), (4, 0),
    ]  # fmt: skip
    assert len({one["seed"] for one in changed}) == len(changed)


def test_a_group_with_two_sources_grows_in_both() -> None:
    group = counters(1)
    one, two = source(group), flowrl.from_actors(group, "uneven").flatten()
    with run(one.union(two).gather_sync(), Local()) as r:
        r.step(2)
        r.resize("workers", 2)
        assert [index for index, _ in r.step(4)] == [0, 1, 0, 1]  # shards of the one source, then of the other
        assert r.resize("workers", 1).items >= 0
        assert {index for index, _ in r.step(8)[-4:]} == {0}


def test_a_constructor_that_raises_leaves_the_run_as_it_was() -> None:
    class Picky(Counter):
        def __init__(self, *, index: int = 0):
            super().__init__(index=index)
            if index == 2:
                raise OSError("no third licence")

    with run(source(actors(Picky, count=1, name="workers")).gather_sync(), Local()) as r:
        assert r.step(2) == [(0, 1), (0, 2)]
        with pytest.raises(OSError, match="no third licence"):
            r.resize("workers", 4)
        assert len(r.actors["workers"]) == r.stats().groups["workers"].count == 1
        assert r.step(1) == [(0, 3)]
        r.resize("workers", 2)
        assert r.step(3) == [(0, 4), (1, 1), (0, 5)]


def test_new_ones_that_do_not_come_up_are_given_up() -> None:
    slow = Virtual(lambda group, index, kind, number: 100.0 if kind == "start" and index else 0.0)
    with run(source(counters(1)).gather_sync(), slow) as r:
        with pytest.raises(TimeoutError, match=r"workers\[1\] did not come up within timeout_s=5; .* goes on with 1"):
            r.resize("workers", 2, timeout_s=5)
        assert r.step(2) == [(0, 1), (0, 2)]


def test_a_new_one_that_dies_at_once_is_no_death_of_the_run() -> None:
    with run(source(counters(1)).gather_sync(), Delayed(0, die=lambda actor, n: actor == "workers[1]")) as r:
        with pytest.raises(ActorDied, match=r"workers\[1\] died as it was started: .*; the run goes on with 1"):
            r.resize("workers", 2)
        assert r.step(2) == [(0, 1), (0, 2)]
        assert r.stats().groups["workers"].deaths == 0


# ------------------------------------------------------------------ fewer


def test_what_leaving_shards_have_made_comes_out(backend: Backend) -> None:
    with run(source(counters(3)).gather_sync(), backend) as r:
        assert r.step(4) == [(0, 1), (1, 1), (2, 1), (0, 2)]
        assert r.resize("workers", 1) == Resized("workers", 3, 1, items=2)
        assert r.step(4) == [(1, 2), (2, 2), (0, 3), (0, 4)]
        stats = r.stats()
        assert stats.metrics["gather_sync"] == {"shards_removed": 2}
        assert stats.lost_calls == 0
        assert stats.nodes["from_actors"].items == 3 + 3 + 2


def test_what_the_operators_of_a_leaving_shard_hold_comes_out() -> None:
    for backend in (Local(), Delayed(5)):
        with run(source(counters(2)).batch(3).gather_async(num_async=1), backend) as r:
            got = r.step(6)
            assert r.resize("workers", 1).lost_steps == 0
            while len(rest := [one for one in got if one[0][0] == 1][-1]) == 3 and got[-1][0][0] != 0:
                got += r.step(1)
            got += r.step(20)
            steps = [step for batch in got if batch[0][0] == 1 for _, step in batch]
            assert steps == list(range(1, len(steps) + 1))
            assert rest
            assert r.stats().nodes["from_actors"].items - len(steps) >= sum(len(b) for b in got if b[0][0] == 0)


def test_whom_an_item_came_from_may_be_gone_when_it_is_consumed() -> None:
    flow = source(counters(3)).gather_sync().for_each(TellOrigin())
    with run(flow, Local()) as r:
        r.step(4)
        r.resize("workers", 1)
        assert r.step(3) == [(1, 2), (2, 2), (0, 3)]
        assert r.actors["workers"][0].ask("memory").result() == [(k, (0, k)) for k in (1, 2, 3)]


def test_a_handle_of_one_that_left_says_so() -> None:
    with run(source(counters(2)).gather_sync(), Local()) as r:
        r.step(2)
        last = r.actors["workers"][1]
        r.resize("workers", 1)
        with pytest.raises(ActorDied, match=r"workers\[1\] cannot answer 'memory' .*: run.resize has removed it"):
            last.ask("memory").result()
        r.resize("workers", 2)
        assert last.ask("memory").result() == []  # its successor's


def test_what_is_not_done_in_time_is_lost_and_counted() -> None:
    slow = Virtual(lambda group, index, kind, number: 50.0 if kind == "pull" and index and number else 0.0)
    with run(source(counters(2)).gather_async(num_async=2), slow) as r:
        r.step(6)
        done = r.resize("workers", 1, timeout_s=3)
        assert done == Resized("workers", 2, 1, lost_steps=2)
        assert slow.now() <= 5.0
        stats = r.stats()
        assert stats.lost_calls == 2
        assert {index for index, _ in r.step(20)} == {0}


def test_one_that_dies_as_it_leaves_is_not_started_again() -> None:
    backend = Delayed(1)
    with run(source(lives(2)).gather_async(num_async=2), backend) as r:
        got = [item for item in r.step(4) if item[0] == 1]
        backend.kill(r.actors["workers"][1])
        done = r.resize("workers", 1)
        stats = r.stats()
        assert done.lost_steps == stats.lost_calls > 0
        assert stats.groups["workers"].deaths == 1
        rest = r.step(20)
        got += [item for item in rest if item[0] == 1]
        assert [step for *_, step in got] == list(range(1, len(got) + 1))
        assert all(life == 0 for _, life, _ in got)


def test_an_interrupt_while_shards_leave_ends_the_wait_and_then_counts() -> None:
    class Struck(Virtual):
        strike = False

        def poll(self, sent: Any, timeout_s: float | None) -> Any:
            if self.strike:
                self.strike = False
                signal.raise_signal(signal.SIGINT)
            return super().poll(sent, timeout_s)

    backend = Struck(lambda group, index, kind, number: 50.0 if kind == "pull" and index and number else 0.0)
    with run(source(counters(2)).gather_async(num_async=1), backend) as r:
        r.step(4)
        backend.strike = True
        with pytest.raises(KeyboardInterrupt):
            r.resize("workers", 1)
        assert not r.closed
        assert len(r.actors["workers"]) == 1
        assert backend.now() < 50
        assert r.stats().lost_calls == 1
        assert {index for index, _ in r.step(5)} == {0}


# ------------------------------------------------------------------ rounds that do not wait, shards that are served


def test_rounds_that_do_not_wait_drop_what_is_late_of_those_that_leave() -> None:
    takes = Virtual(lambda group, index, kind, number: (1.0, 1.0, 9.0, 9.0)[index] if kind == "pull" else 0.0)
    with run(source(counters(2)).gather_sync(timeout_s=2.0, late="drop"), takes) as r:
        assert r.step(2) == [(0, 1), (1, 1)]
        r.resize("workers", 4)
        assert r.step(4) == [(0, 2), (1, 2), (0, 3), (1, 3)]
        assert r.resize("workers", 2).items == 0
        assert r.step(4) == [(0, 4), (1, 4), (0, 5), (1, 5)]
        assert r.stats().metrics["gather_sync"]["late_dropped"] == 2


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_shards_that_a_server_answers_grow_and_shrink(mode: str) -> None:
    for backend in (Local(), Delayed(4)):
        flow = served(2, servers=2) if mode == "sync" else served(2, servers=3)
        gathered = flow.gather_sync() if mode == "sync" else flow.gather_async(num_async=2)
        with run(gathered, backend) as r:
            made = r.step(5)
            r.resize("askers", 4)
            made += r.step(21)
            left = r.resize("askers", 1)
            made += r.step(left.items)
            of_shard = {k: [int(one["item"][0]) for one in made if one["shard"][0] == k] for k in range(4)}
            made = r.step(20)
            assert all(one["shard"][0] == 0 for one in made[-10:])
            for k in (1, 2, 3):
                items = of_shard[k] + [int(one["item"][0]) for one in made if one["shard"][0] == k]
                assert items == list(range(1, len(items) + 1))
                assert items
            assert r.stats().lost_calls == 0
            with pytest.raises(GraphError, match="its actors serve the shards of"):
                r.resize("servers", 1)


# ------------------------------------------------------------------ what is shown


def test_figures_handles_and_drawings_show_the_new_number() -> None:
    takes = Virtual(lambda group, index, kind, number: 1.0 if kind == "pull" else 0.0)
    with run(source(counters(1)).gather_sync(), takes, seed=0) as r:
        assert "1 × Counter" in r.explain()
        r.step(10)
        r.resize("workers", 3)
        assert "3 × Counter" in r.explain()
        assert "3 × workers" in r.explain()
        stats = r.stats()
        assert stats.groups["workers"].count == 3
        assert "workers: 3 actor(s)" in str(stats)
        assert stats.groups["workers"].more_s == -20.0  # two of them were not there for ten seconds
        assert "workers" in table(r)
        assert [handle.name for handle in r.actors["workers"]] == ["workers[0]", "workers[1]", "workers[2]"]


# ------------------------------------------------------------------ who may, and what cannot


@pytest.mark.parametrize(
    ("group", "count", "text"),
    [
        ("worker", 2, "this run has no group 'worker'; it has workers, learner"),
        ("workers", 0, "a group needs at least 1 actor, got count=0 for 'workers'"),
        ("workers", 1.5, "got count=1.5"),
        ("learner", 2, r"group 'learner' keeps its 1 actor\(s\): Echo asks its actors, and counts on their number"),
    ],
)
def test_what_cannot_be(group: str, count: Any, text: str) -> None:
    flow = source(counters(2)).gather_sync().for_each(Echo(counters(1, "learner")))
    with run(flow, Local()) as r:
        r.step(1)
        with pytest.raises(ValueError, match=text):
            r.resize(group, count)
        assert r.resize("learner", 1) == Resized("learner", 1, 1)  # as it is
        assert r.step(2) == [(1, 1), (0, 2)]


def test_shards_of_lists_and_servers_and_joiners_keep_their_number() -> None:
    with run(flowrl.from_items(range(9), num_shards=2).gather_sync(), Local()) as r:
        with pytest.raises(GraphError, match="its items were divided among them when the flow was made"):
            r.resize("from_items-shards", 3)
        assert list(r) == list(range(9))
        with pytest.raises(FlowError, match="flow has ended"):
            r.resize("from_items-shards", 3)
    with pytest.raises(FlowError, match="nothing to resize; resize before close"):
        r.resize("from_items-shards", 2)


def test_an_operator_cannot_resize() -> None:
    made: list[Run[Any]] = []
    flow = source(counters(2)).gather_sync().tap(lambda item: made[0].resize("workers", 3) if item == (0, 2) else None)
    with run(flow, Local()) as r:
        made.append(r)
        r.step(2)
        with pytest.raises(FlowError, match=r"an operator of this run cannot resize a group: .* from another thread"):
            r.step(1)


def test_another_thread_resizes_a_run_that_moves_in_the_background(backend: Backend) -> None:
    with run(source(lives(1)).gather_async(), backend) as r:
        handle = r.background()
        handle.wait(3)
        r.resize("workers", 3)
        seen = set()
        for _ in range(2000):
            seen.add(handle.wait(handle.count + 1)[0])  # type: ignore[index]
            if seen == {0, 1, 2}:
                break
        assert seen == {0, 1, 2}
        r.resize("workers", 1)
        handle.wait(handle.count + 30)
        handle.pause()
        assert {index for index, *_ in r.step(10)} == {0}


def test_two_threads_resize_one_after_the_other() -> None:
    with run(source(lives(1)).gather_sync(), Local()) as r:
        handle = r.background()
        done: list[Resized] = []
        threads = [
            threading.Thread(target=lambda n=n: done.append(r.resize("workers", n)))  # type: ignore[misc]
            for n in (2, 3, 4, 2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        handle.pause()
        assert len(done) == 4
        assert all(one.before == two.after for one, two in zip(done[1:], done, strict=False))
        assert len(r.actors["workers"]) == done[-1].after


# ------------------------------------------------------------------ replay


def replaying(shards: int) -> Flow[Any]:
    return stored_and_drawn(shelves(shards, min_size=4), rollouts(), mode="round_robin", batch=2)


def rows_of(r: Run[Any]) -> list[int]:
    return [len(handle.ask("held").result()) for handle in r.actors["replay"]]


def test_a_grown_replay_group_has_an_empty_shard_that_fills() -> None:
    with run(replaying(1), Local(), seed=0) as r:
        r.step(10)
        before = rows_of(r)
        r.resize("replay", 2)
        assert rows_of(r) == [before[0], 0]
        r.step(40)
        first, second = rows_of(r)
        assert second > 0
        assert abs(first - before[0] - second) <= 8  # from there on they are stored in turn
        assert r.actors["replay"][1].ask("history").result().count(("draw", 2, 1, None)) > 0


@pytest.mark.parametrize("delayed", [False, True])
def test_rows_of_a_replay_shard_that_leaves_are_lost_and_counted(delayed: bool) -> None:
    with run(replaying(3), Delayed(2) if delayed else Local(), seed=0) as r:
        r.step(40)
        held = rows_of(r)
        done = r.resize("replay", 1)
        assert 0 < done.lost_rows <= held[1] + held[2]
        r.step(40)
        metrics = r.stats().metrics["replay"]
        assert metrics["rows_lost"] == held[1] + held[2]  # with those that were acknowledged, and not taken in yet
        assert metrics["shards_removed"] == 2
        r.resize("replay", 2)
        r.step(20)
        assert sum(rows_of(r)) - 8 <= r.stats().metrics["replay"]["rows"] <= sum(rows_of(r))


# ------------------------------------------------------------------ checkpoints


@pytest.mark.parametrize("mode", ["sync", "async", "timed"])
def test_a_resized_run_goes_on_from_its_checkpoint(tmp_path: Path, mode: str) -> None:
    def graph() -> Flow[Any]:
        shards = source(lives(2)).batch(2)
        if mode == "async":
            return shards.gather_async()
        return shards.gather_sync() if mode == "sync" else shards.gather_sync(timeout_s=100.0)

    with run(graph(), Local(), seed=1) as r:
        r.step(3)
        r.resize("workers", 5)
        r.step(8)
        left = r.resize("workers", 3)
        r.resize("workers", 4)
        assert left.items
        saved = r.save(tmp_path / "saved")
        expected, stats = r.step(30), r.stats()
    with run(graph(), Local(), resume=saved) as again:
        assert len(again.actors["workers"]) == 4
        assert again.step(30) == expected
        assert again.stats().nodes["from_actors"].items == stats.nodes["from_actors"].items
        again.resize("workers", 5)
        fresh = again.step(60)
        lives_of_4 = {life for batch in fresh for index, life, _ in batch if index == 4}
        assert lives_of_4 == {1}  # the first was the first run's
    if mode == "sync":
        with run(source(lives(3)).batch(2).gather_sync(), Local(), resume=saved) as other:
            assert len(other.actors["workers"]) == 3  # a description that was changed counts
            assert len(other.step(6)) == 6


# ------------------------------------------------------------------ whatever comes


class Tally:
    """Takes the items of a run, and compares them with what was made."""

    def __init__(self) -> None:
        self.of_life: dict[tuple[int, int], list[int]] = {}

    def take(self, items: list[Any]) -> None:
        for index, life, step in items:
            self.of_life.setdefault((index, life), []).append(step)

    @property
    def items(self) -> int:
        return sum(map(len, self.of_life.values()))


changes = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 5)), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(changes, st.sampled_from(["sync", "async", "timed"]), st.integers(0, 3), st.booleans())
def test_items_are_conserved_whatever_is_resized_when(
    sequence: list[tuple[int, int]], mode: str, seed: int, patient: bool
) -> None:
    shards = source(lives(2, limit=6))
    flow = {
        "sync": shards.gather_sync,
        "async": shards.gather_async,
        "timed": lambda: shards.gather_sync(timeout_s=0.05),
    }[mode]()
    tally, lost = Tally(), 0
    with run(flow, Delayed(seed) if seed else Local(), seed=0) as r:
        for items, count in sequence:
            tally.take(r.step(items))
            if r._finished:
                break
            try:
                lost += r.resize("workers", count, timeout_s=None if patient else 0.02).lost_steps
            except TimeoutError:  # new ones did not come up
                assert count > len(r.actors["workers"])
                assert not patient
        tally.take(list(r))
        stats = r.stats()
        # sampled = out + dropped + in flight; nothing is in flight at the end
        assert stats.nodes["from_actors"].items == tally.items
        assert stats.lost_calls == lost
        assert lost == 0 or not patient
    for steps in tally.of_life.values():
        assert steps == list(range(1, len(steps) + 1))  # each once, in order, and none left out in between
