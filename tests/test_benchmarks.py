"""The statistics that benchmarks print."""

import dataclasses
import json

import numpy as np
import pytest

from benchmarks import learn_replay
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


def test_seeds_trained_apart_make_one_section(tmp_path):
    seeds = [
        learn_replay.Reached(0, True, (500.0, 480.0), 430.0, 30_000, 240_000, 10.0, "ray"),
        learn_replay.Reached(1, True, (500.0, 500.0), 470.0, 20_000, 160_000, 8.5, "ray"),
        learn_replay.Reached(2, False, (100.0, 200.0), 140.0, 200_000, 1_600_000, 90.0, "ray"),
    ]
    files = [tmp_path / f"dqn-{one.seed}.json" for one in seeds]
    for one, file in zip(seeds, files, strict=True):
        file.write_text(json.dumps(dataclasses.asdict(one)), encoding="utf-8")
    read = [learn_replay.Reached.read(file) for file in files]
    assert read == seeds
    section = learn_replay.report("dqn", learn_replay.TASKS["dqn"], read, "Others worked beside it.")
    assert "## DQN on CartPole-v1 to a mean return of 475" in section
    assert "2 of 3 seeds reached it" in section
    assert section.endswith(" Others worked beside it.\n")
    # The median of those that reached it; a quarter of the best and of the worst seed's mean counts.
    assert "25,000 environment steps, 200,000 samples trained and 9.2 s" in section
    assert f"**{(0.25 * 150 + 490 + 0.25 * 500) / 1.5:.4g}**" in section
    assert "| 2 | no | 150 | 140 | 200,000 | 1,600,000 | 90.0 |" in section
