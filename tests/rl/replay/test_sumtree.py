"""The sum tree: sums without drift, and places in proportion to their masses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.rl.replay import sumtree
from flowrl.rl.replay.sumtree import SumTree


@settings(max_examples=100, deadline=None)
@given(capacity=st.integers(1, 3000), top=st.sampled_from([1, 2, 4096]), seed=st.integers(0, 2**32 - 1))
def test_equals_a_naive_sum(capacity: int, top: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sumtree, "TOP", top)
        tree = SumTree(capacity)
    naive = np.zeros(capacity)
    for _ in range(8):
        if rng.random() < 0.5:
            places = rng.integers(0, capacity, rng.integers(1, 40))
            masses = rng.random(len(places)) * (rng.random(len(places)) < 0.7)
            for place, mass in zip(places, masses, strict=True):
                naive[place] = mass
            tree.put(places, masses)
        else:
            start, stop = sorted(rng.integers(0, capacity + 1, 2).tolist())
            naive[start:stop] = rng.random(stop - start)
            tree.put_range(start, stop, naive[start:stop])
        np.testing.assert_array_equal(tree.leaves, naive)
        assert tree.total == pytest.approx(naive.sum(), rel=1e-12)
        if naive.any():
            shares = rng.random(50)
            found = tree.find(shares)
            after = naive.cumsum()
            np.testing.assert_array_less(after[found] - naive[found], shares * after[-1] + 1e-9)
            np.testing.assert_array_less(shares * after[-1] - 1e-9, after[found])
            assert (naive[found] > 0).all()


def test_does_not_drift_over_many_updates() -> None:
    rng = np.random.default_rng(0)
    tree = SumTree(200)
    tree.put_range(0, 200, 1e9)
    for _ in range(2000):
        tree.put(rng.integers(0, 200, 64), rng.random(64) * 10.0 ** rng.integers(-9, 9, 64))
    tree.put_range(0, 200, 1e-3)
    assert tree.total == pytest.approx(0.2, rel=1e-14)


def test_frequencies_are_those_of_the_masses() -> None:
    rng = np.random.default_rng(0)
    masses = rng.random(500) ** 4 * (rng.random(500) < 0.8)
    tree = SumTree(500)
    tree.put_range(0, 500, masses)
    draws = 200_000
    counts = np.bincount(tree.find(rng.random(draws)), minlength=500)
    assert not counts[masses == 0].any()
    expected = masses / masses.sum() * draws
    often = expected > 5
    chi_square = float((((counts - expected) ** 2)[often] / expected[often]).sum())
    freedom = int(often.sum()) - 1
    assert abs(chi_square - freedom) < 4 * np.sqrt(2 * freedom)


def test_shares_at_the_ends_find_the_first_and_the_last() -> None:
    tree = SumTree(70)
    tree.put(np.array([3, 40, 66]), np.array([0.1, 0.2, 0.3]))
    assert tree.find(np.array([0.0, 1.0 - 2.0**-53, 0.4])).tolist() == [3, 66, 40]
