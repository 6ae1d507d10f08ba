"""What is drawn: by priority, in order, so often and no oftener; and that a saved shard draws the same."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl import Batch
from flowrl.pacing import Pacing
from flowrl.rl import ReplayShard
from flowrl.rl.replay.pool import RARE
from tests.rl.replay.streams import Stream


def numbered(first: int, count: int) -> Batch:
    return Batch({"numbers": np.arange(first, first + count)})


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    capacity=st.integers(1, 70),
    adds=st.lists(st.integers(1, 100), min_size=1, max_size=6),
    prioritized=st.booleans(),
)
def test_draws_what_a_list_holds(seed: int, capacity: int, adds: list[int], prioritized: bool) -> None:
    rng = np.random.default_rng(seed)
    shard = ReplayShard(capacity, prioritized=prioritized, alpha=1.0, seed=seed)
    rows: dict[int, float] = {}
    total = 0
    for count in adds:
        largest = max(rows.values(), default=1.0)
        given = rng.random(count) * 3 if rng.random() < 0.5 else None
        assert shard.add(numbered(total, count), given) == count
        for i in range(count):
            rows[total + i] = largest if given is None else abs(float(given[i])) + 1e-6
        total += count
        rows = {number: rows[number] for number in range(max(0, total - capacity), total)}
        assert len(shard) == len(rows)
        batch = shard.sample(20, batches=2, beta=0.7)
        assert set(batch["numbers"].tolist()) <= rows.keys()
        np.testing.assert_array_equal(batch["slots"], batch["numbers"])
        assert batch["weights"].dtype == np.float32
        if not prioritized:
            assert shard.mass == len(rows)
            np.testing.assert_array_equal(batch["weights"], 1)
            continue
        assert shard.mass == pytest.approx(sum(rows.values()), rel=1e-9)
        for half in (slice(0, 20), slice(20, 40)):
            masses = np.array([rows[number] for number in batch["numbers"][half].tolist()])
            weights = (len(rows) * masses / shard.mass) ** -0.7
            np.testing.assert_allclose(batch["weights"][half], weights / weights.max(), rtol=1e-5)
        slots = rng.integers(0, total, 15)
        new = rng.random(15)
        assert shard.update_priorities(slots, new) == sum(slot not in rows for slot in slots.tolist())
        for slot, priority in zip(slots.tolist(), new, strict=True):
            if slot in rows:
                rows[slot] = float(priority) + 1e-6


def test_a_priority_that_another_of_the_same_item_follows_is_not_the_largest() -> None:
    shard = ReplayShard(4, prioritized=True, alpha=1.0, seed=0)
    shard.add(numbered(0, 1))
    shard.update_priorities(np.array([0, 0]), np.array([9.0, 2.0]))
    shard.add(numbered(1, 1))  # enters with the largest that is held
    assert shard.mass == pytest.approx(2 * (2.0 + 1e-6), rel=1e-9)


def test_frequencies_are_priorities_to_the_alpha() -> None:
    rng = np.random.default_rng(3)
    shard = ReplayShard(60, prioritized=True, alpha=0.6, seed=1)
    priorities = rng.random(60) * 4
    shard.add(numbered(0, 60), priorities)
    counts = np.bincount(shard.sample(100_000)["numbers"], minlength=60)
    mass = (priorities + 1e-6) ** 0.6
    expected = mass / mass.sum() * 100_000
    assert abs(((counts - expected) ** 2 / expected).sum() - 59) < 4 * np.sqrt(2 * 59)


def chi_square(counts: np.ndarray[Any, Any], mass: np.ndarray[Any, Any]) -> float:
    """How many standard deviations the counts are off what the masses say."""
    expected = mass / mass.sum() * counts.sum()
    often = expected > 5
    freedom = int(often.sum()) - 1
    found = float((((counts - expected) ** 2)[often] / expected[often]).sum())
    return abs(found - freedom) / np.sqrt(2 * freedom)


@pytest.mark.parametrize("exponent", [0.0, 1.0, 12.0])
def test_frequencies_are_right_however_uneven_the_priorities(exponent: float) -> None:
    """Even ones are tried, of which most are kept; uneven ones (here 1/13 is kept on average) are looked for."""
    rng = np.random.default_rng(4)
    shard = ReplayShard(500, prioritized=True, alpha=1.0, seed=2)
    priorities = rng.random(500) ** exponent
    shard.add(numbered(0, 500), priorities)
    counts = np.zeros(500)
    for _ in range(40):
        counts += np.bincount(shard.sample(2000)["numbers"], minlength=500)
        shard.update_priorities(np.arange(500), priorities)
    assert chi_square(counts, priorities + 1e-6) < 4
    assert (shard.mass / 500 < RARE) == (exponent == 12.0)


def test_a_large_priority_that_has_gone_is_forgotten() -> None:
    shard = ReplayShard(64, prioritized=True, alpha=1.0, seed=0)
    shard.add(numbered(0, 64), [1e6, *[1.0] * 63])
    assert (shard.sample(300)["numbers"] == 0).sum() > 290
    shard.update_priorities(np.arange(64), np.ones(64))
    counts = np.bincount(shard.sample(20_000)["numbers"], minlength=64)
    assert chi_square(counts, np.ones(64)) < 4
    assert shard._pool._bound == pytest.approx(1.0, abs=1e-5)
    shard.add(numbered(64, 1))
    assert shard.mass == pytest.approx(64, abs=1e-3)


def test_what_is_tried_in_vain_is_tried_again() -> None:
    """With so few tries that they do not do, draws are as probable as ever."""
    shard = ReplayShard(50, prioritized=True, alpha=1.0, seed=0)
    priorities = np.linspace(0.1, 1.0, 50)
    shard.add(numbered(0, 50), priorities)
    rng, counts = np.random.default_rng(0), np.zeros(50)
    for _ in range(2000):
        places, masses = shard._pool._tried(rng, 40, 50, share=1.0)  # half are kept, in truth
        np.testing.assert_array_equal(masses, (priorities + 1e-6)[places])
        counts += np.bincount(places, minlength=50)
        assert len(places) == 40
    assert chi_square(counts, priorities) < 4


def test_what_was_made_in_advance_meets_the_priorities_of_its_day() -> None:
    """Draws of a few, whose priorities change with every one: each day's are as probable as they are then."""
    shard = ReplayShard(50, prioritized=True, alpha=1.0, seed=0)
    shard.add(numbered(0, 50), np.ones(50))
    days = [np.linspace(0.1, 1.0, 50), np.linspace(1.0, 0.1, 50)]
    counts = np.zeros((2, 50))
    for turn in range(6000):
        shard.update_priorities(np.arange(50), days[turn % 2])
        counts[turn % 2] += np.bincount(shard.sample(7)["numbers"], minlength=50)
    for day in (0, 1):
        assert chi_square(counts[day], days[day]) < 4


def test_numbers_that_no_item_has_are_late() -> None:
    shard = ReplayShard(8, prioritized=True, alpha=1.0)
    shard.add(numbered(0, 3), np.ones(3))
    assert shard.update_priorities([-1, 0, 3, 5, -8], np.full(5, 7.0)) == 4
    assert shard.update_priorities([], []) == 0
    assert shard.mass == pytest.approx(9, abs=1e-4)
    assert set(shard.sample(200)["numbers"]) == {0, 1, 2}


def test_a_column_of_priorities_is_taken_and_phantom_rows_are_not() -> None:
    shard = ReplayShard(10, prioritized=True, alpha=1.0, seed=0)
    columns = {
        "numbers": np.arange(6).reshape(3, 2),
        "valid": np.array([[True, False], [True, True], [False, True]]),
        "priorities": np.array([[1.0, 100.0], [2.0, 3.0], [100.0, 4.0]]),
    }
    assert shard.add(Batch(columns, time_major=True)) == 4
    assert shard.mass == pytest.approx(10, abs=1e-4)
    batch = shard.sample(500)
    assert set(batch["numbers"]) == {0, 2, 3, 5}
    assert "priorities" not in batch


def test_fifo_gives_each_item_so_often_in_order() -> None:
    shard = ReplayShard(5, fifo=True, max_times_sampled=2, seed=0)
    shard.add(numbered(0, 3))
    assert shard.sample(3)["numbers"].tolist() == [0, 0, 1]
    assert len(shard) == 2
    shard.add(numbered(3, 4))  # 2..6 stay: 1 has gone with a draw left
    assert shard.sample(5)["numbers"].tolist() == [2, 2, 3, 3, 4]
    with pytest.raises(
        ValueError, match=r"9 draws were asked for, and the 3 items .* have 5 left \(max_times_sampled=2"
    ):
        shard.sample(9)
    assert shard.sample(5)["numbers"].tolist() == [4, 5, 5, 6, 6]
    assert len(shard) == 0
    with pytest.raises(ValueError, match="holds nothing that can be drawn"):
        shard.sample(1)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 1000), times=st.integers(1, 3), prioritized=st.booleans(), n=st.integers(1, 17))
def test_no_item_is_drawn_oftener(seed: int, times: int, prioritized: bool, n: int) -> None:
    shard = ReplayShard(40, prioritized=prioritized, max_times_sampled=times, seed=seed)
    shard.add(numbered(0, 40), np.random.default_rng(seed).random(40) ** 3)
    drawn: list[int] = []
    while len(drawn) + n <= 40 * times:
        batch = shard.sample(n)
        np.testing.assert_array_equal(batch["slots"], batch["numbers"])
        drawn += batch["numbers"].tolist()
    counts = np.bincount(drawn, minlength=40)
    assert counts.max() <= times
    assert len(shard) == (counts < times).sum()
    if n == 1:
        assert (counts == times).all()


def test_what_was_overwritten_before_its_time_is_said() -> None:
    shard = ReplayShard(4, fifo=True, max_times_sampled=3)
    said = shard.store(numbered(0, 4)).metrics
    assert said["forgone"].value == 0
    assert (said["size"], said["mass"], said["inserted"].value) == (4, 4.0, 4)
    drawn = shard.draw(4)
    assert drawn.metrics["sampled"].value == 4
    assert shard.store(numbered(4, 6)).metrics["forgone"].value == 12 - 4 + 2 * 3


def test_late_priorities_of_a_graph_are_counted() -> None:
    shard = ReplayShard(4, prioritized=True)
    shard.store(numbered(0, 6))
    trained = Batch({"slots": np.array([1, 2, 5]), "priorities": np.array([1.0, 2.0, 3.0])})
    assert shard.reprioritize(trained).metrics["late"].value == 1
    assert shard.reprioritize(None).metrics == {}


KINDS: list[dict[str, Any]] = [
    {},
    {"prioritized": True},
    {"fifo": True, "max_times_sampled": 40},
    {"prioritized": True, "max_times_sampled": 40},
    {"sequence": 5, "period": 2, "prioritized": True},
    {"episodes": True},
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("stack", [1, 4])
def test_a_saved_shard_draws_the_same(kind: dict[str, Any], stack: int) -> None:
    stream, made = Stream(3, 2, stack=stack, ends=0.2), ReplayShard(30, seed=5, **kind)
    joined = {"stream": 0} if made._items is not None else {}
    for count in (9, 4, 13):
        made.add(done(stream.fragment(count)), **joined)
        slots = made.sample(4)["slots"].reshape(-1)
        made.update_priorities(slots, np.linspace(0.1, 3, len(slots)))
    again = ReplayShard(30, seed=0, **kind)
    again.set_state(pickle.loads(pickle.dumps(made.get_state())))
    for count in (5, 16):
        assert made.sample(7, batches=2) == again.sample(7, batches=2)
        batch = done(stream.fragment(count))
        for shard in (made, again):
            shard.add(batch, **joined)
        assert (len(made), made.mass) == (len(again), again.mass)
        assert made.sample(7) == again.sample(7)


def done(batch: Batch) -> Batch:
    """The fragment with `terminated` where the next row of its environment is a reset row, and states."""
    ended = np.zeros(batch.leading, np.bool_)
    ended[:-1] = ~batch.valid[1:]
    state = batch["numbers"][..., None] + np.array([0.0, 0.5], np.float32)
    return batch.with_columns({"terminated": ended, "truncated": np.zeros_like(ended), "state/h": state})


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"capacity": 0}, "capacity must be at least 1, got 0"),
        ({"alpha": -1.0}, "alpha must be at least 0, got -1.0"),
        ({"alpha": 41.0}, "alpha must be at most 40, got 41.0: items of low priority would never come"),
        ({"beta": float("nan")}, "beta must be a finite number, got nan"),
        ({"sequence": 20}, "a sequence of 20 rows does not fit into capacity=10"),
        ({"period": 2}, "period=2 needs a sequence of at least so many rows, got sequence=None"),
        ({"sequence": 4, "episodes": True}, "set episodes or sequence=4, not both"),
        ({"fifo": True, "prioritized": True}, "priorities would count for nothing"),
        ({"min_size": 11}, r"min_size=11 rows can never be stored: 1 shard of capacity=10"),
        ({"samples_per_insert": 0.0}, "samples_per_insert must be above 0"),
        ({"fifo": True, "samples_per_insert": 2.0}, "more than max_times_sampled=1 of each row"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ReplayShard(**{"capacity": 10, **settings})


def test_pacing_is_read_off_the_arguments() -> None:
    assert ReplayShard.pacing(100) == Pacing()
    said = ReplayShard.pacing(100, fifo=True, sequence=8, min_size=5, samples_per_insert=0.5)
    assert said == Pacing(5, 0.5, None, 1, 8)
    assert said.rows_of(3) == 24


@pytest.mark.parametrize(("priorities", "text"), [([1.0, np.nan], "got nan at 1"), ([1.0], r"shape \(2,\)")])
def test_priorities_that_are_none_are_refused(priorities: list[float], text: str) -> None:
    shard = ReplayShard(10, prioritized=True)
    with pytest.raises(ValueError, match=text):
        shard.add(numbered(0, 2), priorities)
    assert len(shard) == 0


def test_other_things_than_a_batch_are_refused() -> None:
    from flowrl import MultiAgentBatch

    with pytest.raises(TypeError, match=r"rows of one policy, got a MultiAgentBatch of a, b: .*by_policy"):
        ReplayShard(10).add(MultiAgentBatch({"a": numbered(0, 1), "b": numbered(0, 1)}, env_steps=1))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="stores a Batch, got dict"):
        ReplayShard(10).add({"obs": np.zeros(3)})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("was", "now", "text"),
    [
        ({}, {"capacity": 31}, r"capacity=30 \(here 31\)"),
        ({}, {"prioritized": True}, r"prioritized=False \(here True\), alpha=None \(here 0.6\)"),
        ({"prioritized": True}, {}, r"prioritized=True \(here False\)"),
        ({"prioritized": True}, {"prioritized": True, "alpha": 1.0}, r"alpha=0.6 \(here 1.0\)"),
        ({}, {"fifo": True}, r"fifo=False \(here True\), max_times_sampled=None \(here 1\)"),
        ({"max_times_sampled": 2}, {"max_times_sampled": 3}, r"max_times_sampled=2 \(here 3\)"),
        ({"sequence": 4}, {"sequence": 5}, r"sequence=4 \(here 5\), period=4 \(here 5\)"),
        (
            {"sequence": 4, "period": 2},
            {"episodes": True},
            r"sequence=4 \(here None\), .* episodes=False",
        ),
    ],
)
def test_a_state_of_another_shard_is_refused(was: dict[str, Any], now: dict[str, Any], text: str) -> None:
    shard, other = ReplayShard(30, **was), ReplayShard(**{"capacity": 30, **now})
    for each in (shard, other):
        each.add(done(Stream(3, 2, stack=1).fragment(12)))
    before = other.mass
    with pytest.raises(ValueError, match=f"the state is of a replay shard with {text}.*: they must be the same"):
        other.set_state(shard.get_state())
    assert other.mass == before


def test_a_state_is_taken_where_only_its_place_differs(tmp_path: Path) -> None:
    shard = ReplayShard(30, sequence=4, seed=1)
    shard.add(done(Stream(3, 2, stack=1).fragment(12)))
    other = ReplayShard(30, sequence=4, period=4, memory_map=tmp_path, beta=0.9)
    other.set_state(shard.get_state())
    assert other.sample(5) == shard.sample(5)


def test_priorities_whose_sum_has_no_end_are_refused_and_small_integers_are_taken() -> None:
    shard = ReplayShard(100, prioritized=True, alpha=1.0, seed=0)
    with pytest.raises(ValueError, match=r"priorities must be finite, .* below 1e\+290, .* got 1e\+308 at 0"):
        shard.add(Batch({"x": np.arange(1)}), priorities=[1e308])
    shard.add(Batch({"x": np.arange(2)}), priorities=np.array([-128, 0], np.int8))
    assert shard.mass == pytest.approx(128.0, abs=1e-5)  # which int8 cannot hold
    slots = shard.sample(8)["slots"]
    with pytest.raises(ValueError, match=r"slots must be integers, .* got float64"):
        shard.update_priorities(slots + 0.5, np.ones(8))
    with pytest.raises(ValueError, match="priorities must be numbers, got <U1"):
        shard.update_priorities(slots, ["x"] * 8)
    with pytest.raises(ValueError, match="beta must be at least 0 and finite, got 'x'"):
        shard.sample(1, beta="x")  # type: ignore[arg-type]
    assert shard.update_priorities(slots.astype(np.int32), np.ones(8)) == 0
