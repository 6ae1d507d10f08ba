"""AddAdvantages: generalized advantage estimation, on the shards or after a gather."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from flowrl.batch import Batch, MultiAgentBatch
from flowrl.operator import Context, Operator
from flowrl.rl.returns import check_fractions, gae

B = TypeVar("B", Batch, MultiAgentBatch)


@dataclass
class AddAdvantages(Operator[B, B]):
    """The batch with the columns `advantages` and `returns` (T, N), by `flowrl.rl.returns.gae`.

    Takes time-major batches, before any concatenation along time. Of a MultiAgentBatch, `policy` says whose
    batch gets the columns, the others go on as they are; None means every policy's.

    discount: the weight of the next step's value.
    gae_lambda: 0 gives the one-step error, 1 the discounted return less the value.

    Raises:
        ValueError: discount or gae_lambda outside [0, 1]; a batch that is not time-major; `policy` for a Batch.
    """

    discount: float = 0.99
    gae_lambda: float = 0.95
    policy: str | None = None

    needs: ClassVar[frozenset[str]] = frozenset({"rewards", "values", "next_values", "terminated", "truncated"})
    adds: ClassVar[frozenset[str]] = frozenset({"advantages", "returns"})
    pure: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_fractions(discount=self.discount, gae_lambda=self.gae_lambda)

    def process(self, value: B, ctx: Context) -> Iterable[B]:
        """Yields the batch with its advantages."""
        if isinstance(value, MultiAgentBatch):
            chosen = value if self.policy is None else [self.policy] * (self.policy in value)
            yield value.with_batches({policy: self._added(value[policy]) for policy in chosen})
            return
        if self.policy is not None:
            raise ValueError(
                f"AddAdvantages(policy={self.policy!r}) got the Batch of a single policy; leave `policy` out, "
                "or put it before the policies are parted"
            )
        yield self._added(value)

    def _added(self, batch: Batch) -> Batch:
        if not batch.time_major:
            raise ValueError(f"AddAdvantages needs a time-major batch (T, N), got {batch!r}; put it before flat()")
        advantages_TN, returns_TN = gae(
            batch["rewards"],
            batch["values"],
            batch["next_values"],
            batch["terminated"],
            batch["truncated"],
            discount=self.discount,
            gae_lambda=self.gae_lambda,
            valid_TN=batch.valid,
        )
        return batch.with_columns(advantages=advantages_TN, returns=returns_TN)
