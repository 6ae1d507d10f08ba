"""How far a source may run ahead of those who consume its items, from the bounds on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from flowrl import functions, graph
from flowrl.operator import AskOperator


@dataclass(frozen=True)
class Held:
    """Items that bounds between a node's output and the root may hold behind the item that is being consumed.

    `items` counts the node's own outputs; `others` counts outputs of nodes further down that join an unknown
    number of items each. `thinned`: items are dropped on the way, so those held need not follow each other.
    """

    items: int = 0
    others: Mapping[str, int] = field(default_factory=dict)
    thinned: bool = False
    why: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.items or self.others)


@dataclass(frozen=True)
class Lag:
    """The worst lag of one source: see `worst_lags`. `others` is counted in outputs of the nodes it names."""

    source: str
    items: int
    others: Mapping[str, int]
    unit: str
    why: str

    def __str__(self) -> str:
        parts = [f"{self.items} {self.unit}{'' if self.items == 1 else 's'}"] if self.items or not self.others else []
        parts += [f"{count} result{'' if count == 1 else 's'} of {name}" for name, count in self.others.items()]
        return f"worst lag of {self.source}: {' and '.join(parts)} ({self.why})"


def worst_lags(root: graph.Node, names: Mapping[graph.Node, str]) -> list[Lag]:
    """For each gather (and each Replay, and each iterable of the driver): how many of its items may already be asked
    for, but not consumed, when whoever consumes item k sends a message; so, how many further items the message comes
    too late for.

    On a path from the gather to the root the driver holds behind item k at most

        J = Σ over asks (in_flight - 1) · m + Σ over duplicates with several branches in the run max_lag · m

    where m is how many of the gather's items one item there is made of: n behind `batch(n)`, 1 behind operators that
    are one to one; behind an operator that joins unknown numbers the terms are named apart. Then, with S shards,

        gather_sync:   S · ⌈J / S⌉       later rounds are asked for whole; the rest of item k's own round does not
                                         count; J + S - 1 where items are dropped on the way (filter, drop_oldest)
        gather_async:  J + num_async · S - 1        what is in flight, less the slot of the item consumed last
        from_iterable: J
        Replay:        J + in_flight - 1

    and behind an aggregation of fan_in items in A actors, 2 joined items for each of which may be held, the J of its
    shards is (J + 2 · A - 1) · fan_in behind gather_async; behind gather_sync a round has ⌈S / fan_in⌉ joined items.

    and the worst path counts. Where a shard's operators may give several results a step, the unit is a shard's answer.
    """
    held = _held_behind(root, names)
    lags: list[Lag] = []
    for node in graph.walk(root):
        if isinstance(node, graph.Gather):
            lags.append(_of_gather(node, held[node], names))
        elif isinstance(node, graph.Iterate):
            behind = held[node]
            why = ", ".join(behind.why) or "made when it is pulled"
            lags.append(Lag(names[node], behind.items, behind.others, "item", why))
        elif isinstance(node, graph.Replay):
            behind = held[node]
            why = "; ".join([f"{names[node]} in_flight={node.in_flight}", *behind.why])
            lags.append(Lag(names[node], behind.items + node.in_flight - 1, behind.others, "sample", why))
    return lags


def _of_gather(node: graph.Gather, behind: Held, names: Mapping[graph.Node, str]) -> Lag:
    joined = graph.aggregations(node.upstream[0])
    paths = graph.shard_paths(joined[-1].upstream[0] if joined else node.upstream[0])
    source = ", ".join(dict.fromkeys(names[found] for found, _ in paths))
    steps = [step for above in (node, *joined) for _, path in graph.shard_paths(above.upstream[0]) for step in path]
    single = all(_at_most_one(step) for step in steps)
    shards = sum(found.group.count for found, _ in paths)
    unit = "item" if single else "answer"
    why = list(behind.why)
    if not single:
        why.append("an answer holds all results of one step")
    if node.mode == "async":
        for found in joined:
            held = found.in_flight * found.group.count
            behind = replace(behind, items=(behind.items + held - 1) * found.fan_in)
            why.append(f"{names[found]}: {held} joined items of {found.fan_in}")
        why.insert(0, f"{names[node]}: num_async={node.num_async} × {shards} shards, less the item consumed")
        return Lag(source, behind.items + node.num_async * shards - 1, behind.others, unit, "; ".join(why))
    if node.patience is not None and node.patience.late == "keep":
        why.append(f"a round more for each that went on without its shard (timeout_s={node.patience.timeout_s:g})")
    if behind:
        why.insert(0, f"{names[node]} asks for whole rounds of {shards}")
        late = _whole_rounds(behind, shards, joined)
    else:
        next_one = "round k+1" if single else "the next answer of each shard"
        why.insert(0, f"a message sent while consuming round k precedes {next_one}")
        late = 0
    return Lag(source, late, behind.others, unit, "; ".join(why))


def _whole_rounds(behind: Held, shards: int, joined: Sequence[graph.Aggregate]) -> int:
    outputs, parts = shards, 1  # that leave the last node in a round; of how many items each is made at most
    for found in reversed(joined):
        outputs, parts = -(-outputs // found.fan_in), parts * found.fan_in
    if behind.others or behind.thinned:
        return behind.items * parts + shards - 1
    return shards * -(-behind.items // outputs)


def _held_behind(root: graph.Node, names: Mapping[graph.Node, str]) -> dict[graph.Node, Held]:
    """What may be held behind each driver node's output, over the worst path to the root."""
    nodes = graph.walk(root)
    reached: dict[graph.Node, int] = {}
    for node in nodes:
        if isinstance(node, graph.Branch):
            reached[node.upstream[0]] = reached.get(node.upstream[0], 0) + 1
    held: dict[graph.Node, Held] = {root: Held()}
    for node in reversed(nodes):  # each after all those that consume it
        if isinstance(node, graph.Gather) or node not in held:  # the shards' side has no bounds of its own
            continue
        for position, up in enumerate(node.upstream):
            if isinstance(node, graph.Unite) and not node.emit[position]:
                through = Held()  # consumed by the union itself
            else:
                through = _before(node, held[node], reached, names)
            held[up] = _worse(held[up], through) if up in held else through
    return held


def _before(node: graph.Node, behind: Held, reached: Mapping[graph.Node, int], names: Mapping[graph.Node, str]) -> Held:
    """What may be held behind a node's input, given what may be held behind its output."""
    if isinstance(node, graph.Branch):
        shared = node.upstream[0]
        assert isinstance(shared, graph.Duplicate)
        if reached[shared] > 1:
            more = _more(behind, shared.max_lag, f"{names[shared]} max_lag={shared.max_lag}")
            return replace(more, thinned=True) if shared.overflow == "drop_oldest" else more
    if not isinstance(node, graph.Apply):
        return behind
    op = node.op
    if isinstance(op, AskOperator):
        window = op.calls_in_flight
        return _more(behind, window - 1, f"{names[node]} in_flight={window}") if window > 1 else behind
    if not behind or op.pure or isinstance(op, functions.Function | functions.Tap | functions.ZipWithSourceActor):
        return behind
    if isinstance(op, functions.Gathered):
        return replace(behind, items=behind.items * op.n)
    if op.hands_on or isinstance(op, functions.PolicyPart | functions.Flatten):
        return replace(behind, thinned=True)
    others = {names[node]: behind.items} if behind.items else {}
    return Held(0, {**others, **behind.others}, True, behind.why)


def _more(behind: Held, items: int, why: str) -> Held:
    return replace(behind, items=behind.items + items, why=(why, *behind.why))


def _worse(one: Held, other: Held) -> Held:
    others = {name: max(one.others.get(name, 0), other.others.get(name, 0)) for name in {**one.others, **other.others}}
    if not others and not (one.thinned or other.thinned):  # of two numbers, the larger with its reasons
        return one if one.items >= other.items else other
    why = tuple(dict.fromkeys(one.why + other.why))
    return Held(max(one.items, other.items), others, one.thinned or other.thinned, why)


def _at_most_one(node: graph.Apply) -> bool:
    op = node.op
    known = functions.Function | functions.Filter | functions.Tap | functions.Gathered
    return op.pure or op.hands_on or isinstance(op, known)
