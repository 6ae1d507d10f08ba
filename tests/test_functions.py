"""Plain callables as steps of a graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl import Batch


@pytest.mark.parametrize("where", ["in the shard", "on the driver"])
def test_a_function_that_only_looks_at_batches_is_no_step_of_the_graph(where: str) -> None:
    """Else training would go on with nothing, in silence."""

    def look(batch: Any) -> None:
        batch["obs"].mean()

    batches = flowrl.from_items([Batch({"obs": np.zeros((3, 2))})], num_shards=1)
    flow = batches.for_each(look).gather_sync() if where == "in the shard" else batches.gather_sync().for_each(look)
    with (
        flowrl.run(flow, flowrl.Local()) as r,
        pytest.raises(TypeError, match=r"look returned None for a Batch; .*return the item"),
    ):
        next(r)
    with flowrl.run(batches.gather_sync().tap(look), flowrl.Local()) as r:
        assert next(r).env_steps == 3
