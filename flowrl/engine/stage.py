"""One operator at work on a stream of values, with the provenance of its results; on the driver and in shards."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

from flowrl.engine.failure import InNode
from flowrl.operator import Context, ItemId, Operator, checked_results, results_of
from flowrl.ref import oldest

Result = tuple[Any, tuple[Any, ...], int | None]  # value, origins, oldest policy version


class Stage:
    """An opened operator, its context, and the origins of the inputs since its previous output."""

    __slots__ = ("_origins", "_version", "busy_s", "ctx", "finished", "made", "name", "number", "op")

    def __init__(self, name: str, op: Operator[Any, Any], ctx: Context):
        self.name, self.op, self.ctx = name, op, ctx
        self.busy_s = 0.0
        self.number = 0  # inputs so far
        self.made = 0  # results so far
        self.finished = False
        self._origins: tuple[Any, ...] = ()
        self._version: int | None = None

    def open(self) -> None:
        """Opens the operator; an error names the node."""
        try:
            self.op.open()
        except BaseException as error:
            raise InNode(self.name, ItemId(-1)) from error

    def push(self, value: Any, origins: tuple[Any, ...], version: int | None) -> list[Result]:
        """The results for one input."""
        item = self.enter(origins, version)
        emitted = self.ctx._emitted
        results: list[Any] = []
        before: list[int] = []
        started = perf_counter()
        try:
            for result in results_of(self.op, value, self.ctx):
                results.append(result)
                before.append(len(emitted))
        except BaseException as error:
            raise InNode(self.name, item) from error
        self.busy_s += perf_counter() - started
        if self.op.hands_on:  # the very item: those that were dropped before it are no part of it
            self._origins, self._version = origins, version
        return self.leave(results, before)

    def finish(self) -> list[Result]:
        """What the operator still holds when upstream has ended."""
        self.finished = True
        self.ctx.item_id = ItemId(self.number, self._origins, self._version)
        emitted = self.ctx._emitted
        results: list[Any] = []
        before: list[int] = []
        try:
            for result in checked_results(self.op, "finish", self.op.finish(self.ctx)):
                results.append(result)
                before.append(len(emitted))
        except BaseException as error:
            raise InNode(self.name, self.ctx.item_id) from error
        return self.leave(results, before)

    def enter(self, origins: tuple[Any, ...], version: int | None) -> ItemId:
        """Tells the context of an input, and remembers where it came from."""
        item = ItemId(self.number, origins, version)
        self.ctx.item_id = item
        self.number += 1
        if not self._origins:
            self._origins = origins
        elif origins != self._origins:
            self._origins += tuple(origin for origin in origins if origin not in self._origins)
        self._version = oldest(self._version, version)
        return item

    def leave(self, results: Sequence[Any], before: Sequence[int] = ()) -> list[Result]:
        """The results with provenance: those emitted say their own, the others stem from all since the last output.

        before: how many were emitted before each of the results; all come out in the order in which they were given.
        """
        found: list[Result] = [(value, self._origins, self._version) for value in results]
        emitted = self.ctx._emitted
        if emitted:
            own = [(value, *_provenance(sources)) for value, sources in emitted]
            emitted.clear()
            for at in range(len(found) - 1, -1, -1):
                own.insert(before[at], found[at])
            found = own
        if found:
            self.made += len(found)
            self._origins, self._version = (), None
        return found

    def close(self) -> None:
        """Closes the operator."""
        self.op.close()


def _provenance(sources: tuple[ItemId, ...]) -> tuple[tuple[Any, ...], int | None]:
    origins: dict[Any, None] = {}
    version: int | None = None
    for source in sources:
        origins.update(dict.fromkeys(source.origins))
        version = oldest(version, source.policy_version)
    return tuple(origins), version
