"""Gradients as items: computed where the experience is, averaged by reference, applied by the learner."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np

from flowrl.batch import Batch, MultiAgentBatch
from flowrl.failures import FailurePolicy, Restart
from flowrl.handles import ActorGroup, ActorHandle, Pending
from flowrl.numbers import check_whole
from flowrl.operator import AskOperator, Context, Kept, Operator
from flowrl.operators.staleness import Staleness, Told
from flowrl.operators.told_spaces import ToldSpaces
from flowrl.operators.training import (
    LEARNER_TIMEOUT_S,
    TrainInfo,
    check_keeping,
    check_one_learner,
    check_timeout,
    kept_of,
    losses_of,
)
from flowrl.ref import Info, Ref
from flowrl.rl.gradient_batch import GRADIENTS, ROWS, Gradients
from flowrl.rl.gradients import mean_gradient
from flowrl.rl.loss import Loss, wants_sequences
from flowrl.rl.policy import Policy
from flowrl.rl.rows import batch_of, rows_of
from flowrl.rl.schedules import may_follow_steps
from flowrl.rl.spec import ACTOR_HEADS, PolicySpec, Progress

COLUMNS = frozenset({GRADIENTS, ROWS})


@dataclass
class ComputeGradients(Operator[Batch, Gradients]):
    """The gradient of the mean loss over each item's valid rows, computed in the shard with the weights it acts with.

    Comes out as a Batch of one row with the columns `gradients` (1, P) float32 and `rows` (1,), which counts as many
    environment steps as rows and has the version of the weights; without a row of this policy it is 0, of 0 rows. A
    column `policy` says what it was made for, so that those of two policies are not taken for one another's. The loss's
    metrics are the policy's. Not clipped: that is done once gradients are averaged.

    The shard's actor has `get_weights()` (flat weights and version), `spaces()` and `env_steps` (what schedules are
    functions of, see ApplyGradients), as a RolloutWorker has. There is no target network here that follows.

    policy, loss: what the learner has.
    microbatch: rows (or sequences) that go through the network at once; the gradient stays the same.
    policy_id: whose rows are taken, where there are several policies.

    Raises:
        ValueError: a policy whose workers have only the weights of its actor; microbatch below 1.
    """

    adds: ClassVar[frozenset[str]] = COLUMNS

    policy: PolicySpec
    loss: Loss
    microbatch: int | None = None
    policy_id: str = "default"

    def __post_init__(self) -> None:
        if self.microbatch is not None:
            check_whole("microbatch", self.microbatch)
        if self.policy.head in ACTOR_HEADS:
            raise ValueError(
                f"ComputeGradients needs all weights where experience is made, but workers of head="
                f"{self.policy.head!r} have only the actor's; train on the batches with TrainOneStep"
            )

    def required_columns(self) -> frozenset[str]:
        """What the loss needs."""
        return frozenset(self.loss.needs)

    def open(self) -> None:
        self._policy: Policy | None = None
        self._weights: Any = None

    def process(self, value: Batch | MultiAgentBatch, ctx: Context) -> Iterable[Gradients]:
        worker = ctx.actor
        policy, version = self._newest(worker)
        batch, made_for = batch_of(value, self.policy_id), policy.described(self.policy_id)
        if batch is None:
            yield Gradients.of(np.zeros(policy.flat_parameters.shape, np.float32), 0, policy=made_for)
            return
        where = f"gradients of policy {self.policy_id!r}, version {version}"
        rows = rows_of(batch, policy, frozenset(self.loss.needs), where, sequences=wants_sequences(self.loss))
        # A network's own noise follows from the batch: a shard that goes on from a state needs none of its own.
        rng = np.random.default_rng(zlib.crc32(batch["actions"].tobytes()))
        now = Progress(worker.env_steps, version)
        made = mean_gradient(policy, self.loss, rows, now, microbatch=self.microbatch, where=where, rng=rng)
        for name, number in made.metrics.items():
            ctx.metrics.last(name, number, policy=self.policy_id)
        moments = None if policy.statistics is None else policy.statistics.moments_of(batch)
        yield Gradients.of(made.flat.numpy(), made.rows, moments, made_for)

    def _newest(self, actor: Any) -> tuple[Policy, int]:
        if self._policy is None:
            self._policy = Policy(self.policy, actor.spaces()[self.policy_id])
            self._policy.module.train()
        weights, version = actor.get_weights()
        if weights is not self._weights:
            self._policy.set_weights(weights)
            self._weights = weights
        return self._policy, version

    def get_state(self) -> dict[str, Any]:
        return {}


@dataclass
class AverageGradients(Operator[Gradients, Gradients]):
    """`n` gradients as one item, by reference; the rest comes out at the end.

    The learner takes their mean, weighted by rows: k equal microbatches give the update of one full batch. Those of
    different policies have no mean: the learner refuses them and names both.

    n: how many; the number of workers behind gather_sync, so that each gives one.
    """

    wants: ClassVar[Literal["value", "reference"]] = "reference"
    needs: ClassVar[frozenset[str]] = COLUMNS

    n: int

    def __post_init__(self) -> None:
        check_whole("n", self.n)

    def open(self) -> None:
        self._held: list[Ref[Gradients]] = []

    def process(self, value: Ref[Gradients], ctx: Context) -> Iterable[Ref[Gradients]]:
        self._held.append(value)
        if len(self._held) == self.n:
            yield self._joined()

    def finish(self, ctx: Context) -> Iterable[Ref[Gradients]]:
        if self._held:
            yield self._joined()

    def _joined(self) -> Ref[Gradients]:
        held, self._held = self._held, []
        return Ref.concat(held)

    def get_state(self) -> dict[str, Any]:
        return {"held": list(self._held)}

    def set_state(self, state: dict[str, Any]) -> None:
        self._held = list(state["held"])


@dataclass
class ApplyGradients(AskOperator[Gradients, TrainInfo]):
    """Has the learner take one step along each item's mean gradient; it clips, and publishes its new weights.

    When the learner starts, it is told the spaces of the graph's environments, from which it builds its policy. Those
    that an item came from are told the run's environment steps (`set_env_steps`, if they have it), which schedules in
    the loss are functions of there, if the learner's loss may have any.

    Metrics: policy_age_p50, policy_age_p95 and sample_reuse, as TrainOneStep has them.

    in_flight: gradients that are on their way to the learner at once.
    on_failure, snapshot_every, timeout_s: as TrainOneStep's.
    """

    needs: ClassVar[frozenset[str]] = COLUMNS

    learner: ActorGroup[Any]
    in_flight: int = 1
    on_failure: FailurePolicy | None = None
    snapshot_every: int | None = None
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        check_whole("in_flight", self.in_flight)
        check_one_learner("ApplyGradients", self.learner)
        check_keeping("ApplyGradients", self.learner, self.on_failure, self.snapshot_every)
        check_timeout("ApplyGradients", self.learner, self.timeout_s)

    @property
    def outlives_losses(self) -> bool:
        """A learner that is started again goes on without the gradient that it was lost with."""
        return isinstance(self.on_failure, Restart)

    @property
    def answers_within_s(self) -> float | None:
        return self.timeout_s or LEARNER_TIMEOUT_S

    @property
    def kept(self) -> Kept | None:
        return kept_of(self.learner, self.on_failure, self.snapshot_every)

    def actor_started(self, handle: ActorHandle[Any], ctx: Context) -> None:
        if handle in ctx.actors(self.learner):
            self._spaces.tell(handle, ctx)
        elif ctx.env_steps:
            self._tell_steps((handle,), ctx)

    def open(self) -> None:
        self._staleness = Staleness()
        self._spaces = ToldSpaces()
        # A message has its price, so nobody is told what nothing follows.
        losses = losses_of(self.learner)
        self._follow_steps = not losses or any(may_follow_steps(loss) for loss in losses)

    def ask(self, value: Ref[Gradients], ctx: Context) -> Pending[TrainInfo]:
        self._spaces.note(ctx)
        learner = ctx.actors(self.learner)[0]
        self._tell_steps(ctx.origins, ctx)
        pending = learner.ask("apply_gradients", value, env_steps=ctx.env_steps)
        state = {"learner": learner.name, "steps": value.info.env_steps, "parts": value.part_infos}
        return pending.made_from_info(self.remade(state, pending, ctx))

    def pending_state(self, make: Any) -> Any:
        return make.state

    def remade(self, state: Any, pending: Pending[Any], ctx: Context) -> Callable[[Info], TrainInfo]:
        told = partial(TrainInfo.of, state["learner"], state["steps"], pending.ref)
        return Told(self._staleness, told, state["parts"], ctx, state)

    def get_state(self) -> dict[str, Any]:
        return self._staleness.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        self._staleness.set_state(state)

    def _tell_steps(self, handles: Iterable[ActorHandle[Any]], ctx: Context) -> None:
        if self._follow_steps:
            able = ctx.having("set_env_steps")
            for handle in handles:
                if handle in able:
                    handle.tell("set_env_steps", ctx.env_steps)
