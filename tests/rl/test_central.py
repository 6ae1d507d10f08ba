"""Central inference: the transitions of workers that act by themselves, for every kind of policy."""

from __future__ import annotations

import os
import re
from typing import Any

import gymnasium
import numpy as np
import pytest

import flowrl
from flowrl import ActorDied, Batch, Local, Raise, Restart
from flowrl.errors import GraphError
from flowrl.operators import ConcatBatches, ParallelRollouts, SendWeights, TrainOneStep
from flowrl.rl import EnvOptions, InferenceServer, Learner, PolicySpec, RolloutWorker
from flowrl.rl.inference import make_inference
from flowrl.rl.loss import LossOut
from flowrl.rl.remote import StepQuestion
from flowrl.testing import Delayed
from tests.rl.memory_envs import Recall
from tests.rl.test_inference import Shared
from tests.rl.test_q_worker import Masked

SMALL = {"hidden": (16, 8)}
CASES: dict[str, tuple[Any, PolicySpec, dict[str, Any]]] = {
    "discrete": ("CartPole-v1", PolicySpec(**SMALL), {}),
    "same step": (
        "CartPole-v1",
        PolicySpec(**SMALL),
        {"env_options": EnvOptions(vector="sync", autoreset="same_step")},
    ),
    "box": ("Pendulum-v1", PolicySpec(**SMALL), {}),
    "normalized": ("CartPole-v1", PolicySpec(normalize_obs=True, **SMALL), {"normalize_rewards": 0.9}),
    "memory": (Recall, PolicySpec(recurrent="gru", recurrent_size=8, **SMALL), {}),
    "memory, same step": (
        Recall,
        PolicySpec(recurrent="lstm", recurrent_size=8, **SMALL),
        {"env_options": EnvOptions(autoreset="same_step")},
    ),
    "values of actions": ("CartPole-v1", PolicySpec(head="q", **SMALL), {"next_obs": True}),
    "masks": (Masked, PolicySpec(head="q", **SMALL), {"next_obs": True}),
    "soft actor": ("Pendulum-v1", PolicySpec(head="soft_actor", **SMALL), {"next_obs": True}),
    "deterministic actor": ("Pendulum-v1", PolicySpec(head="deterministic_actor", **SMALL), {"next_obs": True}),
}


def fragments(case: str, backend: Any, *, central: bool, epsilon: float = 0.0, rounds: int = 4) -> list[Batch]:
    """Some rounds of two workers with three environments each, all with the same weights."""
    env, spec, kwargs = CASES[case]
    workers = flowrl.actors(RolloutWorker, env, spec, steps=15, num_envs=3, count=2, name="workers", **kwargs)
    inference = flowrl.actor(InferenceServer, name="inference") if central else None
    with flowrl.run(ParallelRollouts(workers, inference=inference).gather_sync(), backend, seed=3) as run:
        spaces = run.actors["workers"][0].ask("spaces").result()["default"]
        flat = make_inference(spec, spaces, np.random.SeedSequence(8))[1]
        for worker in run.actors["workers"]:
            worker.ask("set_weights", flat, 7).result()
            if epsilon:
                worker.ask("set_epsilon", epsilon).result()
        if central:
            run.actors["inference"][0].ask("set_weights", flat, 7).result()
        return run.step(2 * rounds)


def assert_same(found: list[Batch], expected: list[Batch]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert set(one) == set(other)
        for name in other:
            compare = np.testing.assert_array_equal if other[name].dtype.kind in "biu" else np.testing.assert_allclose
            compare(one[name], other[name], **({} if compare is np.testing.assert_array_equal else {"atol": 1e-5}))


@pytest.mark.parametrize("case", CASES)
def test_the_transitions_are_those_of_local_inference(case):
    expected = fragments(case, Local(), central=False)
    assert_same(fragments(case, Local(), central=True), expected)
    assert any((batch["terminated"] | batch["truncated"]).any() for batch in expected) or "Pendulum" in CASES[case][0]


@pytest.mark.parametrize("case", ["values of actions", "masks", "deterministic actor"])
def test_so_are_those_of_a_policy_that_explores(case):
    expected = fragments(case, Local(), central=False, epsilon=0.3)
    assert_same(fragments(case, Local(), central=True, epsilon=0.3), expected)


@pytest.mark.parametrize("case", ["discrete", "memory"])
def test_timing_changes_no_number(case):
    for seed in range(2):
        late = fragments(case, Delayed(seed, likely=0.3), central=True, rounds=2)
        for one, other in zip(late, fragments(case, Local(), central=True, rounds=2), strict=True):
            for name in other:
                np.testing.assert_array_equal(one[name], other[name])


def rollouts(steps: int = 10, spec: PolicySpec = PolicySpec(**SMALL), count: int = 2, **kwargs: Any) -> Any:  # noqa: B008
    workers = flowrl.actors(
        RolloutWorker, "CartPole-v1", spec, steps=steps, num_envs=2, count=count, name="workers", **kwargs
    )
    return workers, flowrl.actor(InferenceServer, name="inference")


class Behaviour:
    """The mean of the values: enough to change the weights."""

    needs = frozenset({"obs"})

    def __call__(self, net: Any, batch: Any, now: Any) -> LossOut:
        return LossOut(net.forward(batch).values.mean())


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_weights_go_to_the_server_and_fragments_have_its_version(mode):
    workers, inference = rollouts()
    learner = flowrl.actor(Learner, PolicySpec(**SMALL), Behaviour(), name="learner")
    shards = ParallelRollouts(workers, inference=inference)
    flow = (
        (shards.gather_sync() if mode == "sync" else shards.gather_async())
        .for_each(ConcatBatches(min_steps=30))
        .for_each(TrainOneStep(learner))
        .for_each(SendWeights(learner, to=inference))
    )
    with flowrl.run(flow, Local(), seed=1) as run:
        infos = run.step(8)
        served = run.actors["inference"][0].ask(lambda server: server._version).result()
        own = run.actors["workers"][0].ask(lambda worker: worker._version).result()
        figures = run.stats()
    assert (served, own) == (8, 0)
    assert all(info.age.oldest <= 3 for info in infos)
    if mode == "sync":
        assert [info.age.oldest for info in infos] == [0] * 8
        assert figures.metrics["inference"]["rows_per_call"] == 4


def test_what_the_server_answers_for_many_is_what_it_answers_for_each():
    worker, server = RolloutWorker("CartPole-v1", PolicySpec(**SMALL), num_envs=2, seed=0), InferenceServer(seed=0)
    first = worker.begin_sample().payload
    rng = np.random.default_rng(0)
    questions = [first, *(StepQuestion(rng.normal(size=(n, 4)).astype(np.float32), None, None) for n in (1, 3, 2))]
    together = server.serve("abcd", *questions).payload
    for question, answer in zip(questions, together, strict=True):
        (alone,) = server.serve("a", question).payload
        np.testing.assert_allclose(alone.params, answer.params, atol=1e-6)
        assert answer.params.shape == (len(question.obs), 2)


def test_a_fragment_that_is_given_up_begins_new_episodes():
    worker, server = RolloutWorker("CartPole-v1", PolicySpec(**SMALL), steps=5, seed=0), InferenceServer(seed=0)
    question = worker.begin_sample()
    for _ in range(3):
        question = worker.go_on(server.serve(("w",), question.payload).payload, 0)
    again = worker.begin_sample().payload
    assert again.obs.shape == (1, 4)
    assert np.abs(again.obs).max() <= 0.05  # CartPole's first observations
    answers = server.serve(("w",), again).payload
    for _ in range(4):
        answers = server.serve(("w",), worker.go_on(answers, 0).payload).payload
    end = worker.go_on(answers, 0)
    answer = worker.go_on(server.serve(("w",), end.payload).payload, 0)
    assert answer.payload.leading == (5, 1)
    with pytest.raises(RuntimeError, match="begin_sample comes first"):
        worker.go_on(answers, 0)


def test_errors_name_the_environment_and_the_server():
    class Breaks(gymnasium.Wrapper):
        def __init__(self):
            super().__init__(gymnasium.make("CartPole-v1"))
            self.left = 12

        def step(self, action):
            self.left -= 1
            if self.left == 0:
                raise ArithmeticError("broken pole")
            return super().step(action)

    workers = flowrl.actors(RolloutWorker, Breaks, PolicySpec(**SMALL), steps=10, count=2, name="workers")
    flow = ParallelRollouts(workers, inference=flowrl.actor(InferenceServer, name="inference")).gather_sync()
    with flowrl.run(flow, Local()) as run, pytest.raises(ArithmeticError, match="broken pole") as caught:
        run.step(8)
    notes = "".join(caught.value.__notes__)
    # Whose episode ends early is a step behind, so either worker may be the first to fail.
    (failed,), (shard,) = re.findall(r"in worker (\d) of 2", notes), re.findall(r"shard workers\[(\d)\]", notes)
    assert failed == shard

    others = flowrl.actors(RolloutWorker, "Pendulum-v1", PolicySpec(**SMALL), steps=10, count=1, name="others")
    workers, inference = rollouts()
    both = ParallelRollouts(workers, inference=inference).union(ParallelRollouts(others, inference=inference))
    with (
        flowrl.run(both.gather_sync(), Local()) as run,
        pytest.raises(ValueError, match="share a server need the same"),
    ):
        run.step(3)


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("who", ["inference[0]", "workers[1]"])
@pytest.mark.parametrize("memory", [False, True])
def test_what_dies_is_started_again_with_the_newest_weights(mode, who, memory):
    spec = PolicySpec(recurrent="gru" if memory else None, recurrent_size=4, **SMALL)
    workers, inference = rollouts(spec=spec)
    shards = ParallelRollouts(workers, inference=inference)
    policy = Restart(3, 0.0)
    flow = shards.gather_sync(on_failure=policy) if mode == "sync" else shards.gather_async(on_failure=policy)
    with flowrl.run(flow, Delayed(0, die=lambda actor, n: actor == who and n in (7, 30))) as run:
        batches = run.step(10)
        assert run.stats().metrics[who[:-3]]["restarts"] == 2
    assert all(batch.leading == (10, 2) for batch in batches)
    flow = ParallelRollouts(workers, inference=inference).gather_sync(on_failure=Raise())
    dies = Delayed(0, die=lambda actor, n: actor == who and n == 7)
    with flowrl.run(flow, dies) as run, pytest.raises(ActorDied, match=who.replace("[", r"\[")):
        run.step(10)


def test_workers_with_a_model_of_their_own_agree():
    workers, inference = rollouts(spec=PolicySpec(model=lambda observation, action: Shared(observation, action)))
    with flowrl.run(ParallelRollouts(workers, inference=inference).gather_sync(), Local()) as run:
        assert all(np.isfinite(batch["logp"]).all() for batch in run.step(2))


def test_what_composing_refuses():
    workers, inference = rollouts()
    with pytest.raises(GraphError, match=r"RolloutWorker \(group 'workers'\) has no method serve\(\)"):
        ParallelRollouts(workers, inference=workers)
    with pytest.raises(GraphError, match="inference must be a group made by"):
        ParallelRollouts(workers, inference=InferenceServer)  # type: ignore[arg-type]
    text = ParallelRollouts(workers, inference=inference).gather_async().explain()
    assert "RolloutWorker.begin_sample(), served by inference" in text


def test_ray_gives_the_numbers_of_local(ray_session):
    expected = fragments("discrete", Local(), central=True, rounds=2)
    for one, other in zip(fragments("discrete", flowrl.Ray(), central=True, rounds=2), expected, strict=True):
        for name in other:
            np.testing.assert_array_equal(one[name], other[name])


def test_on_ray_a_dead_server_is_started_again_or_named(ray_session):
    workers, inference = rollouts()
    shards = ParallelRollouts(workers, inference=inference)
    with flowrl.run(shards.gather_async(on_failure=Restart(2, 0.01)), flowrl.Ray()) as run:
        run.step(2)
        run.actors["inference"][0].tell(lambda server: os._exit(1))
        assert all(batch.leading == (10, 2) for batch in run.step(6))
        assert run.stats().metrics["inference"]["restarts"] == 1
    with flowrl.run(shards.gather_sync(on_failure=Raise()), flowrl.Ray()) as run:
        run.step(2)
        run.actors["inference"][0].tell(lambda server: os._exit(1))
        with pytest.raises(ActorDied, match=r"inference\[0\] died"):
            run.step(8)
