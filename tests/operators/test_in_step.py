"""Which parts of an item each of several learners gets."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import flowrl
from flowrl import ActorHandle, Answer, Batch, FlowError, Info, Ref
from flowrl.functions import Function
from flowrl.metrics import Sum
from flowrl.operators import TrainOneStep
from flowrl.operators.in_step import dealt
from flowrl.ref import Leaf
from flowrl.rl.peers import Whereabouts
from flowrl.testing import Virtual

WORKERS = [ActorHandle("workers", index) for index in range(3)]


def held(group: str, index: int) -> Ref[object]:
    """A reference to an answer of an actor."""
    return Ref(Leaf(SimpleNamespace(actor=SimpleNamespace(group=group, index=index))), Info(env_steps=5))


def holders(part: Ref[object] | None) -> list[tuple[str, int] | None]:
    return [] if part is None else [one.holder for one in part.parts]


def test_a_joined_reference_knows_its_parts_and_who_holds_them():
    parts = [held("workers", 0), held("workers", 2), Ref.of(3)]
    joined = Ref.concat([Ref.concat(parts[:2]), parts[2]])
    assert joined.holder is None
    assert [part.holder for part in joined.parts] == [("workers", 0), ("workers", 2), None]
    assert joined.parts[2].get() == 3
    assert parts[0].parts == (parts[0],)
    deferred = parts[1].then(Function(abs))
    assert (deferred.holder, deferred.parts) == (("workers", 2), (deferred,))


def test_who_made_a_part_trains_on_it():
    parts = [held("workers", index) for index in (2, 0, 2)]
    shares = dealt(parts, WORKERS)
    assert [holders(part) for part, _ in shares] == [[("workers", 0)], [], [("workers", 2), ("workers", 2)]]
    assert [share for _, share in shares] == [(0, 1)] * 3
    left = dealt(parts, WORKERS[1:])  # the first has died: what it made goes to the one that has the least
    assert [holders(part) for part, _ in left] == [[("workers", 0)], [("workers", 2), ("workers", 2)]]


def test_other_parts_go_round_and_too_few_are_shared():
    learners = [ActorHandle("learners", index) for index in range(2)]
    parts = [held("workers", index) for index in range(3)]
    assert [holders(part) for part, _ in dealt(parts, learners)] == [[("workers", 0), ("workers", 2)], [("workers", 1)]]
    shares = dealt(parts[:1], learners)
    assert [holders(part) for part, _ in shares] == [[("workers", 0)]] * 2
    assert [share for _, share in shares] == [(0, 2), (1, 2)]


def test_the_timeout_is_checked():
    learners = flowrl.actors(Forsaken, count=2, name="learners")
    with pytest.raises(ValueError, match=r"peer_timeout_s must be a number of seconds above 0 .*, got -1"):
        TrainOneStep(learners, peer_timeout_s=-1)


class Forsaken:
    """A learner whose group always loses one."""

    default_cpus = 0
    version = 0

    def whereabouts(self) -> Whereabouts:
        return Whereabouts.here()

    def join(self, meeting: object, rank: int) -> None:
        pass

    def train_in_step(self, batch: object, **options: object) -> Answer[str]:
        lost = {("default", "trained_steps"): Sum(0), ("default", "rounds_lost"): Sum(1)}
        return Answer("learners[0] has lost one", lost, 1)


@pytest.mark.parametrize("gather", ["gather_sync", "gather_async"])
@pytest.mark.parametrize("hung", [0, 1, 2])
def test_a_learner_that_never_answers_is_not_waited_for_much_longer_than_the_timeout(hung, gather):
    def takes(group: str, index: int, kind: str, n: int) -> float:
        """The others answer once they have waited for their peer in vain."""
        if group != "learners" or kind != "ask" or n < 2:  # before: where they are, and that they meet
            return 0.0
        return 1e9 if index == hung else 5.0

    learners = flowrl.actors(Forsaken, count=3, name="learners")
    backend = Virtual(takes)
    rows = flowrl.from_items([Batch({"rewards": np.ones(3, np.float32)})], num_shards=1, repeat=True)
    flow = getattr(rows, gather)().for_each(TrainOneStep(learners, peer_timeout_s=5.0))
    with flowrl.run(flow, backend) as r:
        began = backend.now()
        with pytest.raises(FlowError, match=rf"learners\[{hung}\] does not answer: .*peer_timeout_s=5"):
            r.step()
        assert backend.now() - began <= 15.0  # closing the actors included


class Elsewhere(Forsaken):
    """A learner in a process that no other is in, as far as it says."""

    def __init__(self, index: int):
        self.index = index

    def whereabouts(self) -> Whereabouts:
        return Whereabouts("here", self.index, "127.0.0.1")

    def open_store(self, timeout_s: float) -> int:
        return 1


@pytest.mark.parametrize(("question", "hung", "longest_s"), [(0, 1, 30), (1, 0, 60), (1, 1, 75), (2, 0, 75)])
def test_a_learner_that_does_not_come_to_the_meeting_is_named(question, hung, longest_s):
    """The first is asked where it is, for a store, to join; the other where it is, to join."""

    def takes(group: str, index: int, kind: str, n: int) -> float:
        return 1e9 if group == "learners" and kind == "ask" and index == hung and n == question else 0.0

    what = (["whereabouts", "open_store", "join"] if hung == 0 else ["whereabouts", "join"])[question]
    learners = flowrl.actors(Elsewhere, count=2, name="learners")
    backend = Virtual(takes)
    rows = flowrl.from_items([Batch({"rewards": np.ones(3, np.float32)})], num_shards=1, repeat=True)
    with flowrl.run(rows.gather_sync().for_each(TrainOneStep(learners, peer_timeout_s=5.0)), backend) as r:
        began = backend.now()
        told = rf"learners\[{hung}\] has not answered '{what}' within {longest_s} s, .*peer_timeout_s=5"
        with pytest.raises(FlowError, match=told):
            r.step()
        assert longest_s <= backend.now() - began <= longest_s + 10  # closing the actors included
