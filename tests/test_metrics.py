"""Metric rules: what merges how, and that the policy is part of the key."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.metrics import WINDOW, Last, Listed, Mean, Moments, Recorder, Sum, Table, deltas_of


def test_rules():
    table = Table()
    table.merge(deltas_of("n", {"a": Sum(2), "b": Mean(1.0, weight=3), "c": 5, "d": Listed((1.0, 2.0)), "e": Last(7)}))
    table.merge(deltas_of("n", {"a": Sum(3), "b": Mean(5.0, weight=1), "c": 6, "d": Listed((6.0,)), "e": Last(8)}))
    assert table.read("n", "a") == 5
    assert table.read("n", "b") == (1 * 3 + 5 * 1) / 4
    assert table.read("n", "c") == 6
    assert table.read("n", "d") == 3.0
    assert table.read("n", "e") == 8
    assert table.read("n", "unknown") is None
    assert table.count("d") == 3
    assert table.window("d") == [1.0, 2.0, 6.0]


def test_a_list_keeps_the_newest_and_counts_all():
    table = Table()
    table.merge([("n", None, "r", "list", tuple(float(i) for i in range(WINDOW + 50)), 1.0)])
    assert table.window("r") == [float(i) for i in range(50, WINDOW + 50)]
    assert table.count("r") == WINDOW + 50


def test_what_is_of_all_policies_together_is_not_mixed_with_what_is_of_each():
    table = Table()
    table.merge(deltas_of("a", {"r": Listed((30.0,)), ("ppo", "r"): Listed((10.0,)), ("dqn", "r"): Listed((20.0,))}))
    table.merge(deltas_of("b", {"r": Listed((40.0,))}))
    assert table.window("r") == [30.0, 40.0]
    table.merge(deltas_of("a", {("ppo", "s"): Listed((1.0,)), ("dqn", "s"): Listed((2.0,))}))
    assert table.window("s") == [1.0, 2.0]


def test_the_policy_is_part_of_the_key():
    table = Table()
    table.merge(deltas_of("train", {("ppo", "loss"): 1.0, ("dqn", "loss"): 2.0, "loss": 3.0}))
    assert table.policies() == {"ppo": {"loss": 1.0}, "dqn": {"loss": 2.0}}
    assert table.by_node() == {"train": {"ppo/loss": 1.0, "dqn/loss": 2.0, "loss": 3.0}}


def test_a_name_that_changes_its_rule_is_refused():
    table = Table()
    table.merge(deltas_of("n", {"x": Sum(1)}))
    with pytest.raises(ValueError, match="metric 'x' of node 'n' was recorded as sum and now as last"):
        table.merge(deltas_of("n", {"x": 1}))


def test_a_recorder_gives_each_delta_once():
    recorder = Recorder("n")
    recorder.add("a", 2)
    recorder.mean("b", 1.5, weight=2, policy="p")
    recorder.last("c", 3)
    recorder.list("d", [1, 2])
    assert recorder.take() == [
        ("n", None, "a", "sum", 2.0, 1.0),
        ("n", "p", "b", "mean", 1.5, 2.0),
        ("n", None, "c", "last", 3.0, 1.0),
        ("n", None, "d", "list", (1.0, 2.0), 1.0),
    ]
    assert recorder.take() == []


def test_a_mean_of_nothing_is_nan():
    table = Table()
    table.merge([("n", None, "m", "mean", 1.0, 0.0)])
    value = table.read("n", "m")
    assert value is not None
    assert math.isnan(value)


@given(
    st.lists(st.tuples(st.sampled_from(["sum", "mean"]), st.floats(-1e3, 1e3), st.floats(0.1, 10)), max_size=30),
    st.integers(0, 30),
)
def test_merging_in_parts_equals_merging_at_once(entries, cut):
    deltas = [("n", None, rule, rule, value, weight) for rule, value, weight in entries]
    whole, parts = Table(), Table()
    whole.merge(deltas)
    parts.merge(deltas[:cut])
    parts.merge(deltas[cut:])
    assert whole.by_node() == parts.by_node()


@pytest.mark.parametrize(
    ("metrics", "told"),
    [
        ({"a": "3"}, "metric 'a' must be a number, or a rule of flowrl.metrics .*, got '3'"),
        ({"a": 10**400}, "metric 'a' must be a number, or a rule of flowrl.metrics .*, got one of 1329 bits"),
        ({"a": None}, "metric 'a' must be a number, or a rule of flowrl.metrics .*, got None"),
        ({"a": Mean(1.0, "x")}, "metric 'a' must be a number, .* got 'x'"),
        ({"a": Listed((1.0, [2]))}, r"metric 'a' must be a number, .* got \[2\]"),
        ({3: 1.0}, "a metric's name must be a string, .* got 3"),
        ({("p", "a", "b"): 1.0}, r"a metric's name must be a string, .* got \('p', 'a', 'b'\)"),
        ({(1, "a"): 1.0}, "the policy of metric 'a' must be a string or None, got 1"),
    ],
)
def test_what_is_no_metric_is_named(metrics: dict[Any, Any], told: str) -> None:
    with pytest.raises(TypeError, match=told):
        deltas_of("node", metrics)


def test_moments_join_as_if_seen_at_once() -> None:
    table = Table()
    parts = [(1.0, 2.0), (6.0,), (), (3.0, 3.0, 9.0)]
    for number, part in enumerate(parts):
        mean = sum(part) / len(part) if part else 0.0
        moments = Moments(len(part), mean, sum((value - mean) ** 2 for value in part))
        table.merge(deltas_of(f"shard {number % 2}", {("red", "reward_moments"): moments}))
    joined = table.moments("reward_moments")
    assert (joined.count, joined.mean) == (6, 4.0)
    assert joined.m2 == pytest.approx(9 + 4 + 4 + 1 + 1 + 25)
    assert table.read("shard 0", "reward_moments", "red") == pytest.approx(1.5)
    assert table.moments("nothing") == Moments(0.0, 0.0, 0.0)
