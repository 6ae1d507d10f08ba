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
from flowrl.testing import Virtual
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
