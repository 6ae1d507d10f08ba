"""Priorities of new experience, from what its worker knew of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flowrl.batch import Batch
from flowrl.operator import Context, Operator


@dataclass
class InitialPriorities(Operator[Batch, Batch]):
    """The batch with a column `priorities`: |r + discounts · max_a Q(s') - Q(s, a)|, by the worker's own network.

    So that new rows come into a prioritized shard by what they have to teach and not by the current maximum, without a
    further pass through any network (Ape-X, arXiv:1803.00933). Put it behind NStep, which makes `discounts`, before the
    gather; for policies whose outputs are values of actions (`PolicySpec(head="q")`), whose workers give `q_taken`.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"rewards", "discounts", "next_values", "q_taken"})
    adds: ClassVar[frozenset[str]] = frozenset({"priorities"})
    pure: ClassVar[bool] = True

    def process(self, value: Batch, ctx: Context) -> Iterable[Batch]:
        # where, not a product: a state that ended its episode counts as 0 whatever was computed for it.
        followed = np.where(value["discounts"] == 0, np.float32(0), value["discounts"] * value["next_values"])
        error = np.abs(value["rewards"] + followed - value["q_taken"])
        yield value.with_columns(priorities=np.where(value.valid, error, np.float32(0)).astype(np.float32))
