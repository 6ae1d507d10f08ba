"""Target networks, counted where the updates are made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from flowrl.handles import ActorGroup, ActorHandle, check_group
from flowrl.numbers import check_fields, check_whole
from flowrl.operator import Context, Operator


@dataclass
class UpdateTarget(Operator[Any, Any]):
    """Hands each item on; the learner, told when it starts, brings its target network up to date by itself.

    The learner counts its own updates, so the target changes after exactly so many, however many an item trains.

    every_updates: the target becomes a copy of the policy after so many updates.
    tau: or it moves this share of the way to the policy after each update (Polyak averaging).

    Raises:
        GraphError: `learner` is no group of learners.
        ValueError: both or neither are given, or the number is out of range.
    """

    wants: ClassVar[Literal["value", "reference"]] = "reference"
    hands_on: ClassVar[bool] = True

    learner: ActorGroup[Any]
    every_updates: int | None = None
    tau: float | None = None

    def __post_init__(self) -> None:
        check_group("UpdateTarget", "Learner", self.learner, "set_target_update")
        if (self.every_updates is None) == (self.tau is None):
            raise ValueError(
                "UpdateTarget needs one of every_updates= (a copy after so many updates) and tau= (a share an update), "
                f"got every_updates={self.every_updates!r} and tau={self.tau!r}"
            )
        if self.every_updates is not None:
            check_whole("every_updates", self.every_updates)
        else:
            check_fields(self, positive=("tau",), fraction=("tau",))

    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        return (value,)

    def actor_started(self, handle: ActorHandle[Any], ctx: Context) -> None:
        if handle in ctx.actors(self.learner):
            handle.tell("set_target_update", every_updates=self.every_updates, tau=self.tau)
