"""Shards that ask a server on the way to each item: batched questions, order, and what deaths mean."""

from __future__ import annotations

from typing import Any

import pytest

import flowrl
from flowrl import ActorDied, Answer, Batch, EndOfStream, Flow, Ignore, Local, Raise, Restart, graph
from flowrl.ref import Query
from flowrl.testing import Delayed, Virtual

QUESTIONS = 3  # of an item


class Asker:
    """Asks for the squares of three numbers and gives their sum, with the size of the largest batch of answers."""

    def __init__(self, limit: int = 10**6, index: int = 0):
        self.index, self.limit, self.items = index, limit, 0
        self.left: list[int] = []
        self.got: list[tuple[int, int]] = []
        self.given_up = 0

    def begin(self) -> Query[int]:
        if self.items == self.limit:
            raise EndOfStream
        self.given_up += bool(self.left)
        self.left = [100 * self.index + 10 * self.items + k for k in range(QUESTIONS)]
        self.got = []
        return Query(self.left[0])

    def go_on(self, answers: list[tuple[int, int]], index: int) -> Query[int] | Answer[Batch]:
        self.got.append(answers[index])
        assert answers[index][0] == self.left.pop(0) ** 2
        if self.left:
            return Query(self.left[0])
        self.items += 1
        columns = {"shard": [self.index], "item": [self.items], "sum": [sum(square for square, _ in self.got)]}
        return Answer(Batch({**columns, "size": [max(size for _, size in self.got)]}), {"made": flowrl.metrics.Sum(1)})


class Server:
    """Squares numbers, many at a time; some it cannot."""

    def __init__(self, refuses: int = -1):
        self.refuses = refuses
        self.calls: list[tuple[str, ...]] = []

    def serve(self, names: tuple[str, ...], *questions: int) -> list[tuple[int, int]]:
        if self.refuses in questions:
            raise ArithmeticError(f"no square of {self.refuses}")
        self.calls.append(names)
        return [(number**2, len(questions)) for number in questions]


def served(shards: int, servers: int = 1, limit: int = 10**6, refuses: int = -1) -> flowrl.ParallelFlow[Batch]:
    askers = flowrl.actors(Asker, limit=limit, count=shards, name="askers")
    group = flowrl.actors(Server, refuses=refuses, count=servers, name="servers")
    return flowrl.ParallelFlow(
        graph.Shards(label="served", where="here", group=askers, method="begin", served_by=group, takes="go_on")
    )


def shown(batch: Batch) -> tuple[int, int, int]:
    return int(batch["shard"][0]), int(batch["item"][0]), int(batch["sum"][0])


def gathered(flow: flowrl.ParallelFlow[Batch], mode: str, **kwargs: Any) -> Flow[Any]:
    return (flow.gather_sync(**kwargs) if mode == "sync" else flow.gather_async(**kwargs)).for_each(shown)


def total(shard: int, item: int) -> int:
    return sum((100 * shard + 10 * (item - 1) + k) ** 2 for k in range(QUESTIONS))


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("servers", [1, 2])
def test_every_question_gets_its_own_answer(mode, seed, servers):
    with flowrl.run(gathered(served(3, servers, limit=4), mode), Delayed(seed, likely=0.3)) as run:
        items = list(run)
        stats = run.stats()
    assert sorted(items) == [(i, t, total(i, t)) for i in range(3) for t in range(1, 5)]
    if mode == "sync":
        assert items == sorted(items, key=lambda item: item[1])
    assert stats.env_steps == 12
    assert stats.metrics["served"]["made"] == 12
    assert stats.nodes["served"].items == stats.nodes[f"gather_{mode}"].items == 12


def test_a_round_is_asked_in_lockstep_whatever_the_timing():
    for backend in (Local(), Delayed(1, likely=0.2), Delayed(2, likely=0.7)):
        with flowrl.run(gathered(served(3), "sync"), backend) as run:
            run.step(6)
            calls = run.actors["servers"][0].ask(lambda server: server.calls).result()
        assert calls == [("askers[0]", "askers[1]", "askers[2]")] * (2 * QUESTIONS)


def test_an_asynchronous_one_sends_what_waits_when_the_server_is_free():
    def takes(group: str, index: int, kind: str, number: int) -> float:
        return {"servers": 10.0, "askers": 1.0}[group] if kind in ("ask", "pull", "feed") else 0.0

    backend = Virtual(takes)
    with flowrl.run(gathered(served(4), "async", num_async=1), backend) as run:
        run.step(8)
        calls = run.actors["servers"][0].ask(lambda server: server.calls).result()
    # The first to ask is answered alone; from then on all go together that asked meanwhile.
    assert [len(names) for names in calls[:4]] == [1, 3, 1, 3]


def test_a_slow_shard_holds_nobody_up_if_asynchronous():
    backend = Virtual(lambda group, index, kind, number: 20.0 if (group, index) == ("askers", 0) else 1.0)
    with flowrl.run(gathered(served(3), "async"), backend) as run:
        items = run.step(30)
    assert sum(i == 0 for i, _, _ in items) <= 3


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("seed", range(4))
def test_a_shard_that_dies_on_its_way_begins_again(mode, seed):
    def die(actor: str, number: int) -> bool:
        return actor == "askers[1]" and number in (4, 9)

    with flowrl.run(gathered(served(3), mode, on_failure=Restart(3, 0.0)), Delayed(seed, die=die)) as run:
        items = run.step(18)
        restarts = run.stats().metrics["askers"]["restarts"]
    assert restarts == 2
    assert all(found == total(i, t) for i, t, found in items)
    assert sum(i == 1 for i, _, _ in items) >= 2


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("seed", range(4))
def test_a_server_that_dies_is_started_again_and_turns_begin_anew(mode, seed):
    def die(actor: str, number: int) -> bool:
        return actor == "servers[0]" and number in (3, 4, 8)

    with flowrl.run(gathered(served(3), mode, on_failure=Restart(3, 0.0)), Delayed(seed, die=die)) as run:
        items = run.step(18)
        metrics, groups = run.stats().metrics, run.stats().groups
    assert all(found == total(i, t) for i, t, found in items)
    assert (groups["servers"].deaths, metrics["servers"]["restarts"]) == (3, 2)  # it died as it was started, too
    assert metrics[f"gather_{mode}"]["turns_lost"] >= 1


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(
    ("policy", "told"),
    [
        (Raise(), r"servers\[0\] died: .* which has on_failure=Raise\(\)"),
        (Ignore(), r"servers\[0\] died: .* which has on_failure=Ignore\(\)"),
        (Restart(2, 0.0), r"servers\[0\] died after 2 restarts"),
    ],
)
def test_a_server_that_stays_dead_is_named(mode, policy, told):
    flow = gathered(served(2), mode, on_failure=policy)
    dies = Delayed(0, die=lambda actor, n: actor == "servers[0]" and n > 2)
    with flowrl.run(flow, dies) as run, pytest.raises(ActorDied, match=told):
        run.step(50)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_shards_that_are_left_out_hold_nobody_up(mode):
    flow = gathered(served(3), mode, on_failure=Ignore())
    with flowrl.run(flow, Delayed(0, die=lambda actor, n: actor == "askers[2]" and n == 3)) as run:
        items = run.step(12)
    assert {i for i, _, _ in items} == {0, 1}


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_error_of_the_server_is_its_own(mode):
    flow = gathered(served(3, refuses=112), mode)
    with flowrl.run(flow, Local()) as run, pytest.raises(ArithmeticError, match="no square of 112") as caught:
        run.step(9)
    (note,) = [line for line in caught.value.__notes__ if line.startswith("flowrl:")]
    assert "shard servers[0]" in note


def test_shards_side_by_side_of_which_some_ask():
    plain = flowrl.from_items([Batch({"shard": [9], "item": [k], "sum": [0]}) for k in range(4)], num_shards=1)
    with flowrl.run(gathered(served(2, limit=2).union(plain), "sync"), Local()) as run:
        items = list(run)
    assert items[:3] == [(0, 1, total(0, 1)), (1, 1, total(1, 1)), (9, 0, 0)]
    assert len(items) == 8


def test_take_ends_it_and_drawings_show_it():
    flow = gathered(served(2), "async").take(3)
    with flowrl.run(flow, Delayed(1)) as run:
        assert len(list(run)) == 3
    text = flow.explain()
    assert "Asker.begin(), served by servers" in text
    assert "asked by served" in text
    assert "-.->|asks|" in flow.to_mermaid()
    assert "servers" in flow.to_svg()
    assert str(flow.check()).startswith("served")


def test_two_groups_of_one_name_are_refused():
    askers = flowrl.actors(Asker, count=1, name="same")
    servers = flowrl.actors(Server, count=1, name="same")
    with pytest.raises(flowrl.GraphError, match="two groups are named 'same'"):
        flowrl.ParallelFlow(
            graph.Shards(label="served", where="here", group=askers, method="begin", served_by=servers, takes="go_on")
        )
