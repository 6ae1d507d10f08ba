"""Groups with a failure policy of their own, where more than one thing goes wrong: nothing hangs or is lost unsaid."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowrl
from flowrl import ActorGroup, Flow, Ignore, Local, Operator, Restart
from flowrl.backends.protocol import GroupPlan, Sent
from flowrl.errors import ActorDied, FlowError, PayloadLost
from flowrl.handles import ActorHandle, Pending
from flowrl.operator import AskOperator, Context
from flowrl.testing import Delayed
from tests.engine.test_revived import SUMS, Book, Entries, Forgetful, Ledger, Tally, at, ledgers, numbers


class NoSecondLife(Ledger):
    def __init__(self, incarnation: int = 0):
        super().__init__()
        if incarnation:
            raise RuntimeError("no second life")


class TakesNothing(Ledger):
    def set_state(self, state: dict[str, Any]) -> None:
        raise KeyError("another format")


@dataclass
class Greets(Operator[int, int]):
    """As Book, and each that comes up is told what the others have."""

    ledgers: ActorGroup[Any]

    def process(self, value: int, ctx: Context) -> Iterable[int]:
        yield max(one.ask("add", value).result() for one in ctx.actors(self.ledgers))

    def actor_started(self, handle: ActorHandle[Any], ctx: Context) -> None:
        if handle.group == self.ledgers.name:
            for other in ctx.actors(self.ledgers):
                other.ask("book").result()


@dataclass
class Tells(Operator[int, int]):
    ledgers: ActorGroup[Any]

    def process(self, value: int, ctx: Context) -> Iterable[int]:
        ctx.actors(self.ledgers)[0].tell("note", value)
        yield value


@dataclass
class ByReference(Operator[int, Any]):
    ledgers: ActorGroup[Any]

    def process(self, value: int, ctx: Context) -> Iterable[Any]:
        yield ctx.actors(self.ledgers)[0].ask("add", value).ref


@dataclass
class Relay(AskOperator[int, int]):
    """What a group's first answers goes to an heir."""

    ledgers: ActorGroup[Any]
    heirs: ActorGroup[Any]
    in_flight: int = 4

    def ask(self, value: Any, ctx: Context) -> Pending[int]:
        total = ctx.actors(self.ledgers)[0].ask("add", value)
        return ctx.actors(self.heirs)[0].ask("add", total)


def plus_one(value: int) -> int:
    return value + 1


def patient(backoff_s: float) -> ActorGroup[Any]:
    return ledgers(on_failure=Restart(2, backoff_s=backoff_s), snapshot_every=2)


# ---------------------------------------------------------------- on its way up


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("kind", "error", "said"),
    [(NoSecondLife, RuntimeError, "no second life"), (TakesNothing, KeyError, "another format")],
)
def test_what_fails_as_it_comes_up_is_raised_as_it_is(kind: Any, error: type[Exception], said: str) -> None:
    with (
        flowrl.run(numbers().for_each(Book(ledgers(kind=kind))), Delayed(0, die=at(9)), seed=0) as run,
        pytest.raises(error, match=said) as raised,
    ):
        run.step(30)
    notes = " ".join(raised.value.__notes__)
    assert "ledgers[0]" in notes
    assert "Book" in notes
    assert kind is NoSecondLife or "set_state()" in notes


@pytest.mark.timeout(60)
def test_two_that_come_up_at_once_and_ask_each_other() -> None:
    """Both answers, that they are up, are seen in one look, where chance has it."""
    group = ledgers(2, snapshot_every=2, on_failure=Restart(2, backoff_s=0.0))
    flow = flowrl.from_items(list(range(1, 31)), num_shards=1).gather_async().for_each(Greets(group))
    for seed in range(12):
        backend = Delayed(seed, likely=0.3)
        with flowrl.run(flow, backend, seed=0) as run:
            run.step(3)
            for one in run.actors["ledgers"]:
                backend.kill(one)
                with pytest.raises(ActorDied):
                    one.ask("book").result()
            assert len(run.step(27)) == 27
            assert run.stats().metrics["ledgers"]["restarts"] == 2


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_before_the_first_item(n: int) -> None:
    flow = numbers().for_each(Greets(ledgers(2)))
    with flowrl.run(flow, Delayed(0, die=at(n, actor="ledgers[1]")), seed=0) as run:
        assert run.step(30) == SUMS
        (said,) = run.stats().warnings
    assert "begins anew: no state of it was known yet" in said


def test_the_time_for_an_answer_counts_the_time_until_it_is_up() -> None:
    @dataclass
    class Hurried(Book):
        def process(self, value: int, ctx: Context) -> Iterable[int]:
            yield ctx.actors(self.ledgers)[0].ask("add", value).result(timeout_s=1.0)

    with (
        flowrl.run(numbers().for_each(Hurried(patient(100.0))), Delayed(0, die=at(9)), seed=0) as run,
        pytest.raises(TimeoutError, match=r"ledgers\[0\], which is being started again, was not up within"),
    ):
        run.step(30)


class Interrupted(Delayed):
    """Ctrl-C comes as soon as a wait is for the time alone."""

    pressed = False

    def poll(self, sent: Sequence[Sent], timeout_s: float | None) -> list[Sent]:
        if not sent and not self.pressed:
            self.pressed = True
            signal.raise_signal(signal.SIGINT)
        return super().poll(sent, timeout_s)


@pytest.mark.parametrize("backoff_s", [1.0, 1000.0])
def test_an_interrupt_while_an_operator_waits_for_it(backoff_s: float) -> None:
    """Within the grace the item comes and is kept; else the run ends."""
    with flowrl.run(numbers().for_each(Book(patient(backoff_s))), Interrupted(0, die=at(9)), seed=0) as run:
        with pytest.raises(KeyboardInterrupt):
            run.step(30)
        assert run.closed == (backoff_s > 3)
        if not run.closed:
            assert len(run.step(30)) == 30


@pytest.mark.timeout(60)
def test_a_run_that_is_closed_while_an_operator_waits_for_it() -> None:
    waits, never = threading.Event(), threading.Event()
    again: list[int] = []

    class Held(Delayed):
        def poll(self, sent: Sequence[Sent], timeout_s: float | None) -> list[Sent]:
            while not sent and not run._engine.closing:
                waits.set()
                never.wait(0.01)
            return super().poll(sent, timeout_s)

        def restart(self, actor: Any, plan: GroupPlan, index: int) -> Any:
            again.append(index)
            return super().restart(actor, plan, index)

    run = flowrl.run(numbers().for_each(Book(patient(1e6))), Held(0, die=at(9)), seed=0)
    moving = run.background()
    assert waits.wait(30)
    run.close()
    assert moving.stop(30)
    assert moving.error is None
    assert not again


def test_who_asks_from_outside_while_it_is_away_is_told_what_to_do() -> None:
    backend = Delayed(0, likely=1.0)
    with flowrl.run(numbers().for_each(Book(ledgers())), backend, seed=0) as run:
        run.step(2)
        (ledger,) = run.actors["ledgers"]
        backend.kill(ledger)
        for _ in range(2):
            with pytest.raises(ActorDied, match="ask it again once it is up"):
                ledger.ask("book").result()
            run._engine.lives.settle_deaths()
        ledger.tell("note", 1000)  # waits for it
        run.step(2)
        assert 1000 in ledger.ask("book").result()


# ---------------------------------------------------------------- what is kept, and what is said to be lost


def test_its_state_is_kept_where_nobody_waits_for_anything_else() -> None:
    flow = flowrl.from_iterable(lambda: range(1, 31)).for_each(Book(ledgers(snapshot_every=2)))
    with flowrl.run(flow, Delayed(0, die=at(35)), seed=0) as run:
        found = run.step(30)
    assert SUMS[-1] - found[-1] <= 20 + 21 + 22 + 23 + 24
    assert found[-1] < SUMS[-1]


@settings(max_examples=30, deadline=None)
@given(dies=st.integers(3, 60), every=st.integers(1, 8), seed=st.integers(0, 1000), likely=st.sampled_from([0.2, 1.0]))
def test_no_more_is_lost_than_is_said(dies: int, every: int, seed: int, likely: float) -> None:
    backend = Delayed(seed, likely=likely, die=at(dies))
    with flowrl.run(numbers().for_each(Entries(ledgers(snapshot_every=every))), backend, seed=0) as run:
        book = run.step(30)[-1]
        said = [warning.split("up to ")[1] for warning in run.stats().warnings if "up to " in warning]
    assert len(set(book)) == len(book)
    assert 30 - len(book) <= sum(int(most.split()[0]) for most in said) or "begins anew" in run.stats().warnings[0]


def test_one_that_is_only_told_outlives_any_number_of_deaths_far_apart() -> None:
    deaths = (20, 60, 110, 170, 240)
    flow = numbers(400).for_each(Tells(ledgers(snapshot_every=2)))
    with flowrl.run(flow, Delayed(0, die=at(*deaths)), seed=0) as run:
        assert len(run.step(400)) == 400
        assert run.stats().metrics["ledgers"]["restarts"] == len(deaths)
        book = run.actors["ledgers"][0].ask("book").result()
    assert len(set(book)) == len(book) >= 370


def test_what_had_not_been_sent_is_for_its_next_life() -> None:
    backend = Delayed(0, likely=1.0)
    with flowrl.run(numbers().for_each(Book(ledgers())), backend, seed=0) as run:
        run.step(2)
        (ledger,), calls = run.actors["ledgers"], run._engine.calls
        backend.kill(ledger)
        with pytest.raises(ActorDied):
            ledger.ask("book").result()
        calls.tell(run._engine.state_of(ledger), "note", (1000,), {}, "Book", held=True)
        run.step(2)
        assert 1000 in ledger.ask("book").result()


@pytest.mark.parametrize(("kind", "goes_on"), [(Ledger, True), (Forgetful, False)])
def test_of_what_a_function_makes_the_state_is_kept_too(kind: Any, goes_on: bool) -> None:
    flow = numbers().for_each(Book(ledgers(kind=lambda: kind(), snapshot_every=2)))
    with flowrl.run(flow, Delayed(0, likely=1.0, die=at(25)), seed=0) as run:
        found = run.step(30)
        (said,) = run.stats().warnings
    assert ("goes on from its last snapshot" in said) == goes_on
    assert ("begins anew: its class has no get_state()" in said) != goes_on
    assert (found[-1] > 400) == goes_on


def test_an_item_that_is_an_answer_is_left_out_and_counted() -> None:
    flow = numbers().for_each(ByReference(ledgers(snapshot_every=2))).for_each(plus_one)
    for likely in (0.4, 1.0):
        with flowrl.run(flow, Delayed(0, likely=likely, die=at(9)), seed=0) as run:
            assert len(run.step(30)) == 29
            assert run.stats().metrics["plus_one"]["items_lost"] == 1


def test_a_reference_that_the_driver_looks_at_says_who_would_ask_again() -> None:
    @dataclass
    class Looks(Book):
        def process(self, value: int, ctx: Context) -> Iterable[int]:
            yield ctx.actors(self.ledgers)[0].ask("add", value).ref.get()

    with (
        flowrl.run(numbers().for_each(Looks(ledgers())), Delayed(0, die=at(9)), seed=0) as run,
        pytest.raises(PayloadLost, match=r"ledgers\[0\] cannot answer 'add'.*only \.result\(\) of a Pending asks"),
    ):
        run.step(30)


def test_one_that_is_left_out_is_not_asked_item_by_item() -> None:
    with flowrl.run(
        numbers(3000).for_each(Tally(ledgers(3, on_failure=Ignore()))), Delayed(0, likely=1.0, die=at(5)), seed=0
    ) as run:
        with pytest.raises(ActorDied, match=r"ledgers\[0\] cannot answer 'add'.*ctx\.living\(group\)"):
            run.step(3000)
        assert run.stats().metrics["Tally"]["items_lost"] == 1


# ---------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("n", [2, 3])
def test_in_a_resumed_run_it_never_begins_anew(tmp_path: Path, n: int) -> None:
    flow: Flow[int] = numbers().for_each(Book(ledgers()))
    with flowrl.run(flow, Local(), seed=0) as run:
        run.step(10)
        run.save(tmp_path / "at-10")
    backend = Delayed(0, likely=1.0, die=at(n))
    if n == 2:  # get_state
        with pytest.raises(ActorDied, match=r"before what the checkpoint had given it was kept; resume once more"):
            flowrl.run(flow, backend, resume=tmp_path / "at-10")
    else:
        with flowrl.run(flow, backend, resume=tmp_path / "at-10") as run:
            assert next(run) == SUMS[10]


@pytest.mark.parametrize("dies", [5, 6, 7])
def test_what_was_missed_as_the_run_was_saved_is_missed_in_the_resumed_one(tmp_path: Path, dies: int) -> None:
    flow = numbers().for_each(Relay(ledgers(), flowrl.actor(Ledger, name="heirs")))
    with flowrl.run(flow, Delayed(1, likely=0.3, die=at(dies)), seed=0) as run:
        before = run.step(3)
        run.save(tmp_path / "at-3")
    with flowrl.run(flow, Local(), resume=tmp_path / "at-3") as run:
        after = list(run)
        lost = run.stats().metrics["Relay"]["items_lost"]
    assert lost >= 1
    assert len(before) + len(after) + lost == 30


def test_one_that_had_died_for_good_is_back_without_its_state_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @dataclass
    class BookLiving(Book):
        def process(self, value: int, ctx: Context) -> Iterable[int]:
            yield len([one.ask("add", value).result() for one in ctx.actors(self.ledgers) if ctx.up(one)])

    flow = numbers().for_each(BookLiving(ledgers(2, on_failure=Ignore())))
    backend = Delayed(0, likely=1.0)
    with flowrl.run(flow, backend, seed=0) as run:
        assert run.step(2) == [2, 2]
        backend.kill(run.actors["ledgers"][1])
        with pytest.raises(ActorDied):
            run.actors["ledgers"][1].ask("book").result()
        assert run.step(2) == [1, 1]
        run.save(tmp_path / "at-4")
    assert "begin anew" not in caplog.text
    with flowrl.run(flow, Local(), resume=tmp_path / "at-4") as run:
        assert run.step(2) == [2, 2]
    assert "ledgers[1] had died before it was saved" in caplog.text


def test_a_closed_run_says_so_to_who_holds_a_handle() -> None:
    run = flowrl.run(numbers().for_each(Book(ledgers())), Local(), seed=0)
    (ledger,) = run.actors["ledgers"]
    run.close()
    with pytest.raises(FlowError, match="the run is closed"):
        ledger.ask("book")
