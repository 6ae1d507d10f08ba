"""A run in the background: paused, looked at, resumed, stopped; errors surface."""

from __future__ import annotations

import re
import threading
from time import monotonic
from typing import Any

import pytest

import flowrl
from flowrl.backends.protocol import Backend
from flowrl.engine.run import CLOSING_S
from flowrl.engine.turns import between_items
from flowrl.errors import FlowError

LONG_S = 30


class Source:
    """Counts; may fail or stand still."""

    def __init__(self, fails: int = 0):
        self.count, self.fails = 0, fails

    def sample(self) -> int:
        self.count += 1
        if self.count == self.fails:
            raise LookupError(f"failed at {self.count}")
        return self.count

    def so_far(self) -> int:
        return self.count

    def stand_still(self) -> None:
        threading.Event().wait()


def flow(fails: int = 0, method: str = "sample") -> flowrl.Flow[int]:
    return flowrl.from_actors(flowrl.actor(Source, fails, name="source"), method).gather_sync()


def test_pause_step_resume_stop(backend: Backend) -> None:
    with flowrl.run(flow(), backend) as run:
        handle = run.background()
        handle.wait(5, LONG_S)
        with pytest.raises(FlowError, match="moves on in the background; pause or stop"):
            run.step()
        with pytest.raises(FlowError, match="in the background already"):
            run.background()
        assert run.actors["source"][0].ask("so_far").result() >= 5  # meanwhile
        assert run.stats().nodes["gather_sync"].items >= 5
        last = handle.pause(LONG_S)
        assert not handle.driving
        assert last == handle.count
        assert run.step(2) == [last + 1, last + 2]  # nothing lost between
        handle.resume()
        assert handle.driving
        handle.wait(last + 5, LONG_S)
        assert handle.stop(LONG_S)
        assert handle.stop(LONG_S)  # again
        count = handle.latest
        assert run.step(1) == [count + 1]
        again = run.background()
        again.wait(3, LONG_S)


def test_join_waits_for_the_end(backend: Backend) -> None:
    with flowrl.run(flow().take(20), backend) as run:
        handle = run.background()
        assert handle.join(LONG_S) == 20
        assert handle.count == 20
        assert handle.done
        assert run.step() == []


@pytest.mark.parametrize("act", ["pause", "join", "wait"])
def test_an_operator_does_not_wait_for_its_own_thread(local: Backend, act: str) -> None:
    held: dict[str, Any] = {}
    ready = threading.Event()

    def wait_for_itself(x: int) -> int:
        ready.wait(LONG_S)
        getattr(held["handle"], act)(*([10] if act == "wait" else []))
        return x

    run = flowrl.run(flow().for_each(wait_for_itself), local)
    held["handle"] = handle = run.background()
    ready.set()
    with pytest.raises(FlowError, match=f"an operator of this run cannot {act} its background"):
        handle.join(LONG_S)
    run.close()


def test_a_new_handle_ends_the_thread_of_a_paused_one(local: Backend) -> None:
    run = flowrl.run(flow(), local)
    first = run.background()
    first.pause(LONG_S)
    second = run.background()
    assert not first._thread.is_alive()
    second.wait(first.count + 3, LONG_S)
    run.close()
    assert not second._thread.is_alive()


def test_errors_surface_wherever_one_waits(local: Backend) -> None:
    run = flowrl.run(flow(fails=4), local)
    handle = run.background()
    with pytest.raises(LookupError, match="failed at 4"):
        handle.join(LONG_S)
    with pytest.raises(LookupError, match="failed at 4"):
        handle.wait(100, LONG_S)
    with pytest.raises(LookupError, match="failed at 4"):
        handle.pause(LONG_S)
    assert handle.count == 3
    assert run.closed
    with pytest.raises(FlowError, match="stopped by LookupError"):
        run.step()


def test_waiting_for_too_long(ray_session: None) -> None:
    with flowrl.run(flow(method="stand_still"), flowrl.Ray()) as run:
        handle = run.background()
        with pytest.raises(TimeoutError, match=r"0 of 1 items have come within 0.01 s"):
            handle.wait(1, 0.01)
        with pytest.raises(TimeoutError, match="has not ended within"):
            handle.join(0.01)
        with pytest.raises(TimeoutError, match="not come to the end of an item"):
            handle.pause(0.01)


@pytest.mark.parametrize("timeout_s", [float("nan"), -1, "5"])
@pytest.mark.parametrize("act", ["pause", "join", "wait", "stop"])
def test_a_timeout_that_is_no_number_of_seconds_is_refused(local: Backend, act: str, timeout_s: Any) -> None:
    with flowrl.run(flow(), local) as run:
        handle = run.background()
        told = re.escape(f"a number of seconds of at least 0, or None for no limit, got {timeout_s!r}")
        with pytest.raises(ValueError, match=told):
            getattr(handle, act)(*([1] if act == "wait" else []), timeout_s=timeout_s)
        assert handle.driving  # nothing was done
        handle.wait(handle.count + 1, LONG_S)


def test_an_infinite_timeout_is_no_limit(local: Backend) -> None:
    with flowrl.run(flow().take(9), local) as run:
        handle = run.background()
        assert handle.wait(3, float("inf")) is not None
        assert handle.join(float("inf")) == 9
        assert handle.stop(float("inf"))


def test_close_while_it_waits_for_an_actor_that_stands_still(ray_session: None) -> None:
    run = flowrl.run(flow(method="stand_still"), flowrl.Ray())
    handle = run.background()
    run.close()
    handle._thread.join(LONG_S)
    assert handle.done
    assert handle.error is None  # it was closed, which is no failure
    assert run.closed


def test_close_while_no_item_comes_out(local: Backend) -> None:
    """Its item never ends, so close() must not give it time to."""
    dropped = threading.Event()

    def drop(x: int) -> bool:
        dropped.set()
        return False

    run = flowrl.run(flow().filter(drop), local)
    handle = run.background()
    assert dropped.wait(LONG_S)
    before = monotonic()
    run.close()
    assert monotonic() - before < CLOSING_S / 2
    assert handle.done
    assert handle.error is None


def test_close_while_it_moves(backend: Backend) -> None:
    run = flowrl.run(flow(), backend)
    handle = run.background()
    handle.wait(3, LONG_S)
    run.close()
    assert handle.done
    assert handle.error is None
    with pytest.raises(FlowError, match="this run is closed"):
        next(run)


def test_stop_while_paused(local: Backend) -> None:
    with flowrl.run(flow(), local) as run:
        handle = run.background()
        handle.wait(1, LONG_S)
        handle.pause(LONG_S)
        assert handle.stop(LONG_S)
        assert handle.done
        handle.resume()  # too late, and without effect
        assert not handle.driving
        assert run.step(1)


def test_many_pauses(local: Backend) -> None:
    """However pause and resume interleave, each item comes once."""
    seen: list[Any] = []
    with flowrl.run(flow().tap(seen.append), local) as run:
        handle = run.background()
        for _ in range(200):
            handle.pause(LONG_S)
            run.step(1)
            handle.resume()
        handle.stop(LONG_S)
        run.step(1)
    assert seen == list(range(1, len(seen) + 1))


def test_another_thread_comes_in_after_the_item_at_hand(local: Backend) -> None:
    """Otherwise the background, which wants its next item at once, keeps a save or a resize out for good."""
    made: list[flowrl.Run[int]] = []
    seen: list[int] = []
    begun = threading.Event()

    def look(item: int) -> None:
        seen.append(item)
        begun.set()
        while item == 1 and not made[0]._turn._waiting:
            threading.Event().wait(0.001)

    with flowrl.run(flow().tap(look), local) as run:
        made.append(run)
        handle = run.background()
        assert begun.wait(LONG_S)
        with between_items(run, "look at it"):
            assert seen == [1]
        handle.wait(5, LONG_S)
