"""SendWeights: the newest published weights, once to each actor that lacks them, asking nobody."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl import Answer, Batch, Local
from flowrl.operators import ApplyGradients, ConcatBatches, SendWeights, TrainOneStep
from flowrl.testing import check_operator


class Worker:
    """Answers batches of the version of its weights."""

    def __init__(self, index: int) -> None:
        self.index, self.version, self.got = index, -1, []

    def sample(self) -> Answer[Batch]:
        batch = Batch({"worker": np.full(2, self.index), "version": np.full(2, self.version)})
        return Answer(batch, policy_version=self.version)

    def set_weights(self, flat: Any, version: int, policy: str | None = None) -> None:
        assert not flat.flags.writeable
        assert flat.tolist() == [float(version)] * 3
        self.version = version
        self.got.append((version, policy))

    def spaces(self) -> dict[str, str]:
        return {"default": "spaces"}

    def history(self) -> list[Any]:
        return self.got


class Learner:
    """Publishes weights that are its version."""

    def __init__(self) -> None:
        self.version, self.built = 0, None

    def build(self, spaces: Any) -> Answer[None]:
        self.built = spaces
        return Answer(None, policy_version=0, published=np.zeros(3, np.float32))

    def train(self, batch: Batch, *, epochs: int, minibatch: int | None, env_steps: int) -> Answer[None]:
        assert self.built == {"default": "spaces"}
        self.version += 1
        metrics = {("default", "seen"): int(batch["version"].max()), ("default", "env_steps"): env_steps}
        return Answer(None, metrics, self.version, np.full(3, self.version, np.float32))


def graph(to: Any = None, **kwargs: Any):
    workers = flowrl.actors(Worker, count=2, name="workers")
    learner = flowrl.actor(Learner, name="learner")
    return (
        flowrl.from_actors(workers, "sample")
        .gather_sync()
        .for_each(ConcatBatches(min_steps=kwargs.pop("min_steps", 4)))
        .for_each(TrainOneStep(learner))
        .for_each(SendWeights(learner, to=to or workers, **kwargs))
    )


def test_every_round_samples_with_the_weights_of_the_round_before():
    with flowrl.run(graph(), Local()) as running:
        infos = running.step(4)
        assert [info.metrics["default/seen"] for info in infos] == [0, 1, 2, 3]  # version 0 before the first pull
        assert [info.policy_version for info in infos] == [1, 2, 3, 4]
        assert [info.env_steps for info in infos] == [4, 4, 4, 4]
        # one message a worker and one for the learner a round; the weights ride on the next pull
        stats = running.stats()
        assert stats.nodes["gather_sync"].messages == 8
        assert stats.nodes["TrainOneStep"].messages == 4
        assert stats.nodes["SendWeights"].messages == 0


def test_only_to_the_origin():
    with flowrl.run(graph(to="origin", min_steps=1), Local()) as running:
        running.step(3)  # trained on worker 0, worker 1, worker 0; each is told the version that its own data made
        history = [handle.ask("history").result() for handle in running.actors["workers"]]
    assert [version for version, _ in history[0]] == [0, 1, 3]
    assert [version for version, _ in history[1]] == [0, 2]


@pytest.mark.parametrize(
    ("kwargs", "versions"), [({"every_updates": 2}, [0, 1, 3, 5]), ({"every_env_steps": 8}, [0, 1, 3, 5])]
)
def test_at_most_so_often(kwargs, versions):
    with flowrl.run(graph(**kwargs), Local()) as running:
        running.step(5)
        got = running.actors["workers"][0].ask("history").result()
        assert [version for version, _ in got] == versions


def test_the_policy_is_passed_on():
    with flowrl.run(graph(policy="red"), Local()) as running:
        running.step(2)
        assert running.actors["workers"][1].ask("history").result() == [(0, "red"), (1, "red"), (2, "red")]


def test_what_it_refuses():
    learner = flowrl.actor(Learner, name="learner")
    with pytest.raises(ValueError, match="to must be a group of actors or 'origin', got 'all'"):
        SendWeights(learner, to="all")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="every_updates must be at least 1, got 0"):
        SendWeights(learner, to="origin", every_updates=0)
    with pytest.raises(ValueError, match="epochs must be at least 1, got 0"):
        TrainOneStep(learner, epochs=0)
    with pytest.raises(ValueError, match="minibatch must be at least 1, got -3"):
        TrainOneStep(learner, minibatch=-3)


def test_groups_in_each_others_place_are_refused():
    workers, learner = flowrl.actors(Worker, count=2, name="workers"), flowrl.actor(Learner, name="learner")
    with pytest.raises(
        flowrl.GraphError, match=r"Worker \(group 'workers'\) samples.*SendWeights\(learner, to=workers\)"
    ):
        SendWeights(workers, to=learner)
    with pytest.raises(
        flowrl.GraphError, match=r"SendWeights: Learner \(group 'learner'\) has no method set_weights\(\)"
    ):
        SendWeights(learner, to=learner)
    with pytest.raises(flowrl.GraphError, match=r"flowrl\.actor\(Learner, \.\.\.\), got <class '.*Learner'>"):
        SendWeights(Learner, to=workers)  # type: ignore[arg-type]
    with pytest.raises(
        flowrl.GraphError, match=r"TrainOneStep: Worker \(group 'workers'\) has no method train_in_step"
    ):
        TrainOneStep(workers)
    with pytest.raises(
        flowrl.GraphError, match=r"TrainOneStep needs a group made by flowrl\.actors\(Learner, \.\.\.\)"
    ):
        TrainOneStep(Learner)  # type: ignore[arg-type]
    with pytest.raises(flowrl.GraphError, match=r"ApplyGradients: Learner .* has no method apply_gradients"):
        ApplyGradients(learner)


@pytest.mark.parametrize("kind", [frozenset, set, list, tuple])
def test_train_one_step_needs_what_the_loss_needs(kind):
    class Loss:
        needs = kind(["advantages"])

    learner = flowrl.actor(lambda loss: Learner(), Loss(), name="learner")
    assert TrainOneStep(learner).required_columns() == {"advantages"}


def test_contract():
    learner = flowrl.actor(Learner, name="learner")
    check_operator(TrainOneStep(learner, epochs=2), [])
    assert repr(SendWeights(learner, to="origin")).startswith("SendWeights(learner=learner: 1 × Learner, to='origin'")
