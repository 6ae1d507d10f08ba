"""StoreToReplay, UpdatePriorities, WaitUntil: where items go, what shards are told, with real shards and stand-ins."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl import Answer, Batch, GraphError, Local
from flowrl.operators import (
    ConcatBatches,
    NStep,
    Replay,
    StoreToReplay,
    TrainOneStep,
    Union,
    UpdatePriorities,
    WaitUntil,
)
from flowrl.operators.replay import Stored
from flowrl.operators.training import TrainInfo
from flowrl.rl import PolicySpec, ReplayShard, RolloutWorker
from flowrl.testing import Delayed
from tests.engine.shelves import rollouts, shelves


class Learner:
    """Answers a priority of 10 · slot for each row; `gives` says of which rows."""

    needs = frozenset({"slots"})

    def __init__(self, gives: bool = True):
        self.gives, self.trained = gives, []

    def train(self, batch: Batch, *, epochs: int, minibatch: int | None, env_steps: int, **more: Any) -> Answer[Any]:
        self.trained.append(batch["slots"].tolist())
        answer = Batch({"slots": batch["slots"], "priorities": batch["slots"] * 10.0}) if self.gives else None
        return Answer(answer, {"rows": batch.rows}, len(self.trained), np.zeros(3, np.float32))

    def history(self) -> list[Any]:
        return self.trained


def trained(replay: Any, *, gives: bool = True, mode: str = "round_robin", **drawn: Any) -> flowrl.Flow[TrainInfo]:
    learner = flowrl.actor(Learner, gives, name="learner")
    stored = rollouts("sync").for_each(StoreToReplay(replay, in_flight=1))
    updated = Replay(replay, **drawn).for_each(TrainOneStep(learner)).for_each(UpdatePriorities())
    return Union([stored, updated], mode=mode, emit=[updated])  # type: ignore[arg-type]


def test_what_comes_out_of_a_store_says_where_it_went() -> None:
    flow = rollouts("sync", rows=5).for_each(StoreToReplay(shelves(2)))
    with flowrl.run(flow, Local()) as run:
        assert run.step(3) == [Stored("replay[0]", 5), Stored("replay[1]", 5), Stored("replay[0]", 5)]
        assert run.stats().nodes["StoreToReplay"].steps == 15


def test_what_was_on_its_way_to_a_shard_that_died_is_stored_nowhere() -> None:
    backend = Delayed(0, likely=0.3, die=lambda actor, n: actor == "replay[0]" and n == 4)
    with flowrl.run(rollouts("sync", rows=5).for_each(StoreToReplay(shelves(2), in_flight=4)), backend) as run:
        out = run.step(40)
        lost = [stored for stored in out if stored.rows == 0]
        assert lost
        assert {stored.shard for stored in lost} == {"replay[0]"}
        assert {stored.shard for stored in out[-20:]} == {"replay[1]"}
        assert run.stats().metrics["StoreToReplay"]["rows_lost"] == 5 * len(lost)
        assert run.stats().lost_calls == len(lost)


def test_priorities_go_to_the_shard_that_was_drawn_before_it_is_drawn_again() -> None:
    with flowrl.run(trained(shelves(2, min_size=8), batch=3), Local(), seed=1) as run:
        infos = run.step(12)
        told = [handle.ask("history").result() for handle in run.actors["replay"]]
        slots = run.actors["learner"][0].ask("history").result()
    assert all(info.answer is not None for info in infos)
    updates = [entry for each in told for entry in each if entry[0] == "reprioritize"]
    assert sorted(updates) == sorted(("reprioritize", at, [10.0 * slot for slot in at]) for at in slots)
    for each in told:
        kinds = [entry[0] for entry in each if entry[0] != "store"]
        assert kinds[: 2 * (len(kinds) // 2)] == ["draw", "reprioritize"] * (len(kinds) // 2)


def test_the_priorities_of_a_prioritized_shard_follow() -> None:
    replay = flowrl.actor(ReplayShard, 64, prioritized=True, alpha=1.0, min_size=8, name="replay")
    with flowrl.run(trained(replay, batch=4, batches=2), Local(), seed=3) as run:
        run.step(10)
        slots = [slot for drawn in run.actors["learner"][0].ask("history").result() for slot in drawn]
        (mass,) = [run.actors["replay"][0].ask(mass_of).result()]
        size = run.actors["replay"][0].ask(len).result()
    assert len(slots) == 80
    known = {slot: 10.0 * slot for slot in slots}
    assert mass > sum(known.values()) > 0  # the others have the largest of their time
    assert size >= len(known)


def mass_of(shard: ReplayShard) -> float:
    """The sum of its priorities."""
    return shard.mass


def test_without_priorities_the_reason_is_said() -> None:
    with (
        flowrl.run(trained(shelves(), gives=False, batch=3), Local()) as run,
        pytest.raises(ValueError, match=r"learner\[0\] answered without priorities: .*per_row=") as caught,
    ):
        run.step(3)
    assert "in node 'UpdatePriorities'" in caught.value.__notes__[0]


def test_slots_of_two_shards_cannot_be_told() -> None:
    replay, learner = shelves(2), flowrl.actor(Learner, name="learner")
    stored = rollouts("sync").for_each(StoreToReplay(replay))
    joined = Replay(replay, batch=2).for_each(ConcatBatches(min_steps=16)).for_each(TrainOneStep(learner))
    flow = Union([stored, told := joined.for_each(UpdatePriorities())], emit=[told])
    with flowrl.run(flow, Local(), seed=0) as run, pytest.raises(ValueError, match=r"came from replay\[\d\], replay\["):
        run.step(3)
    with pytest.raises(ValueError, match="to must be 'origin'"):
        UpdatePriorities(to=replay)  # type: ignore[arg-type]
    plain = flowrl.from_items([1], num_shards=1).gather_sync().for_each(UpdatePriorities())
    with flowrl.run(plain, Local()) as run, pytest.raises(TypeError, match="needs the TrainInfo of TrainOneStep, got "):
        run.step(1)


def test_a_train_info_travels_without_its_reference() -> None:
    with flowrl.run(trained(shelves(), batch=3), Local()) as run:
        (info,) = run.step(1)
        assert info.answer is not None
        assert info.answer.get()["slots"].shape == (3,)
        again = pickle.loads(pickle.dumps(info))
    assert again == info
    assert again.answer is None
    assert "answer" not in repr(info)


def test_what_is_trained_is_drawn_with_the_columns_that_the_loss_needs() -> None:
    learner = flowrl.actor(lambda loss: Learner(), Learner(), name="learner")
    replay = shelves()
    flow = Replay(replay, batch=3).for_each(TrainOneStep(learner))
    with flowrl.run(Union([rollouts("sync").for_each(StoreToReplay(replay)), flow], emit=[flow]), Local()) as run:
        assert run.step(2)[0].metrics["rows"] == 3


def test_wait_until_drops_what_comes_too_early() -> None:
    with flowrl.run(rollouts("sync", rows=4).for_each(WaitUntil(env_steps=10)), Local()) as run:
        assert [batch["x"][0] for batch in run.step(2)] == [8, 12]
        assert run.stats().metrics["WaitUntil"]["dropped"] == 2
    with pytest.raises(ValueError, match="env_steps must be at least 1, got 0"):
        WaitUntil(env_steps=0)


def test_what_a_store_refuses() -> None:
    with pytest.raises(ValueError, match="in_flight must be at least 1, got 0"):
        StoreToReplay(shelves(), in_flight=0)
    with pytest.raises(GraphError, match="StoreToReplay needs a group made by"):
        StoreToReplay("replay")  # type: ignore[arg-type]


@pytest.mark.parametrize(("workers", "envs", "n"), [(1, 1, 1), (2, 3, 3)])
def test_rows_of_real_workers_are_drawn_as_often_as_asked(workers: int, envs: int, n: int) -> None:
    """CartPole with reset rows that are no transitions, n-step rows that come late: counted in rows all the same."""
    spec = PolicySpec(hidden=(4,))
    group = flowrl.actors(
        RolloutWorker, "CartPole-v1", spec, steps=8, num_envs=envs, next_obs=True, count=workers, name="workers"
    )
    replay = flowrl.actors(ReplayShard, 500, min_size=100, samples_per_insert=4.0, count=2, name="replay")
    stored = flowrl.from_actors(group, "sample").for_each(NStep(n, 0.9)).gather_async().for_each(StoreToReplay(replay))
    drawn = Replay(replay, batch=16, batches=2, in_flight=2)
    with flowrl.run(Union([stored, drawn], mode="async", emit=[drawn]), Local(), seed=1) as run:
        items = run.step(500)
        stats = run.stats()
    assert {"obs", "next_obs", "discounts", "slots", "weights"} <= set(items[0])
    inserted = stats.metrics["StoreToReplay"]["inserted"]
    assert 500 * 32 / (inserted - 100) == pytest.approx(4.0, rel=0.01)
    assert stats.env_steps == pytest.approx(inserted, abs=workers * envs * (n + 8 * 4))


@pytest.mark.parametrize("backend", [Local(), Delayed(4, likely=0.4)], ids=["local", "delayed"])
def test_a_queue_gives_each_row_once_and_in_order(backend: Any) -> None:
    queue = flowrl.actor(ReplayShard, 1000, fifo=True, name="replay")
    stored = rollouts(rows=3, limit=40).for_each(StoreToReplay(queue))
    drawn = Replay(queue, batch=4, in_flight=2)
    with flowrl.run(Union([stored, drawn], mode="async", emit=[drawn]), backend) as run:
        rows = [row for batch in run for row in batch["x"].tolist()]
    assert rows == list(range(120))


@pytest.mark.parametrize("seed", range(3))
def test_rows_that_are_overwritten_while_a_draw_is_under_way_are_never_asked_for(seed: int) -> None:
    """Each row at most twice, in shards that hold few: draws wait, and no shard is asked for more than it has."""
    replay = flowrl.actors(ReplayShard, 24, max_times_sampled=2, count=2, name="replay")
    stored = rollouts(count=2, rows=5).for_each(StoreToReplay(replay, in_flight=3))
    drawn = Replay(replay, batch=8, in_flight=3)
    with flowrl.run(Union([stored, drawn], mode="async", emit=[drawn]), Delayed(seed, likely=0.5), seed=seed) as run:
        rows = [row for batch in run.step(150) for row in batch["x"].tolist()]
    assert max(rows.count(row) for row in set(rows)) <= 2


class Steps:
    """Fragments (4, 2) of two environments of numbered steps; those of worker i begin at i million."""

    def __init__(self, index: int = 0):
        self.next = index * 10**6

    def sample(self) -> Batch:
        """The next fragment; the second environment's steps are half a million ahead."""
        self.next += 4
        steps_TN = np.arange(self.next - 4, self.next)[:, None] + np.array([0, 500_000])
        return Batch({"x": steps_TN, "terminated": np.zeros((4, 2), np.bool_)}, time_major=True)


@pytest.mark.parametrize("length", [3, 4, 6])
def test_a_sequence_is_of_one_environment_of_one_worker(length: int) -> None:
    """Fragments of workers come in any order, to any shard: each is cut for itself, so none goes on in another."""
    replay = flowrl.actors(ReplayShard, 400, sequence=length, period=2, min_size=24, count=2, name="replay")
    source = flowrl.from_actors(flowrl.actors(Steps, count=3, name="workers"), "sample").gather_async()
    drawn = Replay(replay, batch=16, in_flight=2)
    flow = Union([source.for_each(StoreToReplay(replay)), drawn], mode="async", emit=[drawn])
    with flowrl.run(flow, Delayed(1, in_order=False), seed=3) as run:
        for batch in run.step(30):
            for n in range(16):
                mine = batch["x"][batch.valid[:, n], n]
                assert len(mine) == min(length, 4)
                assert (np.diff(mine) == 1).all()
                assert mine[0] // 4 == mine[-1] // 4  # of one fragment
