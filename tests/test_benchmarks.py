"""The statistics that benchmarks print."""

import numpy as np
import pytest

from benchmarks.learn import interquartile_mean, interval


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([5.0], 5.0),
        ([1.0, 3.0], 2.0),
        ([100.0, 1.0, 2.0], (0.25 * 1 + 2 + 0.25 * 100) / 1.5),  # of three, the outer ones count a quarter each
        ([9.0, 1.0, 3.0, 5.0], 4.0),
        (range(12), 5.5),
    ],
)
def test_the_interquartile_mean_leaves_out_a_quarter_at_each_end(scores, expected):
    assert float(interquartile_mean(list(scores))) == pytest.approx(expected)


def test_the_interval_covers_the_mean_as_often_as_it_says():
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(60):
        low, high = interval(rng.normal(5.0, 1.0, size=(12, 20)), seed=trial)
        hits += low <= 5.0 <= high
    assert hits >= 50
    assert interval([[2.0, 2.0]]) == (2.0, 2.0)
