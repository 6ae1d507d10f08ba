"""Where items come from: actors, lists, iterators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from flowrl import graph
from flowrl.errors import EndOfStream, GraphError
from flowrl.flow import Flow, ParallelFlow
from flowrl.given import whole
from flowrl.handles import ActorGroup, Apart, _describe
from flowrl.places import calling_place

T = TypeVar("T")


def from_actors(
    group: ActorGroup[Any], method: str | Callable[..., Any], *args: Any, name: str | None = None
) -> ParallelFlow[Any]:
    """A shard in each actor of a group: each pull asks `method(*args)`; it raises EndOfStream to end its shard.

    Raises:
        GraphError: the class has no such method.
    """
    if not isinstance(group, ActorGroup):
        raise GraphError(f"from_actors needs a group made by flowrl.actors(...), got {group!r}")
    cls = group.actor_class
    if isinstance(method, str) and isinstance(cls, type) and not callable(getattr(cls, method, None)):
        raise GraphError(f"from_actors: {cls.__name__} (group {group.name!r}) has no method {method!r}")
    label = name or "from_actors"
    return ParallelFlow(graph.Shards(label=label, where=calling_place(), group=group, method=method, args=args))


def from_items(items: Sequence[T], *, num_shards: int, repeat: bool = False) -> ParallelFlow[T]:
    """The items of a sequence, item i in shard i % num_shards; over and over with repeat.

    A shard that is started again after its process died goes on behind the items that have come from it.
    """
    held = list(items)
    shards = whole(num_shards)
    if shards is None or shards < 1:
        raise GraphError(f"from_items needs num_shards >= 1, got {num_shards!r}")
    parts = [held[i::shards] for i in range(shards)]
    return _iterated([_ListMaker(part) for part in parts], repeat, "from_items")


def from_iterators(makers: Sequence[Callable[[], Iterable[T]]], *, repeat: bool = False) -> ParallelFlow[T]:
    """A shard for each function that makes an iterable; made anew at its end with repeat.

    A shard that is started again after its process died makes a new one, and skips the items that have come from it.
    """
    makers = list(makers)
    if not makers:
        raise GraphError("from_iterators needs at least one function that makes an iterable, got none")
    for make in makers:
        if not callable(make):
            raise GraphError(f"from_iterators needs functions that make an iterable, got {make!r}; write lambda: ...")
    return _iterated(makers, repeat, "from_iterators")


def from_iterable(make_iterator: Callable[[], Iterable[T]]) -> Flow[T]:
    """The items of an iterable that the driver makes when the run starts."""
    if not callable(make_iterator):
        raise GraphError(
            f"from_iterable needs a function that makes an iterable, got {make_iterator!r}; write lambda: ..."
        )
    return Flow(graph.Iterate(label="from_iterable", where=calling_place(), make=make_iterator))


def _iterated(makers: Sequence[Callable[[], Iterable[Any]]], repeat: bool, label: str) -> ParallelFlow[Any]:
    group = _describe(
        IteratorShard,
        (Apart(tuple(makers)), repeat),
        {},
        len(makers),
        f"{label}-shards",
        None,
        0,
        None,
        auto_named=True,
    )
    return ParallelFlow(graph.Shards(label=label, where=calling_place(), group=group, method="next_item"))


class _ListMaker:
    """A list as a function that makes an iterable; equal to a closure, and short in an error."""

    def __init__(self, items: list[Any]):
        self.items = items

    def __call__(self) -> list[Any]:
        return self.items


class IteratorShard:
    """The actor behind from_items and from_iterators: one item a call.

    given: how many items an earlier incarnation has given; it goes on behind them.
    """

    fixed_count = "its items were divided among them when the flow was made"

    def __init__(self, make: Callable[[], Iterable[Any]], repeat: bool, *, given: int = 0):
        self._make, self._repeat, self._given = make, repeat, given
        self._iterator: Iterator[Any] = iter(self._make())
        self._fresh = True
        self._count = 0

    def next_item(self) -> Any:
        """The next item of the iterator."""
        while self._given:
            self._next()
            self._given -= 1
        return self._next()

    def get_state(self) -> dict[str, Any]:
        """How many items it has given."""
        return {"given": self._count + self._given}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on behind those that were given; to be called before the first."""
        self._given = state["given"]

    def _next(self) -> Any:
        while True:
            try:
                item = next(self._iterator)
            except StopIteration:
                if not self._repeat or self._fresh:
                    raise EndOfStream from None
                self._iterator, self._fresh = iter(self._make()), True
                continue
            self._fresh = False
            self._count += 1
            return item


class Aggregator:
    """The actor of `ParallelFlow.aggregate`: what it is given was joined on the way to it, and is its answer.

    Override `aggregate` to do more with the joined item; its columns must stay.
    """

    default_cpus = 0
    stateless = True

    def aggregate(self, item: Any) -> Any:
        """The joined item."""
        return item
