"""Asks and tells: what rides on what, in which order, and what a failing one does."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl import Answer, AskOperator, Context, Flow, Operator, Ref
from flowrl.backends.protocol import Backend
from flowrl.engine.calls import WAITS_A_SWEEP
from flowrl.handles import ActorGroup, Pending
from flowrl.testing import Delayed


class Box:
    """Counts, and remembers what it was told."""

    def __init__(self) -> None:
        self.count = 0
        self.told: list[Any] = []

    def sample(self) -> int:
        self.count += 1
        return self.count

    def note(self, value: Any) -> None:
        self.told.append(value)

    def set_weights(self, value: Any, *, policy: str | None = None) -> None:
        self.told.append((policy, value))

    def fail(self, value: Any = None) -> Any:
        raise LookupError(f"no {value}")

    def add(self, a: Any, b: Any = 0) -> Any:
        return a + b

    def all_told(self) -> list[Any]:
        return self.told


def boxes(name: str = "boxes", count: int = 1) -> ActorGroup[Box]:
    return flowrl.actors(Box, count=count, name=name)


@dataclass
class Tell(Operator[int, int]):
    """Tells each origin things about each item."""

    things: tuple[tuple[str, dict[str, Any]], ...]

    def process(self, value: int, ctx: Context) -> Iterable[int]:
        for handle in ctx.origins:
            for method, kwargs in self.things:
                handle.tell(method, value, **kwargs)
        yield value


def counted(*things: tuple[str, dict[str, Any]], count: int = 1) -> Flow[int]:
    return flowrl.from_actors(boxes(count=count), "sample").gather_sync().for_each(Tell(things))


def told(run: flowrl.Run[Any], group: str = "boxes") -> list[Any]:
    return run.actors[group][0].ask("all_told").result()


def test_a_failing_tell_is_raised_under_its_own_name_and_the_ask_still_runs(backend: Backend) -> None:
    run = flowrl.run(counted(("fail", {})), backend)
    assert run.step(1) == [1]  # the tell is held
    with pytest.raises(LookupError, match="no 1") as caught:
        run.step(1)
    note = "\n".join(caught.value.__notes__)
    assert "in the tell 'fail' of node 'Tell'" in note
    assert "shard boxes[0]" in note
    assert run._engine.accounts.node("gather_sync").messages == 2
    assert run._engine.accounts.groups["boxes"].calls == 3  # the ask that it rode on too; and close
    assert run.closed


def test_a_failing_tell_by_hand_is_raised_at_the_next_poll(backend: Backend) -> None:
    run = flowrl.run(counted(), backend)
    run.actors["boxes"][0].tell("fail", "by hand")
    with pytest.raises(LookupError, match="no by hand") as caught:
        run.step(3)
    assert "in the tell 'fail' of node 'run.actors'" in "\n".join(caught.value.__notes__)


def test_tells_ride_on_the_next_message_in_order(backend: Backend) -> None:
    with flowrl.run(counted(("note", {}), ("set_weights", {})), backend) as run:
        assert run.step(3) == [1, 2, 3]
        stats = run.stats().nodes
        assert stats["gather_sync"].messages == 3
        assert stats["Tell"].messages == 0  # nothing of its own
        assert told(run) == [1, (None, 1), 2, (None, 2), 3, (None, 3)]


def test_only_the_last_of_held_weights_goes(local: Backend) -> None:
    a, b = ("set_weights", {"policy": "a"}), ("set_weights", {"policy": "b"})
    with flowrl.run(counted(a, b, a), local) as run:
        run.step(1)
        assert told(run) == [("b", 1), ("a", 1)]


def test_weights_replace_none_across_another_tell(local: Backend) -> None:
    a: Any = ("set_weights", {"policy": "a"})
    with flowrl.run(counted(a, ("note", {}), a, a), local) as run:
        run.step(1)
        assert told(run) == [("a", 1), 1, ("a", 1)]


class Loose(Box):
    """Whatever its policy is called, and however it is given."""

    def set_weights(self, *args: Any, **kwargs: Any) -> None:
        self.told.append((args, kwargs))


class Placed(Box):
    """Takes the policy by its place."""

    def set_weights(self, value: Any, policy: Any = None) -> None:
        self.told.append((policy, value))


@dataclass
class Weights(Operator[int, int]):
    """Tells each origin weights with a policy by place."""

    policies: tuple[Any, ...]

    def process(self, value: int, ctx: Context) -> Iterable[int]:
        for number, policy in enumerate(self.policies):
            ctx.origins[0].tell("set_weights", number, policy)
        yield value


@pytest.mark.parametrize(
    ("cls", "policies", "expected"),
    [
        (Placed, ("a", "b", "a"), [("b", 1), ("a", 2)]),
        (Placed, (None, None), [(None, 1)]),
        (Placed, (1, 1), [(1, 0), (1, 1)]),  # no name of a policy: who knows what it is
        (Loose, ("a", "a"), [((0, "a"), {}), ((1, "a"), {})]),
    ],
)
def test_weights_of_a_policy_by_place(local: Backend, cls: Any, policies: Any, expected: Any) -> None:
    source = flowrl.from_actors(flowrl.actor(cls, name="boxes"), "sample")
    with flowrl.run(source.gather_sync().for_each(Weights(policies)), local) as run:
        run.step(1)
        assert told(run) == expected


def test_tells_by_hand_go_at_once_and_keep_the_order(local: Backend) -> None:
    with flowrl.run(counted(("note", {})), local) as run:
        run.step(1)
        state = run._engine.states["boxes"][0]
        assert len(state.mail) == 1
        run.actors["boxes"][0].tell("note", "by hand")
        assert not state.mail
        assert told(run) == [1, "by hand"]


def test_closing_delivers_what_is_held(local: Backend) -> None:
    seen: list[Any] = []

    class Open(Box):
        """Says what it was told when it is closed."""

        def close(self) -> None:
            seen.extend(self.told)

    flow = flowrl.from_actors(flowrl.actor(Open, name="boxes"), "sample").gather_sync().for_each(Tell((("note", {}),)))
    with flowrl.run(flow, flowrl.Local(isolate=False)) as run:
        run.step(2)
        run._engine.states["boxes"][0].actor.host.object.close = lambda: seen.extend([1, 2])
    assert seen == [1, 2]


@dataclass
class Sum(AskOperator[int, int]):
    """Adds by a chain of two asks on two actors; the second is sent before the first is answered."""

    to: ActorGroup[Box]
    first: str = "add"

    def ask(self, value: Ref[int], ctx: Context) -> Pending[int]:
        one, other = ctx.actors(self.to)
        pending = one.ask(self.first, value)
        return other.ask("add", pending, b=Ref.of(100))


def test_pendings_and_refs_arrive_as_values(backend: Backend) -> None:
    flow = flowrl.from_actors(boxes(), "sample").gather_sync().for_each(Sum(boxes("adders", 2)))
    with flowrl.run(flow, backend) as run:
        assert run.step(3) == [101, 102, 103]


def test_a_call_that_depends_on_a_failed_one_reports_the_first_failure(backend: Backend) -> None:
    flow = flowrl.from_actors(boxes(), "sample").gather_sync().for_each(Sum(boxes("adders", 2), "fail"))
    with pytest.raises(LookupError, match="no 1"):
        flowrl.run(flow, backend).step(1)


def test_by_hand_pendings_chain_and_stay_where_they_are(backend: Backend) -> None:
    with flowrl.run(counted(count=2), backend) as run:
        one, other = run.actors["boxes"]
        big = one.ask("add", np.ones(100_000), 1)
        assert other.ask("add", big, big).result().sum() == 400_000
        assert big.info().nbytes == 800_000
        other.tell("note", big.ref)
        assert other.ask("all_told").result()[0].sum() == 200_000
        assert run.step(2) == [1, 1]


def test_methods_by_reference(backend: Backend) -> None:
    with flowrl.run(counted(), backend) as run:
        (box,) = run.actors["boxes"]
        box.tell(Box.note, 5)
        assert box.ask(Box.all_told).result() == [5]
        assert box.ask(lambda box, n: (type(box).__name__, n), 3).result() == ("Box", 3)


def test_result_in_time_or_not(local: Backend) -> None:
    with flowrl.run(counted(), local) as run:
        assert run.actors["boxes"][0].ask("add", 1, 2).result(timeout_s=10) == 3


@pytest.mark.parametrize("late", [float("inf"), 1e300])
def test_a_timeout_without_end(backend: Backend, late: float) -> None:
    with flowrl.run(counted(), backend) as run:
        assert run.actors["boxes"][0].ask("add", 1, 2).result(timeout_s=late) == 3


def test_a_timeout_that_is_no_number(backend: Backend) -> None:
    with flowrl.run(counted(), backend) as run:
        pending = run.actors["boxes"][0].ask("add", 1, 2)
        with pytest.raises(ValueError, match=r"timeout_s must be a number of seconds.*got nan"):
            pending.result(timeout_s=float("nan"))
        assert pending.result(timeout_s=30) == 3


def test_a_pending_that_is_late_stays_out(ray_session: None) -> None:
    with flowrl.run(counted(), flowrl.Ray()) as run:
        (box,) = run.actors["boxes"]
        slow = box.ask(lambda box: threading.Event().wait(0.5))  # longer than the wait below
        with pytest.raises(TimeoutError, match=r"boxes\[0\] has not answered .* within 0.05 s; it stays out"):
            slow.result(timeout_s=0.05)
        assert slow.result() is False


@pytest.mark.parametrize("by_hand", [True, False])
def test_an_argument_that_cannot_be_pickled(backend: Backend, by_hand: bool) -> None:
    held = {"locks": [threading.Lock()]}
    flow = counted() if by_hand else flowrl.from_actors(boxes(), "sample").gather_sync().for_each(Hold(boxes("to")))
    with flowrl.run(flow, backend) as run:
        told = r"ask 'note': an argument cannot be sent: \['args'\]\[0\]\['locks'\]\[0\] is a lock, which cannot"
        act = partial(run.actors["boxes"][0].ask, "note", held) if by_hand else partial(run.step, 1)
        with pytest.raises(TypeError, match=told) as caught:
            act()
        if not by_hand:
            assert "in node 'Hold'" in "\n".join(caught.value.__notes__)


@dataclass
class Hold(AskOperator[int, None]):
    """Asks with a lock."""

    to: ActorGroup[Box]

    def ask(self, value: Ref[int], ctx: Context) -> Pending[None]:
        return ctx.actors(self.to)[0].ask("note", {"locks": [threading.Lock()]})


def test_a_value_that_cannot_be_pickled(backend: Backend) -> None:
    def lock(x: int) -> dict[str, Any]:
        return {"x": [x, threading.Lock()]}

    run = flowrl.run(flowrl.from_actors(boxes(), "sample").for_each(lock).gather_sync(), backend)
    told = r"the result cannot be sent from its actor: result\[0\]\['x'\]\[1\] is a lock"
    with pytest.raises(TypeError, match=told) as caught:
        run.step(1)
    assert "shard boxes[0]" in "\n".join(caught.value.__notes__)


def test_two_threads_ask_while_the_run_moves(backend: Backend) -> None:
    """Handles of run.actors may be used from other threads; nothing is lost or doubled on either side."""
    with flowrl.run(counted(("note", {}), count=2), backend) as run:
        answers: dict[int, list[int]] = {0: [], 1: []}

        def ask(which: int) -> None:
            handle = run.actors["boxes"][which]
            for i in range(100):
                answers[which].append(handle.ask("add", i, 1).result())

        threads = [threading.Thread(target=ask, args=(which,)) for which in (0, 1)]
        for thread in threads:
            thread.start()
        items = run.step(200)
        for thread in threads:
            thread.join()
        assert items == [i // 2 + 1 for i in range(200)]
        assert answers == {which: list(range(1, 101)) for which in (0, 1)}
        assert not [call for call in run._engine.calls.pending.values() if call.kind == "ask"]
        stats = run.stats()
        assert stats.nodes["run.actors"].messages == 200
        assert stats.nodes["run.actors"].out == 0


class Desk:
    """Has more than methods."""

    size = 3

    @property
    def papers(self) -> int:
        return 1

    def sample(self) -> int:
        return 1

    def _secret(self) -> int:
        return 2

    def echo(self, /, **kwargs: Any) -> Any:
        return kwargs

    def echo_one(self, value: Any) -> Any:
        return value

    def publish(self) -> Answer[int]:
        return Answer(1, published=threading.Lock(), policy_version=1)


class Open(Desk):
    """Answers to every name."""

    def __getattr__(self, name: str) -> Any:
        return lambda: name


def desk(cls: Any = Desk) -> Flow[int]:
    return flowrl.from_actors(flowrl.actor(cls, name="desk"), "sample").gather_sync()


@pytest.mark.parametrize(
    ("method", "kind", "told"),
    [
        ("ecko", AttributeError, "Desk has no method 'ecko'; it can be asked and told echo"),
        ("papers", AttributeError, "Desk has no method, but a value, 'papers'; it can be asked and told "),
        ("size", AttributeError, "Desk has no method, but a value, 'size'; it can be asked and told "),
        ("_secret", AttributeError, "Desk has a private name '_secret'; it can be asked and told "),
        (3, TypeError, "named by a string or given as a function, got 3"),
        (None, TypeError, "named by a string or given as a function, got None"),
    ],
)
@pytest.mark.parametrize("way", ["ask", "tell"])
def test_what_an_actor_cannot_be_asked_is_refused_on_the_driver(
    local: Backend, way: str, method: Any, kind: type[Exception], told: str
) -> None:
    with flowrl.run(desk(), local) as run:
        handle = run.actors["desk"][0]
        with pytest.raises(kind, match=told):
            getattr(handle, way)(method)
        assert run.step(1) == [1]
        assert handle.ask("echo", method=1, self=2).result() == {"method": 1, "self": 2}


def test_of_a_class_that_answers_to_every_name_none_is_refused(local: Backend) -> None:
    with flowrl.run(desk(Open), local) as run:
        assert run.actors["desk"][0].ask("anything").result() == "anything"


def test_a_reference_inside_another_value_is_refused_with_the_remedy(local: Backend) -> None:
    with flowrl.run(desk(), local) as run:
        handle = run.actors["desk"][0]
        pending = handle.ask("sample")
        for value, kind in ((pending, "Pending"), (pending.ref, "Ref")):
            told = rf"\['args'\]\[0\]\[1\]\['k'\] is a {kind} inside another value; pass it as an argument of its own"
            with pytest.raises(TypeError, match=told):
                handle.ask("echo_one", [0, {"k": value}])
            assert handle.ask("echo_one", value).result() == 1


def test_published_weights_that_cannot_be_sent_are_told(backend: Backend) -> None:
    with flowrl.run(desk(), backend) as run:
        pending = run.actors["desk"][0].ask("publish")
        with pytest.raises(TypeError, match="the published cannot be sent from its actor: published is a lock"):
            pending.result()


# between processes
class Apart(Delayed):
    """As if its actors had processes of their own."""

    in_process = False


@dataclass
class TellOther(Operator[int, int]):
    """Tells an actor that nobody asks about each item."""

    other: ActorGroup[Box]
    method: str = "note"

    def process(self, value: int, ctx: Context) -> Iterable[int]:
        ctx.actors(self.other)[0].tell(self.method, value)
        yield value


def telling(method: str = "note") -> Flow[int]:
    shards = flowrl.from_actors(boxes(count=2), "sample")
    return shards.gather_async(num_async=1).for_each(TellOther(boxes("others"), method))


def test_what_an_idle_actor_is_told_goes_several_at_a_time() -> None:
    with flowrl.run(telling(), Apart(0, likely=1.0)) as run:
        items = run.step(100)
        stats = run.stats().nodes["TellOther"]
        assert 100 / WAITS_A_SWEEP / 4 < stats.messages < 100 / 3
        state = run._engine.states["others"][0]
        assert len(state.mail) < 3 * WAITS_A_SWEEP  # those of the last waits
        assert told(run, "others") == items


def test_a_wait_that_takes_its_time_holds_nothing_back() -> None:
    with flowrl.run(telling(), Apart(0, likely=0.02)) as run:
        run.step(6)
        assert len(run._engine.states["others"][0].mail) <= 3


@pytest.mark.parametrize("likely", [1.0, 0.3, 0.05])
def test_a_failing_tell_is_raised_while_others_answer(likely: float) -> None:
    with flowrl.run(telling("fail"), Apart(0, likely=likely)) as run, pytest.raises(LookupError, match="no 1"):
        run.step(200)
