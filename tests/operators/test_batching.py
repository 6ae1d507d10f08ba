"""ConcatBatches: counts steps by reference, joins where the batch is taken."""

from __future__ import annotations

import numpy as np
import pytest

import flowrl
from flowrl import Batch, Context, Local, Ref
from flowrl.operators import ConcatBatches
from flowrl.testing import check_operator


def batch(*xs: int) -> Batch:
    return Batch({"x": np.array(xs)})


def joined(flow):
    with flowrl.run(flow, Local()) as running:
        return [b["x"].tolist() for b in running]


BATCHES = [batch(1), batch(2, 3), batch(4), batch(5, 6, 7), batch(8)]


def test_on_the_driver_and_the_rest_at_the_end():
    flow = flowrl.from_items(BATCHES, num_shards=1)
    assert joined(flow.gather_sync().for_each(ConcatBatches(min_steps=3))) == [[1, 2, 3], [4, 5, 6, 7], [8]]
    assert joined(flow.for_each(ConcatBatches(min_steps=3)).gather_sync()) == [[1, 2, 3], [4, 5, 6, 7], [8]]


def test_invalid_rows_do_not_count():
    half = Batch({"x": np.arange(4), "valid": np.array([True, False, True, False])})
    op = ConcatBatches(min_steps=4)
    op.open()
    assert list(op.process(Ref.of(half), Context())) == []
    (out,) = op.process(Ref.of(half), Context())
    assert out.info.env_steps == 4


def test_the_driver_does_not_fetch():
    op = ConcatBatches(min_steps=2)
    op.open()
    ref = Ref(object(), Ref.of(batch(1, 2)).info, fetch=lambda ref: pytest.fail("fetched"))
    (out,) = op.process(ref, Context())
    assert out is ref


@pytest.mark.parametrize("min_steps", [0, -1, 2.5, True])
def test_min_steps_must_be_a_count(min_steps):
    with pytest.raises(ValueError, match=f"min_steps must be (an integer of )?at least 1, got {min_steps}"):
        ConcatBatches(min_steps=min_steps)


def test_items_without_steps_are_refused_before_they_pile_up():
    flow = flowrl.from_items(range(2000), num_shards=1).gather_sync().for_each(ConcatBatches(min_steps=3))
    with (
        flowrl.run(flow, Local()) as running,
        pytest.raises(ValueError, match=r"1000 items without one environment step; .* flow.batch\(n\)"),
    ):
        list(running)


def test_contract():
    check_operator(ConcatBatches(min_steps=3), BATCHES)
