"""Keeps some policies of multi-agent batches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

from flowrl.batch import MultiAgentBatch
from flowrl.operator import Context, Operator
from flowrl.ref import Ref


@dataclass
class SelectPolicies(Operator[MultiAgentBatch, MultiAgentBatch]):
    """The parts of the named policies of each multi-agent batch, by reference; an item with none of them is skipped."""

    wants: ClassVar[Literal["value", "reference"]] = "reference"
    policies: str | tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.selects or len(set(self.selects)) != len(self.selects):
            raise ValueError(f"SelectPolicies needs different policy ids, got {self.policies!r}")

    def process(self, value: Ref[MultiAgentBatch], ctx: Context) -> Iterable[Ref[MultiAgentBatch]]:
        kept = {name: steps for name, steps in value.info.policies.items() if name in self.selects}
        if kept:
            part = value.then(_Kept(tuple(kept)), name="SelectPolicies")
            yield part.with_info(agent_steps=sum(kept.values()), policies=kept)

    @property
    def selects(self) -> tuple[str, ...]:
        """The policies of which anything goes on."""
        return (self.policies,) if isinstance(self.policies, str) else tuple(self.policies)


@dataclass
class _Kept(Operator[MultiAgentBatch, MultiAgentBatch]):
    pure: ClassVar[bool] = True
    policies: tuple[str, ...]

    def process(self, value: MultiAgentBatch, ctx: Context) -> Iterable[MultiAgentBatch]:
        return (value.select(self.policies),)
