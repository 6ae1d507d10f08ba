"""ReplayShard: what it stores, what it gives back, and with what probability."""

from __future__ import annotations

import numpy as np
import pytest

from flowrl import Batch
from flowrl.rl import ReplayShard


def numbered(first: int, count: int) -> Batch:
    """Rows that say their number."""
    numbers = np.arange(first, first + count)
    return Batch({"obs": np.stack([numbers, -numbers], -1).astype(np.float32), "actions": numbers})


def test_the_newest_rows_stay() -> None:
    shard = ReplayShard(5, seed=0)
    for first in range(0, 12, 3):
        assert shard.add(numbered(first, 3)) == 3
    assert len(shard) == 5
    batch = shard.sample(200)
    assert set(batch["actions"]) == {7, 8, 9, 10, 11}
    np.testing.assert_array_equal(batch["slots"], batch["actions"])
    np.testing.assert_array_equal(batch["obs"][:, 1], -batch["actions"])
    np.testing.assert_array_equal(batch["weights"], np.ones(200, np.float32))


def test_priorities_decide_and_late_ones_are_counted() -> None:
    shard = ReplayShard(4, prioritized=True, alpha=1.0, beta=1.0, seed=0)
    shard.add(numbered(0, 4))
    assert shard.update_priorities([0, 1, 2, 3], [0.0, 1.0, 2.0, 5.0]) == 0
    assert shard.mass == pytest.approx(8 + 4e-6)
    batch = shard.sample(4000)
    counts = np.bincount(batch["actions"], minlength=4) / 4000
    np.testing.assert_allclose(counts, np.array([0, 1, 2, 5]) / 8, atol=0.03)
    row = {int(a): float(w) for a, w in zip(batch["actions"], batch["weights"], strict=True)}
    assert row[2] == pytest.approx(row[1] / 2, rel=1e-5)
    shard.add(numbered(4, 2))  # over slots 0 and 1, at the largest priority
    assert shard.update_priorities([0, 1, 2, 4, 99], [9.0] * 5) == 3
    assert shard.mass == pytest.approx(9 + 5 + 9 + 5, abs=1e-4)


@pytest.mark.parametrize("sequence", [None, 2])
def test_slots_of_a_predecessor_reach_nobody(sequence: int | None) -> None:
    def shard(incarnation: int) -> ReplayShard:
        made = ReplayShard(8, prioritized=True, sequence=sequence, incarnation=incarnation, seed=0)
        made.add(Batch({"x": np.arange(6.0)[:, None]}, time_major=True))
        return made

    first, second = shard(0), shard(1)
    old, new = np.unique(first.sample(16)["slots"]), np.unique(second.sample(16)["slots"])
    assert new.min() - 2**44 == old.min()
    before = second.mass
    assert second.update_priorities(old, np.full(len(old), 9.0)) == len(old)
    assert second.mass == before
    assert second.update_priorities(new, np.full(len(new), 9.0)) == 0
    assert second.mass > before
    again = ReplayShard(8, prioritized=True, sequence=sequence, seed=5)
    again.set_state(second.get_state())
    assert np.array_equal(again.sample(4)["slots"], second.sample(4)["slots"])
