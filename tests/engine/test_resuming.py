"""What may differ between a saved and a resumed run, what is refused, and saving beside other things that go on."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flowrl import (
    Answer,
    AskOperator,
    CheckpointError,
    Context,
    Flow,
    FlowError,
    Info,
    Local,
    Operator,
    Pending,
    actor,
    actors,
    from_actors,
    from_items,
    from_iterable,
    from_iterators,
    run,
)
from flowrl.backends.protocol import Sent
from flowrl.checkpoint import Pickled
from flowrl.handles import ActorGroup
from flowrl.operators import Union


class Source:
    """Numbers of its own stream; what it draws goes on where it ended."""

    def __init__(self, index: int, seed: int):
        self.index, self.random = index, random.Random(seed)

    def draw(self) -> int:
        """The next number."""
        return self.random.randrange(10**9)

    def get_state(self) -> dict[str, Any]:
        """Its stream, and a pickle."""
        return {"random": self.random.getstate(), "secret": Pickled(b"not even a pickle")}

    def set_state(self, state: dict[str, Any]) -> bool:
        """Goes on; in the middle only if the pickle came along."""
        self.random.setstate(state["random"])
        return state["secret"].payload is not None


class Forgetful:
    """An actor that says nothing of its state."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)

    def draw(self) -> int:
        """The next number."""
        return self.random.randrange(10**9)


@dataclass
class Greeted(Operator[Any, Any]):
    """Pairs of each item and how many actors have been greeted since the run began."""

    factor: int = 1

    def open(self) -> None:
        self._greeted: list[str] = []

    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        yield value, list(self._greeted)

    def actor_started(self, handle: Any, ctx: Context) -> None:
        self._greeted.append(handle.name)


def drawn(count: int = 2, factor: int = 1, cls: Any = Source) -> Flow[Any]:
    return from_actors(actors(cls, count=count, name="sources"), "draw").gather_sync().for_each(Greeted(factor))


def saved(flow: Flow[Any], folder: Path, items: int = 2, **how: Any) -> tuple[list[Any], list[Any]]:
    """The items before and after it was saved."""
    with run(flow, Local(), seed=3) as r:
        before = r.step(items)
        assert r.save(folder / "saved", **how) == folder / "saved"
        return before, r.step(4)


# ---------------------------------------------------------------- what may differ


def test_operators_hear_of_those_actors_only_that_begin_anew(tmp_path: Path) -> None:
    _, after = saved(drawn(), tmp_path)
    with run(drawn(), Local(), resume=tmp_path / "saved", trust_pickles=True) as r:
        assert r.step(4) == after
    with run(drawn(), Local(), resume=tmp_path / "saved") as r:
        value, greeted = next(r)
    assert value == after[0][0]
    assert greeted == ["sources[0]", "sources[1]"] * 2


def test_pickles_are_not_written_unless_wanted(tmp_path: Path) -> None:
    saved(drawn(), tmp_path, environments=False)
    assert not list((tmp_path / "saved").glob("*.pickle"))
    with run(drawn(), Local(), resume=tmp_path / "saved", trust_pickles=True) as r:
        assert next(r)[1] == ["sources[0]", "sources[1]"] * 2


def test_new_actors_have_streams_that_none_had_before(tmp_path: Path) -> None:
    before, after = saved(drawn(3), tmp_path, items=3)
    seen = {value for value, _ in before + after}
    with run(drawn(1), Local(), resume=tmp_path / "saved", trust_pickles=True) as r:
        assert next(r)[0] == after[0][0]
        r.save(tmp_path / "fewer")
    with run(drawn(4), Local(), resume=tmp_path / "fewer", trust_pickles=True) as r:
        again = [value for value, _ in r.step(8)]
    assert not seen & set(again[1:4])
    assert len(set(again)) == 8


def test_other_settings_and_counts_go_to_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved(drawn(), tmp_path)
    with caplog.at_level(logging.INFO, "flowrl"), run(drawn(3, factor=2), Local(), resume=tmp_path / "saved"):
        pass
    told = "\n".join(record.getMessage() for record in caplog.records)
    assert "Greeted: factor was 1 and is 2" in told
    assert "sources: 2 actors were saved, 3 go on" in told


def test_what_keeps_no_state_is_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with run(drawn(cls=Forgetful), Local(), seed=3) as r:
        r.save(tmp_path / "one")
        r.save(tmp_path / "two")
    (told,) = [record.getMessage() for record in caplog.records]
    assert "group 'sources': Forgetful has no get_state and set_state" in told
    assert "stateless = True" in told


# ---------------------------------------------------------------- what is refused


def other_graph() -> Flow[Any]:
    return from_actors(actors(Source, count=2, name="others"), "draw").gather_sync().for_each(Greeted()).take(3)


@pytest.mark.parametrize(
    ("flow", "text"),
    [
        (other_graph, r"the checkpoint has a group 'sources' that is not here"),
        (other_graph, r"the checkpoint has no node 'take'"),
        (lambda: drawn(cls=Forgetful), r"group 'sources' is of Forgetful, in the checkpoint of Source"),
        (
            lambda: from_actors(actors(Source, count=2, name="sources"), "draw").gather_async().for_each(Greeted()),
            r"node 'Greeted' stands behind 'gather_async', in the checkpoint behind 'gather_sync'",
        ),
    ],
)
def test_another_graph_is_refused_by_name(flow: Callable[[], Flow[Any]], text: str, tmp_path: Path) -> None:
    saved(drawn(), tmp_path)
    with pytest.raises(CheckpointError, match=text):
        run(flow(), Local(), resume=tmp_path / "saved")


def test_the_seed_is_that_of_the_checkpoint(tmp_path: Path) -> None:
    saved(drawn(), tmp_path)
    with pytest.raises(ValueError, match="goes on with its seed, 3: leave seed=4 out"):
        run(drawn(), Local(), resume=tmp_path / "saved", seed=4)
    with run(drawn(), Local(), resume=tmp_path / "saved", seed=3) as r:
        assert r.seed == 3


def test_lists_keep_their_shards(tmp_path: Path) -> None:
    flow = from_items(list(range(20)), num_shards=2).gather_sync()
    saved(flow, tmp_path)
    with pytest.raises(CheckpointError, match="were in 2 shards and are now in 3"):
        run(from_items(list(range(20)), num_shards=3).gather_sync(), Local(), resume=tmp_path / "saved")


def test_a_run_lies_wherever_fsspec_reaches(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    flow = drawn(2)
    where = f"memory://{tmp_path}/saved"
    with run(flow, Local(), seed=4) as r:
        r.step(5)
        saved = r.save(where)
        assert saved == where  # a URL as it was given, a path as a Path
        assert r.save(str(tmp_path / "here")) == tmp_path / "here"
        rest = r.step(7)
    with run(flow, Local(), resume=saved, trust_pickles=True) as again:
        assert again.step(7) == rest
        assert again.save(saved) == saved  # in place of itself
    assert not list(Path().glob("memory:*"))


def test_no_checkpoint_is_said_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no checkpoint in"):
        run(drawn(), Local(), resume=tmp_path / "nothing")


class Opaque:
    """What cannot be saved."""


@dataclass
class Hides(Operator[Any, Any]):
    """Holds an object of a class of its own."""

    def open(self) -> None:
        self._held = [Opaque()]

    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        yield value


def test_what_cannot_be_saved_is_named_and_the_run_goes_on(tmp_path: Path) -> None:
    with run(drawn().for_each(Hides()), Local(), seed=3) as r:
        r.step(1)
        with pytest.raises(CheckpointError, match=r"node 'Hides'\['_held'\]\[0\] is a .*Opaque, which cannot be saved"):
            r.save(tmp_path / "saved")
        assert len(r.step(2)) == 2
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- sources, windows, interrupted steps


def test_iterators_on_the_driver_and_in_shards_go_on_behind_what_has_come(tmp_path: Path) -> None:
    def flow() -> Flow[Any]:
        here = from_iterable(lambda: iter(range(100, 130)))
        there = from_iterators([lambda: range(10), lambda: range(50, 53)], repeat=True).filter(odd).gather_sync()
        return Union([here, there])

    _, after = saved(flow(), tmp_path, items=7)
    with run(flow(), Local(), resume=tmp_path / "saved") as r:
        r.save(tmp_path / "at once")
        assert r.step(4) == after
    with run(flow(), Local(), resume=tmp_path / "at once") as r:
        assert r.step(4) == after


def odd(value: int) -> bool:
    return value % 2 == 1


class Worker:
    """Answers with what it was asked."""

    stateless = True

    def work(self, value: int) -> Answer[int]:
        """The same."""
        return Answer(value, {"work": value})


@dataclass
class MakesOfInfo(AskOperator[int, tuple[int, int]]):
    """A value that is made of the answer's Info, and of how many were made before."""

    group: ActorGroup[Worker]
    in_flight: int = 3

    def open(self) -> None:
        self._made = 0

    def ask(self, value: Any, ctx: Context) -> Pending[tuple[int, int]]:
        def make(info: Info) -> tuple[int, int]:
            self._made += 1
            ctx.metrics.add("made")
            return int(info.metrics["work"]), self._made

        return ctx.actors(self.group)[0].ask("work", value).made_from_info(make)


def test_values_of_calls_in_flight_are_made_when_they_are_saved(tmp_path: Path) -> None:
    def flow() -> Flow[Any]:
        return from_items(list(range(9)), num_shards=1).gather_sync().for_each(MakesOfInfo(actor(Worker, name="w")))

    before, after = saved(flow(), tmp_path, items=2)
    assert before + after == [(i, i + 1) for i in range(6)]
    with run(flow(), Local(), resume=tmp_path / "saved") as r:
        assert list(r) == [(i, i + 1) for i in range(2, 9)]
        assert r.stats().metrics["MakesOfInfo"]["made"] == 9


def test_a_finished_run_and_one_with_items_kept_go_on_as_they_were(tmp_path: Path) -> None:
    flow = from_items([1, 2, 3], num_shards=1).gather_sync()
    with run(flow, Local()) as r:
        r._kept.extend(r.step(2))  # as an interrupt leaves them
        r.save(tmp_path / "kept")
        assert r.kept == 2
        assert list(r) == [1, 2, 3]
        r.save(tmp_path / "finished")
    with run(flow, Local(), resume=tmp_path / "kept") as r:
        assert r.kept == 2
        assert list(r) == [1, 2, 3]
    with run(flow, Local(), resume=tmp_path / "finished") as r:
        assert list(r) == []
        assert r.stats().nodes["gather_sync"].items == 3


# ---------------------------------------------------------------- beside other things


def test_saved_from_another_thread_while_it_moves_in_the_background(tmp_path: Path) -> None:
    with run(drawn(), Local(), seed=3) as r:
        background = r.background()
        background.wait(3)
        r.save(tmp_path / "saved")
        count = background.count
        background.wait(count + 2)
        background.pause()
        others: list[Any] = []
        thread = threading.Thread(target=lambda: others.append(r.save(tmp_path / "other")))
        thread.start()
        thread.join()
        assert others == [tmp_path / "other"]
        expected = r.step(2)
    with run(drawn(), Local(), resume=tmp_path / "other", trust_pickles=True) as r:
        assert r.step(2) == expected
    with run(drawn(), Local(), resume=tmp_path / "saved", trust_pickles=True) as r:
        assert len(r.step(2)) == 2


def test_an_operator_cannot_save_its_run_nor_anybody_a_closed_one(tmp_path: Path) -> None:
    holder: list[Any] = []
    with run(drawn().tap(lambda item: holder[0].save(tmp_path / "saved")), Local()) as r:
        holder.append(r)
        with pytest.raises(FlowError, match="an operator of this run cannot save it"):
            next(r)
    with pytest.raises(FlowError, match="this run is closed, so there is nothing to save"):
        r.save(tmp_path / "saved")


class Stuck(Local):
    """Actors of which one answers nothing more, once it is told."""

    stuck = False

    def poll(self, sent: Sequence[Sent], timeout_s: float | None) -> list[Sent]:
        """Nothing, and no time passes."""
        if not self.stuck:
            return super().poll(sent, timeout_s)
        self.passed += timeout_s or 0.0
        return []

    passed = 0.0

    def now(self) -> float:
        """The time that was waited."""
        return self.passed

    def _sent(self, record: Any, payload: Any) -> Sent:
        made = super()._sent(record, payload)
        if self.stuck:
            made.record = None
        return made


def test_who_does_not_answer_in_time_is_named_and_the_run_goes_on(tmp_path: Path) -> None:
    backend = Stuck()
    with run(drawn(), backend, seed=3) as r:
        r.step(1)
        backend.stuck = True
        with pytest.raises(
            TimeoutError, match=r"not saved: sources\[0\], sources\[1\] has not given its state within "
        ):
            r.save(tmp_path / "saved", timeout_s=5)
        backend.stuck = False
        assert len(r.step(3)) == 3
    assert list(tmp_path.iterdir()) == []


class Fails:
    """A source whose state cannot be told."""

    def draw(self) -> int:
        """A number."""
        return 1

    def get_state(self) -> dict[str, Any]:
        """Nothing."""
        raise KeyError("no state today")

    def set_state(self, state: dict[str, Any]) -> None:
        """Nothing."""


def test_an_error_of_get_state_is_the_actors_own_and_the_run_goes_on(tmp_path: Path) -> None:
    with run(drawn(cls=Fails), Local()) as r:
        with pytest.raises(KeyError, match="no state today"):
            r.save(tmp_path / "saved")
        assert len(r.step(2)) == 2
    assert list(tmp_path.iterdir()) == []
