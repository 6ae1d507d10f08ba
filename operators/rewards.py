"""One scale of rewards for all workers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from flowrl.handles import ActorGroup, ActorHandle
from flowrl.metrics import Moments
from flowrl.operator import Context, Operator


@dataclass
class ShareRewardMoments(Operator[Any, Any]):
    """Hands each item on, after telling workers the moments of the discounted returns of the whole run.

    Workers made with `normalize_rewards` say with each fragment what it added; the run merges these exactly, each
    once, and here they go back to every worker, riding on its next message. Without this operator each worker scales by
    what it has seen itself.

    to: the workers. Put it behind training, so that there is one message a worker an iteration.
    """

    wants: ClassVar[Literal["value", "reference"]] = "reference"
    hands_on: ClassVar[bool] = True

    to: ActorGroup[Any]

    def open(self) -> None:
        self._told: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        moments: Moments = ctx.report.table.moments("reward_moments")
        told = (moments.count, moments.mean, moments.m2)
        if told != self._told:
            self._told = told
            for handle in ctx.actors(self.to):
                handle.tell("set_reward_moments", *told)
        yield value

    def actor_started(self, handle: ActorHandle[Any], ctx: Context) -> None:
        if self._told[0] > 0 and handle in ctx.actors(self.to):
            handle.tell("set_reward_moments", *self._told)
