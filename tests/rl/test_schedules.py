"""Schedules: values at and between their ends, and what is refused."""

import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.rl.schedules import Constant, Linear, check_rate, value_at

FINITE = st.floats(-1e6, 1e6)


def test_linear_goes_from_start_to_end_and_stays():
    schedule = Linear(1.0, 0.2, 1000)
    assert [schedule(n) for n in (0, 250, 500, 1000, 10**9)] == pytest.approx([1.0, 0.8, 0.6, 0.2, 0.2], abs=1e-15)
    assert schedule(-5) == 1.0
    assert repr(schedule) == "Linear(start=1.0, end=0.2, over_env_steps=1000)"
    assert pickle.loads(pickle.dumps(schedule)) == schedule


@given(FINITE, FINITE, st.integers(1, 10**9), st.integers(0, 2 * 10**9))
def test_linear_hits_both_ends_exactly_and_stays_between_them(start, end, over, step):
    schedule = Linear(start, end, over)
    assert schedule(0) == start
    assert schedule(over) == schedule(over + step) == end
    slack = 1e-9 * (abs(start) + abs(end))
    assert min(start, end) - slack <= schedule(step) <= max(start, end) + slack


def test_a_rate_is_a_number_or_any_function_of_steps():
    assert value_at(0.3, 10**6, "clip") == 0.3
    assert value_at(Constant(0.3), 10**6, "clip") == 0.3
    assert value_at(lambda steps: 1 / (1 + steps), 3, "clip") == 0.25


def test_what_is_refused():
    with pytest.raises(ValueError, match="over_env_steps must be at least 1, got 0"):
        Linear(1.0, 0.0, 0)
    with pytest.raises(ValueError, match=r"must be finite, got 1\.0 and inf"):
        Linear(1.0, math.inf, 10)
    with pytest.raises(ValueError, match=r"schedule of clip gave -0.5 at env_steps=3; it must stay finite, at least 0"):
        value_at(lambda steps: 1 - steps / 2, 3, "clip")
    with pytest.raises(ValueError, match="schedule of clip gave nan at env_steps=0"):
        value_at(lambda steps: math.nan, 0, "clip")
    with pytest.raises(ValueError, match="learning_rate must be above 0 and finite, got -1"):
        check_rate("learning_rate", -1.0, above_0=True)
    with pytest.raises(ValueError, match="learning_rate must be above 0 and finite, got 0"):
        check_rate("learning_rate", Linear(0.0, 1.0, 10), above_0=True)
    with pytest.raises(ValueError, match="entropy_cost must be at least 0 and finite, got inf"):
        check_rate("entropy_cost", math.inf, above_0=False)
    check_rate("entropy_cost", 0.0, above_0=False)
    check_rate("learning_rate", Linear(1.0, 0.0, 10), above_0=True)  # ends at 0
