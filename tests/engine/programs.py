"""Generated deterministic graphs: programs as plain data, how to draw one, and the flow that one describes.

A program is a list of steps; the flows that a step makes are numbered as they come, and each is consumed at most once.

    ("source", [(kind, …, shard operators), …], shard operators)    several sources are a union of shards
    ("apply", flow, operator)        ("duplicate", flow, n, max_lag, overflow)        ("union", flows, weights, emit)

The last flow is the one that runs. Items are whole numbers and lists of them; what actors and functions compute depends
on everything that they were sent and on its order, so that a message too early or too late shows in the numbers.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from flowrl import (
    Answer,
    AskOperator,
    Context,
    EndOfStream,
    Flow,
    Operator,
    ParallelFlow,
    Pending,
    actors,
    from_actors,
    from_items,
)
from flowrl.handles import ActorGroup
from flowrl.operators import Union

PRIME = 1_000_003
GROUPS = {"left": 2, "right": 1, "helpers": 2}  # name: count


def digest(value: Any, k: int = 1) -> int:
    """One number that depends on a whole item and its order."""
    if isinstance(value, int):
        return (value * 31 + k * 17 + 7) % PRIME
    total = k + len(value)
    for entry in value:
        total = (total * 131 + digest(entry, k)) % PRIME
    return total


def spread(k: int, value: Any) -> list[int]:
    """0 to 3 numbers."""
    base = digest(value, k)
    return [digest(base, i + 1) for i in range(base % 4)]


def kept(k: int, value: Any) -> bool:
    """True for two items of three."""
    return digest(value, k) % 3 != 0


def place_of(group: str, index: int) -> int:
    """A number for an origin; the shards of lists have no group of their own here."""
    return index + 10 * len(group) if group in GROUPS else index


class Machine:
    """An actor with a memory: whatever it answers depends on all that it was asked and told before."""

    def __init__(self, group: str, index: int, delay_s: float = 0.0):
        self.total, self.told = index + 1, 0
        self.steps: dict[str, int] = {}
        self._delay_s = delay_s
        self._random = random.Random(f"{group}{index}")

    def next_item(self, lane: str, limit: int) -> Answer[int]:
        """The lane's next of `limit` items; its version is how often this actor was told something."""
        self._pass_time()
        step = self.steps[lane] = self.steps.get(lane, 0) + 1
        if step > limit:
            raise EndOfStream
        self.total = (self.total * 29 + step) % PRIME
        return Answer(self.total, policy_version=self.told)

    def work(self, value: Any) -> int:
        """An answer to one item."""
        self._pass_time()
        self.total = (self.total * 13 + digest(value)) % PRIME
        return self.total

    def hear(self, value: int) -> None:
        """Takes a number in."""
        self.told += 1
        self.total = (self.total * 19 + value) % PRIME

    def memory(self) -> tuple[int, int]:
        """What it has come to."""
        return self.total, self.told

    def get_state(self) -> dict[str, Any]:
        """All that it has come to."""
        return {"total": self.total, "told": self.told, "steps": dict(self.steps)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on from there."""
        self.total, self.told, self.steps = state["total"], state["told"], dict(state["steps"])

    def _pass_time(self) -> None:
        if self._delay_s:
            time.sleep(self._random.random() * self._delay_s)


@dataclass
class Running(Operator[Any, int]):
    """A number that depends on all items so far; every third item gives none, and what is left at the end gives one."""

    k: int

    def open(self) -> None:
        self._total, self._count = self.k, 0

    def process(self, value: Any, ctx: Context) -> Iterable[int]:
        self._count += 1
        self._total = digest([self._total, value], self.k)
        if self._count % 3 != 0:
            yield self._total

    def finish(self, ctx: Context) -> Iterable[int]:
        yield self._total


@dataclass
class Pure(Operator[Any, int]):
    """A number that depends on the item alone; deferred to where the item arrives."""

    pure: ClassVar[bool] = True
    k: int

    def process(self, value: Any, ctx: Context) -> Iterable[int]:
        yield digest(value, self.k)


@dataclass
class Stamped(Operator[Any, int]):
    """The item with where it came from: its origins, in order, and its version."""

    def process(self, value: Any, ctx: Context) -> Iterable[int]:
        version = -1 if ctx.policy_version is None else ctx.policy_version
        yield digest([value, [place_of(handle.group, handle.index) for handle in ctx.origins], version])


@dataclass
class TellOrigins(Operator[Any, Any]):
    """The same item; the actors that it came from hear of it."""

    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        for handle in ctx.origins:
            if handle.group in GROUPS:
                handle.tell("hear", digest(value))
        yield value


@dataclass
class Exact(Operator[Any, Any]):
    """Holds one item back, and sends the older one out with its exact provenance."""

    def open(self) -> None:
        self._held: list[Any] = []

    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        self._held.append((value, ctx.item_id))
        if len(self._held) > 1:
            older, its_id = self._held.pop(0)
            ctx.emit(older, sources=[its_id])
        return ()

    def finish(self, ctx: Context) -> Iterable[Any]:
        for value, its_id in self._held:
            ctx.emit(value, sources=[its_id])
        self._held = []
        return ()


@dataclass
class Ask(AskOperator[Any, int]):
    """Each item to the next actor of a group in turn."""

    group: ActorGroup[Machine]
    in_flight: int

    def open(self) -> None:
        self._turn = 0

    def ask(self, value: Any, ctx: Context) -> Pending[int]:
        handles = ctx.actors(self.group)
        self._turn += 1
        return handles[self._turn % len(handles)].ask("work", value)


def flow_of(program: list[Any], *, delay_s: float = 0.0) -> Flow[Any]:
    """The flow that a program describes."""
    groups = {name: actors(Machine, name, count=n, name=name, delay_s=delay_s) for name, n in GROUPS.items()}
    flows: list[Any] = []
    for step in program:
        if step[0] == "source":
            parts = [_source(part, groups) for part in step[1]]
            joined = parts[0].union(*parts[1:]) if len(parts) > 1 else parts[0]
            flows.append(_applied_all(joined, step[2], groups).gather_sync())
        elif step[0] == "apply":
            flows.append(_applied(flows[step[1]], step[2], groups))
        elif step[0] == "duplicate":
            flows.extend(flows[step[1]].duplicate(step[2], max_lag=step[3], overflow=step[4]))
        else:
            emit = None if all(step[3]) else [flows[i] for i, out in zip(step[1], step[3], strict=True) if out]
            flows.append(Union([flows[i] for i in step[1]], weights=step[2], emit=emit))
    return flows[-1]


def _source(part: Any, groups: dict[str, ActorGroup[Machine]]) -> ParallelFlow[Any]:
    if part[0] == "items":
        flow: ParallelFlow[Any] = from_items(part[1], num_shards=part[2])
    else:
        flow = from_actors(groups[part[1]], "next_item", part[2], part[3])
    return _applied_all(flow, part[-1], groups)


def _applied_all(flow: Any, operators: list[Any], groups: Any) -> Any:
    for operator in operators:
        flow = _applied(flow, operator, groups)
    return flow


def _applied(flow: Any, operator: Any, groups: Any) -> Any:
    kind, *args = operator
    if kind in ("batch", "take"):
        return getattr(flow, kind)(*args)
    if kind == "filter":
        return flow.filter(partial(kept, *args))
    if kind == "spread":
        return flow.for_each(partial(spread, *args)).flatten()
    if kind == "mix":
        return flow.for_each(partial(digest, k=args[0]))
    if kind == "ask":
        return flow.for_each(Ask(groups[args[0]], args[1]))
    made = {"running": Running, "pure": Pure, "stamped": Stamped, "tell": TellOrigins, "exact": Exact}
    return flow.for_each(made[kind](*args))


def draw_program(rng: random.Random, *, lane: str = "", items: bool = True) -> list[Any]:
    """A program; every flow but a few dangling branches ends in the last union."""
    program: list[Any] = []
    open_flows: list[int] = []
    made = 0
    for number in range(rng.randint(1, 2)):
        parts = [_draw_source(rng, f"{lane}{number}.{i}", items) for i in range(rng.choice((1, 1, 1, 2)))]
        program.append(("source", parts, [_draw_operator(rng, shard=True) for _ in range(rng.choice((0, 0, 1)))]))
        open_flows.append(made)
        made += 1
    for _ in range(rng.randint(0, 6)):
        at = open_flows.pop(rng.randrange(len(open_flows)))
        choice = rng.randrange(8)
        if choice < 5:
            program.append(("apply", at, _draw_operator(rng, shard=False)))
            made += 1
            open_flows.append(made - 1)
        elif choice < 7 and len(open_flows) < 5:
            n = rng.randint(2, 3)
            program.append(("duplicate", at, n, rng.randint(1, 4), rng.choice(("block", "block", "drop_oldest"))))
            branches = list(range(made, made + n))
            made += n
            open_flows.extend(branches if rng.random() < 0.8 else branches[1:])
        else:
            others = [at] + [open_flows.pop(rng.randrange(len(open_flows))) for _ in range(min(1, len(open_flows)))]
            program.append(_draw_union(rng, others))
            made += 1
            open_flows.append(made - 1)
    program.append(_draw_union(rng, open_flows))
    if rng.random() < 0.5:  # what the items say does not show where they came from
        program.append(("apply", made, ("stamped",)))
    return program


def joined(programs: list[list[Any]]) -> list[Any]:
    """Several programs as one, their last flows in turns."""
    whole: list[Any] = []
    made, last = 0, []
    for program in programs:
        for step in program:
            whole.append(_shifted(step, made))
        made += sum(step[2] if step[0] == "duplicate" else 1 for step in program)
        last.append(made - 1)
    return [*whole, ("union", last, [1] * len(last), [True] * len(last))]


def _shifted(step: Any, by: int) -> Any:
    if step[0] == "source":
        return step
    flows = [i + by for i in step[1]] if step[0] == "union" else step[1] + by
    return (step[0], flows, *step[2:])


def _draw_union(rng: random.Random, flows: list[int]) -> Any:
    emit = [rng.random() < 0.8 for _ in flows]
    if not any(emit):
        emit[rng.randrange(len(flows))] = True
    return ("union", flows, [rng.choice((1, 1, 2, 3)) for _ in flows], emit)


def _draw_source(rng: random.Random, lane: str, items: bool) -> Any:
    operators = [_draw_operator(rng, shard=True) for _ in range(rng.choice((0, 1, 1, 2)))]
    if items and rng.random() < 0.3:
        return ("items", [rng.randint(0, 99) for _ in range(rng.randint(0, 12))], rng.randint(1, 3), operators)
    return ("actors", rng.choice(("left", "left", "right")), lane, rng.randint(0, 7), operators)


def _draw_operator(rng: random.Random, *, shard: bool) -> Any:
    in_both = ("mix", "filter", "batch", "spread", "running", "stamped", "exact", "pure")
    kind = rng.choice(in_both if shard else (*in_both, "tell", "tell", "ask", "ask", "ask", "take", "take"))
    if kind == "batch":
        return ("batch", rng.randint(1, 4))
    if kind == "take":
        return ("take", rng.randint(0, 6))
    if kind == "ask":
        return ("ask", rng.choice(("helpers", "helpers", "left", "right")), rng.randint(1, 4))
    return (kind,) if kind in ("stamped", "exact", "tell") else (kind, rng.randint(1, 9))
