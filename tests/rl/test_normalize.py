"""Moments merge exactly; rewards are scaled by what is known of the discounted return."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.rl.normalize import RewardScaling, RunningMoments, normalize


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 40), min_size=1, max_size=8), st.floats(-1e4, 1e4))
def test_merged_moments_are_those_of_all_the_data(seed: int, sizes: list[int], shift: float) -> None:
    rng = np.random.default_rng(seed)
    parts = [rng.normal(shift, rng.uniform(0.1, 10), (size, 3)) for size in sizes]
    whole = np.concatenate(parts)
    forwards = backwards = RunningMoments.empty((3,))
    for part, other in zip(parts, reversed(parts), strict=True):
        forwards = forwards.update(part)
        backwards = RunningMoments.of(other).merge(backwards)
    for moments in (forwards, backwards):
        assert moments.count == len(whole)
        if len(whole):
            np.testing.assert_allclose(moments.mean, whole.mean(0), rtol=1e-12, atol=1e-12)
            exact = np.square((whole - whole.mean(0)).astype(np.longdouble)).mean(0)
            np.testing.assert_allclose(moments.var, exact.astype(float), rtol=1e-11, atol=1e-12)


def test_moments_worked_by_hand() -> None:
    moments = RunningMoments.of([1.0, 2.0]).merge(RunningMoments.of([6.0]))
    assert (moments.count, moments.mean, moments.m2) == (3, 3.0, 14.0)
    assert moments.var == pytest.approx(14 / 3)
    assert moments.std == pytest.approx((14 / 3) ** 0.5)
    again = RunningMoments.from_state(moments.get_state())
    assert (again.count, again.mean, again.m2) == (3, 3.0, 14.0)


def test_a_large_mean_does_not_cost_the_variance() -> None:
    values = np.arange(1000.0) + 1e9
    halves = RunningMoments.of(values[:300]).update(values[300:])
    assert halves.var == pytest.approx((1000**2 - 1) / 12, rel=1e-12)
    in_float32 = RunningMoments.of((np.arange(1000) % 2).astype(np.float32))
    assert (in_float32.mean, in_float32.var) == (0.5, 0.25)


def test_no_rows_say_nothing() -> None:
    empty = RunningMoments.empty((2,))
    assert empty.var.tolist() == [1, 1]
    rows = RunningMoments.of([[1.0, 2.0]])
    assert empty.merge(rows) is rows
    assert rows.merge(RunningMoments.of(np.empty((0, 2)))) is rows
    assert rows.var.tolist() == [0, 0]


def test_moments_refuse() -> None:
    with pytest.raises(ValueError, match=r"rows of shape \(2,\) and \(\)"):
        RunningMoments.empty((2,)).merge(RunningMoments.empty())
    with pytest.raises(ValueError, match=r"got the single number 3"):
        RunningMoments.of(3.0)
    with pytest.raises(FloatingPointError, match="1 of 2 columns are not finite"):
        RunningMoments.of([[1.0, np.nan], [1.0, 2.0]])


def test_normalized_observations_are_clipped_float32() -> None:
    scaled = normalize(np.array([[3, 100, 5]], np.uint8), np.array([1.0, 0, 5]), np.array([4.0, 1, 0]))
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled, [[1, 10, 0]], rtol=1e-6)


# rewards
NO = np.zeros((4, 1), bool)


def test_discounted_returns_begin_anew_with_each_episode() -> None:
    scaling = RewardScaling(1, discount=0.5)
    done = np.array([[False], [True], [False], [False]])
    valid = np.array([[True], [True], [False], [True]])
    rewards = np.array([[2.0], [4.0], [0.0], [8.0]])
    scaled, added = scaling.scale(rewards, done, valid)
    # R: 2, 0.5·2 + 4 = 5, (a row that only resets), 8.
    assert added is not None
    assert (added.count, float(added.mean)) == (3, 5.0)
    assert added.var == pytest.approx(6.0)
    np.testing.assert_allclose(scaled, rewards / np.sqrt(6.0), rtol=1e-6)
    # The fourth step's return goes on over the end of the fragment: 0.5·8 + 1 = 5, 3.5, 2.75, 2.375.
    _, more = scaling.scale(np.ones((4, 1)), NO, ~NO)
    assert more is not None
    assert float(more.mean) == pytest.approx((5 + 3.5 + 2.75 + 2.375) / 4)
    assert scaling.moments.count == 7
    expected = np.var([2, 5, 8, 5, 3.5, 2.75, 2.375])
    assert float(scaling.moments.var) == pytest.approx(expected)


def test_clipping_comes_after_scaling() -> None:
    clip_only = RewardScaling(1, clip=1.0)
    assert clip_only.active
    scaled, added = clip_only.scale(np.array([[5.0], [-0.5], [-3.0], [0.0]]), NO, ~NO)
    assert (scaled.ravel().tolist(), added) == ([1, -0.5, -1, 0], None)
    both = RewardScaling(1, discount=0.0, clip=1.5)
    scaled, _ = both.scale(np.array([[10.0], [-10.0], [30.0], [-30.0]]), NO, ~NO)
    np.testing.assert_allclose(scaled.ravel(), [10 / 500**0.5, -10 / 500**0.5, 30 / 500**0.5, -30 / 500**0.5])
    assert not RewardScaling(3).active


def test_reward_scaling_goes_on_from_its_state() -> None:
    scaling, other = RewardScaling(2, 0.9), RewardScaling(2, 0.9)
    rewards = np.random.default_rng(0).normal(size=(4, 2))
    flags = np.zeros((4, 2), bool)
    scaling.scale(rewards, flags, ~flags)
    other.set_state(scaling.get_state())
    np.testing.assert_array_equal(other.scale(rewards, flags, ~flags)[0], scaling.scale(rewards, flags, ~flags)[0])
    fewer = RewardScaling(1, 0.9)
    fewer.set_state(scaling.get_state())
    assert fewer.moments.count == 16
    assert fewer.get_state()["returns"].tolist() == [0]


def test_reward_scaling_refuses() -> None:
    with pytest.raises(ValueError, match=r"normalize_rewards is a discount from 0 to 1, got 1\.5"):
        RewardScaling(1, 1.5)
    with pytest.raises(ValueError, match="reward_clip must be above 0 and finite, got 0"):
        RewardScaling(1, clip=0.0)
