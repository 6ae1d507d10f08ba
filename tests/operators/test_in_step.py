"""Which parts of an item each of several learners gets."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import flowrl
from flowrl import ActorHandle, Info, Ref
from flowrl.functions import Function
from flowrl.operators import TrainOneStep
from flowrl.operators.in_step import dealt
from flowrl.ref import Leaf

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
    learners = flowrl.actors(list, count=2, name="learners")
    with pytest.raises(ValueError, match="peer_timeout_s must be above 0, got -1"):
        TrainOneStep(learners, peer_timeout_s=-1)
