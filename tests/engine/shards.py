"""Small actors and operators for tests of single nodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from flowrl import AskOperator, Context, EndOfStream, Operator, Pending, actors
from flowrl.handles import ActorGroup


class Counter:
    """Gives (index, 1), (index, 2), … up to its limit, and remembers what it was told, with the step."""

    def __init__(self, *, limit: int = 10**9, index: int = 0):
        self.limit, self.index = limit, index
        self.step = 0
        self.heard: list[tuple[int, Any]] = []

    def next_item(self) -> tuple[int, int]:
        """The next pair."""
        if self.step == self.limit:
            raise EndOfStream
        self.step += 1
        return self.index, self.step

    def uneven(self) -> list[tuple[int, int]]:
        """In its k-th step as many pairs as k % 3 says."""
        index, step = self.next_item()
        return [(index, step)] * (step % 3)

    def hear(self, value: Any) -> None:
        """Takes a message in."""
        self.heard.append((self.step, value))

    def memory(self) -> list[tuple[int, Any]]:
        """What it heard."""
        return self.heard

    def echo(self, value: Any) -> Any:
        """The same."""
        self.heard.append((self.step, value))
        return value


def counters(count: int, name: str = "workers", **kwargs: Any) -> ActorGroup[Counter]:
    """A group of counters."""
    return actors(Counter, count=count, name=name, **kwargs)


@dataclass
class TellOrigin(Operator[Any, Any]):
    """The same items; whom they came from hears of them."""

    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        for handle in ctx.origins:
            handle.tell("hear", value)
        yield value


@dataclass
class Echo(AskOperator[Any, Any]):
    """Each item to the first actor of a group and back."""

    group: ActorGroup[Counter]
    in_flight: int = 1

    def ask(self, value: Any, ctx: Context) -> Pending[Any]:
        return ctx.actors(self.group)[0].ask("echo", value)
