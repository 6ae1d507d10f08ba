"""Sequences and episodes: which rows make one, with which state, over fragments, ends and overwritten rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flowrl import Batch
from flowrl.rl import ReplayShard


def fragment(first: int, steps: int, envs: int = 1, ends: tuple[int, ...] = (), invalid: tuple[int, ...] = ()) -> Batch:
    """Rows (T, N) that say their step (from `first` on) and environment; `ends` and `invalid` are steps of all."""
    step = np.arange(first, first + steps)
    step_TN = np.repeat(step[:, None], envs, axis=1)
    return Batch(
        {
            "step": step_TN,
            "env": np.tile(np.arange(envs), (steps, 1)),
            "terminated": np.isin(step_TN, ends),
            "truncated": np.zeros((steps, envs), np.bool_),
            "state/h": np.stack([step_TN, -step_TN], -1).astype(np.float32),
            "valid": ~np.isin(step_TN, invalid),
        },
        time_major=True,
    )


def items(shard: ReplayShard, draws: int = 200) -> dict[int, list[int]]:
    """The steps of each item that comes up, by its slot."""
    batch = shard.sample(draws)
    assert batch.time_major
    assert batch["state/h"].shape == (*batch.leading, 2)
    found: dict[int, list[int]] = {}
    for i in range(draws):
        valid = batch["valid"][:, i]
        steps = batch["step"][valid, i].tolist()
        slot = int(batch["slots"][0, i])
        assert (batch["slots"][:, i] == slot).all()
        assert len(set(batch["env"][:, i].tolist())) == 1
        assert batch["state/h"][:, i].tolist() == [[steps[0], -steps[0]]] * len(batch["valid"])
        assert found.setdefault(slot, steps) == steps
    return found


def test_sequences_of_a_fragment_cover_all_its_rows() -> None:
    shard = ReplayShard(100, sequence=4, period=2, seed=0)
    shard.add(fragment(0, 9))
    assert sorted(items(shard).values()) == [[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 7], [5, 6, 7, 8]]
    assert len(shard) == 9
    assert shard.mass == 4


def test_reset_rows_are_left_out_and_short_sequences_are_padded() -> None:
    shard = ReplayShard(100, sequence=6, seed=0)
    shard.add(fragment(0, 6, envs=2, ends=(2,), invalid=(3,)))
    assert [*items(shard).values()] == [[0, 1, 2, 4, 5]] * 2
    batch = shard.sample(3)
    assert batch["valid"].tolist() == [[True] * 3] * 5 + [[False] * 3]
    assert batch["step"][-1].tolist() == [5] * 3


def test_a_stream_goes_on_over_fragments_and_others_do_not_mix_in() -> None:
    shard = ReplayShard(100, sequence=4, period=2, seed=0)
    assert shard.add(fragment(0, 3), stream="a") == 3
    assert len(shard) == 0  # none is whole yet
    with pytest.raises(ValueError, match="holds nothing that can be drawn"):
        shard.sample(1)
    shard.add(fragment(50, 3), stream="b")
    shard.add(fragment(3, 3), stream="a")
    shard.add(fragment(53, 2), stream="b")
    assert sorted(items(shard).values()) == [[0, 1, 2, 3], [2, 3, 4, 5], [50, 51, 52, 53]]


def test_episodes_end_where_they_end() -> None:
    shard = ReplayShard(100, episodes=True, seed=0)
    shard.add(fragment(0, 8, ends=(2, 6), invalid=(3,)))  # row 7 begins one that does not end here
    assert sorted(items(shard).values()) == [[0, 1, 2], [4, 5, 6]]
    shard.add(fragment(20, 3), stream=1)
    shard.add(fragment(23, 3, ends=(24,)), stream=1)
    assert sorted(items(shard).values()) == [[0, 1, 2], [4, 5, 6], [20, 21, 22, 23, 24]]


def test_an_episode_longer_than_the_shard_is_left_out_and_the_next_is_whole() -> None:
    shard = ReplayShard(6, episodes=True, seed=0)
    shard.add(fragment(0, 6, ends=(2, 5)))
    assert sorted(items(shard).values()) == [[0, 1, 2], [3, 4, 5]]  # exactly full
    for first in range(6, 18, 3):
        shard.add(fragment(first, 3, ends=(17,)), stream=0)
    assert (len(shard), shard.mass) == (0, 0.0)  # 12 rows do not fit into 6
    shard.add(fragment(18, 6, ends=(23,)), stream=0)
    assert [*items(shard).values()] == [[18, 19, 20, 21, 22, 23]]


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    capacity=st.integers(4, 40),
    length=st.integers(1, 4),
    shorter=st.integers(0, 3),
    envs=st.integers(1, 3),
    steps=st.lists(st.integers(1, 15), min_size=1, max_size=7),
)
def test_equals_a_naive_list(seed: int, capacity: int, length: int, shorter: int, envs: int, steps: list[int]) -> None:
    assume((length - 1) * envs < capacity)
    rng = np.random.default_rng(seed)
    period = max(1, length - shorter)
    shard = ReplayShard(capacity, sequence=length, period=period, prioritized=True, seed=seed)
    rows: list[tuple[int, int]] = []  # (step, env), as stored
    lanes: list[list[int]] = [[] for _ in range(envs)]  # indices into rows
    now = 0
    for count in steps:
        invalid = tuple(now + np.flatnonzero(rng.random(count) < 0.2))
        batch = fragment(now, count, envs, invalid=invalid)
        shard.add(batch, stream=0)
        for t in range(now, now + count):
            for n in range(envs):
                if t not in invalid:
                    lanes[n].append(len(rows))
                    rows.append((t, n))
        now += count
        expected = [
            [rows[i][0] for i in lane[at : at + length]]
            for lane in lanes
            for at in range(0, len(lane) - length + 1, period)
            if lane[at] >= len(rows) - capacity
        ]
        assert shard.mass == pytest.approx(len(expected))
        if expected:
            assert sorted(items(shard, 20 * len(expected)).values()) == sorted(expected)


def test_sequences_that_never_can_be_whole_are_refused() -> None:
    batch = fragment(0, 9, envs=3)
    whole = ReplayShard(10, sequence=4, seed=0)
    whole.add(batch)
    assert sorted(items(whole).values()) == [[5, 6, 7, 8]]  # the last environment's goes over the newest 10 rows
    with pytest.raises(ValueError, match=r"of 4 rows of one environment goes over 10 rows of all, .*9 keeps"):
        ReplayShard(9, sequence=4).add(batch)
    streamed = ReplayShard(9, sequence=4)
    streamed.add(fragment(0, 2, envs=3), stream=0)
    with pytest.raises(ValueError, match="so none could ever be drawn: raise the capacity"):
        streamed.add(fragment(2, 2, envs=3), stream=0)


def test_states_that_change_are_refused_before_anything_is_stored() -> None:
    batch, more = fragment(0, 4), np.zeros((4, 1, 3))
    for other, text in (
        (Batch({n: a for n, a in batch.items() if n != "state/h"}, time_major=True), "it lacks state/h"),
        (batch.with_columns({"state/c": more}), "it has state/c too"),
        (batch.with_columns({"state/h": more}), r"'state/h' has float64 rows of shape \(3,\), but the first batch"),
    ):
        shard = ReplayShard(100, sequence=4, seed=0)
        shard.add(batch)
        with pytest.raises(ValueError, match=text):
            shard.add(other)
        again = ReplayShard(100, sequence=4)
        again.set_state(shard.get_state())
        with pytest.raises(ValueError, match=text):
            again.add(other)
        assert [*items(shard).values()] == [[0, 1, 2, 3]]
        assert len(shard) == 4


def test_episodes_need_to_know_where_they_end() -> None:
    with pytest.raises(ValueError, match="episodes need the columns terminated and truncated"):
        ReplayShard(10, episodes=True).add(Batch({"obs": np.zeros((4, 1))}, time_major=True))


def test_priorities_are_of_sequences() -> None:
    shard = ReplayShard(100, sequence=3, prioritized=True, alpha=1.0, beta=1.0, seed=0)
    shard.add(fragment(0, 9))
    assert shard.update_priorities([0, 1, 2], [1.0, 3.0, 4.0]) == 0
    batch = shard.sample(4000)
    counts = np.bincount(batch["slots"][0]) / 4000
    np.testing.assert_allclose(counts, np.array([1, 3, 4]) / 8, atol=0.03)
    np.testing.assert_allclose(batch["weights"][2], 1 / np.array([1.0, 3.0, 4.0])[batch["slots"][0]], rtol=1e-4)
    with pytest.raises(ValueError, match="begin with the largest priority"):
        shard.add(fragment(9, 3), priorities=np.ones((3, 1)))


def test_the_figures_of_a_graph_count_valid_rows() -> None:
    shard = ReplayShard(100, sequence=6, seed=0)
    assert shard.store(fragment(0, 5)).metrics["inserted"].value == 5
    assert shard.draw(3).metrics["sampled"].value == 15


def test_a_batch_for_a_policy_with_memory_is_what_it_takes() -> None:
    from flowrl.rl.sequences import sequences_of

    shard = ReplayShard(100, sequence=4, seed=0)
    made: Any = fragment(0, 8, envs=2).with_columns(starts=np.zeros((8, 2), np.bool_))
    shard.add(made)
    sequences = sequences_of(shard.sample(5), ["step"], ["h"], "test")
    assert sequences.initial["h"].shape == (5, 2)
    assert sequences.steps["step"].shape == (4, 5)
