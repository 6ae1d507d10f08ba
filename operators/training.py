"""One round of training a batch: the learner joins the parts, updates, and publishes its new weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from flowrl.batch import Batch
from flowrl.handles import ActorGroup, ActorHandle, Pending
from flowrl.operator import AskOperator, Context
from flowrl.ref import Info, Ref


@dataclass(frozen=True)
class TrainInfo:
    """What one call of the learner's `train` did; its weights stay in the object store (see SendWeights).

    learner: the actor. policy_version: of the weights that came out. env_steps: valid steps in the batch.
    metrics: `policy/name` to number. answer: a reference to what the learner's `train` answered, which is the Batch
    of `slots` and `priorities` for rows from a replay shard (see UpdatePriorities); None where it answered nothing.
    """

    learner: str
    policy_version: int | None
    env_steps: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    answer: Ref[Any] | None = field(default=None, compare=False, repr=False)

    @staticmethod
    def of(learner: str, env_steps: int, answer: Ref[Any] | None, info: Info) -> TrainInfo:
        """From the Info of the learner's answer, and a reference to its payload."""
        # One without a payload would only keep the weights beside it in the object store.
        given = answer.with_info(**info._asdict()) if answer is not None and info.nbytes else None
        return TrainInfo(learner, info.policy_version, env_steps, dict(info.metrics), given)

    def __reduce__(self) -> tuple[Any, ...]:  # a reference belongs to its run
        return TrainInfo, (self.learner, self.policy_version, self.env_steps, self.metrics)


@dataclass
class TrainOneStep(AskOperator[Batch, TrainInfo]):
    """Has the learner train on each batch: `epochs` passes in minibatches of `minibatch` rows (None: the whole batch).

    `microbatch` bounds the rows that go through the network at once; the numbers are the same. Policies with memory
    train on whole sequences, and both then count sequences: columns of the time-major batch.

    When the learner starts, it is told the spaces of the graph's environments, from which it builds its policy.
    """

    learner: ActorGroup[Any]
    epochs: int = 1
    minibatch: int | None = None
    microbatch: int | None = None
    in_flight: int = 1

    def __post_init__(self) -> None:
        for name in ("epochs", "in_flight", "minibatch", "microbatch"):
            value = getattr(self, name)
            if name in ("minibatch", "microbatch") and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be at least 1, got {value!r}")
        check_one_learner("TrainOneStep", self.learner)

    def required_columns(self) -> frozenset[str]:
        """What the learner's loss needs."""
        return frozenset().union(*(loss.needs for loss in losses_of(self.learner)))

    def actor_started(self, handle: ActorHandle[Any], ctx: Context) -> None:
        if handle in ctx.actors(self.learner):
            tell_spaces(handle, ctx)

    def ask(self, value: Ref[Batch], ctx: Context) -> Pending[TrainInfo]:
        learner = ctx.actors(self.learner)[0]
        sizes: dict[str, Any] = {"epochs": self.epochs, "minibatch": self.minibatch}
        if self.microbatch is not None:
            sizes["microbatch"] = self.microbatch
        pending = learner.ask("train", value, **sizes, env_steps=ctx.env_steps)
        return pending.made_from_info(partial(TrainInfo.of, learner.name, value.info.env_steps, pending.ref))


def check_one_learner(node: str, learner: ActorGroup[Any]) -> None:
    """Nothing, if the group is of one actor.

    Raises:
        ValueError: it is not.
    """
    if learner.count != 1:
        raise ValueError(f"{node} trains one learner, group {learner.name!r} has {learner.count}")


def tell_spaces(learner: ActorHandle[Any], ctx: Context) -> None:
    """A learner that has just started is told the spaces of the graph's environments, to build its policy for them."""
    environments = ctx.having("spaces")
    if environments:
        learner.ask("build", environments[0].ask("spaces"))


def losses_of(learner: ActorGroup[Any]) -> list[Any]:
    """What of a learner's arguments says which columns it needs."""
    given = (*learner.args, *learner.kwargs.values())
    return [entry for entry in given if isinstance(_needs(entry), frozenset | set | list | tuple)]


def _needs(entry: Any) -> Any:
    return None if isinstance(entry, type) else getattr(entry, "needs", None)
