"""The death of an actor's process is no exception of user code: a policy decides; nothing hangs or counts twice."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import flowrl
from flowrl import AskOperator, Context, Flow, Ignore, Operator, Raise, Restart
from flowrl.engine.call import LOST
from flowrl.errors import ActorDied
from flowrl.failures import FailurePolicy
from flowrl.handles import ActorGroup, ActorHandle, Pending

pytestmark = pytest.mark.usefixtures("ray_session")


class Mortal:
    """Counts its samples; ends its process at sample `dies_at`, `times` times over all incarnations."""

    def __init__(self, folder: str, dies_at: int = 0, times: int = 1, dying: int = 0, *, index: int = 0, seed: int = 0):
        self.marks, self.dies_at, self.times = Path(folder), dies_at, times
        self.index, self.dying, self.seed, self.count = index, dying, seed, 0
        self.told: list[Any] = []

    def sample(self) -> tuple[int, int]:
        self.count += 1
        if self.count == self.dies_at and self.index == self.dying and len(list(self.marks.iterdir())) < self.times:
            (self.marks / f"{os.getpid()}").touch()
            os._exit(1)
        return self.index, self.count

    def tell_me(self, value: Any) -> None:
        self.told.append(value)

    def state(self) -> dict[str, Any]:
        return {"pid": os.getpid(), "seed": self.seed, "told": self.told}


@dataclass
class Greet(Operator[Any, Any]):
    """Tells an actor that has started how many it has greeted."""

    def open(self) -> None:
        self._greeted = 0

    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        yield value

    def actor_started(self, handle: ActorHandle[Any], ctx: Context) -> None:
        if handle.group == "mortals":
            self._greeted += 1
            handle.tell("tell_me", self._greeted)


def mortals(folder: Path, count: int = 2, **kwargs: Any) -> ActorGroup[Mortal]:
    return flowrl.actors(Mortal, str(folder), count=count, name="mortals", **kwargs)


def gathered(group: ActorGroup[Mortal], mode: str, policy: FailurePolicy) -> Flow[Any]:
    source = flowrl.from_actors(group, "sample")
    flow = source.gather_sync(on_failure=policy) if mode == "sync" else source.gather_async(on_failure=policy)
    return flow.for_each(Greet())


def until(run: flowrl.Run[Any], items: list[Any], there: Callable[[], bool]) -> None:
    """Items up to when something shows. Ray tells of a death some two seconds later: the others go on meanwhile."""
    while not there():
        items.extend(run.step(1))


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_restart_greets_and_goes_on(tmp_path: Path, mode: str) -> None:
    flow = gathered(mortals(tmp_path, dies_at=3), mode, Restart(2, backoff_s=0.01))
    with flowrl.run(flow, flowrl.Ray(), seed=1) as run:
        before = [handle.ask("state").result() for handle in run.actors["mortals"]]
        assert [state["told"] for state in before] == [[1], [2]]
        items: list[tuple[int, int]] = []
        until(run, items, lambda: sum(index == 0 for index, _ in items) == 5)
        first, other = ([count for index, count in items if index == which] for which in (0, 1))
        again = first.index(1, 1)
        assert first[again:] == list(range(1, len(first) - again + 1))  # a new object, which counts anew
        assert first[:again] in ([1, 2], [1])  # an answer that Ray had not delivered may have died with the process
        assert sorted(other) == list(range(1, len(other) + 1))  # no item of the other lost or doubled
        after = [handle.ask("state").result() for handle in run.actors["mortals"]]
        assert after[0]["told"] == [3]  # greeted before its first pull
        assert after[0]["pid"] != before[0]["pid"]
        assert after[0]["seed"] != before[0]["seed"]  # an incarnation has a stream of its own
        assert after[1] == before[1]
        stats = run.stats()
        assert stats.groups["mortals"].deaths == 1
        assert stats.lost_calls >= 1
        assert stats.metrics["mortals"]["restarts"] == 1
        assert stats.nodes["gather_" + mode].items == len(items)


def test_killed_from_outside_between_pulls(tmp_path: Path) -> None:
    with flowrl.run(gathered(mortals(tmp_path), "sync", Restart(1, backoff_s=0.01)), flowrl.Ray()) as run:
        assert run.step(4) == [(0, 1), (1, 1), (0, 2), (1, 2)]
        os.kill(run.actors["mortals"][1].ask("state").result()["pid"], signal.SIGKILL)
        assert run.step(4) == [(0, 3), (1, 1), (0, 4), (1, 2)]


def test_restart_gives_up_after_n_deaths_in_a_row(tmp_path: Path) -> None:
    group = mortals(tmp_path, 1, dies_at=1, times=99)
    run = flowrl.run(gathered(group, "sync", Restart(2, backoff_s=0.01)), flowrl.Ray())
    with pytest.raises(ActorDied, match=r"mortals\[0\] died after 2 restarts: .*on_failure=Restart\(times=2") as caught:
        run.step(1)
    assert "gather_sync" in str(caught.value)
    assert len(list(tmp_path.iterdir())) == 3  # once, and twice more
    assert run.closed


class DiesAtBirth:
    """Its constructor ends the process."""

    def __init__(self, folder: str):
        (Path(folder) / f"{os.getpid()}").touch()
        os._exit(1)

    def sample(self) -> int:
        return 1


def test_a_constructor_that_kills_gives_up_after_n(tmp_path: Path) -> None:
    flow = flowrl.from_actors(flowrl.actor(DiesAtBirth, str(tmp_path), name="unborn"), "sample")
    with pytest.raises(ActorDied, match=r"unborn\[0\] died after 1 restarts"):
        flowrl.run(flow.gather_sync(on_failure=Restart(1, backoff_s=0.01)), flowrl.Ray())
    assert len(list(tmp_path.iterdir())) == 2


def poisoned(x: int, gate: str) -> int:
    """The same; 3 kills, once somebody writes to the gate."""
    if x == 3:
        os.close(os.open(gate, os.O_RDONLY))  # waits for a writer
        os._exit(1)
    return x


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_item_that_kills_every_time_is_given_up_and_none_before_it_comes_twice(mode: str, tmp_path: Path) -> None:
    gate = str(tmp_path / "gate")
    os.mkfifo(gate)
    source = flowrl.from_items(range(6), num_shards=1).for_each(partial(poisoned, gate=gate))
    policy = Restart(1, backoff_s=0.01)
    run = flowrl.run(
        source.gather_sync(on_failure=policy) if mode == "sync" else source.gather_async(on_failure=policy),
        flowrl.Ray(),
    )
    items: list[int] = []
    with ExitStack() as writers:

        def opening(item: int) -> int:
            if item == 2:  # not before: 3 may be under way with 2, and its death would overtake the answer
                writers.callback(os.close, os.open(gate, os.O_RDWR))
            return item

        with pytest.raises(ActorDied, match="died after 1 restarts"):
            items.extend(map(opening, run))  # keeps those before the error
    assert items == [0, 1, 2]


def test_a_killed_iterator_goes_on_behind_its_items() -> None:
    with flowrl.run(flowrl.from_items(range(8), num_shards=2).for_each(with_pid).gather_sync(), flowrl.Ray()) as run:
        first = run.step(4)
        os.kill(first[0][1], signal.SIGKILL)
        rest = list(run)
    assert [x for x, _ in first + rest] == list(range(8))
    assert rest[0][1] != first[0][1]
    assert run.stats().groups["from_items-shards"].deaths == 1


def with_pid(x: int) -> tuple[int, int]:
    """The item and the process that it comes from."""
    return x, os.getpid()


def test_raise_stops_the_run(tmp_path: Path) -> None:
    run = flowrl.run(gathered(mortals(tmp_path, dies_at=2), "async", Raise()), flowrl.Ray())
    with pytest.raises(ActorDied, match=r"mortals\[0\] died: .*on_failure=Raise\(\)"):
        until(run, [], lambda: False)
    assert run.closed


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_ignore_goes_on_without_it(tmp_path: Path, mode: str) -> None:
    with flowrl.run(gathered(mortals(tmp_path, dies_at=2), mode, Ignore()), flowrl.Ray()) as run:
        items: list[tuple[int, int]] = []
        until(run, items, lambda: run.stats().groups["mortals"].deaths == 1)
        items += run.step(3)
        first, other = ([count for index, count in items if index == which] for which in (0, 1))
        assert first in ([1], [])  # its one answer may have died with it
        assert sorted(other) == list(range(1, len(other) + 1))
        stats = run.stats()
        assert stats.metrics["gather_" + mode]["shards_lost"] == 1
        with pytest.raises(ActorDied, match=r"mortals\[0\] cannot answer 'state'.*its process has ended"):
            run.actors["mortals"][0].ask("state").result()
        run.actors["mortals"][0].tell("tell_me", 1)  # to nobody
        assert len(run.step(2)) == 2


def test_ignore_ends_with_the_last(tmp_path: Path) -> None:
    run = flowrl.run(gathered(mortals(tmp_path, 1, dies_at=1), "sync", Ignore()), flowrl.Ray())
    with pytest.raises(ActorDied, match=r"every shard of gather_sync has died; the last was mortals\[0\]"):
        run.step(1)


class Learner:
    """Answers, and ends its process at the value 2."""

    def take(self, value: tuple[int, int]) -> int:
        if value[1] == 2:
            os._exit(1)
        return value[1]

    def fine(self, value: Any) -> Any:
        return value


@dataclass
class Train(AskOperator[Any, Any]):
    """Asks the learner."""

    learner: ActorGroup[Any]

    def ask(self, value: Any, ctx: Context) -> Pending[Any]:
        return ctx.actors(self.learner)[0].ask("take", value)


def test_an_asked_actor_that_dies_is_named(tmp_path: Path) -> None:
    learner = flowrl.actor(Learner, name="learner")
    run = flowrl.run(gathered(mortals(tmp_path, 1), "sync", Restart(3)).for_each(Train(learner)), flowrl.Ray())
    assert run.step(1) == [1]
    with pytest.raises(ActorDied, match=r"learner\[0\]"):
        run.step(1)
    assert run.closed


def test_the_answer_of_the_dead_as_an_argument_kills_nobody_else(tmp_path: Path) -> None:
    learner = flowrl.actor(Learner, name="learner")
    flow = gathered(mortals(tmp_path, 1), "sync", Restart(1, backoff_s=0.01)).for_each(Train(learner)).take(1)
    with flowrl.run(flow, flowrl.Ray()) as run:
        (mortal,), (asked,) = run.actors["mortals"], run.actors["learner"]
        mortal.tell("tell_me", "before")
        lost = asked.ask("take", (0, 2))
        dependent = mortal.ask("tell_me", lost)
        with pytest.raises(ActorDied, match="an argument of this call is the answer of an actor that died"):
            dependent.result()
        assert mortal.ask("state").result()["told"] == [1, "before"]
        assert run.stats().groups["mortals"].deaths == 0


def test_a_tell_to_one_that_is_on_its_way_up_arrives(tmp_path: Path) -> None:
    """Tells that come between a death and the restart are held for the new incarnation."""
    with flowrl.run(gathered(mortals(tmp_path, 1), "async", Restart(1, backoff_s=0.01)), flowrl.Ray()) as run:
        (mortal,) = run.actors["mortals"]
        state = run._engine.states["mortals"][0]
        os.kill(mortal.ask("state").result()["pid"], signal.SIGKILL)
        with pytest.raises(ActorDied):  # of the first, as a rule
            [mortal.ask("state").result() for _ in range(10_000)]
        run._engine.poll()  # the death is settled: a restart is due
        assert state.restarting
        mortal.tell("tell_me", "held")
        lost = mortal.ask("state")
        assert lost.call.state is LOST
        with pytest.raises(ActorDied, match="it is being started again"):
            lost.result()
        run.step(1)
        assert mortal.ask("state").result()["told"] == ["held", 2]
