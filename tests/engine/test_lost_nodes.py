"""What lay on a node that is lost is counted, and everything else goes on: items, weights, questions, snapshots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl import AskOperator, Context, Flow, Restart
from flowrl.algorithms import ApexConfig, IMPALAConfig, PPOConfig
from flowrl.backends.protocol import GroupPlan, NoRoom
from flowrl.engine import transport
from flowrl.errors import ActorDied, PayloadLost
from flowrl.handles import ActorGroup, Pending
from tests.engine.losing import Nodes

AGAIN = Restart(3, backoff_s=0.01)
SMALL: dict[str, Any] = {"env": "tests.rl.counting_envs:Counting", "num_workers": 2, "envs_per_worker": 2, "unroll": 8}


@pytest.fixture(autouse=True)
def nothing_rides_in_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of large payloads: they lie where they were made."""
    monkeypatch.setattr(transport, "INLINE_BYTES", 0)


def own_node(actor: str) -> str:
    return actor


class Source:
    """Its index and how many it has given, in an array."""

    def __init__(self, index: int):
        self.index, self.count = index, 0

    def sample(self) -> np.ndarray[Any, Any]:
        self.count += 1
        return np.array([self.index, self.count])


class Sink:
    """Gives back what it takes."""

    def take(self, value: np.ndarray[Any, Any]) -> list[int]:
        return [int(x) for x in value]


@dataclass
class Ask(AskOperator[Any, Any]):
    """Asks the sink."""

    sink: ActorGroup[Any]

    def ask(self, value: Any, ctx: Context) -> Pending[Any]:
        return ctx.actors(self.sink)[0].ask("take", value)


@dataclass
class AskByValue(Ask):
    """The same, with the value brought to the driver."""

    wants = "value"


def sources(mode: str = "sync") -> Flow[Any]:
    group = flowrl.from_actors(flowrl.actors(Source, count=2, name="sources"), "sample")
    return group.gather_sync(on_failure=AGAIN) if mode == "sync" else group.gather_async(on_failure=AGAIN)


def listed(value: Any) -> list[int]:
    return [int(x) for x in value]


def through(how: str) -> tuple[Flow[Any], str]:
    """A flow that an item of a lost node does not get through, and the node that counts it."""
    if how == "root":
        return sources(), "gather_sync"
    if how == "for_each":
        return sources().for_each(listed), "listed"
    kind = Ask if how == "ask" else AskByValue
    return sources().for_each(kind(flowrl.actor(Sink, name="sink"))), kind.__name__


@pytest.mark.parametrize("how", ["root", "for_each", "ask", "ask by value"])
def test_an_item_that_is_lost_with_its_node_is_counted(how: str) -> None:
    """The second of a round waits on the driver when the node of its source is lost."""
    flow, node = through(how)
    backend = Nodes(own_node)
    with flowrl.run(flow, backend) as run:
        assert listed(run.step(1)[0]) == [0, 1]
        assert backend.lose("sources[1]") == ["sources[1]"]
        assert [listed(item) for item in run.step(3)] == [[0, 2], [1, 1], [0, 3]]
        stats = run.stats()
        assert stats.metrics[node]["items_lost"] == 1
        assert stats.metrics["sources"]["restarts"] == 1


def test_a_value_that_is_asked_for_and_lost_is_said() -> None:
    backend = Nodes(own_node)
    with flowrl.run(sources(), backend) as run:
        pending = run.actors["sources"][1].ask("sample")
        pending.info()
        backend.lose("sources[1]")
        with pytest.raises(PayloadLost, match=r"lost with node sources\[1\]"):
            pending.result()


def test_a_tell_without_a_payload_goes_on_where_the_message_that_it_rode_on_was_lost() -> None:
    class Told(Source):
        def __init__(self, index: int):
            super().__init__(index)
            self.told: list[Any] = []

        def note(self, value: Any) -> None:
            self.told.append(value)

        def what(self) -> list[Any]:
            return self.told

    group = flowrl.actors(Told, count=2, name="sources")
    backend = Nodes(own_node)

    seen: list[Any] = []

    def tell(value: Any, ctx: Context) -> Any:
        seen.append(value)
        if len(seen) == 4:
            (first, _), (sink,) = ctx.actors(group), ctx.actors(holder)
            given = sink.ask("sample")
            given.info()
            backend.lose("holder[0]")
            first.tell("note", given.ref)
            first.tell("note", 3)
        return listed(value)

    holder = flowrl.actor(Source, name="holder")
    both = flowrl.from_actors(group, "sample").union(flowrl.from_actors(holder, "sample"))
    with flowrl.run(both.gather_async(on_failure=AGAIN).for_each(tell), backend) as run:
        run.step(12)
        assert run.actors["sources"][0].ask("what").result() == [3]
        assert run.stats().lost_calls >= 1


def trained(run: flowrl.Run[Any], updates: int) -> None:
    """Steps until so many more updates were published."""
    (learner,) = run._engine.states["learner"]
    assert learner.published is not None
    before = learner.published[0]
    for _ in range(400):
        run.step(1)
        if learner.published[0] >= before + updates and all(
            state.up for states in run._engine.states.values() for state in states
        ):
            return
    raise AssertionError(f"only {learner.published[0] - before} updates in 400 items")


CONFIGS: dict[str, Any] = {
    "ppo": lambda **more: PPOConfig(**SMALL, batch_steps=32, epochs=1, **more),
    "impala": lambda **more: IMPALAConfig(**SMALL, batch_steps=32, **more),
    "apex": lambda **more: ApexConfig(
        **SMALL, min_size=32, batch=8, batches=2, replay_shards=2, on_shard_failure=AGAIN, **more
    ),
}


@pytest.mark.parametrize("algorithm", CONFIGS)
@pytest.mark.parametrize("node", ["workers[0]", "workers[0] learner[0]", "learner[0]", "workers[1] replay[1]"])
def test_an_algorithm_goes_on_without_a_node(algorithm: str, node: str) -> None:
    if "replay" in node and algorithm != "apex":
        return  # it has none

    def node_of(actor: str) -> str:
        return "lost" if actor in node.split() else "kept"

    backend = Nodes(node_of)
    cfg = CONFIGS[algorithm](on_learner_failure=AGAIN, snapshot_every=2)
    with flowrl.run(cfg.graph(), backend, seed=1) as run:
        trained(run, 3)
        assert sorted(backend.lose("lost")) == sorted(node.split())
        trained(run, 6)
        metrics = run.stats().metrics
        for actor in node.split():
            group = actor.partition("[")[0]
            assert metrics[group]["restarts"] == 1
        if "learner" in node:
            assert metrics["learner"]["default/restored"] == 1
            assert metrics["learner"]["default/updates_lost"] <= 3


def test_a_learner_whose_snapshots_had_no_copy_stops_the_run() -> None:
    backend = Nodes(own_node, copies=False)
    cfg = CONFIGS["ppo"](on_learner_failure=AGAIN, snapshot_every=1)
    with flowrl.run(cfg.graph(), backend, seed=1) as run:
        trained(run, 3)
        backend.lose("learner[0]")
        told = (
            r"learner\[0\] died: .*its snapshots were lost with the node that it was on, before a copy of one had come"
        )
        with pytest.raises(ActorDied, match=told):
            trained(run, 3)


def test_it_goes_on_from_an_older_snapshot_where_the_newest_has_no_copy_yet() -> None:
    backend = Nodes(own_node)
    cfg = CONFIGS["ppo"](on_learner_failure=AGAIN, snapshot_every=1)
    with flowrl.run(cfg.graph(), backend, seed=1) as run:
        trained(run, 3)
        backend.copies = False
        trained(run, 3)
        backend.lose("learner[0]")
        trained(run, 3)
        lost = run.stats().metrics["learner"]["default/updates_lost"]
        assert 2 <= lost <= 4  # back to before the copies ceased


class Crowded(Nodes):
    """Has no room for an actor that died, for so many tries."""

    def __init__(self, refusals: int, wait_s: float):
        super().__init__(own_node)
        self.refusals, self.wait_s = refusals, wait_s

    def restart(self, actor: Any, plan: GroupPlan, index: int) -> Any:
        if self.refusals > 0:
            self.refusals -= 1
            raise NoRoom(f"no node has room for {plan.name}[{index}]", self.wait_s)
        return super().restart(actor, plan, index)


def test_an_actor_without_a_place_waits_for_one_and_the_others_go_on() -> None:
    backend = Crowded(5, wait_s=30.0)
    with flowrl.run(sources("async"), backend) as run:
        run.step(4)
        backend.lose("sources[1]")
        began, told = backend.now(), set()
        while run.stats().metrics.get("sources", {}).get("restarts", 0) == 0:
            run.step(1)
            told |= set(run.stats().warnings)
        assert 2.5 <= backend.now() - began <= 5.0
        assert run.stats().groups["sources"].deaths == 1
        assert told == {"sources[1] waits for a place to start again: no node has room for sources[1]"}
        assert not run.stats().warnings  # it has one


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_one_that_gets_no_place_in_time_counts_as_dead_again(mode: str) -> None:
    backend = Crowded(10**6, wait_s=3.0)
    with flowrl.run(sources(mode), backend) as run:
        run.step(4)
        backend.lose("sources[1]")
        began = backend.now()
        told = r"sources\[1\] died after 3 restarts: no node has room for sources\[1\]; node gather_"
        with pytest.raises(ActorDied, match=told):
            run.step(10_000)
        assert 9.0 <= backend.now() - began <= 20.0
