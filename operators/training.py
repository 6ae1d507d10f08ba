"""One round of training a batch: the learner joins the parts, updates, and publishes its new weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from flowrl.batch import Batch
from flowrl.handles import ActorGroup, ActorHandle, Pending
from flowrl.numbers import check_fields
from flowrl.operator import AskOperator, Context
from flowrl.operators.in_step import TrainingGroup
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

    Several learners train in step: each computes the gradient over a part of the batch, all take the same step with
    the gradient over the whole, and so have the same weights. They exchange it among themselves (Gloo, between
    processes), at most `peer_timeout_s` waiting for one another; `minibatch` is then of all of them together. A batch
    that was joined is dealt out by its parts, those that a learner made itself to that one. A batch during which one
    of them died is given up (`rounds_lost`); whether the others go on without it, or with its successor, is for the
    failure policy of the flow that it is a source of, if it is one.
    """

    learner: ActorGroup[Any]
    epochs: int = 1
    minibatch: int | None = None
    microbatch: int | None = None
    in_flight: int = 1
    peer_timeout_s: float = 120.0

    def __post_init__(self) -> None:
        for name in ("epochs", "in_flight", "minibatch", "microbatch"):
            value = getattr(self, name)
            if name in ("minibatch", "microbatch") and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be at least 1, got {value!r}")
        check_fields(self, positive=("peer_timeout_s",))

    @property
    def outlives_losses(self) -> bool:
        """A group of learners goes on without the batch in which one was lost."""
        return self.learner.count > 1

    def open(self) -> None:
        self._group = TrainingGroup(self.peer_timeout_s)

    def get_state(self) -> dict[str, Any]:
        return {}  # the learners meet again

    def required_columns(self) -> frozenset[str]:
        """What the learner's loss needs."""
        given = (*self.learner.args, *self.learner.kwargs.values())
        return frozenset().union(
            *(entry.needs for entry in given if isinstance(_needs(entry), frozenset | set | list | tuple))
        )

    def actor_started(self, handle: ActorHandle[Any], ctx: Context) -> None:
        if handle in ctx.actors(self.learner):
            self._group.begin_anew()
            tell_spaces(handle, ctx)

    def ask(self, value: Ref[Batch], ctx: Context) -> Pending[TrainInfo]:
        options: dict[str, Any] = {"epochs": self.epochs, "minibatch": self.minibatch}
        if self.microbatch is not None:
            options["microbatch"] = self.microbatch
        options["env_steps"] = ctx.env_steps
        first, *more = ctx.actors(self.learner)
        if more:
            return self._ask_all(value, ctx, options)
        pending = first.ask("train", value, **options)
        return pending.made_from_info(partial(TrainInfo.of, first.name, value.info.env_steps, pending.ref))

    def _ask_all(self, value: Ref[Batch], ctx: Context, options: Mapping[str, Any]) -> Pending[TrainInfo]:
        learners = ctx.living(self.learner) or ctx.actors(self.learner)
        pending, others = self._group.ask(learners, value, options)

        def trained(info: Info) -> TrainInfo:
            whole = self._group.check(info, pending, others)
            steps = value.info.env_steps if whole else 0
            return TrainInfo.of(learners[0].name, steps, pending.ref if whole else None, info)

        return pending.made_from_info(trained)


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


def _needs(entry: Any) -> Any:
    return None if isinstance(entry, type) else getattr(entry, "needs", None)
