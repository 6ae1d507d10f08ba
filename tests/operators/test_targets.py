"""UpdateTarget: the learner is told once, and counts by itself."""

from __future__ import annotations

from typing import Any

import pytest

import flowrl
from flowrl import GraphError, Local
from flowrl.operators import UpdateTarget


class Learner:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def set_target_update(self, *, every_updates: int | None = None, tau: float | None = None) -> None:
        self.heard.append((every_updates, tau))

    def history(self) -> list[Any]:
        return self.heard


@pytest.mark.parametrize("given", [{"every_updates": 250}, {"tau": 0.005}])
def test_the_learner_is_told_once_and_items_pass(given: dict[str, Any]) -> None:
    learner = flowrl.actor(Learner, name="learner")
    flow = flowrl.from_iterable(lambda: range(5)).for_each(UpdateTarget(learner, **given))
    with flowrl.run(flow, Local()) as run:
        assert run.step(9) == [0, 1, 2, 3, 4]
        assert run.actors["learner"][0].ask("history").result() == [(given.get("every_updates"), given.get("tau"))]


@pytest.mark.parametrize("group", [None, Learner])
def test_a_learner_that_is_no_group_is_refused(group: Any) -> None:
    with pytest.raises(GraphError, match=r"UpdateTarget needs a group made by flowrl.actors\(Learner, ...\), got "):
        UpdateTarget(group, tau=0.1)
    with pytest.raises(GraphError, match=r"UpdateTarget: dict \(group 'plain'\) has no method set_target_update"):
        UpdateTarget(flowrl.actor(dict, name="plain"), tau=0.1)


def test_what_it_refuses() -> None:
    learner = flowrl.actor(Learner, name="learner")
    with pytest.raises(
        ValueError, match=r"needs one of every_updates= .* and tau= .*, got every_updates=None and tau="
    ):
        UpdateTarget(learner)
    with pytest.raises(ValueError, match=r"got every_updates=3 and tau=0\.1"):
        UpdateTarget(learner, every_updates=3, tau=0.1)
    with pytest.raises(ValueError, match="every_updates must be at least 1, got 0"):
        UpdateTarget(learner, every_updates=0)
    with pytest.raises(ValueError, match=r"tau must be at most 1, got 1\.5"):
        UpdateTarget(learner, tau=1.5)
    with pytest.raises(ValueError, match="tau must be above 0, got 0"):
        UpdateTarget(learner, tau=0)
