"""Groups whose own description says what a death means: they go on from a snapshot, with no word in an operator."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowrl
from flowrl import ActorGroup, Flow, Ignore, Local, Operator, Raise, Ray, Restart
from flowrl.algorithms import LeaguePlayConfig, PPOConfig
from flowrl.backends.protocol import Backend
from flowrl.errors import ActorDied, GraphError
from flowrl.handles import ActorHandle, Pending
from flowrl.operator import AskOperator, Context
from flowrl.operators import AddAdvantages, EvaluateEvery, ParallelRollouts, TrainOneStep
from flowrl.rl import Evaluator, Learner, PolicySpec, RolloutWorker
from flowrl.rl.losses import PPOLoss
from flowrl.testing import Delayed


class Ledger:
    """Adds up what it is told, from the number that it is made with."""

    def __init__(self, first: int = 0):
        self.total = first
        self.entries: list[int] = []

    def add(self, number: int) -> int:
        self.total += number
        self.entries.append(number)
        return self.total

    def note(self, number: int) -> None:
        self.add(number)

    def book(self) -> list[int]:
        return self.entries

    def process(self) -> int:
        return os.getpid()

    def get_state(self) -> dict[str, Any]:
        return {"total": self.total, "entries": list(self.entries)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.total, self.entries = state["total"], list(state["entries"])


class Forgetful:
    """A Ledger without a state to be taken."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, number: int) -> int:
        self.total += number
        return self.total


@dataclass
class Book(Operator[int, int]):
    """Each number, once each actor of a group has answered; comes out as the largest of their totals."""

    ledgers: ActorGroup[Any]

    def process(self, value: int, ctx: Context) -> Iterable[int]:
        asked = [one.ask("add", value) for one in ctx.actors(self.ledgers)]
        yield max(one.result() for one in asked)


@dataclass
class Entries(Operator[int, list[int]]):
    """All entries of a lone one, once it has the number."""

    ledgers: ActorGroup[Any]

    def process(self, value: int, ctx: Context) -> Iterable[list[int]]:
        (one,) = ctx.actors(self.ledgers)
        one.ask("add", value).result()
        yield list(one.ask("book").result())


@dataclass
class BookLiving(Operator[int, int]):
    """The same of those that live."""

    ledgers: ActorGroup[Any]

    def process(self, value: int, ctx: Context) -> Iterable[int]:
        living = [one for one in ctx.actors(self.ledgers) if ctx.up(one)]
        yield len([one.ask("add", value).result() for one in living])


@dataclass
class Tally(AskOperator[int, int]):
    """Asks the first of a group."""

    ledgers: ActorGroup[Any]

    def ask(self, value: Any, ctx: Context) -> Pending[int]:
        return ctx.actors(self.ledgers)[0].ask("add", value)


@dataclass
class Pass(Operator[int, int]):
    """What a group's first answers goes to another actor, which the driver does not see."""

    ledgers: ActorGroup[Any]
    heirs: ActorGroup[Any]

    def process(self, value: int, ctx: Context) -> Iterable[int]:
        total = ctx.actors(self.ledgers)[0].ask("add", value)
        ctx.actors(self.heirs)[0].tell("note", total)
        yield value

    def actor_started(self, handle: ActorHandle[Any], ctx: Context) -> None:
        if handle.group == self.heirs.name:
            handle.tell("note", 0)


def numbers(count: int = 30) -> Flow[int]:
    return flowrl.from_items(list(range(1, count + 1)), num_shards=1).gather_sync()


def ledgers(count: int = 1, kind: Any = Ledger, **more: Any) -> ActorGroup[Any]:
    given: dict[str, Any] = {"on_failure": Restart(2, backoff_s=0.01), **more}
    return flowrl.actors(kind, count=count, name="ledgers", **given)


def at(*messages: int, actor: str = "ledgers[0]") -> Callable[[str, int], bool]:
    return lambda name, n: name == actor and n in messages


def results(flow: Flow[Any], backend: Backend) -> tuple[list[Any], Any]:
    with flowrl.run(flow, backend, seed=0) as run:
        return run.step(30), run.stats()


SUMS = [n * (n + 1) // 2 for n in range(1, 31)]


@pytest.mark.parametrize("backend", [Local(), Delayed(0, likely=1.0)], ids=["local", "delayed"])
def test_without_a_death_it_changes_nothing(backend: Backend) -> None:
    found, stats = results(numbers().for_each(Book(ledgers())), backend)
    assert found == SUMS
    assert not stats.warnings
    assert stats.lost_calls == 0


@pytest.mark.parametrize("every", [1, 4, None])
@pytest.mark.parametrize("dies", [2, 9, 30])
def test_it_goes_on_from_its_snapshot(dies: int, every: int | None) -> None:
    group = ledgers(snapshot_every=every)
    found, stats = results(numbers().for_each(Book(group)), Delayed(0, likely=1.0, die=at(dies)))
    assert len(found) == 30  # the item at hand was asked again
    lost = SUMS[-1] - found[-1]
    entries = [b - a for a, b in itertools.pairwise(found) if b < a]
    assert len(entries) <= 1  # it went back once at most
    assert 0 <= lost <= sum(range(31 - (every or 10) - 2, 31))
    assert stats.metrics["ledgers"]["restarts"] == 1
    assert any("ledgers[0] died (" in said and "goes on from its last snapshot" in said for said in stats.warnings)


@settings(max_examples=40, deadline=None)
@given(
    deaths=st.sets(st.integers(2, 80), max_size=4),
    seed=st.integers(0, 1000),
    likely=st.sampled_from([0.3, 0.7, 1.0]),
)
def test_whenever_it_dies_no_item_is_lost_or_counted_twice(deaths: set[int], seed: int, likely: float) -> None:
    group = ledgers(snapshot_every=3, on_failure=Restart(50, backoff_s=0.01))
    backend = Delayed(seed, likely=likely, die=at(*deaths))
    with flowrl.run(numbers().for_each(Entries(group)), backend, seed=0) as run:
        books = run.step(30)
    assert len(books) == 30
    for item, book in enumerate(books, start=1):
        assert sorted(set(book)) == book  # what was asked again had not been done
        assert set(book) <= set(range(1, item + 1))


def test_each_of_several_has_its_own_state() -> None:
    group = flowrl.actors(Ledger, flowrl.handles.Apart((0, 1000)), count=2, name="ledgers", on_failure=Restart(2))
    found, _ = results(numbers().for_each(Book(group)), Delayed(0, likely=1.0, die=at(11, actor="ledgers[1]")))
    assert len(found) == 30
    assert min(found) > 1000  # the second's, before and after


def test_without_a_state_it_begins_anew_and_that_is_said() -> None:
    group = ledgers(kind=Forgetful)
    found, stats = results(numbers().for_each(Book(group)), Delayed(0, likely=1.0, die=at(11)))
    assert len(found) == 30
    assert any("begins anew: its class has no get_state() and set_state()" in said for said in stats.warnings)
    assert SUMS[-1] - found[-1] == sum(range(1, 11))  # what it had added up before


def test_items_of_an_operator_that_asks_are_left_out_and_counted() -> None:
    group = ledgers(snapshot_every=1)
    with flowrl.run(numbers().for_each(Tally(group)), Delayed(0, likely=1.0, die=at(12)), seed=0) as run:
        found = list(run)
        stats = run.stats()
    assert len(found) + stats.metrics["Tally"].get("items_lost", 0) == 30
    assert stats.metrics["ledgers"]["restarts"] == 1


def test_who_was_to_get_the_answer_misses_it() -> None:
    """The heir's message is done without the tell whose argument died; nobody raises."""
    group = ledgers(snapshot_every=1)
    heirs = flowrl.actor(Ledger, name="heirs")
    for likely in (0.3, 1.0):
        backend = Delayed(1, likely=likely, die=at(9, 20))
        with flowrl.run(numbers().for_each(Pass(group, heirs)), backend, seed=0) as run:
            assert run.step(30) == list(range(1, 31))
            told = run.actors["heirs"][0].ask("book").result()
        assert told[0] == 0
        assert (25 if likely == 1 else 15) <= len(told) <= 31  # some were asked before the death was known


def test_it_dies_too_often() -> None:
    backend = Delayed(0, die=lambda name, n: name == "ledgers[0]" and n >= 9)
    with (
        flowrl.run(numbers().for_each(Book(ledgers())), backend, seed=0) as run,
        pytest.raises(
            ActorDied, match=r"ledgers\[0\] died after 2 restarts: .*described at .*on_failure=Restart"
        ) as at,
    ):
        run.step(30)
    assert any("Book" in note for note in at.value.__notes__)


@pytest.mark.parametrize("policy", [None, Raise()])
def test_where_no_policy_goes_on_the_error_says_where_one_is_said(policy: Any) -> None:
    flow = numbers().for_each(Book(ledgers(on_failure=policy)))
    with (
        flowrl.run(flow, Delayed(0, die=at(5)), seed=0) as run,
        pytest.raises(ActorDied, match=r"flowrl\.actor\(\.\.\., on_failure=Restart\(n\)\) starts it again"),
    ):
        run.step(30)


def test_the_others_go_on_without_one() -> None:
    flow = numbers().for_each(BookLiving(ledgers(3, on_failure=Ignore())))
    with flowrl.run(flow, Delayed(0, likely=1.0, in_order=True), seed=0) as run:
        assert run.step(3) == [3, 3, 3]
        run._engine.backend.kill(run.actors["ledgers"][1])  # type: ignore[attr-defined]
        with pytest.raises(ActorDied):
            run.actors["ledgers"][1].ask("book").result()
        assert run.step(3) == [2, 2, 2]
        assert run.stats().metrics["ledgers"]["actors_lost"] == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"on_failure": "restart"}, r"on_failure must be Restart\(\.\.\.\), Ignore\(\) or Raise\(\), got 'restart'"),
        ({"on_failure": Ignore()}, r"on_failure=Ignore\(\) has nobody to go on with, it is one actor"),
        ({"snapshot_every": 0}, "snapshot_every must be"),
        ({"on_failure": None, "snapshot_every": 3}, r"snapshot_every=3 is for on_failure=Restart\(n\)"),
        ({"kind": Forgetful, "snapshot_every": 3}, r"Forgetful keeps no state: it needs get_state\(\)"),
    ],
)
def test_policies_that_make_no_sense(given: dict[str, Any], said: str) -> None:
    with pytest.raises(GraphError, match=said):
        ledgers(**given)


def learner(**more: Any) -> ActorGroup[Any]:
    return flowrl.actor(Learner, PolicySpec(), PPOLoss(), name="learner", **more)


def test_what_an_operator_says_of_a_group_is_not_said_of_the_group_too() -> None:
    workers = flowrl.actors(RolloutWorker, "CartPole-v1", PolicySpec(), count=1, name="workers", on_failure=Restart(1))
    rollouts = ParallelRollouts(workers).gather_sync()
    with pytest.raises(GraphError, match=r"group 'workers' .* but gather_sync says what the deaths"):
        flowrl.run(rollouts, Local())
    bare = flowrl.actors(RolloutWorker, "CartPole-v1", PolicySpec(), count=1, name="workers")
    batches = ParallelRollouts(bare).for_each(AddAdvantages(0.99, 0.95)).gather_sync()
    trained = batches.for_each(TrainOneStep(learner(on_failure=Restart(1))))
    with pytest.raises(GraphError, match=r"group 'learner' .* but TrainOneStep says what the deaths"):
        flowrl.run(trained, Local())
    judges = flowrl.actor(Evaluator, "CartPole-v1", PolicySpec(), name="judges", on_failure=Restart(1))
    judged = ParallelRollouts(bare).gather_sync().for_each(EvaluateEvery(judges, learner(), env_steps=100))
    with pytest.raises(GraphError, match=r"group 'judges' .* but EvaluateEvery says what the deaths"):
        flowrl.run(judged, Local())


def test_the_drawing_says_it() -> None:
    assert "on_failure=Restart(2, backoff_s=0.01), a snapshot after 4 messages" in " ".join(
        numbers().for_each(Book(ledgers(snapshot_every=4))).explain().split()
    )


def test_after_a_resumption_too(tmp_path: Path) -> None:
    flow = numbers().for_each(Book(ledgers(snapshot_every=1000)))
    with flowrl.run(flow, Local(), seed=0) as run:
        run.step(10)
        run.save(tmp_path / "at-10")
    backend = Delayed(0, likely=1.0, die=at(8))  # long before another snapshot
    with flowrl.run(flow, backend, resume=tmp_path / "at-10") as run:
        found = list(run)
    assert found[0] == SUMS[10]
    assert min(found) > SUMS[9]  # it never went back behind what the checkpoint had


SMALL = LeaguePlayConfig(
    num_workers=2, envs_per_worker=4, unroll=16, opponents=2, snapshot_every_updates=1,
    on_league_failure=Restart(5, backoff_s=0.01),
    ppo=PPOConfig(batch_steps=64, minibatch=32, epochs=1, policy=PolicySpec(hidden=(8,))),
)  # fmt: skip
ALL_KINDS = {"main": "main", "exploiter": "main_exploiter", "rest": "league_exploiter"}


@pytest.mark.parametrize("players", [SMALL.players, ALL_KINDS], ids=["one", "three"])
@pytest.mark.parametrize("likely", [0.4, 1.0])
def test_a_league_goes_on(likely: float, players: dict[str, str]) -> None:
    died: list[int] = []

    def die(actor: str, n: int) -> bool:
        if actor == "league[0]" and n in (15, 41, 60):
            died.append(n)
            return True
        return False

    cfg = replace(SMALL, players=players, exploiter_updates=2)
    with flowrl.run(cfg.graph(), Delayed(3, likely=likely, die=die), seed=1) as run:
        summaries = run.step(30)
        stats = run.stats()
        snapshots = run.actors["league"][0].ask("snapshots").result()
    assert died == [15, 41, 60]
    assert stats.metrics["league"]["restarts"] == 3
    steps = [summary.env_steps for summary in summaries]
    assert steps == sorted(steps)
    assert len(snapshots) >= 8  # of before too: it did not begin anew


def test_a_league_without_its_policy_stops_the_run() -> None:
    cfg = replace(SMALL, on_league_failure=Raise())
    with (
        flowrl.run(cfg.graph(), Delayed(3, die=lambda a, n: a == "league[0]" and n == 15), seed=1) as run,
        pytest.raises(ActorDied, match=r"league\[0\] died"),
    ):
        run.step(30)
    with pytest.raises(ValueError, match="on_league_failure must be one of"):
        replace(SMALL, on_league_failure=Ignore())  # type: ignore[arg-type]


def process_of(actor: Any) -> int:
    return os.getpid()


@pytest.mark.ray
def test_a_killed_league_on_ray(ray_session: None) -> None:
    with flowrl.run(SMALL.graph(), Ray(), seed=1) as run:
        run.step(12)
        before = run.actors["league"][0].ask("snapshots").result()
        os.kill(run.actors["league"][0].ask(process_of).result(), signal.SIGKILL)
        while run.stats().metrics.get("league", {}).get("restarts", 0) == 0:
            run.step(1)
        run.step(12)
        after = run.actors["league"][0].ask("snapshots").result()
        assert len(after) > len(before) - 6
        kept = set(before) & set(after)
        assert len(kept) >= len(before) - 6
        assert all((before[name] == after[name]).all() for name in list(before)[: len(before) - 6])


@pytest.mark.ray
@pytest.mark.parametrize("between", [False, True], ids=["at-hand", "between"])
def test_a_killed_ledger_on_ray(ray_session: None, between: bool) -> None:
    """Killed by the item at hand, or between two items."""
    group = flowrl.actors(Ledger, count=2, name="ledgers", on_failure=Restart(3), snapshot_every=2)
    heirs = flowrl.actor(Ledger, name="heirs")
    flow = numbers().for_each(Book(group)).for_each(Pass(group, heirs))
    with flowrl.run(flow, Ray(), seed=0) as run:
        found = run.step(10)
        victim = run.actors["ledgers"][0]
        pid = victim.ask("process").result()
        os.kill(pid, signal.SIGKILL)
        if between:
            with pytest.raises(ActorDied):
                [victim.ask("book").result() for _ in range(10_000)]
        found += run.step(20)
        assert len(found) == 30
        assert run.stats().metrics["ledgers"]["restarts"] == 1
        assert victim.ask("process").result() != pid
        book = victim.ask("book").result()
    assert max(book) > 10
    assert book[0] == 1  # of its first life
