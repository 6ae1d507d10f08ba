"""Evaluation on a schedule: when, of which weights, by whom; and that training does not notice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl import Answer, Batch, Local
from flowrl.operators import ConcatBatches, EvaluateEvery, ReportMetrics, SendWeights, TrainOneStep
from flowrl.rl import Evaluator, Learner, PolicySpec, RolloutWorker
from flowrl.rl.evaluation import Evaluation, quotas
from flowrl.rl.losses import PPOLoss
from flowrl.testing import Delayed, Virtual
from tests.rl.counting_envs import Walk


class Worker:
    """Ten steps a pull."""

    def sample(self) -> Batch:
        return Batch({"x": np.zeros(10)})

    def spaces(self) -> dict[str, str]:
        return {"default": "spaces"}


class Trainer:
    """Publishes its version as weights."""

    def __init__(self) -> None:
        self.version = 0

    def build(self, spaces: Any) -> Answer[None]:
        return Answer(None, policy_version=0, published=np.zeros(1, np.float32))

    def train(self, batch: Batch, **_: Any) -> Answer[None]:
        self.version += 1
        return Answer(None, {}, self.version, np.full(1, self.version, np.float32))


class Judge:
    """Says what it was asked: the returns are the weights, ten times the seed apart."""

    def __init__(self, index: int, count: int):
        self.index, self.count = index, count

    def evaluate(
        self, episodes: int, seed: int, deterministic: bool, weights: Any, version: int
    ) -> Answer[Evaluation | None]:
        share = quotas(episodes, self.count)[self.index]
        assert float(weights[0]) == version
        if share == 0:
            return Answer(None)
        if version == 66:
            raise RuntimeError("the judge is ill")
        return Answer(Evaluation((float(version + 1000 * seed),) * share, (5 + deterministic,) * share), env_steps=0)


def graph(gather: str = "sync", judges: int = 1, kind: Any = Judge, **kwargs: Any) -> flowrl.Flow[Any]:
    workers = flowrl.actors(Worker, count=1, name="workers")
    learner = flowrl.actor(Trainer, name="learner")
    evaluators = flowrl.actors(kind, count=judges, name="evaluators")
    rollouts = flowrl.from_actors(workers, "sample")
    gathered = rollouts.gather_sync() if gather == "sync" else rollouts.gather_async(num_async=1)
    kwargs = {"env_steps": 30, "episodes": 4, **kwargs}
    return (
        gathered.for_each(TrainOneStep(learner))
        .for_each(EvaluateEvery(evaluators, learner, **kwargs))
        .for_each(ReportMetrics())
    )


def test_the_newest_weights_are_evaluated_every_so_many_steps() -> None:
    with flowrl.run(graph(), Local()) as running:
        found = [item.nodes.get("EvaluateEvery", {}) for item in running.step(8)]
    # Begun after the third item (30 steps, version 3) and the sixth; each is in the figures of the item that follows.
    assert found[:3] == [{}, {}, {}]
    first = {"return_mean": 3, "return_ci95": 0, "length_mean": 6, "version": 3, "env_steps": 30}
    assert found[3] == {**first, "evaluated_episodes": 4, "evaluations": 1}
    assert found[5] == found[3]
    second = {"return_mean": 1006, "return_ci95": 0, "length_mean": 6, "version": 6, "env_steps": 60}
    assert found[6] == found[7] == {**second, "evaluated_episodes": 8, "evaluations": 2}


def test_evaluators_share_the_episodes() -> None:
    with flowrl.run(graph(judges=6, deterministic=False), Local()) as running:
        last = running.step(4)[-1].nodes["EvaluateEvery"]
    assert (last["evaluated_episodes"], last["return_mean"], last["length_mean"]) == (4, 3, 5)
    assert running.stats().nodes["EvaluateEvery"].messages == 6


def test_what_is_out_at_the_end_is_taken_in() -> None:
    with flowrl.run(graph().take(3), Local()) as running:
        assert len(list(running)) == 3  # take closes what is upstream; nothing is waited for
    items = flowrl.from_iterators([lambda: iter([Batch({"x": np.zeros(40)})])])
    learner, evaluators = flowrl.actor(Trainer, name="learner"), flowrl.actors(Judge, count=1, name="evaluators")
    flow = items.gather_sync().for_each(TrainOneStep(learner))
    with flowrl.run(flow.for_each(EvaluateEvery(evaluators, learner, env_steps=30)), Local()) as running:
        list(running)
        assert running.stats().metrics["EvaluateEvery"]["evaluations"] == 1


def test_an_asynchronous_graph_goes_on_meanwhile() -> None:
    def takes(group: str, index: int, kind: str, n: int) -> float:
        return 10.0 if (group, kind) == ("evaluators", "ask") else 1.0

    backend = Virtual(takes)
    with flowrl.run(graph("async"), backend) as running:
        running.step(3)
        began = backend.now()
        seen = [(item.nodes.get("EvaluateEvery", {}).get("version"), item.env_steps) for item in running.step(9)]
        passed = backend.now() - began
    versions = [version for version, _ in seen]
    assert versions[:4] == [None] * 4  # 10 s are several items of 2 s
    assert 3 in versions
    assert passed < 20
    # The evaluation that was due meanwhile began afterwards, one at a time.
    assert all(version in (None, 3, 8, 9) for version in versions)


def test_a_deterministic_graph_reports_at_the_same_items_whatever_comes_when() -> None:
    def figures(backend: Any) -> list[Any]:
        with flowrl.run(graph(judges=2), backend) as running:
            return [item.nodes.get("EvaluateEvery", {}) for item in running.step(7)]

    expected = figures(Local())
    for seed in range(5):
        assert figures(Delayed(seed)) == expected


def test_an_evaluators_error_stops_the_run() -> None:
    with (
        flowrl.run(graph(env_steps=660), Local()) as running,
        pytest.raises(RuntimeError, match="the judge is ill") as caught,
    ):
        running.step(70)
    assert "EvaluateEvery" in "".join(caught.value.__notes__)


def test_an_evaluation_that_is_out_is_saved_with_its_answer() -> None:
    learner, evaluators = flowrl.actor(Trainer, name="learner"), flowrl.actors(Judge, count=2, name="evaluators")
    op = EvaluateEvery(evaluators, learner, env_steps=30, episodes=3)
    op.open()
    with flowrl.run(graph(judges=2), Local()) as running:
        running.step(3)
        (stage,) = (stage for stage in running._engine.stages if stage.name == "EvaluateEvery")
        state = stage.op.get_state()
        assert state == {"begun": 1, "periods": 1, "out": (3, 30, ((3.0,) * 4, (6,) * 4))}
        op.set_state(state)
        out: Any = op._out
        op._look(out, stage.ctx, wait=False)
        op.set_state({**state, "out": None})
        assert (op._begun, op._out) == (1, None)
        running.step(1)
        assert running.stats().metrics["EvaluateEvery"]["evaluations"] == 2  # the copy's and its own


def test_what_it_refuses() -> None:
    learner, evaluators = flowrl.actor(Trainer, name="learner"), flowrl.actors(Judge, count=2, name="evaluators")
    with pytest.raises(ValueError, match="env_steps must be at least 1, got 0"):
        EvaluateEvery(evaluators, learner, env_steps=0)
    with pytest.raises(ValueError, match="episodes must be an integer of at least 1, got True"):
        EvaluateEvery(evaluators, learner, env_steps=1, episodes=True)
    with pytest.raises(ValueError, match="needs a group of evaluators, learner: 1 × Trainer cannot evaluate"):
        EvaluateEvery(learner, learner, env_steps=1)


# with real parts
def training(evaluated: bool, *, sampled: bool = False, **kwargs: Any) -> flowrl.Flow[Any]:
    """A2C-like steps on a random walk."""
    spec = PolicySpec(hidden=(8,))
    workers = flowrl.actors(RolloutWorker, Walk, spec, steps=16, num_envs=2, count=2, name="workers")
    learner = flowrl.actor(Learner, spec, PPOLoss(), learning_rate=1e-2, name="learner")
    evaluators = flowrl.actors(Evaluator, Walk, spec, num_envs=2, count=2, name="evaluators")
    flow = (
        flowrl.operators.ParallelRollouts(workers)
        .for_each(flowrl.operators.AddAdvantages(0.9, 0.9))
        .gather_sync()
        .for_each(ConcatBatches(min_steps=50))
        .for_each(TrainOneStep(learner, minibatch=16))
        .for_each(SendWeights(learner, to=workers))
    )
    if evaluated:
        every = EvaluateEvery(evaluators, learner, env_steps=60, episodes=5, deterministic=not sampled, **kwargs)
        flow = flow.for_each(every)
    return flow.for_each(ReportMetrics())


def curve(flow: flowrl.Flow[Any], evaluate: bool = False) -> tuple[list[Any], dict[str, float]]:
    numbers: list[Any] = []
    with flowrl.run(flow, Local(), seed=5) as running:
        for _ in range(6):
            (item,) = running.step()
            numbers.append((item.env_steps, item.episodes, item.episode_return_mean, dict(item.learner["default"])))
            if evaluate:
                running.evaluate(3, deterministic=False)
        numbers.append(running.policy().get_weights().tolist())
        return numbers, dict(item.nodes.get("EvaluateEvery", {}))


def test_the_training_curve_is_the_same_number_for_number() -> None:
    plain, _ = curve(training(False))
    for flow in (training(True), training(True, sampled=True)):
        evaluated, figures = curve(flow)
        assert evaluated == plain
        assert figures["evaluations"] >= 4
        assert figures["evaluated_episodes"] == 5 * figures["evaluations"]
    assert curve(training(False), evaluate=True)[0] == plain
    assert curve(training(True), evaluate=True)[0] == plain


def test_run_evaluate_asks_the_evaluators_where_there_are_some() -> None:
    with flowrl.run(training(True), Local(), seed=5) as running:
        running.step(1)
        before = running.stats().groups
        found = running.evaluate(5)
        after = running.stats().groups
        assert found.episodes == 5
        assert after["workers"].calls == before["workers"].calls
        assert after["evaluators"].calls == before["evaluators"].calls + 2
        assert running.evaluate(1).episodes == 1  # one of them has none to play
        assert running.evaluate(5).returns != found.returns  # seeds of its own each time
    with flowrl.run(training(False), Local(), seed=5) as running:
        running.step(1)
        assert running.evaluate(5).episodes == 5
