"""The pacing of a replay group: golden decisions, and that one side may always go."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.engine.call import ActorState
from flowrl.engine.cursors import Cursor
from flowrl.engine.limiter import Limiter
from flowrl.errors import ActorDied
from flowrl.failures import Raise
from flowrl.pacing import Pacing


class Run:
    """Enough of a run to watch shards and merge metrics."""

    def __init__(self) -> None:
        self.accounts = self
        self.merged: list[Any] = []

    def watch(self, state: Any, watcher: Any) -> None:
        """Nothing dies here by itself."""

    def merge(self, deltas: Any) -> None:
        """Keeps them."""
        self.merged.extend(deltas)


def limiter(shards: int = 1, **pacing: Any) -> tuple[Limiter, list[ActorState]]:
    states = [ActorState("replay", index, object, None) for index in range(shards)]
    return Limiter(Run(), "replay", Pacing(**pacing), states), states


def insert(paced: Limiter, state: ActorState, rows: int, *, mass: float | None = None) -> None:
    size = paced.stocks[state].size + rows
    paced.sent(rows)
    paced.stored(state, rows, {"inserted": rows, "size": size, "mass": size if mass is None else mass})


def sample(paced: Limiter, state: ActorState, rows: int) -> None:
    paced.drawn(paced.stocks[state], rows)
    paced.answered(paced.stocks[state], rows, {})


def test_golden_decisions() -> None:
    """min_size 10, 2 samples an insert, buffer 6: c = 20, so diff may be from 14 to 26."""
    paced, (state,) = limiter(min_size=10, samples_per_insert=2.0, error_buffer=6.0)
    assert not paced.may_sample(1)  # nothing is stored
    insert(paced, state, 9)
    assert paced.may_insert(1)
    assert not paced.may_sample(1)  # 9 of 10
    insert(paced, state, 1)  # diff 20
    assert paced.may_sample(6)  # 20 - 6 >= 14
    assert not paced.may_sample(7)
    assert paced.may_insert(3)  # 20 + 6 <= 26
    assert not paced.may_insert(4)
    insert(paced, state, 3)  # diff 26
    assert not paced.may_insert(1)
    assert paced.may_sample(12)
    sample(paced, state, 12)  # diff 14
    assert not paced.may_sample(1)
    assert paced.may_insert(6)


def test_the_figures_of_the_group_are_told() -> None:
    paced, (one, two) = limiter(2, min_size=4)
    insert(paced, one, 6)
    sample(paced, one, 12)
    insert(paced, two, 2)
    told = {what: value for _, _, what, _, value, _ in paced.run.merged}
    assert told == {"rows": 8.0, "samples_per_insert": 3.0}  # 12 drawn for 8 - 4


def test_rows_on_their_way_count() -> None:
    paced, (state,) = limiter(min_size=4, samples_per_insert=1.0, error_buffer=4.0)
    paced.sent(4)
    assert not paced.may_sample(1)  # not acknowledged yet
    assert paced.may_insert(4)  # diff 4 + 4 <= 8
    paced.sent(4)
    assert not paced.may_insert(1)
    paced.lost(4)
    assert paced.may_insert(1)
    paced.stored(state, 4, {"size": 3, "mass": 3.0, "inserted": 3})  # it stored fewer than were sent
    assert (paced.inserted, paced.coming, paced.size) == (3, 0, 3)
    paced.drawn(paced.stocks[state], 8)
    assert paced.sampled == 8
    paced.undrawn(paced.stocks[state], 8)
    assert paced.sampled == 0


def test_without_a_ratio_only_min_size_counts() -> None:
    paced, (state,) = limiter(min_size=2)
    assert paced.may_insert(10**6)
    insert(paced, state, 2)
    sample(paced, state, 10**9)
    assert paced.may_sample(10**9)
    assert paced.may_insert(1)


def test_each_row_so_many_times() -> None:
    paced, (one, two) = limiter(2, max_times_sampled=2)
    insert(paced, one, 3)
    insert(paced, two, 1)
    assert paced.may_sample(6)
    assert not paced.may_sample(7)
    assert paced.choose(3, lambda: 0.99).state is one  # two has only 2 samples left
    sample(paced, one, 5)
    assert paced.may_sample(2)
    assert paced.choose(2, lambda: 0.0).state is two
    sample(paced, two, 2)
    assert not paced.may_sample(2)
    assert "no shard of replay has 2 samples left, and nobody will store more: raise max_t" in paced.why_no_sample(2)


def test_inserts_go_on_until_one_shard_has_the_rows_of_a_sample() -> None:
    """Eight rows of three shards are enough for the ratio, but a sample of eight is drawn from one shard."""
    paced, states = limiter(3, max_times_sampled=1, samples_per_insert=1.0)
    paced.drawn_by(8, 1)
    for at in range(7):
        assert not paced.may_sample(8)
        assert paced.may_insert(4)
        insert(paced, states[at % 3], 4)
        if at == 3:
            break
    assert paced.may_sample(8)
    assert not paced.may_insert(4)


@given(
    ratio=st.floats(0.01, 64.0),
    min_size=st.integers(1, 200),
    in_flight=st.integers(1, 4),
    sizes=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 300)), min_size=1, max_size=60),
)
def test_without_a_buffer_one_side_may_always_go(
    ratio: float, min_size: int, in_flight: int, sizes: list[tuple[int, int]]
) -> None:
    paced, (state,) = limiter(min_size=min_size, samples_per_insert=ratio)
    paced.drawn_by(max(rows for _, rows in sizes), in_flight)
    for inserted, sampled in sizes:
        may_insert, may_sample = paced.may_insert(inserted), paced.may_sample(sampled)
        assert may_insert or may_sample
        if may_insert:
            insert(paced, state, inserted)
        if may_sample:
            sample(paced, state, sampled)
        if paced.size >= min_size:
            off = (paced.inserted - min_size) * ratio - paced.sampled
            assert abs(off) <= paced.buffer * (1 + 1e-9)


@given(
    ratio=st.floats(0.05, 64.0),
    inserted=st.integers(1, 300),
    sampled=st.integers(1, 5000),
    stores=st.integers(1, 5),
    draws=st.integers(1, 5),
)
def test_without_a_buffer_no_window_is_in_vain(
    ratio: float, inserted: int, sampled: int, stores: int, draws: int
) -> None:
    """At the most that one side may be ahead, the other has its whole window out, and nothing of it was answered."""
    paced, (state,) = limiter(min_size=1, samples_per_insert=ratio)
    paced.stored_by(Idle(), stores)
    paced.drawn_by(sampled, draws)
    for _ in range(3):
        while paced.may_insert(inserted):
            insert(paced, state, inserted)
        for _ in range(draws):
            assert paced.may_sample(sampled)
            paced.drawn(paced.stocks[state], sampled)
        while paced.may_sample(sampled):
            sample(paced, state, sampled)
        for _ in range(stores):
            assert paced.may_insert(inserted)
            paced.sent(inserted)
        for _ in range(stores):
            paced.stored(state, inserted, {"inserted": inserted, "size": paced.size + inserted})


class Idle(Cursor):
    """One who stores, or draws."""

    def __init__(self) -> None:
        self.closed = False


def test_golden_buffer() -> None:
    """Samples of 8 rows, 3 in flight; inserts at 4 samples a row, 5 in flight."""
    paced, _ = limiter(samples_per_insert=4.0)
    paced.drawn_by(8, 1)
    assert paced.buffer == 8  # a sample
    assert paced.may_insert(3)
    assert paced.buffer == 12  # an insert
    paced.drawn_by(8, 2)
    assert paced.buffer == (3 * 8 + 12) / 2
    paced.stored_by(Idle(), 5)
    assert paced.buffer == (5 * 12 + 8) / 2


def test_shards_are_chosen_by_mass() -> None:
    paced, (one, two, three) = limiter(3)
    insert(paced, one, 10, mass=1.0)
    insert(paced, two, 10, mass=0.0)
    insert(paced, three, 1, mass=3.0)
    assert paced.size == 21
    chosen = [paced.choose(5, lambda at=at: at / 100).state for at in range(100)]  # type: ignore[misc]
    assert [chosen.count(state) for state in (one, two, three)] == [25, 0, 75]
    assert paced.choose(5, lambda: 1.0 - 2**-53).state is three


def test_what_dies_is_counted_and_the_others_go_on() -> None:
    paced, (one, two) = limiter(2, min_size=10, samples_per_insert=1.0)
    paced.drawn_by(1, 1)
    insert(paced, one, 5)
    insert(paced, two, 5)
    assert paced.may_sample(1)
    paced.died(one, "killed")
    assert paced.run.merged[-2:] == [
        ("replay", None, "shards_lost", "sum", 1.0, 1.0),
        ("replay", None, "rows_lost", "sum", 5.0, 1.0),
    ]
    assert (paced.size, paced.needed) == (5, 5)  # min_size in proportion: the survivors have what they need
    assert paced.may_sample(1)
    assert paced.choose(1, lambda: 0.0).state is two
    paced.answered(paced.stocks[one], 1, {"size": 99, "mass": 99.0})  # an answer from before
    assert paced.size == 5
    with pytest.raises(ActorDied, match=r"every shard of replay has died; the last was replay\[1\]: killed too"):
        paced.died(two, "killed too")


def test_raise_stops() -> None:
    paced, (one, _) = limiter(2)
    paced.on_failure = Raise()
    insert(paced, one, 7)
    with pytest.raises(ActorDied, match=r"replay\[0\] died with 7 rows: killed; .*on_failure=Raise\(\)"):
        paced.died(one, "killed")
