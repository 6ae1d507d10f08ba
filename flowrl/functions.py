"""The operators behind Flow's own methods: plain callables, filter, tap, batch, flatten, source actors."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from flowrl.batch import Batch, MultiAgentBatch
from flowrl.operator import Context, Operator, checked_results


def label_of(function: Callable[..., Any]) -> str:
    """A callable's name, as a node's default name."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", None) or type(function).__name__
    return "lambda" if name == "<lambda>" else name


def takes_context(function: Callable[..., Any]) -> bool:
    """Whether a callable wants (value, ctx): two required positional parameters, or a second one called ctx."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is p.empty]
    return len(required) >= 2 or (len(positional) >= 2 and positional[1].name == "ctx")


@dataclass(repr=False)
class Function(Operator[Any, Any]):
    """A plain callable, one to one."""

    function: Callable[..., Any]

    def open(self) -> None:
        self._with_context = takes_context(self.function)

    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        made = self.function(value, ctx) if self._with_context else self.function(value)
        if made is None and isinstance(value, Batch | MultiAgentBatch):  # None trains nobody, and nobody would notice
            raise TypeError(
                f"{self!r} returned None for a {type(value).__name__}; what it returns goes on in place of the item, "
                "so return the item (a gathered flow's tap() only looks)"
            )
        return (made,)

    def get_state(self) -> dict[str, Any]:
        return {}

    def __repr__(self) -> str:
        return label_of(self.function)


@dataclass(repr=False)
class Filter(Operator[Any, Any]):
    """Lets an item pass where keep(item) is true."""

    hands_on: ClassVar[bool] = True
    keep: Callable[..., Any]

    def open(self) -> None:
        self._with_context = takes_context(self.keep)

    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        kept = self.keep(value, ctx) if self._with_context else self.keep(value)
        return (value,) if kept else ()

    def get_state(self) -> dict[str, Any]:
        return {}

    def __repr__(self) -> str:
        return f"filter({label_of(self.keep)})"


@dataclass(repr=False)
class Tap(Operator[Any, Any]):
    """Shows each item to a callable and hands it on."""

    hands_on: ClassVar[bool] = True
    look: Callable[..., Any]

    def open(self) -> None:
        self._with_context = takes_context(self.look)

    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        if self._with_context:
            self.look(value, ctx)
        else:
            self.look(value)
        return (value,)

    def get_state(self) -> dict[str, Any]:
        return {}

    def __repr__(self) -> str:
        return f"tap({label_of(self.look)})"


@dataclass(repr=False)
class Gathered(Operator[Any, list[Any]]):
    """Lists of n items; the last may be shorter."""

    n: int

    def open(self) -> None:
        self._held: list[Any] = []

    def process(self, value: Any, ctx: Context) -> Iterable[list[Any]]:
        self._held.append(value)
        if len(self._held) == self.n:
            full, self._held = self._held, []
            yield full

    def finish(self, ctx: Context) -> Iterable[list[Any]]:
        if self._held:
            rest, self._held = self._held, []
            yield rest

    def __repr__(self) -> str:
        return f"batch({self.n})"


@dataclass(repr=False)
class Flatten(Operator[Iterable[Any], Any]):
    """Each element of each item."""

    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        if isinstance(value, list | tuple):
            return value
        return checked_results(self, "flatten", value)

    def __repr__(self) -> str:
        return "flatten()"


@dataclass(repr=False)
class ZipWithSourceActor(Operator[Any, tuple[Any, Any]]):
    """(handle of the actor that the item came from, item)."""

    def process(self, value: Any, ctx: Context) -> Iterable[tuple[Any, Any]]:
        if len(ctx.origins) != 1:
            came = ", ".join(handle.name for handle in ctx.origins) or "no actor at all"
            raise ValueError(
                f"zip_with_source_actor needs items of exactly one actor, this one came from {came}; put it before "
                "operators that join items of several actors"
            )
        return ((ctx.origins[0], value),)

    def __repr__(self) -> str:
        return "zip_with_source_actor()"


@dataclass(repr=False)
class PolicyPart(Operator[Any, Any]):
    """One policy's part of multi-agent batches, by reference; an item without it is skipped."""

    wants: ClassVar[Literal["value", "reference"]] = "reference"
    policy_id: str

    @property
    def selects(self) -> tuple[str, ...]:
        """The policies of which anything goes on."""
        return (self.policy_id,)

    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        if self.policy_id in value.info.policies:
            steps = value.info.policies[self.policy_id]
            part = value.then(Part(self.policy_id), name=f"part({self.policy_id})")
            yield part.with_info(agent_steps=steps, policies={})

    def __repr__(self) -> str:
        return f"by_policy({self.policy_id!r})"


@dataclass
class Part(Operator[Any, Any]):
    """`batch[policy_id]`."""

    pure: ClassVar[bool] = True
    policy_id: str

    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        return (value[self.policy_id],)
