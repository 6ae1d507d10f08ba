"""Ctrl-C: a script ends and leaves nothing behind; a cell pauses and loses nothing."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import psutil
import pytest

import flowrl
from flowrl.backends.protocol import Backend
from flowrl.engine.core import GRACE_S

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import os, time
import flowrl
class Slow:
    def sample(self):
        time.sleep(600)
flow = flowrl.from_actors(flowrl.actors(Slow, count=2, name="slow"), "sample").gather_{mode}()
with flowrl.run(flow, flowrl.Ray("local")) as run:
    print("up", flush=True)
    next(run)
"""


@pytest.mark.ray
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_script_ends_and_leaves_no_process(mode: str) -> None:
    script = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(mode=mode)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert script.stdout is not None
    assert script.stdout.readline() == "up\n"
    tree = psutil.Process(script.pid).children(recursive=True)
    assert tree
    sent = monotonic()
    script.send_signal(signal.SIGINT)
    _, stderr = script.communicate(timeout=30)
    assert monotonic() - sent < 5
    assert "KeyboardInterrupt" in stderr
    assert script.returncode != 0
    _, alive = psutil.wait_procs(tree, timeout=20)
    assert not alive, alive


def numbers(n: int, hit: set[int]) -> flowrl.Flow[int]:
    """0 to n − 1; a SIGINT in the middle of the items in `hit`, each once."""

    def strike(x: int) -> None:
        if x in hit:
            hit.discard(x)
            signal.raise_signal(signal.SIGINT)

    return flowrl.from_items(range(n), num_shards=1).gather_sync().tap(strike)


@pytest.mark.parametrize("step", [1, 3, 100])
def test_items_come_exactly_once_however_often_one_interrupts(backend: Backend, step: int) -> None:
    items: list[int] = []
    interrupts = 0
    with flowrl.run(numbers(20, {0, 5, 6, 19}), backend) as run:
        while len(items) < 20:
            try:
                items.extend(run.step(step))
            except KeyboardInterrupt:
                interrupts += 1
        assert run.step(1) == []
        assert not run.closed
    assert items == list(range(20))
    assert interrupts == 4


def struck_at(event: int, move: Callable[[flowrl.Run[int], list[int]], None]) -> tuple[list[int], int, bool]:
    """(items, interrupts, struck) of 0 and 1, with a SIGINT at one of the points where Python heeds signals."""
    items: list[int] = []
    events = interrupts = 0

    def profile(frame: Any, kind: str, arg: Any) -> None:
        nonlocal events
        if kind in ("call", "c_return"):  # a signal is heeded as a function begins, and when one in C has returned
            events += 1
            if events == event:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGINT)

    run = flowrl.run(flowrl.from_items(range(2), num_shards=1).gather_sync(), flowrl.Local())
    while len(items) < 2:
        try:
            sys.setprofile(profile)
            move(run, items)
        except KeyboardInterrupt:
            interrupts += 1
            assert not run.closed
        finally:
            sys.setprofile(None)
    try:
        run.close()
    except KeyboardInterrupt:  # it came as the last pull ended
        interrupts += 1
    return items, interrupts, events >= event


def by_for(run: flowrl.Run[int], items: list[int]) -> None:
    for item in run:
        items.append(item)


def by_step(run: flowrl.Run[int], items: list[int]) -> None:
    items += run.step(2)


@pytest.mark.parametrize("move", [by_for, by_step])
def test_an_interrupt_at_any_point_loses_nothing(move: Any) -> None:
    for event in itertools.count(1):
        items, interrupts, struck = struck_at(event, move)
        assert items == [0, 1], event
        if not struck:
            break
        assert interrupts == 1, event
    assert event > 100


def test_the_first_interrupt_says_what_it_waits_for(local: Backend, capfd: pytest.CaptureFixture[str]) -> None:
    with flowrl.run(numbers(3, {1}), local) as run, pytest.raises(KeyboardInterrupt):
        run.step(3)
    said = capfd.readouterr().err
    assert said == "flowrl: interrupted, finishing the item at hand; press Ctrl-C again to stop at once\n"


def test_an_interrupt_without_a_stderr(local: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with flowrl.run(numbers(3, {1}), local) as run:
        with pytest.raises(KeyboardInterrupt):
            run.step(3)
        assert run.step(3) == [0, 1, 2]


def test_a_filter_that_lets_nothing_pass_is_interrupted(local: Backend) -> None:
    def strike(x: int) -> bool:
        if x == 5:
            signal.raise_signal(signal.SIGINT)
        assert x < 10, "nobody listens"
        return False

    with flowrl.run(flowrl.from_iterable(itertools.count).filter(strike), local) as run:
        with pytest.raises(KeyboardInterrupt):
            next(run)
        assert not run.closed  # between two items


def test_an_interrupt_at_the_very_end_is_raised_too(local: Backend) -> None:
    def strike() -> Any:
        yield 1
        signal.raise_signal(signal.SIGINT)

    with flowrl.run(flowrl.from_iterable(strike), local) as run:
        assert next(run) == 1
        with pytest.raises(KeyboardInterrupt):
            next(run)
        assert list(run) == []


def test_a_second_interrupt_raises_at_once_and_closes(local: Backend) -> None:
    def twice(x: int) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("the second went by")

    run = flowrl.run(flowrl.from_items([1], num_shards=1).gather_sync().tap(twice), local)
    with pytest.raises(KeyboardInterrupt):
        next(run)
    assert run.closed  # an item was torn


class Slow:
    """Answers when it is let."""

    def wait_for(self, path: str) -> str:
        while not os.path.exists(path):
            threading.Event().wait(0.01)
        return path

    def at_once(self) -> int:
        return 1


@pytest.fixture
def struck(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Once set by a wait, the main thread gets a SIGINT."""
    go = threading.Event()
    main = threading.main_thread().ident
    assert main is not None

    def strike() -> None:
        go.wait()
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=strike, daemon=True).start()
    return go


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_interrupt_while_waiting_for_a_shard_pauses(
    ray_session: None, tmp_path: Path, struck: threading.Event, mode: str
) -> None:
    path = tmp_path / "open"
    source = flowrl.from_actors(flowrl.actor(Slow, name="slow"), "wait_for", str(path))
    flow = source.gather_sync() if mode == "sync" else source.gather_async(num_async=1)
    with flowrl.run(flow, flowrl.Ray()) as run:
        poll = run._engine.backend.poll

        def signalled(*args: Any) -> Any:
            struck.set()
            return poll(*args)

        run._engine.backend.poll = signalled  # type: ignore[method-assign]
        began = monotonic()
        with pytest.raises(KeyboardInterrupt):
            run.step(1)
        assert monotonic() - began < 3
        path.touch()
        assert run.step(2) == [str(path)] * 2
        assert run._engine.accounts.groups["slow"].calls == 2


def test_an_operator_that_waits_gets_a_grace(ray_session: None, tmp_path: Path, struck: threading.Event) -> None:
    """Interrupted in the middle of an item, an operator may finish it: the answer comes, and then the run pauses."""
    path = tmp_path / "open"

    def ask_there(value: int, ctx: flowrl.Context) -> Any:
        pending = ctx.origins[0].ask("wait_for", str(path))
        if not path.exists():
            struck.set()
            threading.Timer(0.5, path.touch).start()
        return pending.result()

    flow = flowrl.from_actors(flowrl.actor(Slow, name="slow"), "at_once").gather_sync().for_each(ask_there)
    with flowrl.run(flow, flowrl.Ray()) as run:
        with pytest.raises(KeyboardInterrupt):
            run.step(1)
        assert not run.closed
        assert run.step(2) == [str(path)] * 2
        assert run.stats().nodes["from_actors"].items == 2


def test_an_operator_that_waits_too_long_is_torn(ray_session: None, tmp_path: Path, struck: threading.Event) -> None:
    def ask_there(value: int, ctx: flowrl.Context) -> Any:
        pending = ctx.origins[0].ask("wait_for", str(tmp_path / "never"))
        struck.set()
        return pending.result()

    flow = flowrl.from_actors(flowrl.actor(Slow, name="slow"), "at_once").gather_sync().for_each(ask_there)
    run = flowrl.run(flow, flowrl.Ray())
    began = monotonic()
    with pytest.raises(KeyboardInterrupt):
        run.step(1)
    assert GRACE_S - 1 < monotonic() - began < GRACE_S + 5
    assert run.closed


def test_the_users_own_handler_is_left_alone(local: Backend) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        with flowrl.run(numbers(3, {1}), local) as run:
            assert run.step(3) == [0, 1, 2]
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.SIGINT]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_closed_run_leaves_pythons_handler(local: Backend) -> None:
    run = flowrl.run(numbers(3, set()), local)
    pending = run.actors["from_items-shards"][0].ask("next_item")
    assert run.step(1) == [1]
    run.close()
    with pytest.raises(flowrl.FlowError, match="closed"):
        run.step(1)
    assert run.step(0) == []
    with pytest.raises(flowrl.FlowError, match="the run is closed; the call 'next_item'"):
        pending.result()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def pull_until_closed(run: flowrl.Run[Any]) -> None:
    with pytest.raises(flowrl.FlowError):
        next(run)


def test_a_run_that_its_thread_closed_leaves_pythons_handler(local: Backend) -> None:
    began = threading.Event()
    run = flowrl.run(flowrl.from_iterable(itertools.count).filter(lambda x: x < 1 or began.set()), local)
    assert next(run) == 0
    mover = threading.Thread(target=pull_until_closed, args=(run,))
    mover.start()
    assert began.wait(30)
    run.close()
    mover.join(30)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_while_another_thread_moves_the_run_is_raised_at_once(
    local: Backend, struck: threading.Event
) -> None:
    began = threading.Event()
    run = flowrl.run(flowrl.from_iterable(itertools.count).filter(lambda x: bool(began.set())), local)
    mover = threading.Thread(target=pull_until_closed, args=(run,))
    mover.start()
    assert began.wait(30)

    def pull_as_it_strikes() -> None:
        struck.set()
        next(run)

    with pytest.raises(KeyboardInterrupt):
        pull_as_it_strikes()
    assert not run.closed
    run.close()
    mover.join(30)


def test_an_operator_that_closes_another_run_is_not_torn(local: Backend) -> None:
    other = flowrl.run(numbers(3, set()), local)
    assert other.step(1) == [0]

    def close_and_strike(x: int) -> int:
        if x == 1:
            other.close()
            signal.raise_signal(signal.SIGINT)
        return x

    with flowrl.run(numbers(3, set()).for_each(close_and_strike), local) as run:
        with pytest.raises(KeyboardInterrupt):
            run.step(3)
        assert run.step(3) == [0, 1, 2]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("stop", [signal.SIGINT, SystemExit(3)])
def test_whatever_stops_an_operators_close_the_rest_is_closed(local: Backend, stop: Any) -> None:
    closed: list[str] = []

    @dataclass
    class Closing(flowrl.Operator[int, int]):
        name: str

        def process(self, value: int, ctx: flowrl.Context) -> Iterable[int]:
            yield value

        def close(self) -> None:
            closed.append(self.name)
            if self.name == "a" and isinstance(stop, SystemExit):
                raise stop
            if self.name == "a":
                signal.raise_signal(stop)

    flow = flowrl.from_items([1], num_shards=1).for_each(Closing("shard")).gather_sync()
    run = flowrl.run(flow.for_each(Closing("a")).for_each(Closing("b")), local)
    assert run.step(1) == [1]
    if stop is signal.SIGINT:
        with pytest.raises(KeyboardInterrupt):
            run.close()
    else:
        run.close()
    assert run.closed
    assert closed == ["a", "b", "shard"]
    run.close()  # the interrupt was told once
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
