"""Standardize: mean 0 and deviation 1 over valid rows, and its corner cases."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.batch import Batch, MultiAgentBatch
from flowrl.operator import Context, results_of
from flowrl.operators.standardize import Standardize


def only(op: Standardize, item):
    (result,) = results_of(op, item, Context())
    return result


def advantages(*numbers, **columns) -> Batch:
    return Batch({"advantages": np.array(numbers, np.float32), **columns})


def test_golden_numbers():
    result = only(Standardize(), advantages(1, 2, 3, kept=np.arange(3)))
    np.testing.assert_allclose(result["advantages"], [-1, 0, 1], atol=1e-6)
    assert result["advantages"].dtype == np.float32
    assert result["kept"].tolist() == [0, 1, 2]


def test_only_valid_rows_count_and_the_others_become_zero():
    result = only(Standardize(), advantages(1, np.nan, 2, 3, valid=np.array([True, False, True, True])))
    np.testing.assert_allclose(result["advantages"], [-1, 0, 0, 1], atol=1e-6)


def test_one_row_stays_and_equal_rows_become_zero():
    assert only(Standardize(), advantages(3))["advantages"].tolist() == [3]
    assert only(Standardize(), advantages())["advantages"].tolist() == []
    assert not only(Standardize(), advantages(*[100.1] * 513))["advantages"].any()


def test_several_columns_and_policies_by_themselves():
    op = Standardize(("a", "b"))
    assert op.required_columns() == {"a", "b"}
    result = only(op, Batch({"a": [1.0, 3.0], "b": [10.0, 30.0]}))
    np.testing.assert_allclose(result["a"], result["b"], atol=1e-6)
    both = MultiAgentBatch({"p": advantages(1, 2), "q": advantages(5, 9), "r": Batch({"x": [1.0]})}, env_steps=2)
    result = only(Standardize(), both)
    np.testing.assert_allclose(result["p"]["advantages"], result["q"]["advantages"], atol=1e-6)
    assert result["r"] == both["r"]


def test_what_is_wrong_is_said():
    with pytest.raises(KeyError, match="no column 'advantages'"):
        only(Standardize(), Batch({"x": [1.0]}))
    with pytest.raises(ValueError, match=r"columns must be a column name or several, got \(\)"):
        Standardize(())
    with pytest.raises(ValueError, match="one number a row"):
        only(Standardize("obs"), Batch({"obs": np.zeros((2, 3))}))


def test_its_label_and_that_it_may_be_deferred():
    assert repr(Standardize()) == "Standardize(columns='advantages')"
    assert Standardize.pure


@settings(deadline=None)
@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=2, max_size=50), st.integers(0, 2**32 - 1))
def test_mean_zero_and_deviation_one_or_all_zero(numbers, seed):
    x = np.array(numbers, np.float32)
    result = only(Standardize(), Batch({"advantages": x}))["advantages"].astype(np.float64)
    if np.ptp(x) == 0:
        assert not result.any()
    elif np.ptp(x) > 1e-3:
        assert abs(result.mean()) < 1e-5
        assert result.std(ddof=1) == pytest.approx(1, abs=1e-3)
        order = np.random.default_rng(seed).permutation(len(x))
        np.testing.assert_allclose(only(Standardize(), Batch({"advantages": x[order]}))["advantages"], result[order])
