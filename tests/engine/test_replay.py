"""Replay as part of a graph: stored beside, drawn in order by reference, paced; nothing hangs when a shard dies."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl import ActorDied, AskOperator, FlowStalled, GraphError, Ignore, Local, Raise, Restart
from flowrl.backends.protocol import Backend
from flowrl.engine.branches import BranchCursor, DuplicateCursor
from flowrl.engine.replay import StoreCursor
from flowrl.handles import ActorGroup
from flowrl.operators import Replay, StoreToReplay, Union
from flowrl.testing import Delayed, Virtual
from tests.engine.shelves import Shelf, rollouts, shelves, stored_and_drawn


def ratio_of(run: flowrl.Run[Any], min_size: int) -> float:
    """Rows drawn for each row stored beyond min_size."""
    nodes = run.stats().nodes
    return nodes["Replay"].steps / (nodes["StoreToReplay"].steps - min_size)


@pytest.mark.parametrize(
    ("workers", "rows", "ratio", "drawn"),
    [
        (1, 1, 8.0, {"batch": 32}),
        (1, 4, 0.25, {"batch": 8, "in_flight": 2}),
        (2, 16, 4.0, {"batch": 32, "batches": 4, "in_flight": 3}),
        (3, 5, 1.0, {"batch": 7, "batches": 2}),
    ],
)
@pytest.mark.parametrize("mode", ["async", "round_robin"])
@pytest.mark.parametrize("backend", [Local(), Delayed(3, likely=0.7)], ids=["local", "delayed"])
def test_samples_and_inserts_keep_their_ratio(
    backend: Backend, mode: str, workers: int, rows: int, ratio: float, drawn: dict[str, int]
) -> None:
    replay = shelves(2, min_size=50, samples_per_insert=ratio)
    source = rollouts("async" if mode == "async" else "sync", workers, rows=rows)
    pieces = max(rows, drawn["batch"] * drawn.get("batches", 1) / ratio)
    items = int(300 * pieces * ratio / (drawn["batch"] * drawn.get("batches", 1)))
    with flowrl.run(stored_and_drawn(replay, source, mode, **drawn), backend, seed=1) as run:
        run.step(items)
        assert ratio_of(run, 50) == pytest.approx(ratio, rel=0.01)


def test_nothing_is_drawn_before_min_size(local: Backend) -> None:
    replay = shelves(2, min_size=20, weights=(1.0, 0.5))
    flow = stored_and_drawn(replay, rollouts(rows=3), batch=4, batches=2, beta=0.7)
    with flowrl.run(flow, local, seed=0) as run:
        run.step(1)
        told = [entry for handle in run.actors["replay"] for entry in handle.ask("history").result()]
    assert sum(rows for what, rows, *_ in told if what == "store") >= 20
    assert next(entry for entry in told if entry[0] == "draw") == ("draw", 4, 2, 0.7)


def test_shards_are_drawn_from_in_proportion_to_their_mass(local: Backend) -> None:
    flow = stored_and_drawn(shelves(2, min_size=64, weights=(1.0, 3.0)), rollouts(), "async", batch=4)
    with flowrl.run(flow.zip_with_source_actor(), local, seed=5) as run:
        drawn = [handle.name for handle, _ in run.step(800)]
    assert drawn.count("replay[1]") / len(drawn) == pytest.approx(0.75, abs=0.05)


def test_stores_are_spread_evenly_and_each_row_is_stored_once(local: Backend) -> None:
    replay = shelves(3, min_size=1, samples_per_insert=1.0)
    with flowrl.run(stored_and_drawn(replay, rollouts(count=2), batch=4, in_flight=2), local) as run:
        run.step(200)
        held = [handle.ask("held").result() for handle in run.actors["replay"]]
    assert max(map(len, held)) - min(map(len, held)) <= 4
    rows = [row for rows in held for row in rows]
    assert len(set(rows)) == len(rows)


def test_beta_follows_the_steps_of_the_run(local: Backend) -> None:
    flow = stored_and_drawn(shelves(), rollouts(), batch=2, beta=lambda steps: steps / 1000)
    with flowrl.run(flow, local) as run:
        run.step(50)
        told = run.actors["replay"][0].ask("history").result()
    betas = [entry[3] for entry in told if entry[0] == "draw"]
    assert betas == sorted(betas)
    assert betas[-1] == pytest.approx(len([entry for entry in told if entry[0] == "store"]) * 4 / 1000, abs=0.02)


def test_a_beta_that_fails_names_its_node(local: Backend) -> None:
    flow = stored_and_drawn(shelves(), rollouts(), batch=2, beta=lambda steps: -1.0)
    with flowrl.run(flow, local) as run, pytest.raises(ValueError, match="beta must be at least 0 and finite") as got:
        run.step(1)
    assert "in node 'Replay'" in got.value.__notes__[0]


def test_the_data_never_passes_the_driver() -> None:
    class NoLoad(Local):
        loads = 0

        def load(self, payload: Any) -> Any:
            type(self).loads += 1
            return super().load(payload)

    flow = stored_and_drawn(shelves(), rollouts(rows=64, width=100), batch=64)
    refs: list[flowrl.Ref[Any]] = []

    class Keep(flowrl.Operator[Any, Any]):
        wants = "reference"

        def process(self, value: Any, ctx: flowrl.Context) -> Any:
            refs.append(value)
            yield ctx.origins[0].name

    with flowrl.run(flow.for_each(Keep()), NoLoad()) as run:
        assert run.step(30) == ["replay[0]"] * 30
        assert NoLoad.loads == 0
        assert refs[0].info.env_steps == 64
        assert refs[0].get()["wide"].shape == (64, 100)


def test_results_keep_their_order_and_the_window_its_size() -> None:
    """A draw takes 1 s, a store none: three draws are under way, and items come in the order of their asks."""
    out: list[int] = []

    class Watched(Virtual):
        def send(self, actor: Any, message: bytes, payloads: Any, *, start: bool = False) -> Any:
            sent = super().send(actor, message, payloads, start=start)
            out.append(sum(at > self.now() for at, _ in self._done.values()))
            return sent

    def takes(group: str, index: int, kind: str, n: int) -> float:
        return 1.0 + index if group == "replay" and kind == "ask" and n >= 5 else 0.0

    flow = stored_and_drawn(shelves(2, samples_per_insert=1.0, min_size=40), rollouts(), batch=4, in_flight=3)
    with flowrl.run(flow.zip_with_source_actor(), Watched(takes), seed=2) as run:
        drawn = [handle.name for handle, _ in run.step(20)]
        asked = [sum(entry[0] == "draw" for entry in handle.ask("history").result()) for handle in run.actors["replay"]]
    assert sum(asked) <= len(drawn) + 3
    assert {"replay[0]", "replay[1]"} == set(drawn)
    assert max(out) <= 3 + 2 + 2  # draws, stores, pulls


@pytest.mark.parametrize("in_flight", [1, 3])
def test_a_window_in_a_round_robin_union_is_deterministic(in_flight: int) -> None:
    replay = shelves(3, min_size=30, samples_per_insert=2.0, weights=(1.0, 2.0, 0.5))
    drawn: dict[str, Any] = {"batch": 4, "in_flight": in_flight, "beta": lambda steps: min(1.0, steps / 500)}
    flow = stored_and_drawn(replay, rollouts("sync", 2), "round_robin", stores=3, **drawn).zip_with_source_actor()
    assert "deterministic: only sync gathers and round_robin unions" in flow.explain()
    seen = []
    for backend in (Local(), Delayed(1), Delayed(2, likely=0.2), Delayed(3, in_order=False)):
        with flowrl.run(flow, backend, seed=7) as run:
            items = [(handle.name, batch["x"].tolist()) for handle, batch in run.step(60)]
            told = [handle.ask("history").result() for handle in run.actors["replay"]]
        seen.append((items, [[entry for entry in each if entry[0] == "draw"] for each in told]))
    assert all(each == seen[0] for each in seen[1:])
    assert len({name for name, _ in seen[0][0]}) == 3


@pytest.mark.parametrize("drawn_first", [True, False])
@pytest.mark.parametrize("source", ["async", "sync"])
def test_the_flow_ends_with_what_the_pacing_allows(local: Backend, source: str, drawn_first: bool) -> None:
    replay = shelves(min_size=8, samples_per_insert=2.0)
    stored, drawn = rollouts(source, limit=10).for_each(StoreToReplay(replay)), Replay(replay, batch=4)
    flow = Union([drawn, stored] if drawn_first else [stored, drawn], mode="async", emit=[drawn])
    with flowrl.run(flow, local) as run:
        rows = sum(len(batch["x"]) for batch in run)
    assert 2 * (40 - 8) <= rows <= 2 * (40 - 8) + 8
    again = stored_and_drawn(shelves(max_times_sampled=3), rollouts(limit=10), batch=4)
    with flowrl.run(again, local) as run:
        assert sum(len(batch["x"]) for batch in run) == 120


def test_who_draws_from_an_empty_group_is_told_while_building() -> None:
    alone = Replay(shelves(), batch=4)
    with pytest.raises(GraphError, match=r"'Replay' \(defined at .*test_replay.py:\d+\) draws from 'replay', but nob"):
        flowrl.run(alone, Local())
    elsewhere = rollouts().for_each(StoreToReplay(flowrl.actor(Shelf, name="other")))
    with pytest.raises(GraphError, match=r"put StoreToReplay\(replay\) into a branch"):
        flowrl.run(Union([elsewhere, Replay(shelves(), batch=4)]), Local())


def test_who_waits_for_more_than_will_ever_be_stored_is_named(local: Backend) -> None:
    flow = stored_and_drawn(shelves(min_size=100), rollouts(limit=10), batch=4)
    told = "Replay waits: replay holds 40 of the 100 rows .* nobody will store more: lower its min_size"
    with flowrl.run(flow, local) as run, pytest.raises(FlowStalled, match=told):
        run.step(1)


def test_a_buffer_too_small_is_told_while_building_or_stalls_with_its_name(local: Backend) -> None:
    tight = {"min_size": 4, "samples_per_insert": 1.0}
    with pytest.raises(GraphError, match=r"error_buffer=3 of group 'replay' is too small for node 'Replay', which dra"):
        flowrl.run(stored_and_drawn(shelves(**tight, error_buffer=3.0), rollouts(rows=64), batch=16), local)
    flow = stored_and_drawn(shelves(**tight, error_buffer=10.0), rollouts(rows=64), batch=16)
    with flowrl.run(flow, local) as run, pytest.raises(FlowStalled) as caught:
        run.step(100)
    text = str(caught.value)
    assert "StoreToReplay waits: 64 rows were stored for" in text
    assert "64 more are too many for samples_per_insert=1 of replay (min_size=4, error_buffer=10): raise" in text
    assert "Replay waits: " in text


def test_a_stall_elsewhere_does_not_name_a_replay_that_nobody_pulled(local: Backend) -> None:
    stored = rollouts().for_each(StoreToReplay(group := shelves(min_size=4)))
    drawn, _ = Replay(group, batch=4).duplicate(2, max_lag=4)
    with flowrl.run(Union([drawn, stored], emit=[drawn]), local) as run:
        cursors = run._engine.cursors
        shared = next(cursor for cursor in cursors if isinstance(cursor, DuplicateCursor))
        BranchCursor("forgotten", run._engine, shared)  # no graph can forget one; a bug of the engine could
        run.step(2)
        next(cursor for cursor in cursors if isinstance(cursor, StoreCursor)).close()  # nothing else can move
        with pytest.raises(FlowStalled, match=r"duplicate .* waits for forgotten, which nobody drains") as caught:
            run.step(100)
    assert "Replay waits" not in str(caught.value)


def test_what_replay_refuses() -> None:
    group = shelves()
    with pytest.raises(GraphError, match=r"Replay: Shelf \(group 'replay'\) has no method draw|Replay needs a group"):
        Replay(Shelf, batch=4)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="batch must be at least 1, got 0"):
        Replay(group, batch=0)
    with pytest.raises(GraphError, match=r"in_flight must be an integer of at least 1, got 1\.5"):
        Replay(group, batch=1, in_flight=1.5)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match=r"beta must be at least 0 and finite, got -0\.1"):
        Replay(group, batch=1, beta=-0.1)
    with pytest.raises(GraphError, match=r"on_failure must be Restart\(...\), Ignore\(\) or Raise\(\), got 3"):
        Replay(group, batch=1, on_failure=3)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match=r"StoreToReplay: Plain .* has no method store"):
        StoreToReplay(flowrl.actor(Plain, name="plain"))
    both = [Replay(group, batch=1), Replay(group, batch=1, on_failure=Raise())]
    with pytest.raises(GraphError, match="'Replay' and 'Replay-2' draw from 'replay' with on_failure=Ignore"):
        flowrl.run(Union([rollouts().for_each(StoreToReplay(group)), *both]), Local())


class Plain:
    """No shard."""

    def same(self, value: Any) -> Any:
        """What came."""
        return value


def test_a_check_does_not_wait_for_min_size() -> None:
    report = stored_and_drawn(shelves(2, min_size=10**6, samples_per_insert=0.001), rollouts(), batch=4).check()
    assert dict((edge.node, edge.shape) for edge in report.edges)["Replay"] == "Batch(4,): x i64, slots i64"


def test_the_bounds_stand_in_the_drawings() -> None:
    replay = shelves(2, min_size=100, samples_per_insert=8.0, error_buffer=640.0)
    flow = stored_and_drawn(replay, rollouts(), batch=32, batches=4, in_flight=3, beta=0.4)
    text = flow.explain()
    assert "replay, batch=32, batches=4, beta=0.4  [in_flight=3, paced by replay, on_failure=Ignore()]" in text
    assert "StoreToReplay(shards=replay)  [in_flight=2, paced by replay]" in text
    assert "paced: min_size=100, samples_per_insert=8 ± 640 rows" in " ".join(text.split())
    assert "worst lag of Replay: 2 samples (Replay in_flight=3)" in text
    assert "asked by StoreToReplay, asked by Replay" in text
    assert "-.->|asks| g" in flow.to_mermaid()
    assert "batches=4" in flow.to_svg()
    named = flow.named("dqn")
    assert "dqn/replay, batch=32" in named.explain()
    with flowrl.run(named, Local()) as run:
        run.step(3)


class Columns:
    """A source that says what it gives."""

    @classmethod
    def batch_columns(cls) -> frozenset[str]:
        """The columns."""
        return frozenset({"x", "valid"})

    def sample(self) -> flowrl.Batch:
        """Four rows."""
        return flowrl.Batch({"x": np.arange(4), "valid": np.ones(4, np.bool_)})


@pytest.mark.parametrize("stored_first", [True, False])
def test_columns_are_followed_through_the_shards(stored_first: bool) -> None:
    class Needs(flowrl.Operator[Any, Any]):
        def __init__(self, *columns: str):
            self.needs = frozenset(columns)  # type: ignore[misc]

        def process(self, value: Any, ctx: flowrl.Context) -> Any:
            yield value

    def flow(*needs: str) -> flowrl.Flow[Any]:
        group = shelves()
        source = flowrl.from_actors(flowrl.actor(Columns, name="columns"), "sample").gather_async()
        stored, drawn = source.for_each(StoreToReplay(group)), Replay(group, batch=2).for_each(Needs(*needs))
        return Union([stored, drawn] if stored_first else [drawn, stored], emit=[drawn])

    assert "Replay: slots, weights, x" in flow("x").explain()
    with flowrl.run(flow("x", "slots"), Local()) as run:
        assert len(run.step(3)) == 3
    with pytest.raises(GraphError, match=r"needs the columns logp, .* 'Replay' gives slots, weights, x"):
        flowrl.run(flow("logp"), Local())


@pytest.mark.parametrize(
    ("slow", "pacing", "waits", "verdict"),
    [
        (
            "drawer",
            {},
            "StoreToReplay",
            "inserts wait for samples: train faster, or lower samples_per_insert of replay",
        ),
        ("worker", {}, "Replay", "samples wait for rows: store more (more workers), or raise samples_per_insert of re"),
        ("worker", {"samples_per_insert": None, "min_size": 200}, "Replay", "samples wait for rows: store more (more"),
    ],
)
def test_waiting_shows_and_the_verdict_names_the_knob(
    slow: str, pacing: dict[str, Any], waits: str, verdict: str
) -> None:
    """Two actors of a group share the time, so nobody is busy; who waits is a matter of who is slow."""

    def takes(group: str, index: int, kind: str, n: int) -> float:
        return 1.0 if slow == {"workers": "worker", "learner": "drawer"}.get(group) and kind in ("pull", "ask") else 0.0

    class Ticking(Virtual):
        """Seconds of the clock that blocked time is taken from."""

        def poll(self, sent: Any, timeout_s: float | None) -> Any:
            before = self.now()
            seen = super().poll(sent, timeout_s)
            clock.now += self.now() - before
            return seen

    clock = Clock()
    replay, learner = shelves(**{"samples_per_insert": 1.0, **pacing}), flowrl.actors(Plain, count=3, name="learner")
    stored = rollouts(count=3).for_each(StoreToReplay(replay))
    drawn = Replay(replay, batch=4).for_each(Ask(learner))
    with (
        pytest.MonkeyPatch.context() as patch,
        flowrl.run(Union([stored, drawn], mode="async", emit=[drawn]), Ticking(takes), seed=0) as run,
    ):
        patch.setattr("flowrl.engine.cursors.perf_counter", clock)
        run.step(40)
        stats = run.stats()
    other = {"Replay": "StoreToReplay", "StoreToReplay": "Replay"}[waits]
    assert stats.nodes[waits].blocked_s > 10
    assert stats.nodes[waits].blocked_s > 2 * stats.nodes[other].blocked_s
    assert f"limited by a bound at {waits} (blocked " in stats.verdict
    assert verdict in stats.verdict


class Clock:
    """Time by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Ask(AskOperator[Any, Any]):
    """Each item by way of one of a group's actors."""

    group: ActorGroup[Any]

    def open(self) -> None:
        self._turn = 0

    def ask(self, value: Any, ctx: flowrl.Context) -> Any:
        actors = ctx.actors(self.group)
        self._turn += 1
        return actors[self._turn % len(actors)].ask("same", value)


@pytest.mark.parametrize("mode", ["async", "round_robin"])
@pytest.mark.parametrize("seed", range(4))
def test_the_run_goes_on_without_a_shard_that_died(mode: str, seed: int) -> None:
    backend = Delayed(seed, die=lambda actor, n: actor == "replay[1]" and n == 25)
    replay = shelves(3, min_size=60, samples_per_insert=1.0)
    source = rollouts("async" if mode == "async" else "sync", 2)
    flow = stored_and_drawn(replay, source, mode, batch=4, in_flight=3).zip_with_source_actor()
    with flowrl.run(flow, backend, seed=seed) as run:
        drawn = [handle.name for handle, _ in run.step(300)]
        assert "replay[1]" in drawn
        assert "replay[1]" not in drawn[-150:]
        assert {"replay[0]", "replay[2]"} <= set(drawn[-150:])
        stats = run.stats()
        metrics = stats.metrics
        assert stats.groups["replay"].deaths == 1
        assert metrics["replay"]["shards_lost"] == 1
        lost = metrics["replay"]["rows_lost"] + metrics.get("StoreToReplay", {}).get("rows_lost", 0)
        stored = stats.nodes["StoreToReplay"].steps
        held = sum(len(run.actors["replay"][i].ask("held").result()) for i in (0, 2))
        assert held + lost == pytest.approx(stored, abs=12)  # what is on its way aside
        assert stats.nodes["Replay"].steps == pytest.approx(stored - 60, abs=4 * 8)
        with pytest.raises(ActorDied, match=r"replay\[1\] cannot answer"):
            run.actors["replay"][1].ask("held").result()


def test_the_last_shards_death_stops_the_run() -> None:
    backend = Delayed(0, die=lambda actor, n: actor.startswith("replay") and n == 20)
    flow = stored_and_drawn(shelves(2), rollouts(), batch=4)
    with flowrl.run(flow, backend) as run, pytest.raises(ActorDied, match="every shard of replay has died"):
        run.step(10_000)


def test_raise_stops_at_the_first_death() -> None:
    backend = Delayed(0, die=lambda actor, n: actor == "replay[0]" and n == 20)
    flow = stored_and_drawn(shelves(2), rollouts(), batch=4, on_failure=Raise())
    with flowrl.run(flow, backend) as run, pytest.raises(ActorDied, match=r"replay\[0\] died with \d+ rows: .*Raise"):
        run.step(10_000)


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_a_restarted_shard_begins_empty_and_is_filled_again(shards: int, seed: int) -> None:
    died: list[int] = []

    def die(actor: str, n: int) -> bool:
        if actor == "replay[0]" and n in (20, 60):
            died.append(n)
            return True
        return False

    replay = shelves(shards, min_size=8, samples_per_insert=1.0)
    flow = stored_and_drawn(replay, rollouts(), batch=4, on_failure=Restart(3, backoff_s=0.01))
    with flowrl.run(flow.zip_with_source_actor(), Delayed(seed, die=die), seed=1) as run:
        seen = [(handle.name, batch["x"].tolist()) for handle, batch in run.step(150)]
        held = run.actors["replay"][0].ask("held").result()
        stats = run.stats()
    assert died == [20, 60]
    assert {name for name, _ in seen[-60:]} == {f"replay[{i}]" for i in range(shards)}
    assert stats.metrics["replay"]["restarts"] == stats.metrics["replay"]["shards_lost"] == 2
    # Every row that was acknowledged is there, or was there when the shard died.
    stored = stats.nodes["StoreToReplay"].steps
    assert len(held) <= stored - stats.metrics["replay"]["rows_lost"] + 8
    assert min(held) > 4 * 8


def test_a_shard_that_dies_too_often_in_a_row_stops_the_run() -> None:
    flow = stored_and_drawn(shelves(1), rollouts(), batch=4, on_failure=Restart(2, backoff_s=0.01))
    backend = Delayed(0, die=lambda actor, n: actor.startswith("replay") and n >= 20)
    with (
        flowrl.run(flow, backend) as run,
        pytest.raises(ActorDied, match=r"replay\[0\] died after 2 restarts .*on_failure=Restart\(times=2"),
    ):
        run.step(10_000)


def test_two_who_draw_from_one_group_share_its_pacing(local: Backend) -> None:
    replay = shelves(2, min_size=40, samples_per_insert=2.0)
    stored = rollouts().for_each(StoreToReplay(replay))
    large, small = Replay(replay, batch=12, name="large"), Replay(replay, batch=4, name="small")
    with flowrl.run(Union([stored, large, small], mode="async", emit=[large, small]), local) as run:
        run.step(400)
        stats = run.stats()
    drawn = {name: stats.nodes[name].steps for name in ("large", "small")}
    assert all(drawn.values())
    assert sum(drawn.values()) / (stats.nodes["StoreToReplay"].steps - 40) == pytest.approx(2.0, rel=0.02)
    assert stats.metrics["replay"]["samples_per_insert"] == pytest.approx(2.0, rel=0.02)
    assert stats.metrics["replay"]["rows"] == stats.nodes["StoreToReplay"].steps


class Pair:
    """Two agents of two policies: two rows of one, one of the other, in each of four steps."""

    def sample(self) -> flowrl.MultiAgentBatch:
        """A batch of both."""
        parts = {"red": flowrl.Batch({"x": np.arange(8)}), "blue": flowrl.Batch({"x": np.arange(4)})}
        return flowrl.MultiAgentBatch(parts, env_steps=4)


def test_the_rows_of_one_policy_count_and_not_the_steps_of_the_environment(local: Backend) -> None:
    red, blue = flowrl.from_actors(flowrl.actor(Pair, name="pair"), "sample").gather_async().by_policy("red", "blue")
    reds = flowrl.actor(Shelf, samples_per_insert=1.0, name="reds")
    stored = red.for_each(StoreToReplay(reds, in_flight=1))
    drawn = Replay(reds, batch=8)
    flow = Union([stored, blue.tap(lambda batch: None), drawn], mode="async", emit=[drawn])
    with flowrl.run(flow, local) as run:
        run.step(20)
        rows = len(run.actors["reds"][0].ask("held").result())
    assert rows == pytest.approx(160, abs=16)  # a draw of 8 for each 8 stored


@pytest.mark.ray
def test_the_numbers_are_those_of_ray(ray_session: None) -> None:
    replay = shelves(2, min_size=30, samples_per_insert=2.0, weights=(1.0, 2.0))
    flow = stored_and_drawn(replay, rollouts("sync", 2), "round_robin", stores=2, batch=4, in_flight=3)
    seen = []
    for backend in (Local(), flowrl.Ray()):
        with flowrl.run(flow.zip_with_source_actor(), backend, seed=11) as run:
            seen.append([(handle.name, batch["x"].tolist(), batch["slots"].tolist()) for handle, batch in run.step(40)])
    assert seen[0] == seen[1]


@pytest.mark.ray
def test_killing_a_shard_under_way(ray_session: None) -> None:
    replay = shelves(2, min_size=40, samples_per_insert=1.0)
    flow = stored_and_drawn(replay, rollouts(count=2, rows=16), batch=16, in_flight=2, on_failure=Ignore())
    with flowrl.run(flow.zip_with_source_actor(), flowrl.Ray(), seed=1) as run:
        assert len(run.step(30)) == 30
        os.kill(run.actors["replay"][0].ask(process_of).result(), signal.SIGKILL)
        while run.stats().groups["replay"].deaths == 0:
            run.step(1)
        assert {handle.name for handle, _ in run.step(30)} <= {"replay[1]"} | {"replay[0]"}
        assert {handle.name for handle, _ in run.step(30)} == {"replay[1]"}
        stats = run.stats()
        assert stats.metrics["replay"]["shards_lost"] == 1
        assert stats.metrics["replay"]["rows_lost"] > 0


def process_of(shard: Any) -> int:
    """The id of the process that a shard lives in."""
    return os.getpid()
