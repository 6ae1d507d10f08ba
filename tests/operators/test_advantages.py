"""AddAdvantages: the columns that it adds, for one policy or several."""

import numpy as np
import pytest

from flowrl.batch import Batch, MultiAgentBatch
from flowrl.operator import Context, results_of
from flowrl.operators.advantages import AddAdvantages
from flowrl.rl.returns import gae


def batch_of(t: int = 5, n: int = 2, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    columns = {name: rng.normal(size=(t, n)).astype(np.float32) for name in ("rewards", "values", "next_values")}
    ends = {name: rng.random((t, n)) < 0.2 for name in ("terminated", "truncated")}
    return Batch({**columns, **ends, "valid": rng.random((t, n)) < 0.9}, time_major=True)


def only(op: AddAdvantages, item):
    (result,) = results_of(op, item, Context())
    return result


def test_it_adds_gaes_columns():
    batch = batch_of()
    result = only(AddAdvantages(0.9, 0.8), batch)
    names = ("rewards", "values", "next_values", "terminated", "truncated")
    advantages, returns = gae(*(batch[name] for name in names), discount=0.9, gae_lambda=0.8, valid_TN=batch.valid)
    np.testing.assert_array_equal(result["advantages"], advantages)
    np.testing.assert_array_equal(result["returns"], returns)
    assert set(result) == set(batch) | AddAdvantages.adds
    assert set(names) == AddAdvantages.needs
    assert result.time_major


def test_a_policy_chooses_its_batch_and_the_others_go_on_as_they_are():
    both = MultiAgentBatch({"a": batch_of(), "b": batch_of(seed=1)}, env_steps=10)
    one = only(AddAdvantages(policy="a"), both)
    assert one["b"] is both["b"]
    assert one["a"] == only(AddAdvantages(), both["a"])
    assert one.env_steps == 10
    every = only(AddAdvantages(), both)
    assert all("advantages" in batch for batch in every.values())
    assert only(AddAdvantages(policy="absent"), both) == both


def test_what_it_cannot_take_is_said():
    with pytest.raises(ValueError, match="needs a time-major batch"):
        only(AddAdvantages(), batch_of().flat())
    with pytest.raises(ValueError, match=r"AddAdvantages\(policy='a'\) got the Batch of a single policy"):
        only(AddAdvantages(policy="a"), batch_of())
    with pytest.raises(ValueError, match=r"discount must be between 0 and 1, got 1.1"):
        AddAdvantages(discount=1.1)
    with pytest.raises(KeyError, match="no column 'rewards'"):
        only(AddAdvantages(), batch_of().without(["rewards"]))


def test_its_label_and_that_it_may_be_deferred():
    assert repr(AddAdvantages(0.98)) == "AddAdvantages(discount=0.98, gae_lambda=0.95, policy=None)"
    assert AddAdvantages.pure
