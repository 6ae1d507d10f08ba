"""Local: actors in this process, so that a debugger steps from the graph into them, with Ray's semantics of values."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

import flowrl
from flowrl import Local
from flowrl.backends.protocol import GroupPlan


class Source:
    """Says where it runs, and keeps what it was given."""

    def __init__(self, given: list[int]):
        self.given = given

    def where(self) -> tuple[int, int]:
        return threading.get_ident(), id(self.given)

    def grow(self, value: list[int]) -> list[int]:
        value.append(9)
        return value

    def array(self) -> np.ndarray:
        return np.zeros(3)


def flow(given: list[int], method: str = "where") -> flowrl.Flow[Any]:
    return flowrl.from_actors(flowrl.actor(Source, given, name="source"), method).gather_sync()


def test_actors_run_in_the_calling_thread_on_copies() -> None:
    given = [1]
    with flowrl.run(flow(given), Local()) as run:
        thread, place = next(run)
        assert thread == threading.get_ident()
        assert place != id(given)  # the description is copied in
        mine = [5]
        assert run.actors["source"][0].ask("grow", mine).result() == [5, 9]
        assert mine == [5]


def test_an_array_arrives_read_only_or_with_isolate_false_as_it_is() -> None:
    with flowrl.run(flow([1], "array"), Local()) as run:
        assert not next(run).flags.writeable


def test_repr_and_where() -> None:
    plan = GroupPlan("g", 2, 1, 0)
    assert repr(Local()) == "Local()"
    assert repr(Local(isolate=False)) == "Local(isolate=False)"
    assert Local().describe() == Local().placement(plan) == "in this process"
    assert Local().open([plan]) == []
    assert not Local().gone()


def test_a_run_inside_an_actor() -> None:
    """An actor may run a graph of its own: the nested part of a hierarchy."""

    class Searcher:
        def search(self) -> int:
            with flowrl.run(flowrl.from_items([1, 2, 3], num_shards=2).gather_sync(), Local()) as inner:
                return sum(inner)

    outer = flowrl.from_actors(flowrl.actors(Searcher, count=2, name="s"), "search").gather_sync()
    with flowrl.run(outer, Local()) as run:
        assert run.step(2) == [6, 6]


def test_asking_from_two_threads_is_one_call_at_a_time() -> None:
    class Careful:
        def __init__(self) -> None:
            self.inside = 0

        def enter(self) -> int:
            self.inside += 1
            threading.Event().wait(0.001)
            self.inside -= 1
            return self.inside

    with flowrl.run(flowrl.from_actors(flowrl.actor(Careful, name="c"), "enter").gather_sync(), Local()) as run:
        (handle,) = run.actors["c"]
        answers: list[int] = []

        def ask() -> None:
            answers.extend(handle.ask("enter").result() for _ in range(20))

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        assert run.step(20) == [0] * 20
        for thread in threads:
            thread.join()
        assert answers == [0] * 40
