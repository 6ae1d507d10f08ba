"""What a node does: operators that compute, operators that ask an actor, and the context they get."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

from flowrl.metrics import Recorder

if TYPE_CHECKING:
    from flowrl.failures import FailurePolicy
    from flowrl.handles import ActorGroup, ActorHandle, Pending
    from flowrl.ref import Info, Ref

In = TypeVar("In")
Out = TypeVar("Out")


class ItemId(NamedTuple):
    """Names one item of a node and says where it came from; an operator that holds items back keeps it."""

    number: int
    origins: tuple[Any, ...] = ()
    policy_version: int | None = None


class Context:
    """What an operator is told about the item at hand, and what it may say."""

    __slots__ = ("_actor", "_emitted", "_run", "env_steps", "item_id", "metrics")

    def __init__(self, node: str = "", run: Any = None, actor: Any = None):
        self.metrics = Recorder(node)
        self.item_id = ItemId(-1)
        self.env_steps = 0  # of the whole run, at the driver; what schedules are functions of
        self._run = run
        self._actor = actor
        self._emitted: list[tuple[Any, tuple[ItemId, ...]]] = []

    @property
    def origins(self) -> tuple[ActorHandle[Any], ...]:
        """The actors that this item came from (sources, never learners)."""
        origins = self.item_id.origins
        return origins if self._run is None else self._run.bound(origins)

    @property
    def policy_version(self) -> int | None:
        """The oldest version of the weights that made this item."""
        return self.item_id.policy_version

    @property
    def actor(self) -> Any:
        """In a shard: the actor's own object, whose source this operator stands behind (a RolloutWorker, say).

        Raises:
            RuntimeError: on the driver, where there are only handles.
        """
        if self._actor is None:
            raise RuntimeError(
                "ctx.actor is for operators inside a shard; this one runs on the driver: put it before the gather, or "
                "message the actor (ctx.origins, ctx.actors(group))"
            )
        return self._actor

    def actors(self, group: ActorGroup[Any]) -> tuple[ActorHandle[Any], ...]:
        """The live handles of a group.

        Raises:
            RuntimeError: in a shard, which has no handles: gather first and message from the driver.
        """
        return self._need_run("actors").actors_of(group)

    def published(self, learner: ActorHandle[Any] | ActorGroup[Any]) -> tuple[int, Ref[Any]] | None:
        """The newest weights that an actor, or any of a group, published, as (version, reference); None before the
        first."""
        return self._need_run("published").published(learner)

    @property
    def groups(self) -> Mapping[str, tuple[ActorHandle[Any], ...]]:
        """Every group of the run by name."""
        return self._need_run("groups").groups()

    def having(self, method: str) -> tuple[ActorHandle[Any], ...]:
        """The actors of the run whose class has a method of this name, sources first."""
        return self._need_run("having").having(method)

    def up(self, actor: ActorHandle[Any], *, wait: bool = False) -> bool:
        """Whether an actor's process is up, as its failure policy has decided where it has died.

        wait: one that is being started again is waited for.

        Raises:
            ActorDied: it has died, and its policy does not go on.
        """
        return bool(self._need_run("up").is_up(actor, wait=wait))

    @property
    def deterministic(self) -> bool:
        """Whether timing cannot change the numbers of the run's graph (`explain()` says why)."""
        return bool(self._need_run("deterministic").deterministic())

    def living(self, group: ActorGroup[Any]) -> tuple[ActorHandle[Any], ...]:
        """The live handles of those actors of a group whose process is up."""
        return self._need_run("living").living_of(group)

    @property
    def seed(self) -> int:
        """A seed for this node's own stream of random numbers, from the run's seed and the node's name."""
        return int(self._need_run("seed").seed())

    @property
    def report(self) -> Any:
        """The whole run's metrics and counters (`flowrl.engine.stats.Accounts`)."""
        return self._need_run("report").report()

    def emit(self, value: Any, sources: Sequence[ItemId]) -> None:
        """Sends a result out with exact provenance: the items that it was made of."""
        self._emitted.append((value, tuple(sources)))

    def _need_run(self, what: str) -> Any:
        if self._run is None:
            raise RuntimeError(
                f"ctx.{what} is for operators on the driver; this one runs inside a shard: gather the flow first"
            )
        return self._run


@dataclass(frozen=True)
class Replaced:
    """A group of actors that keep nothing from call to call, and what their death means.

    One that is started again has the seed of the first, so it answers as that would have; what was asked of the dead
    one is lost, and whoever asked it asks again (`Pending.lost`, `Context.up`).
    """

    group: ActorGroup[Any]
    on_failure: FailurePolicy


@dataclass
class Operator(Generic[In, Out]):
    """A node's work. A dataclass: its fields are configuration and never change, its repr is its label.

    Run state is made in `open()` under underscore names. `wants` says what `process` gets: the value,
    or a `Ref` to it. `pure` operators give exactly one result an item from the item alone, so they may be
    deferred to where the item arrives. `needs` and `adds` are batch columns, checked when a run is built.
    """

    wants: ClassVar[Literal["value", "reference"]] = "value"
    needs: ClassVar[frozenset[str]] = frozenset()
    adds: ClassVar[frozenset[str]] = frozenset()
    pure: ClassVar[bool] = False
    hands_on: ClassVar[bool] = False  # what process yields is only whether the very input goes on (filter, tap)

    def required_columns(self) -> frozenset[str]:
        """The batch columns that items must have; `needs`, unless the configuration says more."""
        return self.needs

    @property
    def replaced(self) -> Replaced | None:
        """Actors that it asks beside the items, where they may outlive their deaths; None, the default: of no group."""
        return None

    def open(self) -> None:
        """Makes the run state. Called once a run (and once a shard) on a copy of the operator."""

    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        """Yields 0..n results for one item, all of which are collected before the first of them goes on."""
        raise NotImplementedError(f"{type(self).__name__} must define process(self, value, ctx)")

    def finish(self, ctx: Context) -> Iterable[Any]:
        """Yields what is left when upstream has ended."""
        return ()

    def actor_started(self, handle: ActorHandle[Any], ctx: Context) -> None:
        """An actor has started or restarted; called before its first pull."""

    def close(self) -> None:
        """Frees what open() took."""

    def get_state(self) -> dict[str, Any]:
        """The run state, enough to go on from here: by default every underscore attribute."""
        return {name: value for name, value in vars(self).items() if name.startswith("_")}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on from a state; called after open()."""
        vars(self).update(state)


@dataclass(frozen=True)
class Kept:
    """A group of actors, what their death means, and after how many answers a lone one's state is kept again.

    A lone actor has `get_state()`, and `resume(state, at_least)`, which takes a state over after a death.
    """

    group: ActorGroup[Any]
    on_failure: FailurePolicy
    every: int


@dataclass
class AskOperator(Operator[In, Out]):
    """A node that makes one actor call an item. At most `in_flight` calls are out; results keep the order.

    The window is filled before its head comes out.
    """

    wants: ClassVar[Literal["value", "reference"]] = "reference"

    @property
    def calls_in_flight(self) -> int:
        """How many calls may be out: the field `in_flight` where the operator has one, else 1."""
        return int(getattr(self, "in_flight", 1))

    @property
    def outlives_losses(self) -> bool:
        """Whether an item whose call was lost is left out, where the failure policy of the dead actor goes on."""
        return False

    @property
    def answers_within_s(self) -> float | None:
        """How long its calls may be waited for, each from when nothing before it is out; then the actor counts as dead.

        None, the default: as long as it takes.
        """
        return None

    @property
    def kept(self) -> Kept | None:
        """The group that it asks, where its actors are to outlive their deaths; None leaves a death to end the run."""
        return None

    def ask(self, value: Ref[Any], ctx: Context) -> Pending[Any] | None:
        """The call for one item; None drops it, which the operator counts (`ctx.metrics`)."""
        raise NotImplementedError(f"{type(self).__name__} must define ask(self, value, ctx)")

    def steps_asked(self, pending: Pending[Any], steps: int) -> int:
        """The environment steps that a call was asked with; fewer than the item's `steps` where `ask` left some out."""
        return steps

    def pending_state(self, make: Callable[[Info], Any]) -> Any:
        """What `remade` needs to make the value of a call's answer anew, where `made_from_info` was given `make`.

        As a state, which may hold References and Pendings. None, the default: the value is made when a run is saved,
        from what is known then, and comes out of the resumed run as it is.
        """
        return None

    def remade(self, state: Any, pending: Pending[Any], ctx: Context) -> Callable[[Info], Any]:
        """The `make` of which `pending_state` told; `pending` is its call."""
        raise NotImplementedError(f"{type(self).__name__} has pending_state, so it must define remade")


@dataclass
class StoreOperator(AskOperator[In, Out]):
    """An AskOperator whose calls put items into `shards`; the pacing of that group says when the next may go.

    `ask` chooses among `ctx.living(self.shards)`; where the chosen one dies, what was on its way is counted as lost.
    """

    shards: ActorGroup[Any]


_NOT_STREAMS = (str, bytes, Mapping)


def results_of(op: Operator[Any, Any], value: Any, ctx: Context) -> Iterable[Any]:
    """`op.process`, refusing a returned item where an iterable of results is due."""
    results = op.process(value, ctx)
    if type(results) is types.GeneratorType:
        return results
    return checked_results(op, "process", results)


def checked_results(op: Operator[Any, Any], method: str, results: Any) -> Iterable[Any]:
    """The results as they are, if they are an iterable of results.

    Raises:
        TypeError: for None, a Batch, an array or a string: an item that was returned instead of yielded.
    """
    if results is None:
        raise TypeError(
            f"{type(op).__name__}.{method} returned None; it must yield its results (or `return ()` for none)"
        )
    if isinstance(results, _NOT_STREAMS) or hasattr(results, "__array__") or not isinstance(results, Iterable):
        raise TypeError(
            f"{type(op).__name__}.{method} returned a {type(results).__name__}; "
            "write `yield value` instead of `return value`"
        )
    return results
