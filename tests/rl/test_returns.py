"""Generalized advantage estimation against hand-worked numbers, a slow implementation, and its identities."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl import Batch
from flowrl.rl.returns import gae, n_step


def column(*numbers):
    return np.array(numbers, np.float32)[:, None]


def flags(*numbers):
    return np.array(numbers, bool)[:, None]


def test_golden_numbers_of_a_fragment_that_goes_on():
    # δ = r + 0.5·V' − V: (1 + 1 − 1, 2 + 2 − 2, 3 + 4 − 4) = (1, 2, 3); carry 0.5·0.5 = 0.25.
    # A_2 = 3; A_1 = 2 + 0.75 = 2.75; A_0 = 1 + 0.6875 = 1.6875.
    no = flags(0, 0, 0)
    advantages, returns = gae(column(1, 2, 3), column(1, 2, 4), column(2, 4, 8), no, no, discount=0.5, gae_lambda=0.5)
    assert advantages.dtype == returns.dtype == np.float32
    np.testing.assert_array_equal(advantages, column(1.6875, 2.75, 3))
    np.testing.assert_array_equal(returns, column(2.6875, 4.75, 7))


@pytest.mark.parametrize(
    ("terminated", "truncated", "expected"),
    [
        # the middle step ends the episode; V' = 10 there; A_2 = 3 + 0.5·8 − 4 = 3 always
        (1, 0, (1 + 0.25 * 0 + 0.0, 2 + 0 - 2, 3)),  # bootstrap 0: δ_1 = 0, A_0 = 1 + 0.25·0
        (0, 1, (1 + 0.25 * 5, 2 + 5 - 2, 3)),  # bootstrap 10: δ_1 = 5, A_0 = 1 + 0.25·5
        (1, 1, (1 + 0.25 * 0, 2 + 0 - 2, 3)),  # terminated wins
    ],
)
def test_golden_numbers_of_an_episode_end(terminated, truncated, expected):
    advantages, _ = gae(
        column(1, 2, 3),
        column(1, 2, 4),
        column(2, 10, 8),
        flags(0, terminated, 0),
        flags(0, truncated, 0),
        discount=0.5,
        gae_lambda=0.5,
    )
    np.testing.assert_array_equal(advantages[:, 0], expected)


def test_nothing_passes_through_a_phantom_row_nan_neither():
    advantages, returns = gae(
        column(1, np.nan, 3),
        column(1, 2, 4),
        column(2, np.inf, 8),
        flags(0, 0, 0),
        flags(1, 1, 0),
        discount=0.5,
        gae_lambda=0.5,
        valid_TN=flags(1, 0, 1),
    )
    np.testing.assert_array_equal(advantages, column(1, 0, 3))
    np.testing.assert_array_equal(returns, column(2, 2, 7))


def slow_gae(rewards, values, next_values, terminated, truncated, valid, discount, gae_lambda):
    """Per environment and episode, forwards: A_t as the sum of what follows, in Python floats."""
    advantages = np.zeros(rewards.shape)
    for n in range(rewards.shape[1]):
        for t in range(len(rewards)):
            weight, k = 1.0, t
            while k < len(rewards) and valid[k, n]:
                bootstrap = 0.0 if terminated[k, n] else float(next_values[k, n])
                advantages[t, n] += weight * (float(rewards[k, n]) + discount * bootstrap - float(values[k, n]))
                if terminated[k, n] or truncated[k, n]:
                    break
                weight, k = weight * discount * gae_lambda, k + 1
    return advantages


@st.composite
def rollouts(draw):
    """Rollouts as a NEXT_STEP environment makes them: a phantom row after each end, next_values in line with values."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    ended = rng.random(shape) < 0.3
    valid = np.ones(shape, bool)
    for t in range(1, shape[0]):
        valid[t] = ~(ended[t - 1] & valid[t - 1])
    ended &= valid
    terminated = ended & (rng.random(shape) < 0.6)
    truncated = ended & (~terminated | (rng.random(shape) < 0.3))
    values = rng.normal(size=shape).astype(np.float32)
    next_values = np.concatenate([values[1:], rng.normal(size=(1, shape[1])).astype(np.float32)])
    next_values[ended] = rng.normal(size=ended.sum())
    rewards = rng.normal(size=shape).astype(np.float32)
    return rewards, values, next_values, terminated, truncated, valid


fractions = st.floats(0, 1)


@settings(deadline=None)
@given(rollouts(), fractions, fractions)
def test_it_equals_the_slow_implementation(rollout, discount, gae_lambda):
    *arrays, valid = rollout
    advantages, returns = gae(*arrays, discount=discount, gae_lambda=gae_lambda, valid_TN=valid)
    expected = slow_gae(*arrays, valid, discount, gae_lambda)
    np.testing.assert_allclose(advantages, expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(returns, expected + arrays[1], rtol=1e-6, atol=1e-6)
    assert not advantages[~valid].any()


@settings(deadline=None)
@given(rollouts(), fractions)
def test_lambda_1_is_the_discounted_return_less_the_value_and_lambda_0_the_one_step_error(rollout, discount):
    rewards, values, next_values, terminated, truncated, valid = rollout
    arrays = (rewards, values, next_values, terminated, truncated)
    monte_carlo, td = (gae(*arrays, discount=discount, gae_lambda=x, valid_TN=valid)[0] for x in (1, 0))
    bootstrap = np.where(terminated, 0, next_values)
    np.testing.assert_allclose(td, np.where(valid, rewards + discount * bootstrap - values, 0), rtol=1e-5, atol=1e-5)
    for n in range(rewards.shape[1]):
        follows = 0.0
        for t in reversed(range(len(rewards))):
            ends = terminated[t, n] or truncated[t, n] or t + 1 == len(rewards) or not valid[t + 1, n]
            follows = rewards[t, n] + discount * (bootstrap[t, n] if ends else follows)
            if valid[t, n]:
                assert monte_carlo[t, n] == pytest.approx(follows - values[t, n], abs=1e-4)


@settings(deadline=None)
@given(rollouts(), fractions, fractions)
def test_phantom_rows_change_nothing_for_the_others(rollout, discount, gae_lambda):
    *arrays, valid = rollout
    whole, _ = gae(*arrays, discount=discount, gae_lambda=gae_lambda, valid_TN=valid)
    for n in range(valid.shape[1]):
        real = [array[valid[:, n], n][:, None] for array in arrays]
        np.testing.assert_array_equal(
            gae(*real, discount=discount, gae_lambda=gae_lambda)[0][:, 0], whole[valid[:, n], n]
        )


def test_long_sums_are_exact_to_float32():
    t = 20_000
    zero, no = np.zeros((t, 1), np.float32), np.zeros((t, 1), bool)
    rewards = np.full((t, 1), 0.1, np.float32)
    _, returns = gae(rewards, zero, zero, no, no, discount=1.0, gae_lambda=1.0)
    assert returns[0, 0] == pytest.approx(t * float(np.float32(0.1)), rel=1e-7)


def test_wrong_arguments_say_what_they_are():
    x, no = np.zeros((3, 2)), np.zeros((3, 2), bool)
    with pytest.raises(ValueError, match=r"rewards_TN must be time-major \(T, N\), got shape \(3,\)"):
        gae(np.zeros(3), x, x, no, no, discount=1, gae_lambda=1)
    with pytest.raises(ValueError, match=r"next_values_TN has shape \(2, 3\), but rewards_TN has \(3, 2\)"):
        gae(x, x, x.T, no, no, discount=1, gae_lambda=1)
    with pytest.raises(ValueError, match=r"gae_lambda must be between 0 and 1, got 1.5"):
        gae(x, x, x, no, no, discount=1, gae_lambda=1.5)


def test_a_worker_that_adds_advantages_imports_neither_torch_nor_gymnasium():
    code = (
        "import sys, flowrl.rl, flowrl.rl.returns, flowrl.operators.advantages, flowrl.operators.standardize; "
        "flowrl.rl.PolicySpec, flowrl.rl.Progress; "
        "print([name for name in ('torch', 'gymnasium', 'ray') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_package_gives_its_public_names_when_asked():
    import flowrl.rl

    assert flowrl.rl.returns.gae is gae
    assert set(flowrl.rl.__all__) <= set(dir(flowrl.rl))
    with pytest.raises(AttributeError, match=r"'flowrl.rl' has no attribute 'nothing'"):
        _ = flowrl.rl.nothing


# ---------------------------------------------------------------- n_step


def rows(rewards, terminated=(), truncated=(), valid=None, **more):
    """One environment; the places of its flags are listed; next_obs t is 10 t."""
    steps = len(rewards)
    columns = {
        "rewards": column(*rewards),
        "terminated": flags(*(t in terminated for t in range(steps))),
        "truncated": flags(*(t in truncated for t in range(steps))),
        "next_obs": column(*(10 * t for t in range(steps))),
        **{name: column(*values) for name, values in more.items()},
    }
    if valid is not None:
        columns["valid"] = flags(*valid)
    return Batch(columns, time_major=True)


def test_n_step_golden_numbers():
    # γ = 1/2, n = 3. t=0: 1 + 2/2 + 4/4 = 3, then obs after step 2, γ³ = 1/8; t=3 ends the batch: 8, γ.
    made = n_step(rows([1, 2, 4, 8], q_taken=[5, 6, 7, 8]), discount=0.5, n=3)
    np.testing.assert_array_equal(made["rewards"], column(3, 6, 8, 8))
    np.testing.assert_array_equal(made["discounts"], column(1 / 8, 1 / 8, 1 / 4, 1 / 2))
    np.testing.assert_array_equal(made["next_obs"], column(20, 30, 30, 30))
    np.testing.assert_array_equal(made["q_taken"], column(5, 6, 7, 8))  # of the row itself
    assert made["rewards"].dtype == made["discounts"].dtype == np.float32


@pytest.mark.parametrize(
    ("terminated", "truncated", "discounts"),
    [((1,), (), (0, 0)), ((), (1,), (1 / 4, 1 / 2)), ((1,), (1,), (0, 0))],
)
def test_n_step_stops_where_an_episode_ends(terminated, truncated, discounts):
    # Step 1 ends the episode: rows 0 and 1 sum up to it, 1 + 2/2 and 2, and bootstrap (if at all) from its next_obs.
    made = n_step(rows([1, 2, 4, 8], terminated, truncated, next_values=[1, 3, 5, 7]), discount=0.5, n=3)
    np.testing.assert_array_equal(made["rewards"], column(2, 2, 8, 8))
    np.testing.assert_array_equal(made["discounts"], column(*discounts, 1 / 4, 1 / 2))
    np.testing.assert_array_equal(made["next_obs"], column(10, 10, 30, 30))
    np.testing.assert_array_equal(made["next_values"], column(3, 3, 7, 7))
    for name, places in (("terminated", terminated), ("truncated", truncated)):
        np.testing.assert_array_equal(made[name], flags(*(bool(places) and t < 2 for t in range(4))))


def test_n_step_of_reset_rows():
    # Row 2 only resets; nothing passes over it, whatever stands in it.
    made = n_step(rows([1, 2, np.nan, 8], (1,), valid=(1, 1, 0, 1)), discount=0.5, n=4)
    np.testing.assert_array_equal(made["rewards"][[0, 1, 3]], column(2, 2, 8))
    cut = n_step(rows([1, 2, np.nan, 8], valid=(1, 1, 0, 1)), discount=0.5, n=4)  # without an end before it
    np.testing.assert_array_equal(cut["rewards"][[0, 1, 3]], column(2, 2, 8))
    np.testing.assert_array_equal(cut["discounts"][[0, 1, 3]], column(1 / 4, 1 / 2, 1 / 2))


def test_n_step_of_one_only_adds_discounts():
    batch = rows([1, 2, 4], (1,), (2,))
    made = n_step(batch, discount=0.9, n=1)
    assert made.without(["discounts"]) == batch
    np.testing.assert_array_equal(made["discounts"], column(np.float32(0.9), 0, np.float32(0.9)))


@given(
    seed=st.integers(0, 10**6),
    steps=st.integers(1, 14),
    envs=st.integers(1, 3),
    n=st.integers(1, 16),
    discount=st.sampled_from([0.0, 0.5, 0.97, 1.0]),
)
@settings(max_examples=80, deadline=None)
def test_n_step_equals_a_slow_loop(seed, steps, envs, n, discount):
    rng = np.random.default_rng(seed)
    shape = (steps, envs)
    batch = Batch(
        {
            "rewards": rng.normal(size=shape).astype(np.float32),
            "terminated": rng.random(shape) < 0.2,
            "truncated": rng.random(shape) < 0.2,
            "valid": rng.random(shape) < 0.85,
            "next_obs/camera": rng.integers(0, 255, size=(*shape, 2)).astype(np.uint8),
        },
        time_major=True,
    )
    made = n_step(batch, discount=discount, n=n)
    for t in range(steps):
        for e in range(envs):
            total, at = 0.0, t
            while True:
                total += discount ** (at - t) * float(batch["rewards"][at, e])
                ended = batch["terminated"][at, e] or batch["truncated"][at, e] or not batch["valid"][t, e]
                if ended or at - t + 1 == n or at + 1 == steps or not batch["valid"][at + 1, e]:
                    break
                at += 1
            assert made["rewards"][t, e] == pytest.approx(total, rel=1e-6, abs=1e-6)
            bootstrap = 0.0 if batch["terminated"][at, e] else discount ** (at - t + 1)
            assert made["discounts"][t, e] == pytest.approx(bootstrap, rel=1e-6)
            np.testing.assert_array_equal(made["next_obs/camera"][t, e], batch["next_obs/camera"][at, e])
            assert made["truncated"][t, e] == batch["truncated"][at, e]
    assert made["next_obs/camera"].dtype == np.uint8


def test_n_step_refuses():
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        n_step(rows([1]), discount=0.5, n=0)
    with pytest.raises(ValueError, match="discount must be between 0 and 1, got 2"):
        n_step(rows([1]), discount=2, n=1)
    with pytest.raises(ValueError, match="n_step needs a time-major batch"):
        n_step(Batch({"rewards": np.zeros(2)}), discount=0.5, n=1)
