"""Aggregation: items of several shards joined by actors, in rounds and as they come, and what deaths there mean."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowrl
from flowrl import ActorDied, Answer, Batch, Context, EndOfStream, Ignore, Local, Operator, Raise, Restart
from flowrl.errors import GraphError
from flowrl.lag import worst_lags
from flowrl.testing import Delayed, Virtual


class Source:
    """Batches of two rows that say which shard made them in which step; made with the version `index`."""

    def __init__(self, limit: int = 10**6, index: int = 0):
        self.index, self.limit, self.step = index, limit, 0
        self.heard: list[tuple[int, int]] = []

    def sample(self) -> Answer[Batch]:
        if self.step == self.limit:
            raise EndOfStream
        self.step += 1
        columns = {"shard": np.full(2, self.index), "step": np.full(2, self.step)}
        return Answer(Batch(columns), {"made": flowrl.metrics.Sum(2)}, policy_version=self.index)

    def hear(self, number: int) -> None:
        self.heard.append((self.step, number))


class Fails(flowrl.Aggregator):
    """Cannot join what holds a third step."""

    def aggregate(self, item: Batch) -> Batch:
        if 3 in item["step"]:
            raise ArithmeticError("cannot add these")
        return item


@dataclass
class Every(Operator[Batch, Batch]):
    """Joins `n` items into one, where it runs; counts what passes."""

    n: int

    def open(self) -> None:
        self._held: list[Batch] = []

    def process(self, value: Batch, ctx: Context) -> Iterable[Batch]:
        ctx.metrics.add("passed")
        self._held.append(value)
        if len(self._held) == self.n:
            held, self._held = self._held, []
            yield Batch.concat(held)

    def finish(self, ctx: Context) -> Iterable[Batch]:
        if self._held:
            yield Batch.concat(self._held)


def joined(
    shards: int, fan_in: int, actors: int = 2, cls: Any = flowrl.Aggregator, limit: int = 10**6, name: str = "joiners"
) -> flowrl.ParallelFlow[Batch]:
    sources = flowrl.actors(Source, limit=limit, count=shards, name="sources")
    return flowrl.from_actors(sources, "sample").aggregate(flowrl.actors(cls, count=actors, name=name), fan_in=fan_in)


def rows(batch: Batch) -> list[tuple[int, int]]:
    return list(zip(batch["shard"].tolist(), batch["step"].tolist(), strict=True))[::2]


def with_origins(value: Batch, ctx: Context) -> tuple[list[tuple[int, int]], list[str], int | None]:
    return rows(value), [origin.name for origin in ctx.origins], ctx.policy_version


def test_a_round_is_joined_in_the_order_of_the_shards():
    with flowrl.run(joined(5, 2).gather_sync().for_each(with_origins), Local()) as run:
        first, second, third, fourth = run.step(4)
    assert first == ([(0, 1), (1, 1)], ["sources[0]", "sources[1]"], 0)
    assert second == ([(2, 1), (3, 1)], ["sources[2]", "sources[3]"], 2)
    assert third == ([(4, 1)], ["sources[4]"], 4)
    assert fourth[0] == [(0, 2), (1, 2)]


def test_figures_count_each_step_once():
    with flowrl.run(joined(5, 2).gather_sync(), Local()) as run:
        run.step(6)
        stats = run.stats()
    assert (stats.env_steps, stats.agent_steps) == (20, 20)
    assert stats.metrics["from_actors"]["made"] == 20
    nodes = stats.nodes
    assert (nodes["from_actors"].items, nodes["aggregate"].items, nodes["gather_sync"].items) == (10, 6, 6)
    assert (nodes["from_actors"].steps, nodes["aggregate"].steps, nodes["gather_sync"].steps) == (20, 20, 20)
    assert nodes["gather_sync"].messages == 10 + 6
    assert stats.groups["joiners"].calls == 6


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("behind", [0, 1, 3])
def test_every_item_comes_out_once_whatever_the_timing(seed, mode, behind):
    flow = joined(4, 3, limit=5)
    flow = flow.for_each(Every(behind)) if behind else flow
    gathered = flow.gather_sync() if mode == "sync" else flow.gather_async()
    with flowrl.run(gathered.for_each(with_origins), Delayed(seed, likely=0.3)) as run:
        items = list(run)
        stats = run.stats()
    assert Counter(row for found, _, _ in items for row in found) == Counter(
        (i, t) for i in range(4) for t in range(1, 6)
    )
    for found, origins, version in items:
        assert {f"sources[{i}]" for i, _ in found} <= set(origins)
        assert version <= min(i for i, _ in found)
    assert stats.env_steps == 40
    if behind:
        assert stats.metrics["Every"]["passed"] == stats.nodes["aggregate"].items


def test_timing_cannot_change_a_synchronous_one():
    flow = joined(5, 2).for_each(Every(2)).gather_sync().for_each(with_origins)
    with flowrl.run(flow, Local()) as run:
        expected = run.step(12)
    for seed in range(4):
        with flowrl.run(flow, Delayed(seed, likely=0.2)) as run:
            assert run.step(12) == expected
    assert "deterministic: only" in flow.explain()


def test_whoever_comes_first_is_joined():
    def takes(group: str, index: int, kind: str, number: int) -> float:
        return 50.0 if (group, index, kind) == ("sources", 0, "pull") else 1.0 if kind == "pull" else 0.0

    backend = Virtual(takes)
    with flowrl.run(joined(4, 3).gather_async(num_async=1).for_each(rows), backend) as run:
        items = run.step(40)
        assert backend.now() == 40.0
    assert all(len(item) == 3 for item in items)
    assert not any(i == 0 for item in items for i, _ in item)


def test_a_synchronous_one_waits_for_the_slowest():
    backend = Virtual(lambda group, index, kind, number: {"pull": 1.0 + 9 * (index == 1), "feed": 0.5}.get(kind, 0.0))
    with flowrl.run(joined(4, 2).gather_sync(), backend) as run:
        run.step(6)
        assert backend.now() == 3 * (10.0 + 0.5)


def test_a_tree_of_aggregations():
    flow = joined(8, 2, name="leaves").aggregate(flowrl.actors(flowrl.Aggregator, count=2, name="root"), fan_in=3)
    with flowrl.run(flow.gather_sync().for_each(with_origins), Local()) as run:
        first, second, third = run.step(3)
    assert [i for i, _ in first[0]] == [0, 1, 2, 3, 4, 5]
    assert ([i for i, _ in second[0]], second[2]) == ([6, 7], 6)
    assert third[0] == [(i, 2) for i in range(6)]
    with flowrl.run(flow.gather_async().for_each(rows), Delayed(3)) as run:
        seen = Counter(row for item in run.step(30) for row in item)
    assert set(seen.values()) == {1}
    lines = flow.gather_sync().explain().split("\n")
    assert [line.split()[:4] for line in lines if "joins in" in line] == [
        ["leaves", "2", "×", "Aggregator"],
        ["root", "2", "×", "Aggregator"],
    ]


def test_messages_of_a_round_come_before_the_next():
    def tell(value: Batch, ctx: Context) -> Batch:
        for origin in ctx.origins:
            origin.tell("hear", 1)
        return value

    with flowrl.run(joined(4, 2).gather_sync().for_each(tell), Local()) as run:
        run.step(8)
        heard = [source.ask(lambda it: it.heard).result() for source in run.actors["sources"]]
    assert heard == [[(t, 1) for t in range(1, 5)]] * 4


@pytest.mark.parametrize(("shards", "fan_in", "actors", "num_async"), [(3, 2, 1, 1), (2, 3, 2, 2), (4, 4, 1, 3)])
def test_the_worst_lag_is_what_a_run_has(shards, fan_in, actors, num_async):
    flow = joined(shards, fan_in, actors).gather_async(num_async=num_async)
    (lag,) = worst_lags(flow.node, flowrl.graph.names_of(flow.node))
    assert lag.items == (2 * actors - 1) * fan_in + num_async * shards - 1
    behind = []
    with flowrl.run(flow, Local()) as run:
        for given_out, _ in enumerate(run, 1):
            made = sum(source.ask(lambda it: it.step).result() for source in run.actors["sources"])
            behind.append(made - given_out * fan_in)
            if given_out == 30:
                break
    assert max(behind) == lag.items if actors == 1 else max(behind) <= lag.items
    flow = joined(5, 2).gather_sync()
    (lag,) = worst_lags(flow.node, flowrl.graph.names_of(flow.node))
    assert lag.items == 0


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("policy", [Restart(3, 0.0), Ignore()])
@pytest.mark.parametrize("seed", range(4))
def test_what_a_dead_aggregator_was_joining_is_joined_again(mode, policy, seed):
    died = []

    def die(actor: str, number: int) -> bool:
        fatal = actor == "joiners[1]" and number in (2, 5)
        died.extend([actor] * fatal)
        return fatal

    flow = joined(4, 3, limit=6)
    gathered = flow.gather_sync(on_failure=policy) if mode == "sync" else flow.gather_async(on_failure=policy)
    with flowrl.run(gathered.for_each(rows), Delayed(seed, die=die)) as run:
        items = list(run)
        stats = run.stats()
    assert Counter(row for item in items for row in item) == Counter((i, t) for i in range(4) for t in range(1, 7))
    assert len(died) == (1 if isinstance(policy, Ignore) else 2)
    if isinstance(policy, Ignore):
        assert stats.metrics[f"gather_{mode}"]["aggregators_lost"] == 1
    else:
        assert stats.metrics["joiners"]["restarts"] in (1, 2)  # the last may come too late to be needed


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_deaths_that_end_the_run_name_the_aggregator(mode):
    def run_with(policy: Any, die: Any) -> None:
        flow = joined(4, 2)
        gathered = flow.gather_sync(on_failure=policy) if mode == "sync" else flow.gather_async(on_failure=policy)
        with flowrl.run(gathered, Delayed(0, die=die)) as run:
            run.step(20)

    with pytest.raises(ActorDied, match=r"joiners\[0\] died: .*on_failure=Raise\(\)"):
        run_with(Raise(), lambda actor, n: actor == "joiners[0]" and n == 3)
    with pytest.raises(ActorDied, match=r"joiners\[0\] died after 2 restarts"):
        run_with(Restart(2, 0.0), lambda actor, n: actor == "joiners[0]" and n >= 3 and n % 2 == 1)
    with pytest.raises(ActorDied, match="every aggregator of gather_"):
        run_with(Ignore(), lambda actor, n: actor.startswith("joiners") and n == 3)


@pytest.mark.parametrize("seed", range(3))
def test_a_source_that_dies_is_started_again(seed):
    flow = joined(3, 2).gather_async(on_failure=Restart(5, 0.0)).for_each(rows)
    with flowrl.run(flow, Delayed(seed, die=lambda actor, n: actor == "sources[1]" and n in (3, 4))) as run:
        items = run.step(20)
    assert sum(i == 1 for item in items for i, _ in item) > 3


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_error_names_the_node_and_the_actor(mode):
    flow = joined(4, 2, cls=Fails)
    gathered = flow.gather_sync() if mode == "sync" else flow.gather_async()
    with flowrl.run(gathered, Local()) as run, pytest.raises(ArithmeticError, match="cannot add these") as caught:
        run.step(20)
    (note,) = [line for line in caught.value.__notes__ if line.startswith("flowrl:")]
    assert "in node 'aggregate'" in note
    assert "shard joiners[" in note


def test_ray_gives_what_local_gives(ray_session):
    flow = joined(4, 3).for_each(Every(2)).gather_sync().for_each(with_origins)
    with flowrl.run(flow, Local()) as run:
        expected = run.step(6)
    with flowrl.run(flow, flowrl.Ray()) as run:
        assert run.step(6) == expected
    flow = joined(3, 2, limit=3).gather_async(on_failure=Restart(2, 0.01)).for_each(rows)
    with flowrl.run(flow, flowrl.Ray()) as run:
        first = run.step(1)
        run.actors["joiners"][0].tell(lambda joiner: os._exit(1))
        seen = Counter(row for item in [*first, *run] for row in item)
    assert seen == Counter((i, t) for i in range(3) for t in range(1, 4))


def test_take_ends_it():
    with flowrl.run(joined(4, 2).gather_async().take(3), Delayed(1)) as run:
        assert len(list(run)) == 3


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 3), st.integers(0, 4), st.integers(0, 99))
def test_any_shape_gives_every_item_once(shards, fan_in, actors, limit, seed):
    for gather in ("gather_sync", "gather_async"):
        flow = getattr(joined(shards, fan_in, actors, limit=limit).for_each(Every(2)), gather)()
        with flowrl.run(flow.for_each(rows), Delayed(seed, likely=0.4)) as run:
            seen = Counter(row for item in run for row in item)
        assert seen == Counter((i, t) for i in range(shards) for t in range(1, limit + 1))


def test_what_composing_refuses():
    sources = flowrl.from_actors(flowrl.actors(Source, count=2, name="sources"), "sample")
    group = flowrl.actors(flowrl.Aggregator, count=2, name="joiners")
    with pytest.raises(GraphError, match=r"aggregate: Source \(group 'sources'\) has no method aggregate\(\)"):
        sources.aggregate(flowrl.actors(Source, count=1, name="sources"), fan_in=2)
    with pytest.raises(GraphError, match="aggregate needs a group made by"):
        sources.aggregate(flowrl.Aggregator, fan_in=2)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="aggregate needs fan_in >= 1, got 0"):
        sources.aggregate(group, fan_in=0)
    with pytest.raises(GraphError, match="aggregate behind the union, not before it"):
        sources.aggregate(group, fan_in=2).union(sources)


def test_drawings_show_where_it_runs():
    flow = joined(4, 2).for_each(Every(2)).gather_async()
    text = flow.explain()
    (line,) = [line for line in text.split("\n") if "● aggregate" in line]
    assert line.split()[2:5] == ["2", "×", "joiners"]
    assert line.endswith("Aggregator.aggregate, fan_in=2  [in_flight=2 an actor, or a round]")
    assert "joins in aggregate" in text
    assert 'subgraph p1["2 × joiners"]' in flow.to_mermaid()
    assert "2 × joiners" in flow.to_svg()
    assert str(flow.check()).startswith("from_actors")
