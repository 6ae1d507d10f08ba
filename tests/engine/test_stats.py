"""Where the time goes: the figures of a run, and the sentence that they come to."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from time import perf_counter, process_time
from typing import Any

import pytest

import flowrl
from flowrl.backends.protocol import Backend
from flowrl.engine.stats import Accounts, snapshot


class Sleeper:
    """So long to start, so long an item."""

    def __init__(self, start_s: float = 0.0, item_s: float = 0.0):
        self.item_s = item_s
        time.sleep(start_s)

    def sample(self) -> int:
        time.sleep(self.item_s)
        return 1


def sleepers(*args: float, count: int = 1) -> flowrl.ParallelFlow[int]:
    return flowrl.from_actors(flowrl.actors(Sleeper, *args, count=count, name="sleepers"), "sample")


def test_starting_is_no_work(backend: Backend) -> None:
    with flowrl.run(sleepers(0.3, 0.02).gather_sync(), backend) as run:
        fresh = run.stats()
        assert fresh.groups["sleepers"].busy_s == 0
        assert fresh.elapsed_s < 0.25
        assert fresh.driver_wait_s == 0
        assert fresh.verdict == "nothing has run yet"
        run.step(5)
        stats = run.stats()
        assert 0.1 <= stats.groups["sleepers"].busy_s < 0.3
        assert stats.groups["sleepers"].calls == 5
        assert stats.utilization("sleepers") <= 1


def test_the_figures_of_a_small_run(backend: Backend) -> None:
    flow = sleepers(0.0, 0.01, count=2).for_each(lambda x: x, name="same").gather_sync().batch(2)
    with flowrl.run(flow, backend) as run:
        run.step(3)
        stats = run.stats()
        nodes = stats.nodes
        assert {name: nodes[name].items for name in ("from_actors", "same", "gather_sync", "batch")} == {
            "from_actors": 6, "same": 6, "gather_sync": 6, "batch": 3
        }  # fmt: skip
        assert nodes["gather_sync"].messages == 6
        assert nodes["from_actors"].busy_s >= 0.06
        assert nodes["batch"].busy_s < 0.05
        if not isinstance(backend, flowrl.Local):
            assert 0.01 < nodes["gather_sync"].waiting_s <= stats.driver_wait_s <= stats.elapsed_s
        assert "limited by sleepers" in stats.verdict or "busy" in stats.verdict
        text = str(stats)
        words = ("node", "waiting s", "gather_sync", "sleepers: 2 actor(s), busy", "6 calls", "lost calls: 0")
        assert all(word in text for word in (*words, stats.verdict))
        assert len({len(line) for line in text.splitlines()[:5]}) == 1  # columns stand below each other


def test_in_one_process_an_actor_that_is_asked_is_not_the_driver(local: Backend) -> None:
    sleeper = flowrl.actor(Sleeper, 0.0, 0.03, name="sleeper")

    @dataclass
    class Asks(flowrl.AskOperator[int, int]):
        sleeper: flowrl.ActorGroup[Sleeper]

        def ask(self, value: flowrl.Ref[int], ctx: flowrl.Context) -> Any:
            return ctx.actors(self.sleeper)[0].ask("sample")

    with flowrl.run(flowrl.from_items(range(5), num_shards=1).gather_sync().for_each(Asks(sleeper)), local) as run:
        run.step(5)
        stats = run.stats()
    assert stats.groups["sleeper"].busy_s >= 0.15
    assert stats.driver_busy_s < 0.1
    assert stats.verdict.startswith("limited by sleeper (busy ")


class Clock:
    """Time by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def verdict(busy: dict[str, float], *, driver_s: float = 0.0, blocked_s: float = 0.0, calls: int = 1) -> str:
    """After ten seconds, for two sources and one learner of those busy seconds."""
    clock = Clock()
    accounts = Accounts(["gather", "branch[1]"], {name: 1 for name in busy}, frozenset({"workers"}), clock)
    clock.now = 10.0
    for name, seconds in busy.items():
        accounts.groups[name].busy_s, accounts.groups[name].calls = seconds, calls
    accounts.nodes["branch[1]"].blocked_s = blocked_s
    accounts.nodes["gather"].items = calls
    return snapshot(accounts, clock.now, 0, driver_s).verdict


@pytest.mark.parametrize(
    ("told", "kwargs"),
    [
        ("nothing has run yet", {"busy": {"workers": 0.0}, "calls": 0}),
        ("limited by the driver (busy 80%)", {"busy": {"workers": 5.0}, "driver_s": 8.0}),
        ("the driver is busy 30% of the time", {"busy": {}, "driver_s": 3.0}),
        ("limited by the driver (busy 60%)", {"busy": {}, "driver_s": 6.0}),
        ("limited by workers (busy 90%): more actors", {"busy": {"workers": 9.0, "learner": 3.0}}),
        ("limited by learner (busy 95%): less work a call", {"busy": {"workers": 5.0, "learner": 9.5}}),
        ("limited by a bound at branch[1] (blocked 50%)", {"busy": {"workers": 5.0}, "blocked_s": 5.0}),
        ("the groups take turns (workers 50%, learner 45%)", {"busy": {"workers": 5.0, "learner": 4.5}}),
        ("nobody is busy (workers 10%)", {"busy": {"workers": 1.0}}),
    ],
)
def test_each_verdict(told: str, kwargs: dict[str, Any]) -> None:
    assert told in verdict(**kwargs)


@pytest.mark.parametrize(
    ("paced_s", "told"),
    [
        (3.3, "limited by a bound at StoreToReplay (blocked 33%): raise samples_per_insert"),  # it holds the other up
        (2.0, "limited by a bound at branch[1] (blocked 60%): raise max_lag, or drain its sibling faster"),
    ],
)
def test_a_bound_is_named_where_its_knob_is(paced_s: float, told: str) -> None:
    clock = Clock()
    accounts = Accounts(["branch[1]", "StoreToReplay"], {"workers": 1}, frozenset({"workers"}), clock)
    clock.now, accounts.groups["workers"].calls = 10.0, 1
    accounts.knobs["StoreToReplay"] = "raise samples_per_insert"
    accounts.nodes["branch[1]"].blocked_s, accounts.nodes["StoreToReplay"].blocked_s = 6.0, paced_s
    assert snapshot(accounts, clock.now, 0, 0.0).verdict == told


def test_an_empty_graph_of_the_driver_alone(local: Backend) -> None:
    with flowrl.run(flowrl.from_iterable(lambda: [1, 2]), local) as run:
        assert run.step(5) == [1, 2]
        assert run.stats().groups == {}
        assert str(run.stats())


def test_waiting_costs_no_cpu(ray_session: None) -> None:
    for flow in (sleepers(0.0, 2.0).gather_sync(), sleepers(0.0, 2.0).gather_async()):
        with flowrl.run(flow, flowrl.Ray()) as run:
            wall, cpu = perf_counter(), process_time()
            run.step(1)
            assert perf_counter() - wall > 1.9
            assert process_time() - cpu < 0.1


def test_figures_may_be_looked_at_while_the_run_moves(local: Backend) -> None:
    flow = flowrl.from_items(range(5), num_shards=2, repeat=True).gather_async()
    with flowrl.run(flow, local) as run:
        failures: list[BaseException] = []

        def look() -> None:
            try:
                for _ in range(300):
                    assert str(run.stats())
                    run.actors["from_items-shards"][0].tell("next_item")
            except BaseException as error:
                failures.append(error)

        looking = threading.Thread(target=look)
        looking.start()
        while looking.is_alive():
            run.step(10)
        looking.join()
        assert not failures
