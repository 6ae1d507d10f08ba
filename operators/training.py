"""One round of training a batch: the learner joins the parts, updates, and publishes its new weights."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from flowrl.batch import Batch
from flowrl.errors import ActorDied
from flowrl.failures import FailurePolicy, Ignore, Raise, Restart
from flowrl.handles import ActorGroup, ActorHandle, Pending, check_group
from flowrl.numbers import check_seconds, check_whole
from flowrl.operator import AskOperator, Context, Kept
from flowrl.operators.in_step import TrainingGroup
from flowrl.operators.staleness import Age, Staleness, Told
from flowrl.operators.told_spaces import ToldSpaces
from flowrl.ref import Info, Ref

SNAPSHOT_EVERY = 10  # calls of a learner between two snapshots of its state
PEER_TIMEOUT_S = 120.0  # how long learners in step wait for one another
LEARNER_TIMEOUT_S = 1800.0  # how long one call of a lone learner may take


@dataclass(frozen=True)
class TrainInfo:
    """What one call of the learner's `train` did; its weights stay in the object store (see SendWeights).

    learner: the actor. policy_version: of the weights that came out. env_steps: valid steps in the batch.
    age: how many versions of the weights lay between acting and training, over the batch's rows; None where the items
    do not say with which they were made. sample_reuse: rows trained on for each row that the run made, over the newest
    100 trainings.
    metrics: `policy/name` to number. answer: a reference to what the learner's `train` answered, which is the Batch
    of `slots` and `priorities` for rows from a replay shard (see UpdatePriorities); None where it answered nothing.
    """

    learner: str
    policy_version: int | None
    env_steps: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    answer: Ref[Any] | None = field(default=None, compare=False, repr=False)
    age: Age | None = None
    sample_reuse: float | None = None

    @staticmethod
    def of(learner: str, env_steps: int, answer: Ref[Any] | None, info: Info) -> TrainInfo:
        """From the Info of the learner's answer, and a reference to its payload."""
        # One without a payload would only keep the weights beside it in the object store.
        given = answer.with_info(**info._asdict()) if answer is not None and info.nbytes else None
        return TrainInfo(learner, info.policy_version, env_steps, dict(info.metrics), given)

    def __reduce__(self) -> tuple[Any, ...]:  # a reference belongs to its run
        shown = (self.learner, self.policy_version, self.env_steps, self.metrics, None, self.age, self.sample_reuse)
        return TrainInfo, shown


@dataclass
class TrainOneStep(AskOperator[Batch, TrainInfo]):
    """Has the learner train on each batch: `epochs` passes in minibatches of `minibatch` rows (None: the whole batch).

    `microbatch` bounds the rows that go through the network at once; the numbers are the same. Policies with memory
    train on whole sequences, and both then count sequences: columns of the time-major batch.

    When the learner starts, it is told the spaces of the graph's environments, from which it builds its policy.

    Several learners train in step: each computes the gradient over a part of the batch, all take the same step with
    the gradient over the whole, and so have the same weights. They exchange it among themselves (Gloo, between
    processes), at most `peer_timeout_s` waiting for one another (None: 120); `minibatch` is then of all of them
    together. A batch that was joined is dealt out by its parts, those that a learner made itself to that one. A batch
    during which one of them died is given up (`rounds_lost`); whether the others go on without it, or with its
    successor, is for the failure policy of the flow that it is a source of, if it is one.

    Metrics: policy_age_p50 and policy_age_p95, how many versions of the weights (`train` calls) lay between acting and
    training, and sample_reuse, both over the newest 100 trainings; dropped_steps and dropped_items, where
    `max_policy_lag` is set.

    on_failure: what the death of a learner means. Raise(), which None stands for, stops the run. Restart(n) starts a
        lone learner again, from a snapshot of its state (weights, optimizer, targets), up to n times in a row; the
        batches that it had are lost (`steps_lost`), and run.stats() warns of the updates that are. Of several learners
        a new one takes over the state of the others; Ignore() goes on without it.
    snapshot_every: a lone learner's state is kept in the object store after so many calls (None: 10); it goes on from
        one that is that old at most, and by those calls that were out. Only with on_failure=Restart(n).

    timeout_s: a lone learner that has not answered a call after so long (None: 1,800 s) hangs, and counts as dead.

    max_policy_lag: no row is trained on whose weights are more than so many versions behind those that its training
        begins with; fragments that are older, calls that are out counted in, are dropped from the batch and counted
        before the learner is asked, and a batch of which nothing is left is not trained on. None trains on everything.
    """

    learner: ActorGroup[Any]
    epochs: int = 1
    minibatch: int | None = None
    microbatch: int | None = None
    in_flight: int = 1
    peer_timeout_s: float | None = None
    timeout_s: float | None = None
    max_policy_lag: int | None = None
    on_failure: FailurePolicy | None = None
    snapshot_every: int | None = None

    def __post_init__(self) -> None:
        check_group("TrainOneStep", "Learner", self.learner, "train" if _is_one(self.learner) else "train_in_step")
        for name in ("epochs", "in_flight", "minibatch", "microbatch"):
            value = getattr(self, name)
            if name in ("minibatch", "microbatch") and value is None:
                continue
            check_whole(name, value)
        if self.peer_timeout_s is not None:
            check_seconds("TrainOneStep: peer_timeout_s", self.peer_timeout_s)
        check_timeout("TrainOneStep", self.learner, self.timeout_s)
        if self.max_policy_lag is not None:
            check_whole("max_policy_lag", self.max_policy_lag, at_least=0)
        check_keeping("TrainOneStep", self.learner, self.on_failure, self.snapshot_every)

    @property
    def outlives_losses(self) -> bool:
        """A group of learners, and a learner that is started again, go on without the batch in which one was lost."""
        return self.learner.count > 1 or isinstance(self.on_failure, Restart)

    @property
    def answers_within_s(self) -> float | None:
        """Those in step look after each other."""
        return None if self.learner.count > 1 else self.timeout_s or LEARNER_TIMEOUT_S

    @property
    def kept(self) -> Kept | None:
        return kept_of(self.learner, self.on_failure, self.snapshot_every)

    def open(self) -> None:
        self._group = TrainingGroup(PEER_TIMEOUT_S if self.peer_timeout_s is None else self.peer_timeout_s)
        self._staleness = Staleness()
        self._spaces = ToldSpaces()
        self._out: deque[Pending[Any]] = deque()  # calls that may not be answered yet

    def get_state(self) -> dict[str, Any]:
        # Of the group nothing: the learners meet again.
        return {"staleness": self._staleness.get_state(), "out": [Pending(each.call, each.run) for each in self._out]}

    def set_state(self, state: dict[str, Any]) -> None:
        self._staleness.set_state(state["staleness"])
        self._out = deque(state["out"])

    def required_columns(self) -> frozenset[str]:
        """What the learner's loss needs."""
        return frozenset().union(*(loss.needs for loss in losses_of(self.learner)))

    def actor_started(self, handle: ActorHandle[Any], ctx: Context) -> None:
        if handle in ctx.actors(self.learner):
            newest = ctx.published(self.learner) if self.learner.count == 1 and self.kept is None else None
            self._group.greet(handle, 0 if newest is None else newest[0])
            self._spaces.tell(handle, ctx)

    def ask(self, value: Ref[Batch], ctx: Context) -> Pending[TrainInfo] | None:
        self._spaces.note(ctx)
        learners = ctx.actors(self.learner)
        if len(learners) > 1:
            learners = ctx.living(self.learner) or learners
        given = value if self.max_policy_lag is None else self._young(value, ctx)
        if given is None:
            return None
        options: dict[str, Any] = {"epochs": self.epochs, "minibatch": self.minibatch}
        if self.microbatch is not None:
            options["microbatch"] = self.microbatch
        options["env_steps"] = ctx.env_steps
        others: list[Pending[Any]] | None = None
        if self.learner.count > 1:
            try:
                pending, others = self._group.ask(learners, given, options)
            except ActorDied:  # as they met: what that means its failure policy says
                self._group.begin_anew()
                if self._group.forgotten:
                    raise
                ctx.metrics.add("items_lost", 1)
                ctx.metrics.add("steps_lost", given.info.env_steps)
                return None
        else:
            pending = learners[0].ask("train", given, **options)
        if self.max_policy_lag is not None:
            self._out.append(pending)
        state = {
            "learner": learners[0].name,
            "steps": given.info.env_steps,
            "parts": given.part_infos,
            "others": others,
        }
        made = pending.made_from_info(self.remade(state, pending, ctx))
        return made.watched(others, partial(self._group.look, pending, others)) if others else made

    def steps_asked(self, pending: Pending[Any], steps: int) -> int:
        return int(pending.make.state["steps"]) if isinstance(pending.make, Told) else steps

    def pending_state(self, make: Any) -> Any:
        return make.state

    def remade(self, state: Any, pending: Pending[Any], ctx: Context) -> Callable[[Info], TrainInfo]:
        learner, steps, others = state["learner"], state["steps"], state["others"]

        def trained(info: Info) -> TrainInfo:
            whole = others is None or self._group.check(info, pending, others)
            return TrainInfo.of(learner, steps if whole else 0, pending.ref if whole else None, info)

        return Told(self._staleness, trained, state["parts"], ctx, state)

    def _young(self, value: Ref[Batch], ctx: Context) -> Ref[Batch] | None:
        """What is left of a batch without what would be too old when its training begins."""
        assert self.max_policy_lag is not None
        while self._out and self._out[0].done:
            self._out.popleft()
        newest = ctx.published(self.learner)
        # The calls that are out come first, and each makes one version.
        least = (0 if newest is None else newest[0]) + len(self._out) - self.max_policy_lag
        given = value.only(lambda part: part.policy_version is None or part.policy_version >= least)
        if given is not value:
            dropped = value.info.env_steps - (0 if given is None else given.info.env_steps)
            ctx.metrics.add("dropped_steps", dropped)
            ctx.metrics.add("dropped_items", len(value.part_infos) - (0 if given is None else len(given.part_infos)))
        return given


def check_keeping(
    node: str, learner: ActorGroup[Any], on_failure: FailurePolicy | None, snapshot_every: int | None
) -> None:
    """Nothing, if a group of learners can be kept so.

    Raises:
        ValueError: a policy that is none, Ignore() for a lone learner, a class without `resume`, or a number below 1.
    """
    if snapshot_every is not None:
        check_whole("snapshot_every", snapshot_every)
        if not isinstance(on_failure, Restart):
            raise ValueError(
                f"{node}: snapshot_every={snapshot_every} is for on_failure=Restart(n), got {on_failure!r}"
            )
    if on_failure is not None and not isinstance(on_failure, FailurePolicy):
        raise ValueError(f"{node}: on_failure must be Restart(...), Ignore() or Raise(), got {on_failure!r}")
    if learner.count == 1 and isinstance(on_failure, Ignore):
        raise ValueError(f"{node}: on_failure=Ignore() has nobody to go on with, {learner.name!r} is one actor")
    cls = learner.actor_class
    if learner.count == 1 and isinstance(on_failure, Restart) and not callable(getattr(cls, "resume", None)):
        raise ValueError(f"{node}: {cls.__name__} has no resume(state, at_least), so Restart has nothing to go on from")


def check_timeout(node: str, learner: ActorGroup[Any], timeout_s: float | None) -> None:
    """Nothing, if it is how long a lone learner may take over a call.

    Raises:
        ValueError: it is no number above 0, or the learners are several.
    """
    if timeout_s is None:
        return
    check_seconds(f"{node}: timeout_s", timeout_s)
    if learner.count > 1:
        raise ValueError(
            f"{node}: timeout_s={timeout_s!r} is for a lone learner, and {learner.name!r} has {learner.count}: they "
            "train in step and wait peer_timeout_s for one another"
        )


def kept_of(learner: ActorGroup[Any], on_failure: FailurePolicy | None, every: int | None) -> Kept | None:
    """How the learners are kept; None where a death ends the run, or a flow that they are sources of has a say."""
    return (
        None
        if on_failure is None or isinstance(on_failure, Raise)
        else Kept(learner, on_failure, every or SNAPSHOT_EVERY)
    )


def check_one_learner(node: str, learner: ActorGroup[Any]) -> None:
    """Nothing, if the group is of one actor.

    Raises:
        ValueError: it is not.
    """
    if learner.count != 1:
        raise ValueError(f"{node} trains one learner, group {learner.name!r} has {learner.count}")


def _is_one(learner: Any) -> bool:
    return not isinstance(learner, ActorGroup) or learner.count == 1


def losses_of(learner: ActorGroup[Any]) -> list[Any]:
    """What of a learner's arguments says which columns it needs."""
    given = (*learner.args, *learner.kwargs.values())
    return [entry for entry in given if isinstance(_needs(entry), frozenset | set | list | tuple)]


def _needs(entry: Any) -> Any:
    return None if isinstance(entry, type) else getattr(entry, "needs", None)
