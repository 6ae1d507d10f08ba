"""What the items of a program must be, by the written semantics, in plain lists: nothing of the engine is used.

Everything happens at once here: an actor's answer is there when it is asked, a told number is heard when it is told. So
no cursor is ever pending, and what remains of the semantics is order: who is pulled when, and who is held by a bound.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowrl import EndOfStream
from tests.engine.programs import GROUPS, Machine, digest, kept, place_of, spread

END, BLOCKED = "end", "blocked"
Item = tuple[Any, list[Any], Any]  # value, origins, version


def run_reference(program: list[Any], limit: int) -> tuple[list[Any], bool, dict[str, list[Any]]]:
    """(the first `limit` items, whether it stalls then, what the actors have come to)."""
    world = World()
    flows: list[Any] = []
    for step in program:
        if step[0] == "source":
            flows.append(Rounds(world, step[1], step[2]))
        elif step[0] == "apply":
            flows.append(made(world, flows[step[1]], step[2]))
        elif step[0] == "duplicate":
            shared = Shared(flows[step[1]], step[3], step[4] == "block")
            flows.extend(Branch(shared) for _ in range(step[2]))
        else:
            flows.append(Turns([flows[i] for i in step[1]], step[2], step[3]))
    root, items, stalled = flows[-1], [], False
    mark_reachable(root)
    while len(items) < limit:
        before = world.progress(flows)
        got = root.pull()
        if got is END:
            break
        if got is BLOCKED and world.progress(flows) == before:
            stalled = True
            break
        if got is not BLOCKED:
            items.append(got[0])
    return items, stalled, {name: [machine.memory() for machine in group] for name, group in world.actors.items()}


class World:
    """The actors, and how often any operator has got or given an item."""

    def __init__(self) -> None:
        self.actors = {name: [Machine(name, i) for i in range(count)] for name, count in GROUPS.items()}

    def machine(self, origin: Any) -> Machine | None:
        """The actor behind an origin; the shards of lists cannot be told anything."""
        return self.actors[origin[0]][origin[1]] if origin[0] in self.actors else None

    def progress(self, flows: list[Any]) -> int:
        """A number that grows with every item that moves."""
        return sum(flow.count for flow in flows)


def mark_reachable(flow: Any) -> None:
    """Branches that the root does not reach hold nobody up."""
    for above in flow.above:
        mark_reachable(above)
    if isinstance(flow, Branch):
        flow.shared.at.setdefault(flow, 0)


class Step:
    """An operator: values in, values out; each output stems from all inputs since the output before."""

    def __init__(self, world: World, kind: str, *args: Any):
        self.world, self.kind, self.args = world, kind, args
        self.held: list[Any] = [args[0]] if kind == "running" else []
        self.seen = 0
        self.origins: list[Any] = []
        self.version: Any = None

    def push(self, item: Item) -> list[Item]:
        value, origins, version = item
        if self.kind == "filter":
            return [item] if kept(self.args[0], value) else []
        if self.kind == "exact":
            self.held.append(item)
            return [self.held.pop(0)] if len(self.held) > 1 else []
        self.origins += [origin for origin in origins if origin not in self.origins]
        self.version = min((v for v in (self.version, version) if v is not None), default=None)
        return self.out(self.results(value, origins, version))

    def results(self, value: Any, origins: list[Any], version: Any) -> list[Any]:
        kind, args = self.kind, self.args
        if kind in ("mix", "pure"):
            return [digest(value, args[0])]
        if kind == "spread":
            return spread(args[0], value)
        if kind == "stamped":
            places = [place_of(group, index) for group, index in origins]
            return [digest([value, places, -1 if version is None else version])]
        if kind == "tell":
            for machine in filter(None, map(self.world.machine, origins)):
                machine.hear(digest(value))
            return [value]
        if kind == "running":
            self.seen += 1
            self.held[0] = digest([self.held[0], value], args[0])
            return [] if self.seen % 3 == 0 else [self.held[0]]
        assert kind == "batch", kind
        self.held.append(value)
        return [[self.held.pop(0) for _ in range(args[0])]] if len(self.held) == args[0] else []

    def finish(self) -> list[Item]:
        if self.kind == "exact":
            return self.held
        if self.kind == "running":
            return self.out(self.held)
        return self.out([self.held] if self.kind == "batch" and self.held else [])

    def out(self, values: list[Any]) -> list[Item]:
        found = [(value, self.origins, self.version) for value in values]
        if found:
            self.origins, self.version = [], None
        return found


class Shard:
    """A source with operators behind it: a step of it gives any number of items."""

    def __init__(self, world: World, origin: Any, ask: Callable[[], tuple[Any, Any]], operators: list[Any]):
        self.origin, self.ask = origin, ask
        self.operators = [Step(world, *operator) for operator in operators]
        self.items: list[Item] = []
        self.ended = False

    def step(self) -> None:
        try:
            value, version = self.ask()
        except EndOfStream:
            self.ended = True
            for at, operator in enumerate(self.operators):
                self.items += self.through(operator.finish(), at + 1)
        else:
            self.items += self.through([(value, [self.origin], version)], 0)

    def through(self, items: list[Item], first: int) -> list[Item]:
        for operator in self.operators[first:]:
            items = [result for item in items for result in operator.push(item)]
        return items


class Rounds:
    """gather_sync: one item of each shard a round, in their order; whoever has none is asked until it has."""

    def __init__(self, world: World, parts: list[Any], behind: list[Any]):
        self.shards: list[Shard] = []
        self.round: list[Shard] = []
        self.above: list[Any] = []
        self.count = 0
        self.closed = False
        for part in parts:
            for origin, ask in list_shards(part) if part[0] == "items" else actor_shards(world, part):
                self.shards.append(Shard(world, origin, ask, [*part[-1], *behind]))

    def pull(self) -> Any:
        if self.closed:
            return END
        if not self.round:
            while missing := [shard for shard in self.shards if not shard.items and not shard.ended]:
                for shard in missing:
                    shard.step()
            self.round = [shard for shard in self.shards if shard.items]
            if not self.round:
                return END
        self.count += 1
        shard = self.round.pop(0)
        value, _, version = shard.items.pop(0)
        return value, [shard.origin], version

    def close(self) -> None:
        self.closed = True


def list_shards(part: Any) -> list[Any]:
    """Item i is in shard i % n."""
    _, values, shards, _ = part
    name = object()
    return [((name, i), lister(values[i::shards])) for i in range(shards)]


def lister(values: list[Any]) -> Callable[[], tuple[Any, Any]]:
    def ask() -> tuple[Any, Any]:
        if not values:
            raise EndOfStream
        return values.pop(0), None

    return ask


def actor_shards(world: World, part: Any) -> list[Any]:
    """A shard in each actor of the group."""
    _, group, lane, limit, _ = part

    def asker(machine: Machine) -> Callable[[], tuple[Any, Any]]:
        def ask() -> tuple[Any, Any]:
            answer = machine.next_item(lane, limit)
            return answer.payload, answer.policy_version

        return ask

    return [((group, i), asker(machine)) for i, machine in enumerate(world.actors[group])]


def made(world: World, above: Any, operator: Any) -> Any:
    """The flow behind an operator on the driver."""
    if operator[0] == "take":
        return First(above, operator[1])
    if operator[0] == "ask":
        return Window(world, above, operator[1], operator[2])
    return Applied(above, Step(world, *operator))


class Applied:
    """An operator on the driver: results one by one; when its upstream has ended, what it still holds."""

    def __init__(self, above: Any, step: Step):
        self.above, self.step = [above], step
        self.ready: list[Item] = []
        self.finished = self.closed = False
        self.count = 0

    def pull(self) -> Any:
        while not self.closed:
            if self.ready:
                self.count += 1
                return self.ready.pop(0)
            if self.finished:
                return END
            got = self.above[0].pull()
            if got is BLOCKED:
                return BLOCKED
            self.count += 1
            self.finished = got is END
            self.ready += self.step.finish() if got is END else self.step.push(got)
        return END

    def close(self) -> None:
        self.closed = True
        self.above[0].close()


class Window:
    """An ask operator: as many calls as the window holds, then the oldest answer."""

    def __init__(self, world: World, above: Any, group: str, size: int):
        self.above, self.machines, self.size = [above], world.actors[group], size
        self.answers: list[Item] = []
        self.asked = 0
        self.ended = self.closed = False
        self.count = 0

    def pull(self) -> Any:
        if self.closed:
            return END
        while len(self.answers) < self.size and not self.ended:
            got = self.above[0].pull()
            if got is BLOCKED:
                break
            self.count += 1
            if got is END:
                self.ended = True
            else:
                self.asked += 1
                value, origins, version = got
                self.answers.append((self.machines[self.asked % len(self.machines)].work(value), origins, version))
        if self.answers:
            self.count += 1
            return self.answers.pop(0)
        return END if self.ended else BLOCKED

    def close(self) -> None:
        self.closed = True
        self.above[0].close()


class First:
    """take: n items, then upstream is closed, before the last of them goes out."""

    def __init__(self, above: Any, n: int):
        self.above, self.left = [above], n
        self.count = 0

    def pull(self) -> Any:
        if self.left == 0:
            self.close()
            return END
        got = self.above[0].pull()
        if got is not END and got is not BLOCKED:
            self.count += 1
            self.left -= 1
            if self.left == 0:
                self.close()
        return got

    def close(self) -> None:
        self.left = 0
        self.above[0].close()


class Shared:
    """A duplicate: all items so far, and where each branch that still runs stands in them."""

    def __init__(self, above: Any, max_lag: int, block: bool):
        self.above, self.max_lag, self.block = above, max_lag, block
        self.items: list[Item] = []
        self.at: dict[Any, int] = {}
        self.ended = False

    def next_for(self, branch: Any) -> Any:
        if self.at[branch] == len(self.items):
            if self.ended:
                return END
            slowest = min((at for other, at in self.at.items() if other is not branch), default=len(self.items))
            if self.block and len(self.items) - slowest >= self.max_lag:
                return BLOCKED
            got = self.above.pull()
            if got is END or got is BLOCKED:
                self.ended = got is END
                return got
            self.items.append(got)
            for other in self.at:
                self.at[other] = max(self.at[other], len(self.items) - (1 if other is branch else self.max_lag))
        self.at[branch] += 1
        return self.items[self.at[branch] - 1]

    def leave(self, branch: Any) -> None:
        self.at.pop(branch, None)
        if not self.at:
            self.above.close()


class Branch:
    """One branch of a duplicate."""

    def __init__(self, shared: Shared):
        self.shared, self.above = shared, [shared.above]
        self.closed = False
        self.count = 0

    def pull(self) -> Any:
        if self.closed:
            return END
        got = self.shared.next_for(self)
        if got is END:
            self.close()
        elif got is not BLOCKED:
            self.count += 1
        return got

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.shared.leave(self)


class Turns:
    """Union in round_robin: weights[i] items of branch i a turn; a blocked or ended branch passes its turn."""

    def __init__(self, branches: list[Any], weights: list[int], emit: list[bool]):
        self.above, self.weights, self.emit = branches, weights, emit
        self.ended = [False] * len(branches)
        self.turn = self.taken = 0
        self.closed = False
        self.count = 0

    def pull(self) -> Any:
        idle = 0
        while not self.closed:
            at = self.turn
            got = END if self.ended[at] else self.above[at].pull()
            if got is END or got is BLOCKED:
                idle += 1
                self.ended[at] = self.ended[at] or got is END
                if all(ended for ended, emits in zip(self.ended, self.emit, strict=True) if emits):
                    self.close()
                    return END
                self.pass_turn()
                if idle == len(self.above):
                    return BLOCKED
                continue
            idle = 0
            self.count += 1
            self.taken += 1
            if self.taken == self.weights[at]:
                self.pass_turn()
            if self.emit[at]:
                return got
        return END

    def pass_turn(self) -> None:
        self.turn, self.taken = (self.turn + 1) % len(self.above), 0

    def close(self) -> None:
        self.closed = True
        for branch in self.above:
            branch.close()
