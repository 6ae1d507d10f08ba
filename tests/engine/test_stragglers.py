"""A shard ten times slower: what it costs an asynchronous graph and a synchronous one, on a virtual clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowrl
from flowrl import Flow, ParallelFlow
from flowrl.errors import GraphError
from flowrl.operators import Union
from flowrl.testing import Virtual
from tests.engine.shards import Counter as Counter_
from tests.engine.shards import Echo, counters

SHARDS, SLOWER = 4, 10.0


def takes(step_s: list[float], asked_s: float = 0.0) -> Callable[[str, int, str, int], float]:
    """Seconds of a message: a step of each shard as long as is said, a call of the one that is asked `asked_s`."""

    def seconds(group: str, index: int, kind: str, number: int) -> float:
        if kind == "pull":
            return step_s[index]
        return asked_s if kind == "ask" else 0.0

    return seconds


def made_until(flow: Flow[Any], step_s: list[float], until: float, asked_s: float = 0.0) -> Counter[int]:
    """How many items of each shard the graph has given when so much time has passed."""
    backend = Virtual(takes(step_s, asked_s))
    made: Counter[int] = Counter()
    with flowrl.run(flow, backend) as run:
        for shard, _ in run:
            if backend.now() > until:
                return made
            made[shard] += 1
    raise AssertionError("the flow ended")


def shards() -> ParallelFlow[Any]:
    return flowrl.from_actors(counters(SHARDS), "next_item")


@pytest.mark.parametrize("num_async", [1, 2, 3])
@pytest.mark.parametrize("asked", [False, True])
def test_an_asynchronous_graph_loses_the_share_of_the_slow_shard_and_no_more(num_async, asked):
    def graph() -> Flow[Any]:
        gathered = shards().gather_async(num_async=num_async)
        return gathered.for_each(Echo(counters(1, "learner"), in_flight=2)) if asked else gathered

    until = 200.0
    even = made_until(graph(), [1.0] * SHARDS, until, 0.1)
    one_slow = made_until(graph(), [SLOWER, *[1.0] * (SHARDS - 1)], until, 0.1)
    # Each shard goes on at its own pace, whatever the others do; only what is still on its way is missing at the end.
    for index in range(SHARDS):
        pace = SLOWER if index == 0 else 1.0
        assert until / pace - 2 <= one_slow[index] <= until / pace
    assert 1 - one_slow.total() / even.total() <= 1 / SHARDS + 0.01
    assert one_slow.total() == pytest.approx(even.total() * (SHARDS - 1 + 1 / SLOWER) / SHARDS, abs=2 * SHARDS)


@pytest.mark.parametrize("rounds", [1, 7])
def test_a_synchronous_graph_takes_exactly_as_long_as_its_slowest_shard(rounds):
    def seconds(step_s: list[float], asked_s: float) -> float:
        flow = shards().gather_sync().for_each(Echo(counters(1, "learner")))
        backend = Virtual(takes(step_s, asked_s))
        with flowrl.run(flow, backend) as run:
            run.step(rounds * SHARDS)
            return backend.now()

    # A round is the barrier and then the calls for its items, one after the other.
    assert seconds([1.0] * SHARDS, 0.25) == rounds * (1.0 + SHARDS * 0.25)
    assert seconds([SLOWER, *[1.0] * (SHARDS - 1)], 0.25) == rounds * (SLOWER + SHARDS * 0.25)


@given(st.lists(st.sampled_from([0.5, 1.0, 2.0, 8.0]), min_size=SHARDS, max_size=SHARDS))
def test_whatever_the_paces_are(step_s):
    backend = Virtual(takes(step_s))
    with flowrl.run(shards().gather_sync(), backend) as run:
        run.step(3 * SHARDS)
        assert backend.now() == 3 * max(step_s)
    made = made_until(shards().gather_async(num_async=1), step_s, 24.0)
    assert made == Counter({index: int(24 / pace) for index, pace in enumerate(step_s)})


# rounds that do not wait


def hiccup(index: int, rounds: tuple[int, ...], slow_s: float) -> Callable[[str, int, str, int], float]:
    """A second a step, but for some of one shard's."""

    def seconds(group: str, shard: int, kind: str, number: int) -> float:
        if kind != "pull":
            return 0.0
        return slow_s if shard == index and number in rounds else 1.0

    return seconds


def rounds_of(flow: Flow[Any], backend: Virtual, items: int) -> tuple[list[tuple[float, tuple[int, int]]], Any]:
    """Items with the times at which they came, and the figures."""
    with flowrl.run(flow, backend) as run:
        got = []
        for _ in range(items):
            item = next(run)
            got.append((backend.now(), item))
        return got, run.stats()


@pytest.mark.parametrize("late", ["keep", "drop"])
def test_a_round_goes_on_without_the_late_one(late):
    # Shard 1 takes 5 s for its second step; a round waits 2 s.
    flow = shards().gather_sync(timeout_s=2.0, late=late)
    got, stats = rounds_of(flow, Virtual(hiccup(1, (1,), 5.0)), 4 + 3 + 3)
    times = [time for time, _ in got]
    assert [item for _, item in got[:7]] == [(0, 1), (1, 1), (2, 1), (3, 1), (0, 2), (2, 2), (3, 2)]
    assert times[:4] == [1.0] * 4
    assert times[4:7] == [3.0] * 3  # asked at 1, and not waited for longer than 2 s
    assert [item for _, item in got[7:]] == [(0, 3), (2, 3), (3, 3)]  # it comes at 6, this round ends at 5
    assert stats.metrics["gather_sync"]["late workers[1]"] == 2
    got, stats = rounds_of(flow, Virtual(hiccup(1, (1,), 5.0)), 4 + 3 + 3 + 4)
    last = [item for _, item in got[10:]]
    if late == "keep":
        assert last == [(0, 4), (1, 2), (2, 4), (3, 4)]
        assert "late_dropped" not in stats.metrics["gather_sync"]
        assert got[-1][0] == 6.0
    else:
        assert last == [(0, 4), (1, 3), (2, 4), (3, 4)]  # asked again at 6
        assert stats.metrics["gather_sync"]["late_dropped"] == 1
        assert got[-1][0] == 7.0


@pytest.mark.parametrize("least", [1, 3, 4, 9])
def test_a_round_waits_for_as_many_as_it_needs(least):
    flow = shards().gather_sync(timeout_s=2.0, min_shards=least)
    backend = Virtual(takes([10.0, 4.0, 1.0, 1.0]))
    got, _ = rounds_of(flow, backend, 2)
    assert got[0] == {1: (2.0, (2, 1)), 3: (4.0, (1, 1)), 4: (10.0, (0, 1)), 9: (10.0, (0, 1))}[least]


@given(
    st.lists(st.sampled_from([0.5, 1.0, 3.0, 8.0]), min_size=SHARDS, max_size=SHARDS),
    st.sampled_from(["keep", "drop"]),
    st.integers(1, SHARDS),
)
def test_nothing_is_lost_or_given_twice(step_s, late, least):
    flow = shards().gather_sync(timeout_s=1.5, min_shards=least, late=late)
    got, stats = rounds_of(flow, Virtual(takes(step_s)), 40)
    of_shard: dict[int, list[int]] = {index: [] for index in range(SHARDS)}
    for _, (shard, number) in got:
        of_shard[shard].append(number)
    dropped = stats.metrics["gather_sync"].get("late_dropped", 0.0) if "gather_sync" in stats.metrics else 0.0
    missing = 0
    for numbers in of_shard.values():
        assert numbers == sorted(set(numbers))
        missing += (numbers[-1] if numbers else 0) - len(numbers)
    assert missing <= dropped
    if late == "keep":
        assert dropped == 0
    assert (dropped == 0) or max(step_s) > 1.5


def test_without_anybody_late_it_is_the_plain_gather():
    plain, _ = rounds_of(shards().gather_sync(), Virtual(takes([1.0] * SHARDS)), 20)
    patient, stats = rounds_of(shards().gather_sync(timeout_s=5), Virtual(takes([1.0] * SHARDS)), 20)
    assert plain == patient
    assert not any(name.startswith("late") for name in stats.metrics.get("gather_sync", {}))


class Remembering(Counter_):
    """Goes on behind what it has given."""

    def get_state(self) -> dict[str, Any]:
        return {"step": self.step}

    def set_state(self, state: dict[str, Any]) -> None:
        self.step = state["step"]


@pytest.mark.parametrize("late", ["keep", "drop"])
def test_who_is_late_is_still_late_after_a_resume(late, tmp_path):
    def flow() -> Flow[Any]:
        group = flowrl.actors(Remembering, count=SHARDS, name="workers")
        return flowrl.from_actors(group, "next_item").gather_sync(timeout_s=2.0, late=late)

    with flowrl.run(flow(), Virtual(hiccup(1, (1,), 5.0)), seed=0) as run:
        assert run.step(7)[4:] == [(0, 2), (2, 2), (3, 2)]
        assert run.stats().metrics["gather_sync"]["late workers[1]"] == 1
        saved = run.save(tmp_path / "saved")
        expected, before = run.step(12), run.stats().metrics
    assert expected[:4] == [(0, 3), (1, 2 if late == "keep" else 3), (2, 3), (3, 3)]
    with flowrl.run(flow(), Virtual(takes([1.0] * SHARDS)), resume=saved) as again:
        assert again.step(12) == expected
        assert again.stats().metrics == before


def test_a_round_under_way_has_as_long_left_after_a_resume(tmp_path):
    def flow() -> Flow[Any]:
        group = flowrl.actors(Remembering, count=2, name="workers")
        timed = flowrl.from_actors(group, "next_item").gather_sync(timeout_s=10.0)
        return Union([timed, flowrl.from_iterable(lambda: range(100))], mode="async")

    with flowrl.run(flow(), Virtual(takes([1.0, 1.0])), seed=0) as run:
        while isinstance(next(run), tuple):  # up to a number: a round may be under way
            pass
        saved = run.save(tmp_path / "saved")
        rest = [item for item in run.step(20) if isinstance(item, tuple)]
    with flowrl.run(flow(), Virtual(takes([1.0, 1.0])), resume=saved) as again:
        assert [item for item in again.step(20) if isinstance(item, tuple)] == rest


def test_explain_says_that_timing_matters():
    text = shards().gather_sync(timeout_s=2, min_shards=3, late="drop").explain()
    assert "not deterministic: rounds of gather_sync go on without shards that are late" in text
    assert "[timeout_s=2, min_shards=3, late='drop', on_failure=Restart(3)]" in text


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"timeout_s": 0}, "timeout_s must be a number of seconds above 0 .*, got 0"),
        ({"timeout_s": True}, "timeout_s must be a number of seconds above 0 .*, got True"),
        ({"timeout_s": 1, "min_shards": 0}, "min_shards"),
        ({"timeout_s": 1, "late": "later"}, "late must be 'drop' or 'keep', got 'later'"),
        ({"min_shards": 2}, "min_shards and late are for rounds with a timeout_s"),
        ({"late": "keep"}, "min_shards and late are for rounds with a timeout_s"),
    ],
)
def test_settings_that_make_no_sense(settings, text):
    with pytest.raises(GraphError, match=text):
        shards().gather_sync(**settings)


def test_what_waits_for_shards_itself_is_refused():
    joined = shards().aggregate(flowrl.actors(flowrl.Aggregator, count=1, name="joiners"), fan_in=2)
    with pytest.raises(GraphError, match="timeout_s does not go with aggregate, which waits for shards before it"):
        joined.gather_sync(timeout_s=1)
