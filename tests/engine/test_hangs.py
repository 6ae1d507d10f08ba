"""Actors that answer no more: given up after a time, they count as dead, and errors name actor, node and place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl import ActorDied, Answer, Batch, Ignore, Raise, Restart, rl
from flowrl.algorithms import DDPPOConfig, IMPALAConfig, PPOConfig
from flowrl.operators import ApplyGradients, TrainOneStep
from flowrl.testing import Delayed, Virtual


class Counts:
    """A learner that counts what it has trained on."""

    default_cpus = 0

    def __init__(self) -> None:
        self.trained = 0

    def train(self, batch: Batch, **options: Any) -> Answer[None]:
        self.trained += 1
        return Answer(None, policy_version=self.trained, published=np.zeros(1))

    apply_gradients = train

    def get_state(self) -> dict[str, int]:
        return {"trained": self.trained}

    def resume(self, state: dict[str, int], at_least: int) -> Answer[None]:
        self.trained = max(state["trained"], at_least) + 1
        return Answer(None, {"updates_lost": 0}, self.trained)


LEARNER = flowrl.actor(Counts, name="learner")
ROW = {"rewards": np.ones(3, np.float32)}


def trained(gather: str = "gather_sync", **settings: Any) -> Any:
    rows = flowrl.from_items([Batch(ROW)], num_shards=1, repeat=True)
    return getattr(rows, gather)().for_each(TrainOneStep(LEARNER, **settings))


def takes(*hangs: int, usual: float = 2.0) -> Callable[[str, int, str, int], float]:
    """Each message to the learner takes its time, and those of these numbers for ever."""

    def seconds(group: str, index: int, kind: str, n: int) -> float:
        if group != "learner" or kind != "ask":
            return 0.0
        return 1e9 if n in hangs else usual

    return seconds


@pytest.mark.parametrize("gather", ["gather_sync", "gather_async"])
def test_a_lone_learner_that_never_answers_is_given_up(gather: str) -> None:
    backend = Virtual(takes(3))
    with flowrl.run(trained(gather, timeout_s=7.0), backend) as run:
        run.step(3)
        began = backend.now()
        told = r"learner\[0\] died: it has not answered 'train' within 7 s, which is the timeout_s of node TrainOneStep"
        with pytest.raises(ActorDied, match=told) as caught:
            run.step()
        assert backend.now() - began <= 10.0  # closing the actors included
    (note,) = caught.value.__notes__
    assert note.startswith("flowrl: in node 'TrainOneStep'; defined at ")
    assert "test_hangs.py" in note
    assert note.endswith("shard learner[0]")


@pytest.mark.parametrize("gather", ["gather_sync", "gather_async"])
def test_it_goes_on_from_its_snapshot_where_the_policy_says_so(gather: str) -> None:
    # Of the first life: a snapshot, three batches, and one that hangs.
    backend = Virtual(takes(4))
    flow = trained(gather, timeout_s=7.0, on_failure=Restart(1, 0.0))
    with flowrl.run(flow, backend) as run:
        versions = [info.policy_version for info in run.step(8)]
        stats = run.stats()
        assert not run._engine.lives.timers
    assert versions == sorted(versions)
    assert stats.groups["learner"].deaths == 1
    assert stats.metrics["TrainOneStep"]["items_lost"] == 1
    assert any("it has not answered 'train' within 7 s" in warning for warning in stats.warnings)


@pytest.mark.parametrize("gather", ["gather_sync", "gather_async"])
def test_one_that_hangs_as_it_goes_on_from_its_snapshot_is_started_once_more(gather: str) -> None:
    backend = Virtual(takes(4, 5))  # the second life's first message is resume
    with flowrl.run(trained(gather, timeout_s=7.0, on_failure=Restart(2, 0.0)), backend) as run:
        versions = [info.policy_version for info in run.step(8)]
        assert run.stats().groups["learner"].deaths == 2
        assert not run._engine.lives.timers
    assert versions == sorted(versions)
    flow = trained(gather, timeout_s=7.0, on_failure=Restart(1, 0.0))
    with flowrl.run(flow, Virtual(takes(4, 5))) as run, pytest.raises(ActorDied, match="'resume' within 7 s"):
        run.step(8)


def test_by_default_it_has_half_an_hour() -> None:
    backend = Virtual(takes(2))
    with flowrl.run(trained(), backend) as run:
        run.step(2)
        with pytest.raises(ActorDied, match="within 1800 s"):
            run.step()
    applied = flowrl.from_items([Batch({"gradients": np.ones((1, 2)), "rows": np.ones(1)})], num_shards=1, repeat=True)
    flow = applied.gather_sync().for_each(ApplyGradients(LEARNER, timeout_s=9.0))
    with flowrl.run(flow, Virtual(takes(0))) as run, pytest.raises(ActorDied, match="'apply_gradients' within 9 s"):
        run.step()


def test_time_in_which_nobody_pulls_is_no_hang() -> None:
    """What was answered meanwhile is seen before anybody is given up; calls that wait for others are not late."""
    backend = Virtual(takes(usual=5.0))
    with flowrl.run(trained("gather_async", timeout_s=6.0, in_flight=3), backend) as run:
        for _ in range(4):
            run.step()
            backend.pass_time(100.0)
        run.step(4)
    with flowrl.run(trained("gather_async", timeout_s=6.0, in_flight=3), Virtual(takes(usual=5.0))) as run:
        assert len(run.step(9)) == 9  # each is out for 15 s


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match=r"TrainOneStep: timeout_s must be a number of seconds above 0 .*, got 0"):
        TrainOneStep(LEARNER, timeout_s=0)
    with pytest.raises(ValueError, match=r"ApplyGradients: timeout_s must be a number of seconds .*, got nan"):
        ApplyGradients(LEARNER, timeout_s=float("nan"))
    several = flowrl.actors(rl.Learner, rl.PolicySpec(), rl.losses.PPOLoss(), count=2, name="learners")
    with pytest.raises(ValueError, match=r"timeout_s=5.0 is for a lone learner, and 'learners' has 2.*peer_timeout_s"):
        TrainOneStep(several, timeout_s=5.0)
    with pytest.raises(ValueError, match=r"learner_timeout_s=5.0 is for a lone .* learners=2.*peer_timeout_s"):
        IMPALAConfig(learners=2, learner_timeout_s=5.0)
    with pytest.raises(ValueError, match=r"learner_timeout_s must be a number of seconds above 0 .*, got -1"):
        PPOConfig(learner_timeout_s=-1)
    with pytest.raises(ValueError, match=r"learner_timeout_s=5.0 has no part in DD-PPO.*set peer_timeout_s"):
        DDPPOConfig(learner_timeout_s=5.0)
    (train,) = (node.op for node in _nodes(PPOConfig(learner_timeout_s=5.0).graph()) if "TrainOneStep" in repr(node.op))
    assert train.answers_within_s == 5.0


def _nodes(flow: Any) -> list[Any]:
    from flowrl import graph

    return [node for node in graph.walk(flow.node) if isinstance(node, graph.Apply)]


@pytest.mark.parametrize("number", [2, 5])
def test_the_death_of_a_lone_learner_names_the_nodes_that_ask_it(number: int) -> None:
    backend = Delayed(1, die=lambda name, n: name == "learner[0]" and n == number)
    with flowrl.run(trained(), backend) as run, pytest.raises(ActorDied, match=r"learner\[0\] died") as caught:
        run.step(8)
    assert "in node 'TrainOneStep'; defined at " in "".join(caught.value.__notes__)


def test_a_death_that_no_call_was_out_for_names_them_too() -> None:
    backend = Delayed(1)
    with flowrl.run(trained().named("mine"), backend) as run:
        run.step(3)
        backend.kill(run.actors["mine/learner"][0])
        with pytest.raises(ActorDied) as caught:
            run.step(3)
    assert "in node 'mine/TrainOneStep'" in "".join(getattr(caught.value, "__notes__", ()))


@pytest.mark.parametrize("policy", [Raise(), Ignore(), Restart(1, 0.0)])
def test_the_death_of_shards_names_their_gather(policy: Any) -> None:
    sources = flowrl.actors(Counts, count=2, name="sources")
    backend = Delayed(1, die=lambda name, n: n >= 3)
    flow = flowrl.from_actors(sources, "get_state").gather_sync(on_failure=policy)
    with flowrl.run(flow, backend) as run, pytest.raises(ActorDied) as caught:
        run.step(20)
    assert "in node 'gather_sync'; defined at " in "".join(caught.value.__notes__)
