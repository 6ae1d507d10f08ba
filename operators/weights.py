"""Carries the newest weights from a learner to those that act with them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from flowrl.errors import GraphError
from flowrl.handles import ActorGroup, ActorHandle, check_group
from flowrl.numbers import check_whole
from flowrl.operator import Context, Operator


@dataclass
class SendWeights(Operator[Any, Any]):
    """Hands each item on, after telling actors the newest weights that the learner has published.

    Never asks the learner: its weights came with its last answer, stored once, and go by reference to each actor that
    lacks them, riding on that actor's next message. An actor that starts is told before its first pull.

    to: a group, or "origin": the actors that the item came from.
    policy: passed on to `set_weights(flat, version, policy=)` where several policies live in a worker; None: the
        `policy_id` that the learner's description gives, if it gives one. Of a learner of several it names them all.
    every_env_steps, every_updates: at most once in so many environment steps, or versions of the weights.
    """

    wants: ClassVar[Literal["value", "reference"]] = "reference"
    hands_on: ClassVar[bool] = True

    learner: ActorGroup[Any]
    to: ActorGroup[Any] | Literal["origin"]
    policy: str | tuple[str, ...] | None = None
    every_env_steps: int | None = None
    every_updates: int | None = None

    def __post_init__(self) -> None:
        _check_publishes(self.learner)
        if not isinstance(self.to, ActorGroup) and self.to != "origin":
            raise ValueError(f"to must be a group of actors or 'origin', got {self.to!r}")
        if isinstance(self.to, ActorGroup):
            check_group("SendWeights", "RolloutWorker", self.to, "set_weights")
        for name in ("every_env_steps", "every_updates"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name))

    def open(self) -> None:
        self._has: dict[ActorHandle[Any], int] = {}
        self._last_version: int | None = None
        self._last_env_steps = 0

    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        newest = ctx.published(self.learner)
        if newest is not None and self._due(newest[0], ctx.env_steps):
            self._last_version, self._last_env_steps = newest[0], ctx.env_steps
            for handle in ctx.origins if self.to == "origin" else ctx.actors(self.to):
                self._send(handle, *newest)
        yield value

    def actor_started(self, handle: ActorHandle[Any], ctx: Context) -> None:
        targets = ctx.having("set_weights") if self.to == "origin" else ctx.actors(self.to)
        newest = ctx.published(self.learner)
        if handle in targets and newest is not None:
            self._has.pop(handle, None)
            self._send(handle, *newest)

    def _due(self, version: int, env_steps: int) -> bool:
        if self._last_version is None:
            return True
        if self.every_updates is not None and version - self._last_version < self.every_updates:
            return False
        return self.every_env_steps is None or env_steps - self._last_env_steps >= self.every_env_steps

    def _send(self, handle: ActorHandle[Any], version: int, weights: Any) -> None:
        if self._has.get(handle) != version:
            self._has[handle] = version
            policy = self.learner.kwargs.get("policy_id") if self.policy is None else self.policy
            extra = {} if policy is None else {"policy": policy}
            handle.tell("set_weights", weights, version, **extra)


def _check_publishes(learner: Any) -> None:
    """Refuses workers in the learner's place, whose weights would never come: they sample, and nothing trains them."""
    if not isinstance(learner, ActorGroup):
        raise GraphError(f"SendWeights needs a group made by flowrl.actor(Learner, ...), got {learner!r}")
    has = partial(hasattr, learner.actor_class)
    if has("sample") and not (has("train") or has("train_in_step") or has("apply_gradients")):
        raise GraphError(
            f"SendWeights: {learner.actor_class.__name__} (group {learner.name!r}) samples and publishes no weights; "
            "the learner comes first: SendWeights(learner, to=workers)"
        )
