"""The ring of columns: what is read is what was written, and every frame stands there once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl import Batch
from flowrl.rl.replay.memory import Memory, free_memory
from flowrl.rl.replay.rows import columns_to_store
from flowrl.rl.replay.table import Table
from tests.rl.replay.streams import Stream


def write(table: Table, batch: Batch) -> int:
    return table.write(batch, columns_to_store(batch))


class Naive:
    """A list of rows."""

    def __init__(self, capacity: int):
        self.rows: list[dict[str, Any]] = []
        self.capacity = capacity

    def write(self, batch: Batch) -> None:
        flat = batch.flat()
        self.rows += [{name: array[i] for name, array in flat.items()} for i in range(flat.rows)]
        self.rows = self.rows[-self.capacity :]


def check_reads(table: Table, naive: Naive) -> None:
    assert table.size == len(naive.rows)
    if not table.size:
        return
    places = np.arange(table.head - table.size, table.head) % table.capacity
    np.testing.assert_array_equal(table.numbers(places), np.arange(table.head - table.size, table.head))
    read = table.read(places)
    for name, array in read.items():
        np.testing.assert_array_equal(array, np.stack([row[name] for row in naive.rows]), err_msg=name)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    capacity=st.integers(1, 60),
    envs=st.integers(1, 3),
    stack=st.sampled_from([1, 2, 4]),
    lag=st.integers(1, 4),
    phantom=st.booleans(),
    ends=st.sampled_from([0.0, 0.1, 0.5]),
    flat=st.booleans(),
    told=st.booleans(),
    steps=st.lists(st.integers(1, 25), min_size=1, max_size=6),
)
def test_reads_what_was_written(
    seed: int,
    capacity: int,
    envs: int,
    stack: int,
    lag: int,
    phantom: bool,
    ends: float,
    flat: bool,
    told: bool,
    steps: list[int],
) -> None:
    stream = Stream(seed, envs, stack=stack, lag=lag, phantom=phantom, ends=ends)
    table, naive = Table(capacity, frame_stack=stack if told else None), Naive(capacity)
    for count in steps:
        batch = stream.fragment(count)
        if not batch.valid.any():
            continue
        batch = batch.flat() if flat else batch
        write(table, batch)
        naive.write(batch)
        check_reads(table, naive)
        [linked] = table._linked
        ids = np.concatenate([ring[: table.size].reshape(-1) for ring in linked._ids.values()])
        assert linked.frames.in_use == len(np.unique(ids))  # nothing leaks


@pytest.mark.parametrize("steps", [1, 4, 32])
@pytest.mark.parametrize("lag", [1, 3])
@pytest.mark.parametrize("stack", [1, 4])
@pytest.mark.parametrize("flat", [False, True])
def test_a_frame_is_stored_once(steps: int, lag: int, stack: int, flat: bool) -> None:
    stream = Stream(0, 4, stack=stack, lag=lag, ends=0.0)
    table = Table(400, frame_stack=stack)
    for _ in range(-(-1000 // (4 * steps))):
        batch = stream.fragment(steps)
        write(table, batch.flat() if flat else batch)
    [linked] = table._linked
    assert linked.frames.in_use <= 400 + 4 * (stack + lag)
    assert len(linked.frames.array) <= 1.3 * 400


def test_84x84x4_at_100000_steps_takes_what_its_frames_take() -> None:
    row = np.zeros((1, 4, 84, 84), np.uint8)
    table = Table(100_000)
    write(table, Batch({"obs": row, "next_obs": row, "rewards": np.zeros(1, np.float32)}))
    frames = 100_000 * 84 * 84
    assert frames < table.nbytes < 1.01 * frames


def test_small_observations_are_copied_as_they_are() -> None:
    table = Table(10)
    obs = np.arange(8, dtype=np.float32).reshape(2, 4)
    write(table, Batch({"obs": obs, "next_obs": obs + 1}))
    assert not table._linked
    assert table.nbytes == 10 * 2 * 16


def test_nested_observations_are_linked_each() -> None:
    camera, far = np.zeros((6, 1, 8, 8), np.uint8), np.random.default_rng(0).random((6, 1, 40))
    camera += np.arange(6, dtype=np.uint8)[:, None, None, None]
    batch = Batch(
        {
            "obs/camera": camera[:-1],
            "obs/far": far[:-1],
            "next_obs/camera": camera[1:],
            "next_obs/far": far[1:],
        },
        time_major=True,
    )
    table = Table(5)
    write(table, batch)
    assert [linked.frames.in_use for linked in table._linked] == [6, 6]
    read = table.read(np.arange(5))
    np.testing.assert_array_equal(read["next_obs/far"], far[1:, 0])
    np.testing.assert_array_equal(read["obs/camera"], camera[:-1, 0])


def test_frame_stack_that_no_observation_has_is_refused() -> None:
    batch = Batch({"obs": np.zeros((2, 3, 84, 84), np.uint8), "next_obs": np.zeros((2, 3, 84, 84), np.uint8)})
    with pytest.raises(ValueError, match=r"frame_stack=4, but no observation .* obs \[3, 84, 84\]"):
        write(Table(10, frame_stack=4), batch)


def test_what_does_not_fit_is_refused_before_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    free = free_memory()
    assert free is not None
    assert free > 0
    monkeypatch.setattr("flowrl.rl.replay.memory.free_memory", lambda: 2**20)
    table = Table(10**6)
    batch = Batch({"obs": np.zeros((1, 100), np.float32), "rewards": np.zeros(1, np.float32)})
    with pytest.raises(MemoryError, match=r"needs 385.3 MiB .* 1.0 MiB are free \(obs 381.5 MiB, rewards 3.8 MiB\)"):
        write(table, batch)
    assert table.size == 0


def test_other_columns_later_are_refused() -> None:
    table = Table(10)
    write(table, Batch({"obs": np.zeros((1, 2), np.float32), "actions": np.zeros(1, np.int64)}))
    with pytest.raises(ValueError, match="it lacks actions and it has logp too"):
        write(table, Batch({"obs": np.zeros((1, 2), np.float32), "logp": np.zeros(1)}))
    with pytest.raises(ValueError, match=r"'obs' has float64 rows of shape \(2,\), but the first batch"):
        write(table, Batch({"obs": np.zeros((1, 2)), "actions": np.zeros(1, np.int64)}))


@pytest.mark.parametrize("leading", [(0,), (0, 2), (3, 0)], ids=str)
@pytest.mark.parametrize("shape", [(40,), (4, 20)], ids=str)
def test_a_batch_without_rows_says_nothing_of_the_columns(leading: tuple[int, ...], shape: tuple[int, ...]) -> None:
    table = Table(20)
    nothing = np.zeros((*leading, *shape), np.float32)
    assert write(table, Batch({"obs": nothing, "next_obs": nothing}, time_major=len(leading) == 2)) == 0
    assert (table.size, table.nbytes) == (0, 0)
    assert write(table, Batch({"obs": np.zeros((3, 5), np.int8)})) == 3


def test_phantom_rows_alone_do_not_say_what_is_a_stack() -> None:
    stream, table, naive = Stream(1, 2, stack=4), Table(100), Naive(100)
    first = stream.fragment(4)
    assert write(table, first.with_columns(valid=np.zeros((4, 2), np.bool_))) == 0
    for _ in range(6):
        batch = stream.fragment(8)
        write(table, batch)
        naive.write(batch)
        check_reads(table, naive)
    assert table._linked[0].kind.stack == 4


def test_files_hold_the_columns(tmp_path: Any) -> None:
    stream, naive = Stream(1, 2, stack=4), Naive(20)
    table = Table(20, Memory(tmp_path, "replay-0"))
    for count in (3, 30, 7, 1):
        batch = stream.fragment(count)
        write(table, batch)
        naive.write(batch)
        check_reads(table, naive)
    assert all(type(array) is np.ndarray for array in table.read(np.arange(4)).values())
    assert sorted(path.name for path in tmp_path.glob("*.bin")) == ["replay-0.numbers.bin", "replay-0.obs.bin"]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), capacity=st.integers(1, 40), stack=st.sampled_from([1, 3]))
def test_state_goes_on(seed: int, capacity: int, stack: int) -> None:
    stream, naive, table = Stream(seed, 2, stack=stack), Naive(capacity), Table(capacity)
    for count in (5, 9):
        batch = stream.fragment(count)
        write(table, batch)
        naive.write(batch)
    again = Table(capacity)
    again.set_state(table.get_state())
    check_reads(again, naive)
    for count in (4, 30):
        batch = stream.fragment(count)
        write(again, batch)
        naive.write(batch)
        check_reads(again, naive)
