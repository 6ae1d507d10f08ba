"""Composing: what is refused, and with which words; that it starts nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import flowrl
from flowrl import AskOperator, Context, Flow, GraphError, Local, Operator, ParallelFlow
from flowrl.operators import Union


def numbers(n: int = 6, shards: int = 2) -> ParallelFlow[int]:
    return flowrl.from_items(range(n), num_shards=shards)


def items(flow: Flow[Any]) -> list[Any]:
    with flowrl.run(flow, Local()) as running:
        return list(running)


class Undecorated(Operator[Any, Any]):
    size: int = 3


@dataclass
class Ask(AskOperator[Any, Any]):
    to: Any


def test_a_parallel_flow_is_not_iterable_and_names_the_gathers():
    with pytest.raises(TypeError, match=r"gather it first: .gather_sync\(\) .*, .gather_async\(\)"):
        iter(numbers())
    with pytest.raises(GraphError, match="gather it"):
        flowrl.run(numbers(), Local())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("compose", "message"),
    [
        (lambda f: f.for_each(3), "for_each needs an operator or a callable, got 3"),
        (
            lambda f: f.for_each(flowrl.operators.ConcatBatches),
            r"got the class ConcatBatches: write ConcatBatches\(...\)",
        ),
        (lambda f: f.for_each(Undecorated()), r"has fields \(size\): decorate it with @dataclass"),
        (lambda f: f.filter(None), "filter needs an operator or a callable, got None"),
        (lambda f: f.batch(0), "batch needs n >= 1, got 0"),
        (lambda f: f.batch(True), "batch needs n >= 1, got True"),
        (lambda f: f.take(-1), "take needs n >= 0, got -1"),
        (lambda f: f.duplicate(0), "duplicate needs n >= 1, got 0"),
        (lambda f: f.duplicate(2, max_lag=0), "duplicate needs max_lag >= 1, got 0"),
        (lambda f: f.duplicate(2, overflow="grow"), "overflow must be 'block' or 'drop_oldest', got 'grow'"),
        (lambda f: f.by_policy(), r"by_policy needs different policy ids, got \(\)"),
        (lambda f: f.by_policy("a", "a"), "by_policy needs different policy ids"),
        (lambda f: f.named(""), "a prefix must be a non-empty string without '/', got ''"),
        (lambda f: f.named("a/b"), "got 'a/b'"),
        (lambda f: f.for_each(len, name="a/b"), "a node's name must be a non-empty string without '/', got 'a/b'"),
        (lambda f: f.through(lambda g: 3), "through needs a function that returns a Flow, .* returned int"),
        (lambda f: Union([]), "Union needs at least one flow, got none"),
        (lambda f: Union([f, f]), "got one flow twice"),
        (lambda f: Union([f, numbers()]), "gather the ParallelFlow first"),
        (lambda f: Union([f, 3]), "Union joins flows, got int"),
        (lambda f: Union(f), "flows must be a list of flows, got one Flow: write "),
        (lambda f: Union([f], emit=f), "emit must be a list of flows, got one Flow: write "),
        (lambda f: Union([f], mode="fair"), "mode must be 'round_robin' or 'async', got 'fair'"),
        (lambda f: Union([f], weights=[0]), "weights must be 1 whole numbers of at least 1"),
        (lambda f: Union([f], weights=[True]), "weights must be 1 whole numbers of at least 1"),
        (lambda f: Union([f], weights=[1.5]), r"at least 1, one a flow, got \[1.5\]"),
        (lambda f: Union([f], weights=[1, 1]), "weights must be 1 whole numbers of at least 1"),
        (lambda f: Union([f], emit=[]), "emit must name at least one"),
        (lambda f: Union([f], emit=[f.take(1)]), "emit names a flow that is not among the flows"),
    ],
)
def test_what_a_flow_refuses(compose, message):
    with pytest.raises(GraphError, match=message):
        compose(numbers().gather_sync())


@pytest.mark.parametrize(
    ("compose", "message"),
    [
        (lambda f: f.for_each(Ask(None)), "asks an actor, which the driver does: gather first"),
        (lambda f: f.gather_async(num_async=0), "gather_async needs num_async >= 1, got 0"),
        (lambda f: f.gather_sync(on_failure=3), r"on_failure must be Restart\(...\), Ignore\(\) or Raise\(\), got 3"),
        (lambda f: f.union(f.gather_sync()), "union joins parallel flows, got Flow; for gathered flows use Union"),
        (lambda f: flowrl.from_items([1], num_shards=0), "from_items needs num_shards >= 1, got 0"),
        (lambda f: flowrl.from_iterators([]), "from_iterators needs at least one function"),
        (lambda f: flowrl.from_iterators([[1]]), "needs functions that make an iterable"),
        (lambda f: flowrl.from_iterable([1]), "needs a function that makes an iterable, got .*; write lambda: ..."),
        (lambda f: flowrl.from_actors(3, "x"), "from_actors needs a group made by"),
        (lambda f: flowrl.from_actors(flowrl.actor(list, name="l"), "no"), r"list \(group 'l'\) has no method 'no'"),
        (lambda f: flowrl.actors(list, count=0, name="l"), "group 'l' needs count >= 1, got 0"),
        (lambda f: flowrl.actors(list, count=1, name=""), "a group's name must be a non-empty string"),
        (lambda f: flowrl.actors(list, count=1, name="l", cpus=-1), "cpus must be a number of at least 0, got -1"),
        (lambda f: flowrl.actors(dict, 1, 2, count=1, name="l"), "cannot be called with the arguments given"),
        (lambda f: flowrl.actor(3, name="l"), "actors are made from a class, got 3"),
    ],
)
def test_what_sources_and_shards_refuse(compose, message):
    # dict has no signature that Python can read everywhere; a plain class stands for it
    if "cannot be called" in message:

        def compose(f):
            return flowrl.actors(Context, 1, 2, 3, 4, count=1, name="l")

    with pytest.raises(GraphError, match=message):
        compose(numbers())


def test_methods_on_the_driver():
    flow = numbers().gather_sync()
    seen: list[int] = []
    assert items(flow.for_each(lambda x: x * 2)) == [0, 2, 4, 6, 8, 10]
    assert items(flow.filter(lambda x: x % 3 == 0)) == [0, 3]
    assert items(flow.batch(4)) == [[0, 1, 2, 3], [4, 5]]
    assert items(flow.batch(4).flatten()) == [0, 1, 2, 3, 4, 5]
    assert items(flow.take(2)) == [0, 1]
    assert items(flow.take(0)) == []
    assert items(flow.tap(seen.append)) == seen == [0, 1, 2, 3, 4, 5]
    assert [(h.name, x) for h, x in items(flow.zip_with_source_actor().take(3))] == [
        ("from_items-shards[0]", 0),
        ("from_items-shards[1]", 1),
        ("from_items-shards[0]", 2),
    ]
    assert items(flow.through(lambda f: f.take(1))) == [0]


def test_methods_in_the_shards():
    flow = numbers(8)
    assert items(flow.for_each(lambda x: -x).filter(lambda x: x < -3).batch(2).gather_sync()) == [[-4, -6], [-5, -7]]
    assert items(flow.batch(3).flatten().gather_sync()) == list(range(8))
    assert items(numbers(4).union(flowrl.from_items([10, 11], num_shards=2)).gather_sync()) == [0, 1, 10, 11, 2, 3]


def test_a_callable_may_take_the_context():
    flow = numbers(4).gather_sync()
    assert items(flow.for_each(lambda x, ctx: (x, ctx.origins[0].index))) == [(0, 0), (1, 1), (2, 0), (3, 1)]
    assert items(flow.filter(lambda x, ctx: ctx.origins[0].index == 1)) == [1, 3]
    assert items(numbers(4).for_each(lambda x, ctx: (x, ctx.origins[0].index)).gather_sync())[1] == (1, 1)
    assert items(flow.for_each(lambda x, scale=3: x * scale)) == [0, 3, 6, 9]


def test_sources():
    assert items(flowrl.from_iterable(lambda: range(3))) == [0, 1, 2]
    assert items(flowrl.from_iterators([lambda: "ab", lambda: "xyz"]).gather_sync()) == ["a", "x", "b", "y", "z"]
    assert items(flowrl.from_items([1, 2, 3], num_shards=2, repeat=True).gather_sync().take(7)) == [1, 2, 3, 2, 1, 2, 3]
    assert items(flowrl.from_items([1], num_shards=3).gather_sync()) == [1]
    assert items(flowrl.from_items([], num_shards=2, repeat=True).gather_sync()) == []


def test_a_flow_may_run_often_and_keeps_no_state():
    flow = numbers().gather_sync().batch(4)
    assert items(flow) == items(flow) == [[0, 1, 2, 3], [4, 5]]


def test_composing_starts_nothing():
    def explode() -> None:
        raise AssertionError("this must not run")

    class Bomb:
        def __init__(self) -> None:
            explode()

        def step(self) -> None: ...

    group = flowrl.actors(Bomb, count=2, name="bombs")
    flow = flowrl.from_actors(group, "step").for_each(lambda x: explode()).gather_async()
    Union([flow.take(3), flowrl.from_iterable(explode)], mode="async")  # type: ignore[arg-type]
    assert "bombs" in flow.explain()


def test_by_policy_parts_multi_agent_batches():
    import numpy as np

    from flowrl import Batch, MultiAgentBatch

    def part(*xs: int) -> Batch:
        return Batch({"x": np.array(xs)})

    batches = [
        MultiAgentBatch({"a": part(1), "b": part(2, 3)}, env_steps=2),
        MultiAgentBatch({"b": part(4)}, env_steps=1),
        MultiAgentBatch({"a": part(5)}, env_steps=1),
    ]
    a, b = flowrl.from_items(batches, num_shards=1).gather_sync().by_policy("a", "b")
    joined = Union([a.for_each(lambda x: ("a", x["x"].tolist())), b.for_each(lambda x: ("b", x["x"].tolist()))])
    assert items(joined) == [("a", [1]), ("b", [2, 3]), ("a", [5]), ("b", [4])]
