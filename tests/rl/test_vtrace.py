"""V-trace against hand-worked numbers, a slow implementation from the paper's sums, and its identities."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.rl.returns import gae, vtrace
from tests.rl.test_returns import fractions, rollouts


def column(*numbers):
    return torch.tensor(numbers, dtype=torch.float32)[:, None]


def flags(*numbers):
    return torch.tensor(numbers, dtype=torch.bool)[:, None]


NO = flags(0, 0, 0)
LOG2 = math.log(2.0)
# Of three steps the policy makes the first half as probable as the behaviour did, the second equally, the third twice.
HALF_ONE_TWICE = column(-LOG2, 0.0, LOG2)


def three(terminated=NO, truncated=NO, **settings):
    """r = 1, 2, 3, V = 1, 2, 4, V' = 2, 4, 8, ratios 1/2, 1, 2, discount 1/2."""
    given = {"discount": 0.5, **settings}
    return vtrace(
        column(0, 0, 0), HALF_ONE_TWICE, column(1, 2, 3), column(1, 2, 4), column(2, 4, 8), terminated, truncated,
        **given,
    )  # fmt: skip


def test_golden_numbers_of_a_fragment_that_goes_on():
    # r + V'/2 − V = 1, 2, 3; ρ = c = 1/2, 1, 1; δ = 1/2, 2, 3.
    # e = v − V: e_2 = 3; e_1 = 2 + 1/2·1·3 = 7/2; e_0 = 1/2 + 1/2·1/2·7/2 = 11/8.
    # A = ρ·(1 + e_1/2, 2 + e_2/2, 3) = 1/2·11/4, 7/2, 3.
    found = three()
    assert found.targets_TN.dtype == found.pg_advantages_TN.dtype == torch.float32
    torch.testing.assert_close(found.targets_TN, column(1 + 11 / 8, 2 + 7 / 2, 4 + 3), rtol=0, atol=1e-6)
    torch.testing.assert_close(found.pg_advantages_TN, column(11 / 8, 7 / 2, 3), rtol=0, atol=1e-6)


def test_golden_numbers_with_each_clip_of_its_own():
    # ρ̄ = 4: δ = 1/2, 2, 6; c̄ = 1/4, λ = 1/2: c = 1/8 always. e_2 = 6; e_1 = 2 + 6/16 = 19/8; e_0 = 1/2 + 19/128.
    # A with ρ̄_pg = 3/2: 1/2·(1 + 1/2·1/2·19/8), 1·(2 + 1/2·1/2·6), 3/2·3.
    found = three(rho_clip=4.0, c_clip=0.25, pg_rho_clip=1.5, vtrace_lambda=0.5)
    torch.testing.assert_close(found.targets_TN, column(1 + 83 / 128, 2 + 19 / 8, 10), rtol=0, atol=1e-6)
    torch.testing.assert_close(found.pg_advantages_TN, column(51 / 64, 7 / 2, 9 / 2), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("terminated", "truncated", "middle"),
    [(1, 0, 0.0), (0, 1, 2.0), (1, 1, 0.0)],  # δ_1 = 2 − 2 without what followed, 2 + 4/2 − 2 with it
)
def test_golden_numbers_of_an_episode_end(terminated, truncated, middle):
    found = three(flags(0, terminated, 0), flags(0, truncated, 0))
    first = 0.5 + 0.25 * middle  # δ_0 + 1/2·1/2·e_1
    torch.testing.assert_close(found.targets_TN, column(1 + first, 2 + middle, 7), rtol=0, atol=1e-6)
    torch.testing.assert_close(found.pg_advantages_TN, column(0.5 * (1 + middle / 2), middle, 3), rtol=0, atol=1e-6)


def test_nothing_passes_through_a_phantom_row_nan_neither():
    nan = math.nan
    found = vtrace(
        column(0, nan, 0), column(0, nan, 0), column(1, nan, 3), column(1, 2, 4), column(2, nan, 8), NO,
        flags(1, 0, 0), discount=0.5, valid_TN=flags(1, 0, 1),
    )  # fmt: skip
    torch.testing.assert_close(found.targets_TN, column(2, 2, 7))
    torch.testing.assert_close(found.pg_advantages_TN, column(1, 0, 3))


def slow_vtrace(behaviour, target, rollout, discount, rho_clip, c_clip, pg_rho_clip, trace):
    """Equation 1 as the sum it is, forwards, per environment, in Python floats; and the advantages of remark 2."""
    rewards, values, next_values, terminated, truncated, valid = rollout
    steps, envs = rewards.shape

    def ratio(t, n):
        return math.exp(float(target[t, n]) - float(behaviour[t, n]))

    def one_step(t, n):
        followed = 0.0 if terminated[t, n] else float(next_values[t, n])
        return float(rewards[t, n]) + discount * followed - float(values[t, n])

    targets, advantages = np.zeros((steps, envs)), np.zeros((steps, envs))
    for n in range(envs):
        for s in range(steps):
            targets[s, n], weight, t = float(values[s, n]), 1.0, s
            while t < steps and valid[t, n]:
                targets[s, n] += weight * min(rho_clip, ratio(t, n)) * one_step(t, n)
                if terminated[t, n] or truncated[t, n]:
                    break
                weight *= discount * trace * min(c_clip, ratio(t, n))
                t += 1
        for s in range(steps):
            if valid[s, n]:
                goes_on = s + 1 < steps and not (terminated[s, n] or truncated[s, n])
                more = discount * trace * (targets[s + 1, n] - float(values[s + 1, n])) if goes_on else 0.0
                advantages[s, n] = min(pg_rho_clip, ratio(s, n)) * (one_step(s, n) + more)
    return targets, advantages


def tensors(arrays):
    return [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]


clips = st.one_of(st.floats(0, 3), st.just(math.inf))


@settings(deadline=None)
@given(rollouts(), st.integers(0, 2**32 - 1), fractions, clips, clips, clips, fractions)
def test_it_equals_the_slow_implementation(rollout, seed, discount, rho_clip, c_clip, pg_rho_clip, trace):
    rng = np.random.default_rng(seed)
    behaviour, target = rng.normal(size=(2, *rollout[0].shape)).astype(np.float32)
    *arrays, valid = tensors(rollout)
    found = vtrace(
        *tensors((behaviour, target)), *arrays, discount=discount, rho_clip=rho_clip, c_clip=c_clip,
        pg_rho_clip=pg_rho_clip, vtrace_lambda=trace, valid_TN=valid,
    )  # fmt: skip
    targets, advantages = slow_vtrace(behaviour, target, rollout, discount, rho_clip, c_clip, pg_rho_clip, trace)
    scale = 1 + np.abs(targets).max()
    np.testing.assert_allclose(found.targets_TN, targets, rtol=1e-5, atol=1e-6 * scale)
    np.testing.assert_allclose(found.pg_advantages_TN, advantages, rtol=1e-5, atol=1e-5 * scale)


@settings(deadline=None)
@given(rollouts(), fractions, fractions)
def test_on_policy_it_is_gae_and_with_lambda_1_the_n_step_return(rollout, discount, trace):
    *arrays, valid = tensors(rollout)
    logp = torch.zeros(valid.shape)
    found = vtrace(logp, logp, *arrays, discount=discount, vtrace_lambda=trace, valid_TN=valid)
    advantages, returns = gae(*rollout[:5], discount=discount, gae_lambda=trace, valid_TN=rollout[5])
    np.testing.assert_allclose(found.targets_TN, returns, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found.pg_advantages_TN, advantages, rtol=1e-5, atol=1e-5)
    found = vtrace(logp, logp, *arrays, discount=discount, valid_TN=valid)
    rewards, _, next_values, terminated, truncated, _ = rollout
    for t, n in zip(*np.nonzero(rollout[5]), strict=True):
        total, weight, k = 0.0, 1.0, t
        while True:  # to the end of the episode or of the fragment
            total, weight = total + weight * float(rewards[k, n]), weight * discount
            if terminated[k, n] or truncated[k, n] or k + 1 == len(rewards):
                break
            k += 1
        total += 0.0 if terminated[k, n] else weight * float(next_values[k, n])
        assert math.isclose(float(found.targets_TN[t, n]), total, rel_tol=1e-4, abs_tol=1e-4)


def test_environments_do_not_touch_each_other():
    both = [torch.cat((x, 3 * x if x.is_floating_point() else x), 1) for x in (
        column(0, 0, 0), HALF_ONE_TWICE, column(1, 2, 3), column(1, 2, 4), column(2, 4, 8), NO, NO,
    )]  # fmt: skip
    found, alone = vtrace(*both, discount=0.5), three()
    torch.testing.assert_close(found.targets_TN[:, :1], alone.targets_TN)
    torch.testing.assert_close(found.pg_advantages_TN[:, :1], alone.pg_advantages_TN)


def test_what_the_policy_never_does_has_the_ratio_0():
    # r − V + V'/2 = 1, 2, 3; ρ = c = 1, 0, 1: e_2 = 3; e_1 = 0; e_0 = 1. A = 1·(1 + e_1/2), 0, 3.
    found = vtrace(
        column(0, 0, 0), column(0, -math.inf, 0), column(1, 2, 3), column(1, 2, 4), column(2, 4, 8), NO, NO,
        discount=0.5,
    )  # fmt: skip
    torch.testing.assert_close(found.targets_TN, column(2, 2, 7), rtol=0, atol=1e-6)
    torch.testing.assert_close(found.pg_advantages_TN, column(1, 0, 3), rtol=0, atol=1e-6)


@pytest.mark.parametrize("target", [-math.inf, 0.0])
def test_what_the_behaviour_never_does_cannot_have_been_done(target):
    never, one = column(0, -math.inf, 0), column(1, 1, 1)
    with pytest.raises(ValueError, match=r"is −inf in 1 valid row\(s\), first at step 1 of environment 0: .*greedy"):
        vtrace(never, column(0, target, 0), one, one, one, NO, NO, discount=0.5)
    found = vtrace(never, column(0, target, 0), one, one, one, NO, NO, discount=0.5, valid_TN=flags(1, 0, 1))
    assert torch.isfinite(found.targets_TN).all()
    assert torch.isfinite(found.pg_advantages_TN).all()


def test_it_has_no_gradient():
    logp, values = HALF_ONE_TWICE.clone().requires_grad_(), column(1, 2, 4).requires_grad_()
    found = vtrace(column(0, 0, 0), logp, column(1, 2, 3), values, values, NO, NO, discount=0.5)
    assert not found.targets_TN.requires_grad
    assert not found.pg_advantages_TN.requires_grad


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"discount": 1.5}, "discount must be between 0 and 1, got 1.5"),
        ({"vtrace_lambda": -0.5}, "vtrace_lambda must be between 0 and 1, got -0.5"),
        ({"rho_clip": -1.0}, "rho_clip must be at least 0, got -1.0"),
        ({"c_clip": math.nan}, "c_clip must be at least 0, got nan"),
        ({"truncated": flags(0, 0)}, r"truncated_TN has shape \(2, 1\), but rewards_TN has \(3, 1\); all must be"),
        ({"terminated": torch.zeros(3)}, r"terminated_TN must be time-major \(T, N\), got shape \(3,\)"),
    ],
)
def test_what_is_wrong_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        three(**change)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_of_nothing_comes_nothing(shape: tuple[int, int]) -> None:
    made = vtrace(*[torch.zeros(shape)] * 7, discount=0.9)
    assert made.targets_TN.shape == made.pg_advantages_TN.shape == shape
