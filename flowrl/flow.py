"""Flows: what users chain. Composing makes immutable nodes and starts nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from flowrl import functions, graph
from flowrl.chained import Chained, as_operator, at_least_one, called
from flowrl.errors import GraphError
from flowrl.failures import FailurePolicy, Ignore, Raise, Restart
from flowrl.given import whole
from flowrl.handles import ActorGroup, ActorHandle
from flowrl.numbers import check_seconds
from flowrl.operator import AskOperator, Context, Operator
from flowrl.places import calling_place

if TYPE_CHECKING:
    from flowrl.batch import Batch

T = TypeVar("T")
U = TypeVar("U")


class Flow(Chained[T]):
    """A stream of items on the driver. Iterating over it runs it on the default backend."""

    __slots__ = ()

    @overload
    def for_each(self, op: Operator[T, U], *, name: str | None = None) -> Flow[U]: ...
    @overload
    def for_each(self, op: Callable[[T], U], *, name: str | None = None) -> Flow[U]: ...
    @overload
    def for_each(self, op: Callable[[T, Context], U], *, name: str | None = None) -> Flow[U]: ...
    def for_each(self, op: Any, *, name: str | None = None) -> Flow[Any]:
        """Every result of an operator, or one result an item of a callable (of the item, or of item and context)."""
        return Flow(self._applied(as_operator(op), name))

    def tap(self, look: Callable[..., Any], *, name: str | None = None) -> Flow[T]:
        """The same items; look(item) is called with each on its way."""
        return Flow(self._applied(functions.Tap(called(look, "tap")), name, "tap"))

    def batch(self, n: int) -> Flow[list[T]]:
        """Lists of n items; the last may be shorter."""
        return Flow(self._applied(functions.Gathered(at_least_one("batch", "n", n)), None, "batch"))

    def flatten(self: Flow[Iterable[U]]) -> Flow[U]:
        """The elements of each item."""
        return Flow(self._applied(functions.Flatten(), None, "flatten"))

    def take(self, n: int) -> Flow[T]:
        """The first n items, after which upstream is closed."""
        count = whole(n)
        if count is None or count < 0:
            raise GraphError(f"take needs n >= 0, got {n!r}")
        return Flow(graph.Take(upstream=(self._node,), label="take", where=calling_place(), n=count))

    def zip_with_source_actor(self) -> Flow[tuple[ActorHandle[Any], T]]:
        """(handle, item): the actor that each item came from.

        Raises:
            ValueError: while running, where an item did not come from exactly one actor; names them.
        """
        return Flow(self._applied(functions.ZipWithSourceActor(), None, "zip_with_source_actor"))

    def duplicate(
        self, n: int, *, max_lag: int = 8, overflow: Literal["block", "drop_oldest"] = "block"
    ) -> tuple[Flow[T], ...]:
        """n flows with all the items each; all of them get the same objects.

        No branch runs more than max_lag items ahead of another: it is blocked ("block"), or the slower one loses its
        oldest items, counted ("drop_oldest"). Only branches that the run reaches, and that have not ended, count.
        """
        if overflow not in ("block", "drop_oldest"):
            raise GraphError(f"overflow must be 'block' or 'drop_oldest', got {overflow!r}")
        node = graph.Duplicate(
            upstream=(self._node,),
            label="duplicate",
            where=calling_place(),
            n=at_least_one("duplicate", "n", n),
            max_lag=at_least_one("duplicate", "max_lag", max_lag),
            overflow=overflow,
        )
        return tuple(
            Flow(graph.Branch(upstream=(node,), label=f"branch[{i}]", where=node.where, index=i)) for i in range(node.n)
        )

    def by_policy(self, *policy_ids: str, max_lag: int = 8) -> tuple[Flow[Batch], ...]:
        """A flow of each policy's Batch out of multi-agent batches; an item without the policy is skipped."""
        if not policy_ids or len(set(policy_ids)) != len(policy_ids):
            raise GraphError(f"by_policy needs different policy ids, got {policy_ids!r}")
        branches = self.duplicate(len(policy_ids), max_lag=max_lag)
        return tuple(
            Flow(branch._applied(functions.PolicyPart(policy_id), None, "by_policy"))
            for policy_id, branch in zip(policy_ids, branches, strict=True)
        )

    def through(self, tail: Callable[[Flow[T]], Flow[U]]) -> Flow[U]:
        """tail(self): composes a prebuilt part."""
        composed = tail(self)
        if not isinstance(composed, Flow):
            raise GraphError(
                f"through needs a function that returns a Flow, {tail!r} returned {type(composed).__name__}"
            )
        return composed

    def __iter__(self) -> Iterator[T]:
        from flowrl.engine.run import run

        with run(self) as running:
            yield from running


class ParallelFlow(Chained[T]):
    """A stream sharded over actors. Its operators run inside the shards, fused into one call.

    Not iterable: gather it first.
    """

    __slots__ = ()

    @overload
    def for_each(self, op: Operator[T, U], *, name: str | None = None) -> ParallelFlow[U]: ...
    @overload
    def for_each(self, op: Callable[[T], U], *, name: str | None = None) -> ParallelFlow[U]: ...
    @overload
    def for_each(self, op: Callable[[T, Context], U], *, name: str | None = None) -> ParallelFlow[U]: ...
    def for_each(self, op: Any, *, name: str | None = None) -> ParallelFlow[Any]:
        """Every result of an operator, or one result an item of a callable; each shard works on a copy of its own."""
        operator = as_operator(op)
        if isinstance(operator, AskOperator):
            raise GraphError(
                f"{operator!r} asks an actor, which the driver does: gather first (gather_sync, gather_async)"
            )
        return ParallelFlow(self._applied(operator, name))

    def batch(self, n: int) -> ParallelFlow[list[T]]:
        """Lists of n items of one shard; its last may be shorter."""
        return ParallelFlow(self._applied(functions.Gathered(at_least_one("batch", "n", n)), None, "batch"))

    def flatten(self: ParallelFlow[Iterable[U]]) -> ParallelFlow[U]:
        """The elements of each item."""
        return ParallelFlow(self._applied(functions.Flatten(), None, "flatten"))

    def union(self, *others: ParallelFlow[T]) -> ParallelFlow[T]:
        """The shards of several parallel flows side by side."""
        for other in others:
            if not isinstance(other, ParallelFlow):
                raise GraphError(
                    f"union joins parallel flows, got {type(other).__name__}; for gathered flows use Union"
                )
        upstream = (self._node, *(other._node for other in others))
        for above in upstream:
            if others and any(isinstance(node, graph.Aggregate) for node in graph.walk(above)):
                raise GraphError("union joins shards of sources: aggregate behind the union, not before it")
        return ParallelFlow(graph.Merge(upstream=upstream, label="union", where=calling_place()))

    def aggregate(self, group: ActorGroup[Any], *, fan_in: int, name: str | None = None) -> ParallelFlow[T]:
        """One item out of `fan_in`, joined in the actors of a group, which run the operators behind it.

        The driver routes references: no payload passes through it, and whoever takes the joined item fetches one
        object instead of many. Behind gather_sync each round is joined in the order of the shards, its last item of
        what is left; behind gather_async whichever items come first are joined, so a slow shard holds nobody up. The
        joined item has the origins of all its parts and their oldest version. Aggregations may follow each other.

        group: of `flowrl.Aggregator`, or of a class with `aggregate(item)`, which gets the joined item. The gather's
            failure policy covers its actors too; what a dead one was joining is joined again by another.
        """
        if not isinstance(group, ActorGroup):
            raise GraphError(f"aggregate needs a group made by flowrl.actors(flowrl.Aggregator, ...), got {group!r}")
        cls = group.actor_class
        if isinstance(cls, type) and not callable(getattr(cls, "aggregate", None)):
            raise GraphError(f"aggregate: {cls.__name__} (group {group.name!r}) has no method aggregate()")
        if name is not None and (not isinstance(name, str) or not name or "/" in name):
            raise GraphError(f"a node's name must be a non-empty string without '/', got {name!r}")
        return ParallelFlow(
            graph.Aggregate(
                upstream=(self._node,),
                label="aggregate",
                explicit=name,
                where=calling_place(),
                group=group,
                fan_in=at_least_one("aggregate", "fan_in", fan_in),
            )
        )

    def gather_sync(
        self,
        *,
        on_failure: FailurePolicy | None = None,
        timeout_s: float | None = None,
        min_shards: int | None = None,
        late: Literal["drop", "keep"] | None = None,
    ) -> Flow[T]:
        """One item of each shard a round, in the order of the shards, behind a barrier.

        timeout_s: a round goes on without the shards that have no item so long after it was asked for, once min_shards
            of them have one; the graph is then not deterministic. None waits for all. The metrics `late workers[1]`
            of this node say who was missing how often.
        min_shards: how many a round needs (default 1).
        late: what becomes of an item that comes too late: "keep" (the default), it is its shard's in the round under
            way; "drop", it is thrown away and counted, and its shard asked again.
        """
        return self._gather("sync", 1, on_failure, self._patience(timeout_s, min_shards, late))

    def _patience(self, timeout_s: Any, min_shards: Any, late: Any) -> graph.Patience | None:
        if timeout_s is None:
            if min_shards is not None or late is not None:
                raise GraphError("gather_sync: min_shards and late are for rounds with a timeout_s")
            return None
        try:
            check_seconds("timeout_s", timeout_s)
        except ValueError as error:
            raise GraphError(f"gather_sync: {error}") from None
        if late not in (None, "drop", "keep"):
            raise GraphError(f"gather_sync: late must be 'drop' or 'keep', got {late!r}")
        for node in graph.walk(self._node):
            if isinstance(node, graph.Aggregate) or (isinstance(node, graph.Shards) and node.served_by is not None):
                what = "aggregate" if isinstance(node, graph.Aggregate) else "central inference"
                raise GraphError(f"gather_sync: timeout_s does not go with {what}, which waits for shards before it")
        least = at_least_one("gather_sync", "min_shards", 1 if min_shards is None else min_shards)
        return graph.Patience(float(timeout_s), least, "keep" if late is None else late)

    def gather_async(self, *, num_async: int = 2, on_failure: FailurePolicy | None = None) -> Flow[T]:
        """Items in the order in which they are ready, at most num_async in flight a shard."""
        return self._gather("async", at_least_one("gather_async", "num_async", num_async), on_failure)

    def _gather(
        self,
        mode: Literal["sync", "async"],
        num_async: int,
        on_failure: FailurePolicy | None,
        patience: graph.Patience | None = None,
    ) -> Flow[T]:
        policy = Restart(3) if on_failure is None else on_failure
        if not isinstance(policy, Restart | Ignore | Raise):
            raise GraphError(f"on_failure must be Restart(...), Ignore() or Raise(), got {policy!r}")
        label = f"gather_{mode}"
        where = calling_place()
        return Flow(
            graph.Gather(
                upstream=(self._node,),
                label=label,
                where=where,
                mode=mode,
                num_async=num_async,
                on_failure=policy,
                patience=patience,
            )
        )

    def __iter__(self) -> Iterator[T]:
        raise TypeError(
            "a ParallelFlow lives in its shards and cannot be iterated; gather it first: .gather_sync() for rounds in "
            "shard order, .gather_async() for items as they are ready"
        )
