"""Experience kept and drawn again: stored in the shards of a replay group, sampled, and given new priorities."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from flowrl import graph
from flowrl.batch import Batch
from flowrl.errors import GraphError
from flowrl.failures import FailurePolicy, Ignore
from flowrl.flow import Flow
from flowrl.handles import ActorGroup, Pending, check_group
from flowrl.numbers import check_whole
from flowrl.operator import Context, Operator, StoreOperator
from flowrl.operators.training import TrainInfo
from flowrl.places import calling_place
from flowrl.ref import Info, Ref
from flowrl.rl.schedules import Rate, check_rate


@dataclass(frozen=True)
class Stored:
    """What became of an item: the shard that it was sent to, and how many rows that stored (0 if it died)."""

    shard: str
    rows: int

    @staticmethod
    def of(shard: str, info: Info) -> Stored:
        """From the Info of the shard's answer."""
        return Stored(shard, int(info.metrics.get("inserted", 0)))


@dataclass
class StoreToReplay(StoreOperator[Batch, Stored]):
    """Has a replay shard store each batch, by reference, in turn over the living shards; says where it went.

    Each store is acknowledged, at most `in_flight` are out, and the group's pacing (samples_per_insert) holds the next
    back while too little is drawn. The item that comes out keeps the figures of the batch (its environment steps).
    After the death of a shard the others get its share; what it held and what was on its way is counted
    (`rows_lost`).

    shards: a group of `flowrl.rl.ReplayShard`, or of a class with `store(batch)` that answers metrics size, mass and
        inserted.
    """

    in_flight: int = 2

    def __post_init__(self) -> None:
        check_whole("in_flight", self.in_flight)
        check_group("StoreToReplay", "ReplayShard", self.shards, "store")

    def open(self) -> None:
        self._turn = 0

    def ask(self, value: Ref[Batch], ctx: Context) -> Pending[Stored]:
        living = ctx.living(self.shards)
        shard = living[self._turn % len(living)]
        self._turn += 1
        pending = shard.ask("store", value)
        return pending.made_from_info(self.remade(shard.name, pending, ctx))

    def pending_state(self, make: Any) -> Any:
        return make.args[0]  # the shard

    def remade(self, state: Any, pending: Pending[Any], ctx: Context) -> Callable[[Info], Stored]:
        return partial(Stored.of, state)


def Replay(  # noqa: N802  (reads as an operator)
    shards: ActorGroup[Any],
    *,
    batch: int,
    batches: int = 1,
    in_flight: int = 1,
    beta: Rate | None = None,
    on_failure: FailurePolicy | None = None,
    name: str | None = None,
) -> Flow[Batch]:
    """Minibatches drawn from replay shards, `batches` of `batch` items in each message: a Batch with the columns that
    were stored, `slots` and `weights`, by reference.

    A pull asks one shard, chosen in proportion to its priorities (rows, where it has none), up to `in_flight` at once;
    results keep their order. The item's origin is the shard, so that UpdatePriorities finds it. The group's pacing
    (min_size, samples_per_insert, max_times_sampled) holds the next back while too little is stored; when nobody will
    store any more, the flow ends with what the pacing allows.

    beta: the exponent of the importance weights, a number or a function of the run's environment steps; None leaves
        the shard's own.
    on_failure: what the death of a shard means: Ignore(), the default, goes on with the others and counts what was
        lost; Restart(n) starts it again, empty, and storing and drawing wait where it was the only one; Raise() stops
        the run.

    Raises:
        GraphError: the group's class cannot be drawn from, or a number is out of range.
    """
    check_group("Replay", "ReplayShard", shards, "draw")
    if name is not None and (not isinstance(name, str) or not name or "/" in name):
        raise GraphError(f"a node's name must be a non-empty string without '/', got {name!r}")
    try:
        for what, number in (("batch", batch), ("batches", batches), ("in_flight", in_flight)):
            check_whole(what, number)
        if beta is not None and not callable(beta):
            check_rate("beta", beta, above_0=False)
    except ValueError as error:
        raise GraphError(f"Replay: {error}") from None
    policy = Ignore() if on_failure is None else on_failure
    if not isinstance(policy, FailurePolicy):
        raise GraphError(f"Replay: on_failure must be Restart(...), Ignore() or Raise(), got {policy!r}")
    return Flow(
        graph.Replay(
            label="Replay",
            explicit=name,
            where=calling_place(),
            group=shards,
            batch=batch,
            batches=batches,
            in_flight=in_flight,
            beta=beta,
            on_failure=policy,
        )
    )


@dataclass
class UpdatePriorities(Operator[TrainInfo, TrainInfo]):
    """Hands each item on, after telling the replay shard that its batch came from the priorities that training gave.

    The learner's answer, `slots` and `priorities`, goes to the shard by reference, riding on the next message to it. A
    slot that was overwritten meanwhile is left alone, and counted there.

    to: "origin", the shard that the item came from.

    Raises:
        TypeError: an item is no TrainInfo; put it behind TrainOneStep.
        ValueError: it came from no shard or from several, or training gave no priorities.
    """

    hands_on: ClassVar[bool] = True

    to: Literal["origin"] = "origin"

    def __post_init__(self) -> None:
        if self.to != "origin":
            raise ValueError(f"to must be 'origin' (the slots are those of the shard that was drawn), got {self.to!r}")

    def process(self, value: TrainInfo, ctx: Context) -> Iterable[TrainInfo]:
        if not isinstance(value, TrainInfo):
            raise TypeError(f"UpdatePriorities needs the TrainInfo of TrainOneStep, got {type(value).__name__}")
        if value.env_steps:
            self._tell(value, ctx)
        return (value,)

    def _tell(self, value: TrainInfo, ctx: Context) -> None:
        if len(ctx.origins) != 1:
            came = ", ".join(handle.name for handle in ctx.origins) or "no shard"
            raise ValueError(
                f"UpdatePriorities needs batches of one replay shard, this one came from {came}: slots are places in "
                "one shard, so train on what Replay gives before joining it with anything else"
            )
        if value.answer is None:
            raise ValueError(
                f"{value.learner} answered without priorities: UpdatePriorities needs a batch with `slots` (of Replay) "
                "and a loss that gives LossOut(per_row={'priorities': ...})"
            )
        ctx.origins[0].tell("reprioritize", value.answer)


@dataclass
class WaitUntil(Operator[Any, Any]):
    """Hands items on once the run has made so many environment steps; those before are dropped, and counted."""

    wants: ClassVar[Literal["value", "reference"]] = "reference"
    hands_on: ClassVar[bool] = True

    env_steps: int

    def __post_init__(self) -> None:
        check_whole("env_steps", self.env_steps)

    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        if ctx.env_steps >= self.env_steps:
            yield value
        else:
            ctx.metrics.add("dropped")
