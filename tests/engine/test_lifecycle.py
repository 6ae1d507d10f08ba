"""Starting, running side by side, ending: nothing is left behind, whichever way a run ends."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

import numpy as np
import psutil
import pytest

import flowrl
from flowrl import Flow
from flowrl.backends.protocol import Backend
from flowrl.errors import FlowError, GraphError, StartError


class Source:
    """Counts, and knows what it was made with."""

    def __init__(self, offset: int = 0, *, index: int, count: int, seed: int):
        self.offset, self.made = offset, (index, count, seed)
        self.count = 0

    def sample(self) -> int:
        self.count += 1
        return self.offset + self.count

    def pid(self) -> int:
        return os.getpid()

    def made_with(self) -> tuple[int, int, int]:
        return self.made


def sources(count: int = 1, offset: int = 0, name: str = "sources") -> Flow[int]:
    return flowrl.from_actors(flowrl.actors(Source, offset, count=count, name=name), "sample").gather_sync()


def pids_of(run: flowrl.Run[Any]) -> list[int]:
    return [handle.ask("pid").result() for handles in run.actors.values() for handle in handles]


def gone(pids: list[int], within_s: float = 20) -> bool:
    """Whether the processes end in time."""
    left = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    _, alive = psutil.wait_procs(left, timeout=within_s)
    return not alive


def test_composing_starts_nothing() -> None:
    def boom() -> Any:
        raise AssertionError("something was started")

    class Never:
        def __init__(self) -> None:
            boom()

        def sample(self) -> int:
            return 1

    flow = flowrl.from_actors(flowrl.actors(Never, count=2, name="never"), "sample").for_each(boom).gather_sync()
    shown = flow.for_each(boom).filter(boom).batch(2).take(3)
    assert "never" not in repr(shown)
    assert flowrl.from_iterable(boom).take(1) is not None


def test_running_twice_gives_the_same(backend: Backend) -> None:
    flow = sources(2).for_each(lambda x: x * 10)
    for _ in range(2):
        with flowrl.run(flow, backend) as run:
            assert run.step(4) == [10, 10, 20, 20]
            assert run.stats().nodes["gather_sync"].items == 4


def test_two_runs_of_one_backend_side_by_side(backend: Backend) -> None:
    with flowrl.run(sources(), backend) as one, flowrl.run(sources(2, offset=100), backend) as other:
        assert [next(one), next(other), next(one), next(other), next(other)] == [1, 101, 2, 101, 102]
        assert one.stats().nodes["gather_sync"].items == 2
        assert other.stats().nodes["gather_sync"].items == 3
        assert len(one.actors["sources"]) == 1
        assert len(other.actors["sources"]) == 2
        one.close()
        assert other.step(1) == [102]


def leave_with(run: flowrl.Run[Any]) -> None:
    with run:
        run.step(1)


def leave_by_error(run: flowrl.Run[Any]) -> None:
    with pytest.raises(ZeroDivisionError), run:
        raise ZeroDivisionError


def close_twice(run: flowrl.Run[Any]) -> None:
    run.close()
    run.close()


@pytest.mark.parametrize("leave", [leave_with, leave_by_error, close_twice])
def test_the_actors_end(ray_session: None, leave: Callable[[flowrl.Run[Any]], None]) -> None:
    run = flowrl.run(sources(2), flowrl.Ray())
    pids = pids_of(run)
    leave(run)
    assert gone(pids)
    assert run.closed


def test_the_actors_end_after_an_error_of_the_graph(ray_session: None) -> None:
    run = flowrl.run(sources(2).for_each(lambda x: 1 // (x - 1)), flowrl.Ray())
    pids = pids_of(run)
    with pytest.raises(ZeroDivisionError):
        next(run)
    assert gone(pids)


def test_the_actors_of_a_collected_run_end(ray_session: None) -> None:
    run = flowrl.run(sources(2), flowrl.Ray())
    pids = pids_of(run)
    run.step(1)
    del run
    gc.collect()
    assert gone(pids)


def test_the_actors_end_when_a_loop_is_left(ray_session: None) -> None:
    pids = []
    for pid in flowrl.from_actors(flowrl.actors(Source, count=2, name="sources"), "pid").gather_sync():
        pids.append(pid)
        if len(pids) == 2:
            break
    gc.collect()
    assert len(set(pids)) == 2
    assert gone(pids)


def test_the_actors_end_when_another_constructor_fails(ray_session: None) -> None:
    pids: list[int] = []

    class Failing:
        def __init__(self) -> None:
            raise OSError("no")

        def sample(self) -> int:
            return 1

    before = {child.pid for child in psutil.Process().children(recursive=True) if "RayHost" in child.name()}
    flow = flowrl.from_actors(flowrl.actors(Source, count=1, name="sources"), "pid").union(
        flowrl.from_actors(flowrl.actors(Failing, count=1, name="failing"), "sample")
    )
    with pytest.raises(OSError, match="no"):
        flowrl.run(flow.gather_sync(), flowrl.Ray())
    after = {child.pid for child in psutil.Process().children(recursive=True) if "RayHost" in child.name()} - before
    pids.extend(after)
    assert gone(pids)


def test_a_closed_run_says_so(local: Backend) -> None:
    run = flowrl.run(sources(), local)
    run.step(2)
    run.close()
    with pytest.raises(FlowError, match="this run is closed; start another"):
        next(run)
    with pytest.raises(FlowError, match=r"the run is closed; sources\[0\] is gone: .* before close\(\)"):
        run.actors["sources"][0].ask("pid")
    assert repr(run).startswith("Run(closed")


@pytest.mark.parametrize("tail", ["plain", "batch", "fails"])
def test_a_run_closed_by_another_thread_does_not_look_complete(local: Backend, tail: str) -> None:
    """What comes out of a pull in which the run is closed, its end too, is cut short."""
    closers: list[threading.Thread] = []

    def close_elsewhere(x: int) -> int:
        if x == 3:
            closers.append(threading.Thread(target=run.close))
            closers[0].start()
            while not run._engine.closing:
                threading.Event().wait(0.001)
            if tail == "fails":
                raise LookupError("it was closed under me")
        return x

    flow = flowrl.from_iterable(lambda: range(10)).for_each(close_elsewhere)
    run = flowrl.run(flow.batch(100) if tail == "batch" else flow, local)
    items: list[Any] = []
    with pytest.raises(FlowError, match="this run was closed while it moved") as caught:
        items.extend(run)  # keeps those before the error
    closers[0].join(30)
    assert run.closed
    assert items == ([] if tail == "batch" else [0, 1, 2])
    assert isinstance(caught.value.__cause__, LookupError if tail == "fails" else type(None))
    with pytest.raises(FlowError, match="this run is closed"):
        next(run)


def test_closing_waits_only_so_long_for_the_thread_that_moves(local: Backend) -> None:
    go, inside = threading.Event(), threading.Event()
    caught: list[BaseException] = []

    def hold(x: int) -> int:
        inside.set()
        go.wait(30)
        return x

    def move() -> None:
        try:
            list(run)
        except FlowError as error:
            caught.append(error)

    run = flowrl.run(flowrl.from_iterable(lambda: range(10)).for_each(hold), local)
    mover = threading.Thread(target=move)
    mover.start()
    assert inside.wait(30)
    run.close()  # it is in the middle of an item, and stays there
    assert run.closed
    go.set()
    mover.join(30)
    assert [str(error) for error in caught] == ["this run was closed while it moved"]


def test_an_operator_does_not_move_its_own_run(local: Backend) -> None:
    def step(x: int) -> int:
        return x + sum(run.step(1))

    run = flowrl.run(sources().for_each(step), local)
    with pytest.raises(FlowError, match="an operator of this run cannot move it") as caught:
        next(run)
    assert "in node 'step'" in "".join(caught.value.__notes__)


@pytest.mark.parametrize("number", [np.int64, np.uint8])
def test_numpys_integers_are_integers(local: Backend, number: Any) -> None:
    with flowrl.run(sources().take(number(3)), local, seed=number(7)) as run:
        assert run.seed == 7
        assert type(run.seed) is int
        assert len(run.step(number(2))) == 2
        assert len(list(run)) == 1


def test_the_end_stays_the_end(local: Backend) -> None:
    run = flowrl.run(sources().take(2), local)
    assert list(run) == [1, 2]
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(run)
    assert run.step(3) == []
    assert run.actors["sources"][0].ask("made_with").result()[0] == 0  # its actors live until it is closed
    run.close()
    with pytest.raises(StopIteration):
        next(run)


def test_index_count_and_seed_are_given_where_they_are_open(backend: Backend) -> None:
    with flowrl.run(sources(2), backend, seed=5) as run:
        made = [handle.ask("made_with").result() for handle in run.actors["sources"]]
        assert run.seed == 5
        assert [m[:2] for m in made] == [(0, 2), (1, 2)]
        assert [m[2] for m in made] == [run._engine.seed_of("sources", 0), run._engine.seed_of("sources", 1)]
        assert made[0][2] != made[1][2]


def test_explicit_ones_are_kept(local: Backend) -> None:
    group = flowrl.actors(partial(Source, count=77), name="sources", count=2, seed=8)
    with flowrl.run(flowrl.from_actors(group, "sample").gather_sync(), local) as run:
        assert [h.ask("made_with").result() for h in run.actors["sources"]] == [(0, 77, 8), (1, 77, 8)]


def test_a_seed_is_drawn_where_none_is_given_and_gives_the_same_again(local: Backend) -> None:
    flow = flowrl.from_actors(flowrl.actors(Source, count=2, name="sources"), "made_with").gather_sync()
    with flowrl.run(flow, local) as run:
        first = run.step(2)
    with flowrl.run(flow, local, seed=run.seed) as again:
        assert again.step(2) == first
    with flowrl.run(flow, local) as other:
        assert other.seed != run.seed
        assert other.step(2) != first


@pytest.mark.parametrize("seed", [-1, 1.5, True, "7", 2**63, 2**4000])
def test_a_seed_that_is_none(local: Backend, seed: Any) -> None:
    with pytest.raises(ValueError, match=r"seed must be an integer of at least 0 and below 2\*\*63, got .{1,40}$"):
        flowrl.run(sources(), local, seed=seed)


@pytest.mark.parametrize("n", [-1, 1.5, True])
def test_a_step_that_is_none(local: Backend, n: Any) -> None:
    with flowrl.run(sources(), local) as run, pytest.raises(ValueError, match="step needs n >= 0, got"):
        run.step(n)


def test_a_parallel_flow_does_not_run(local: Backend) -> None:
    shards = flowrl.from_items([1, 2], num_shards=2)
    with pytest.raises(GraphError, match="gather it"):
        flowrl.run(shards, local)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="gather it first"):
        iter(shards)


class Held:
    """A lock among its fields."""

    def __init__(self, what: Any):
        self.what = what

    def sample(self) -> int:
        return 1


def test_an_actor_argument_that_cannot_be_pickled(backend: Backend) -> None:
    flow = flowrl.from_actors(flowrl.actors(Held, {"a": [threading.Lock()]}, count=1, name="held"), "sample")
    told = r"group 'held' \(described at .*\) cannot be sent to an actor: .*\['a'\]\[0\] is a lock"
    with pytest.raises(StartError, match=told):
        flowrl.run(flow.gather_sync(), backend)


def test_a_closure_that_cannot_be_pickled(backend: Backend) -> None:
    lock = threading.Lock()
    flow = flowrl.from_items([1], num_shards=1).for_each(lambda x: (lock, x), name="locked").gather_sync()
    told = r"node 'locked' \(defined at .*test_lifecycle.py:\d+\).*<closure lock> is a lock"
    with pytest.raises(StartError, match=told):
        flowrl.run(flow, backend)


def test_an_operator_field_that_cannot_be_pickled(local: Backend) -> None:
    @dataclass
    class Locked(flowrl.Operator[int, int]):
        parts: dict[str, Any]

        def process(self, value: int, ctx: flowrl.Context) -> Any:
            yield value

    operator = Locked({"lock": threading.Lock()})
    items = flowrl.from_items([1], num_shards=1)
    for flow in (items.gather_sync().for_each(operator), items.for_each(operator).gather_sync()):
        with pytest.raises(StartError, match=r"node 'Locked' .*Locked.parts\['lock'\] is a lock"):
            flowrl.run(flow, local)


def test_a_driver_callable_is_shared_and_never_pickled(backend: Backend) -> None:
    lock, seen = threading.Lock(), []
    flow = flowrl.from_items([1, 2], num_shards=1).gather_sync().for_each(lambda x: (lock.locked(), seen.append(x)))
    with flowrl.run(flow, backend) as run:
        assert run.step(2) == [(False, None)] * 2
    assert seen == [1, 2]


def test_memory_is_flat_over_many_items(local: Backend) -> None:
    """Neither calls nor dictionaries of the engine grow with the number of items."""
    from flowrl.engine.gathers import GatherCursor

    flow = flowrl.from_items(range(10), num_shards=2, repeat=True).gather_async().batch(2)
    with flowrl.run(flow, local) as run:
        run.step(100)
        gc.collect()
        engine = run._engine
        (gather,) = [cursor for cursor in engine.cursors if isinstance(cursor, GatherCursor)]

        def sizes() -> tuple[int, ...]:
            accounts = engine.accounts
            out = sum(feed.out for feed in gather.feeds)
            return len(engine.calls.pending), out, len(accounts.nodes), len(accounts.table._cells)

        before, objects = sizes(), len(gc.get_objects())
        run.step(2000)
        gc.collect()
        assert sizes() == before
        assert len(gc.get_objects()) < objects + 200
        assert len(engine.calls.pending) <= 2 * 2  # num_async on each shard


def test_no_call_is_left_at_the_end(backend: Backend) -> None:
    run = flowrl.run(flowrl.from_items(range(20), num_shards=2).gather_async(), backend)
    assert sorted(run) == list(range(20))
    assert len(run._engine.calls.pending) <= 2  # the second call to a shard that has just said that it has ended
    run.close()
    assert not run._engine.calls.pending


def test_many_pending_calls_take_the_callback_path(ray_session: None) -> None:
    began = monotonic()
    flow = flowrl.from_items(range(3000), num_shards=3).gather_async(num_async=150)
    with flowrl.run(flow, flowrl.Ray()) as run:
        items = run.step(1)
        assert len(run._engine.calls.pending) > 256
        items += list(run)
        assert sorted(items) == list(range(3000))
    assert monotonic() - began < 60
