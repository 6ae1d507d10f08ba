"""Joins batches until they are large enough to train on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from flowrl.batch import Batch
from flowrl.numbers import check_whole
from flowrl.operator import Context, Operator
from flowrl.ref import Ref

_EMPTY_ITEMS = 1000


@dataclass
class ConcatBatches(Operator[Batch, Batch]):
    """One batch out of as many as together hold `min_steps` environment steps; the rest comes out at the end.

    On the driver it joins references and counts from their Info, so the data stay where they are; whoever takes the
    batch joins the parts. Raises ValueError where items hold no environment steps at all, so that nothing piles up.
    """

    wants: ClassVar[Literal["value", "reference"]] = "reference"
    min_steps: int

    def __post_init__(self) -> None:
        check_whole("min_steps", self.min_steps)

    def open(self) -> None:
        self._held: list[Ref[Batch]] = []
        self._steps = 0

    def process(self, value: Ref[Batch], ctx: Context) -> Iterable[Ref[Batch]]:
        self._held.append(value)
        self._steps += value.info.env_steps
        if self._steps == 0 and len(self._held) >= _EMPTY_ITEMS:
            raise ValueError(
                f"ConcatBatches has seen {_EMPTY_ITEMS} items without one environment step; it joins Batch items, "
                "for other items use flow.batch(n)"
            )
        if self._steps >= self.min_steps:
            yield self._joined()

    def finish(self, ctx: Context) -> Iterable[Ref[Batch]]:
        if self._held:
            yield self._joined()

    def _joined(self) -> Ref[Batch]:
        held, self._held, self._steps = self._held, [], 0
        return Ref.concat(held)

    def get_state(self) -> dict[str, Any]:
        return {"held": list(self._held), "steps": self._steps}

    def set_state(self, state: dict[str, Any]) -> None:
        self._held, self._steps = list(state["held"]), state["steps"]
