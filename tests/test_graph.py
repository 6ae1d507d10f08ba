"""Names of nodes and groups, prefixes, groups that operators hold, and what composing refuses."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import pytest

from flowrl import Context, Flow, Local, Operator, actor, actors, from_actors, from_items, from_iterable, graph, run
from flowrl.errors import GraphError
from flowrl.handles import ActorGroup
from flowrl.operators import Union
from tests.engine.shards import Counter, counters


def numbers(n: int = 3) -> Flow[int]:
    return from_iterable(lambda: iter(range(n)))


def names(flow: Any) -> list[str]:
    return list(graph.names_of(flow.node).values())


def double(x: int) -> int:
    return 2 * x


# ------------------------------------------------------------------ names


def test_default_names_are_the_class_or_the_callable_with_numbers_for_repeats() -> None:
    flow = numbers().for_each(double).for_each(double).for_each(lambda x: x).for_each(double).batch(2).flatten().take(1)
    assert names(flow) == ["from_iterable", "double", "double-2", "lambda", "double-3", "batch", "flatten", "take"]


def test_names_of_callables_without_one() -> None:
    class Callable:
        def __call__(self, x: int) -> int:
            return x

    flow = numbers().for_each(functools.partial(double)).for_each(Callable()).for_each(str.upper)
    assert names(flow)[1:] == ["double", "Callable", "upper"]


def test_a_given_name_takes_precedence_over_a_default() -> None:
    flow = numbers().for_each(double).for_each(lambda x: x, name="double")
    assert names(flow) == ["from_iterable", "double-2", "double"]


def test_a_name_given_twice_is_an_error_that_names_both_places() -> None:
    first = numbers().for_each(double, name="step")
    with pytest.raises(
        GraphError, match=r"two nodes are named 'step': one at .*test_graph.py:(\d+), one at .*:\d+;"
    ) as e:
        first.for_each(double, name="step")
    places = [part for part in str(e.value).replace(",", " ").replace(";", " ").split() if "test_graph.py" in part]
    assert len(set(places)) == 2
    with pytest.raises(GraphError, match="two nodes are named 'step'"):
        Union([first, numbers().for_each(double, name="step")])


def test_a_shared_node_is_one_node() -> None:
    a, b = numbers().for_each(double, name="step").duplicate(2)
    assert names(Union([a, b])) == ["from_iterable", "step", "duplicate", "branch[0]", "branch[1]", "Union"]


def test_items_that_two_would_consume_are_refused_where_they_join() -> None:
    flow = numbers().for_each(double)
    with pytest.raises(GraphError, match=r"the items of 'double' .* are consumed twice.*use flow\.duplicate\(2\)"):
        Union([flow, flow.for_each(double)])
    a, _ = flow.duplicate(2)
    with pytest.raises(GraphError, match=r"the items of 'branch\[0\]' .* are consumed twice"):
        Union([a.for_each(double), a.batch(2)])


def test_shards_may_be_gathered_twice() -> None:
    shards = from_items(range(4), num_shards=2).for_each(double)
    flow = Union([shards.gather_sync(), shards.gather_sync()])
    assert sorted(run(flow, Local())) == [0, 2, 4, 6]  # two gathers of one source share its steps


# ------------------------------------------------------------------ prefixes


def test_named_prefixes_nodes_and_groups() -> None:
    flow = (
        from_actors(counters(2), "next_item").gather_sync().for_each(double, name="step").named("left").named("outer")
    )
    assert names(flow) == ["outer/left/from_actors", "outer/left/gather_sync", "outer/left/step"]
    assert list(graph.groups_of(flow.node)) == ["outer/left/workers"]


def test_a_graph_can_be_joined_with_itself_under_two_names() -> None:
    flow = from_actors(counters(1, limit=2), "next_item").gather_sync()
    both = Union([flow.named("a"), flow.named("b")])
    with run(both, Local()) as r:
        assert set(r.actors) == {"a/workers", "b/workers"}
        assert list(r) == [(0, 1), (0, 1), (0, 2), (0, 2)]


def test_branches_under_one_prefix_stay_branches_of_one_duplicate() -> None:
    a, b = numbers().duplicate(2)
    joined = Union([a.named("x"), b.named("x")])
    assert names(joined) == ["x/from_iterable", "x/duplicate", "x/branch[0]", "x/branch[1]", "Union"]
    assert list(run(joined, Local())) == [0, 0, 1, 1, 2, 2]


def test_an_operator_under_a_prefix_reaches_its_group_by_the_groups_own_name() -> None:
    helpers = counters(1, "helpers")

    @dataclass
    class Told(Operator[Any, Any]):
        group: ActorGroup[Counter]

        def process(self, value: Any, ctx: Context) -> Any:
            ctx.actors(self.group)[0].tell("hear", value)
            yield [handle.name for handle in ctx.actors(self.group)]

    with run(numbers(1).for_each(Told(helpers)).named("left"), Local()) as r:
        assert list(r) == [["left/helpers[0]"]]


@pytest.mark.parametrize("prefix", ["", "a/b", 3])
def test_a_prefix_is_a_plain_name(prefix: Any) -> None:
    with pytest.raises(GraphError, match=r"a prefix must be a non-empty string without '/'"):
        numbers().named(prefix)


def test_a_source_finds_its_group_although_another_prefix_reads_alike() -> None:
    group = counters(1, "x", limit=1)
    plain = from_actors(group, "next_item").gather_sync()
    both = Union([plain.named("x"), plain])
    found = graph.groups_of(both.node)
    sources = [node for node in graph.walk(both.node) if isinstance(node, graph.Shards)]
    assert [graph.source_group(node, found) for node in sources] == ["x/x", "x"]


# ------------------------------------------------------------------ groups


def test_two_groups_with_one_name_are_an_error_that_names_both_places() -> None:
    one = from_actors(counters(1), "next_item").gather_sync()
    other = from_actors(counters(1), "next_item").gather_sync()
    with pytest.raises(GraphError, match=r"two groups are named 'workers': one described at .*shards.py:\d+, one at "):
        Union([one, other])
    with pytest.raises(GraphError, match="two groups are named 'workers'"):
        one.for_each(_Holds((counters(1),)))
    assert len(graph.groups_of(Union([one, other.named("other")]).node)) == 2


def test_automatic_groups_are_numbered() -> None:
    flows = [from_items([i], num_shards=1).gather_sync() for i in range(3)]
    whole = Union(flows)
    assert list(graph.groups_of(whole.node)) == ["from_items-shards", "from_items-shards-2", "from_items-shards-3"]
    assert list(run(whole, Local())) == [0, 1, 2]


@dataclass
class _Holds(Operator[Any, Any]):
    held: Any = None
    unset: Any = field(default=None)

    def process(self, value: Any, ctx: Context) -> Any:
        yield value


LEARNER = actor(Counter, name="global-learner")


class _Counted(list[int]):
    """Data of a type of its own: nobody looks into it."""

    def __iter__(self) -> Any:
        raise AssertionError("looked into")


def test_data_is_not_looked_through_for_groups() -> None:
    many: list[Any] = [*range(1_000), LEARNER]
    assert graph.held_groups(_Holds(many)) == []
    assert graph.held_groups(_Holds(many[1:])) == [LEARNER]
    assert graph.held_groups(_Holds(lambda: many)) == []
    assert graph.held_groups(_Holds(_Counted())) == []


def test_groups_are_found_in_fields_containers_and_closures() -> None:
    groups = [actors(Counter, count=1, name=f"g{i}") for i in range(10)]
    later: Any

    def inner(x: Any) -> Any:
        return groups[3], x

    def outer(x: Any, also: Any = groups[4]) -> Any:
        return inner(x), later, LEARNER

    assert graph.held_groups(_Holds(groups[0])) == [groups[0]]
    assert graph.held_groups(_Holds((groups[0], {"a": [groups[1]]}, {groups[0]}))) == groups[:2]
    assert set(graph.held_groups(_Holds(outer))) == {*groups, LEARNER}  # `later` has no value yet
    assert graph.held_groups(_Holds(lambda x: [lambda: LEARNER])) == [LEARNER]
    assert graph.held_groups(_Holds(functools.partial(double, groups[5], y=groups[6]))) == groups[5:7]
    assert graph.held_groups(_Holds(_Callable(groups[7]))) == [groups[7]]
    assert graph.held_groups(_Holds(_Callable(groups[8]).method)) == [groups[8]]
    assert graph.held_groups(_Holds(_Holds((groups[9],)))) == [groups[9]]
    assert graph.held_groups(_Holds(42)) == []
    assert graph.held_groups(double) == []
    later = None


class _Callable:
    def __init__(self, group: Any):
        self.group = group

    def __call__(self, x: Any) -> Any:
        return x

    def method(self, x: Any) -> Any:
        return x


def test_a_group_in_a_closure_is_part_of_the_run() -> None:
    helpers = counters(2, "helpers")
    flow = numbers(2).for_each(lambda x, ctx: ctx.actors(helpers)[x].ask("echo", x + 10).result())
    with run(flow, Local()) as r:
        assert list(r) == [10, 11]
        assert [handle.name for handle in r.actors["helpers"]] == ["helpers[0]", "helpers[1]"]


def test_a_group_that_nobody_holds_is_named_with_those_of_the_run() -> None:
    hidden = {"key": [[[[[counters(1, "hidden")]]]]]}
    flow = from_actors(counters(1), "next_item").gather_sync()
    with pytest.raises(KeyError, match=r"group 'hidden' is not part of this run.*the run has workers"):
        next(run(flow.for_each(lambda x, ctx: ctx.actors(hidden["key"][0][0][0][0][0])), Local()))


# ------------------------------------------------------------------ the description


def test_composing_a_long_chain_is_cheap_and_prefixing_it_needs_no_stack() -> None:
    flow = numbers()
    for i in range(3000):
        flow = flow.for_each(double, name=f"step {i}")
    assert len(names(flow.named("x"))) == 3001


def test_why_a_graph_is_not_deterministic() -> None:
    shards = from_items(range(4), num_shards=2)
    timed = Union([shards.gather_async(), numbers()], mode="async")
    steady = Union([shards.gather_sync(), numbers()])
    assert graph.why_not_deterministic(steady.node, graph.names_of(steady.node)) is None
    told = graph.why_not_deterministic(timed.node, graph.names_of(timed.node))
    assert told == "items of gather_async, Union come in the order in which they are ready"


def test_walk_gives_each_node_once_after_its_upstream() -> None:
    a, b = numbers().duplicate(2)
    nodes = graph.walk(Union([a.for_each(double), b]).node)
    assert len(nodes) == len(set(nodes)) == 6
    assert all(nodes.index(above) < nodes.index(node) for node in nodes for above in node.upstream)


def test_shard_paths_of_unions_within_unions() -> None:
    one, two, three = (from_actors(counters(1, name), "next_item") for name in "abc")
    merged = one.for_each(double).union(two).filter(bool).union(three).batch(2)
    paths = graph.shard_paths(merged.node)
    assert [(source.group.name, [step.label for step in steps]) for source, steps in paths] == [
        ("a", ["double", "filter", "batch"]),
        ("b", ["filter", "batch"]),
        ("c", ["batch"]),
    ]
