"""DD-PPO end to end: workers that learn in step, the same on both backends, and on after one of them has died."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl import Flow, Local, Ray, actors, rl, run
from flowrl.algorithms import APPOConfig, DDPPOConfig, IMPALAConfig, PPOConfig
from flowrl.errors import ActorDied, FlowError
from flowrl.operators import AddAdvantages, ConcatBatches, ParallelRollouts, ReportMetrics, SendWeights, TrainOneStep
from flowrl.testing import Delayed


def small(**settings: Any) -> DDPPOConfig:
    """DD-PPO in miniature: some 100 steps a round."""
    given = {"envs_per_worker": 2, "unroll": 16, "batch_steps": 40, "epochs": 2, "minibatch": 24}
    return DDPPOConfig(**{**given, **settings})


def weights_of(running: Any, group: str = "workers") -> list[np.ndarray[Any, Any]]:
    """Those of every actor's learner."""
    asked = [handle.ask("policy_state") for handle in running.actors[group]]
    return [pending.result()["weights"] for pending in asked]


def assert_equal(arrays: list[np.ndarray[Any, Any]]) -> None:
    for other in arrays[1:]:
        assert other.tobytes() == arrays[0].tobytes()


def rounds(backend: Any, config: DDPPOConfig, count: int) -> tuple[list[dict[str, Any]], list[np.ndarray[Any, Any]]]:
    """Every figure of some rounds but times, and the weights of all workers after them."""
    with run(config.graph(), backend, seed=5) as running:
        figures = [summary.as_dict() for summary in running.step(count)]
        found = weights_of(running)
    for summary in figures:
        del summary["time_s"], summary["env_steps_per_s"]
    return figures, found


@pytest.mark.ray
@pytest.mark.parametrize(("workers", "steps"), [(2, 50), (3, 80)])
def test_every_worker_has_the_same_weights_on_both_backends(ray_session: None, workers: int, steps: int) -> None:
    config = small(num_workers=workers, batch_steps=steps, policy=rl.PolicySpec(normalize_obs=True), target_kl=0.1)
    local, ray = rounds(Local(), config, 3), rounds(Ray(), config, 3)
    np.testing.assert_equal(ray[0], local[0])
    assert_equal([*local[1], *ray[1]])
    assert local[0][-1]["trained_steps"] > 100
    assert local[0][-1]["env_steps"] > 100


def test_a_round_is_two_messages_a_worker_and_no_experience_gradient_or_weight_passes_the_driver() -> None:
    config = small(num_workers=3, envs_per_worker=4, unroll=64, batch_steps=700)  # fragments too large for a record
    with run(config.graph(), Local(), seed=0) as running:
        running.step(2)
        before, out = running.stats(), len(running._engine.calls.pending)
        running.step(4)
        after = running.stats()
        assert len(running._engine.calls.pending) == out  # every answer is taken in
    sent = {name: node.messages - before.nodes[name].messages for name, node in after.nodes.items()}
    assert {name: count for name, count in sent.items() if count} == {"gather_sync": 12, "TrainOneStep": 12}
    told = after.nodes["TrainOneStep"].bytes - before.nodes["TrainOneStep"].bytes
    assert told < 12 * 1500  # of 9,155 weights


def test_one_worker_is_ppo() -> None:
    same = {"num_workers": 1, "envs_per_worker": 2, "unroll": 16, "batch_steps": 25, "epochs": 2, "minibatch": 16}
    with run(DDPPOConfig(**same).graph(), Local(), seed=0) as alone:
        alone.step(3)
        learnt = weights_of(alone)[0]
        policy = alone.policy()
        assert policy.get_weights().tobytes() == learnt.tobytes()
        assert alone.evaluate(2).mean > 5
    with run(PPOConfig(**same).graph(), Local(), seed=0) as other:
        assert other.policy_state()["weights"].shape == learnt.shape


def test_the_graph_can_be_checked_and_says_what_it_needs() -> None:
    flow = small().graph()
    assert "deterministic" in flow.explain()
    assert "TrainInfo" in str(flow.check()) or "Summary" in str(flow.check())
    with pytest.raises(ValueError, match=r"peer_timeout_s must be a number of seconds above 0 .*, got 0"):
        DDPPOConfig(peer_timeout_s=0)
    workers = actors(rl.LearningWorker, "CartPole-v1", rl.PolicySpec(), rl.losses.PPOLoss(), count=2, name="workers")
    flow = ParallelRollouts(workers).gather_sync().for_each(TrainOneStep(workers))
    with pytest.raises(flowrl.GraphError, match="advantages"):
        run(flow, Local())


@pytest.mark.parametrize("dying", [0, 1])
def test_a_worker_that_dies_is_started_again_and_takes_over_the_others_state(dying: int) -> None:
    backend = Delayed(3, die=lambda name, number: name == f"workers[{dying}]" and number == 15)
    with run(small(num_workers=3, batch_steps=80).graph(), backend, seed=0) as running:
        summaries = running.step(12)
        assert_equal(weights_of(running))
        stats = running.stats()
    assert stats.groups["workers"].deaths == 1
    assert summaries[-1].learner["default"]["updates"] > summaries[0].learner["default"]["updates"] > 0
    versions = [summary.learner["default"]["updates"] for summary in summaries]
    assert versions == sorted(versions)


@pytest.mark.parametrize("count", [1, 2])
def test_workers_that_die_all_at_once_do_not_begin_to_learn_again_in_silence(count: int) -> None:
    backend = Delayed(1, die=lambda name, number: number == (17 if count == 1 else 18))
    flow = small(num_workers=count, batch_steps=20 * count, minibatch=10, epochs=1).graph()
    with pytest.raises(ActorDied, match="nobody is left who has what") as caught, run(flow, backend, seed=0) as running:
        running.step(20)
    assert "resume from a checkpoint" in str(caught.value)
    assert all(f"workers[{index}]" in str(caught.value) for index in range(count))
    assert "in node 'TrainOneStep'" in "\n".join(caught.value.__notes__)


def test_learners_that_die_all_at_once_are_not_taken_for_ones_that_have_learned() -> None:
    backend = Delayed(1, die=lambda name, number: name.startswith("learner") and number == 14)
    config = IMPALAConfig(
        learners=2, on_learner_failure=flowrl.Restart(3, 0.0), envs_per_worker=2, unroll=8, batch_steps=32
    )
    with (
        pytest.raises(ActorDied, match=r"all died before one could take over another's state.*learner\["),
        run(config.graph(), backend, seed=0) as running,
    ):
        running.step(20)


@pytest.mark.ray
@pytest.mark.timeout(120)
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_process_neither_hangs_nor_ends_the_run(ray_session: None, victim: int) -> None:
    with run(small(num_workers=2, batch_steps=50).graph(), Ray(), seed=0) as running:
        first = running.step(2)[-1]
        process = running.actors["workers"][victim].ask(lambda worker: os.getpid()).result()
        os.kill(process, signal.SIGKILL)
        last = running.step(8)[-1]
        assert_equal(weights_of(running))
        assert running.stats().groups["workers"].deaths == 1
    assert last.learner["default"]["updates"] > first.learner["default"]["updates"]


class FailsLater(rl.losses.PPOLoss):
    """Raises at its third call in a process."""

    calls = 0

    def __call__(self, net: Any, batch: Any, now: Any) -> rl.LossOut:
        if now.updates == 2 and batch.rows % 2 == 0:
            raise LookupError(f"no loss of {batch.rows} rows")
        return super().__call__(net, batch, now)


def in_step(
    loss: Any, count: int, *, in_flight: int = 1, rounds_async: bool = False, on_failure: Any = None
) -> Flow[Any]:
    """Two learners in step behind two workers, as a graph with actors of their own for each."""
    spec = rl.PolicySpec(hidden=(16,))
    workers = actors(rl.RolloutWorker, "CartPole-v1", spec, steps=12, num_envs=2, count=2, name="workers")
    learners = actors(rl.Learner, spec, loss, learning_rate=1e-2, count=count, name="learners")
    rollouts = ParallelRollouts(workers).for_each(AddAdvantages())
    gathered = rollouts.gather_async() if rounds_async else rollouts.gather_sync()
    return (
        gathered.for_each(ConcatBatches(min_steps=60))
        .for_each(TrainOneStep(learners, epochs=2, minibatch=32, in_flight=in_flight, on_failure=on_failure))
        .for_each(SendWeights(learners, to=workers))
        .for_each(ReportMetrics())
    )


@pytest.fixture(params=["local", pytest.param("ray", marks=pytest.mark.ray)])
def backend(request: pytest.FixtureRequest) -> Any:
    """Each backend in turn."""
    if request.param == "ray":
        request.getfixturevalue("ray_session")
    return Ray() if request.param == "ray" else Local()


@pytest.mark.parametrize("rounds_async", [False, True])
def test_several_learners_train_in_step_behind_any_gather(backend: Any, rounds_async: bool) -> None:
    with run(in_step(rl.losses.PPOLoss(), 2, in_flight=2, rounds_async=rounds_async), backend, seed=1) as running:
        last = running.step(4)[-1]
        assert_equal(weights_of(running, "learners"))
        told = running.actors["workers"][1].ask(lambda worker: worker._version).result()
        assert last.learner["default"]["updates"] >= 16
        assert told >= 2


def test_one_learner_and_two_take_the_same_steps() -> None:
    learnt = []
    for count in (1, 2):
        spec = rl.PolicySpec(hidden=(16,))
        workers = actors(rl.RolloutWorker, "CartPole-v1", spec, steps=12, num_envs=2, count=3, name="workers")
        learners = actors(rl.Learner, spec, rl.losses.PPOLoss(), seed=3, count=count, name="learners")
        flow = (
            ParallelRollouts(workers)
            .for_each(AddAdvantages())
            .gather_sync()
            .for_each(ConcatBatches(min_steps=60))
            .for_each(TrainOneStep(learners, epochs=3))
            .for_each(SendWeights(learners, to=workers))
        )
        with run(flow, Local(), seed=1) as running:
            running.step(1)
            learnt.append(weights_of(running, "learners")[0])
    np.testing.assert_allclose(learnt[1], learnt[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", [IMPALAConfig, APPOConfig])
def test_learners_of_asynchronous_algorithms_share_each_batch(kind: Any) -> None:
    config = kind(learners=2, envs_per_worker=2, unroll=10, batch_steps=50)
    with run(config.graph(), Local(), seed=0) as running:
        last = running.step(6)[-1]
        assert_equal(weights_of(running, "learner"))
        states = [handle.ask("get_state").result() for handle in running.actors["learner"]]
    assert states[0]["updates"] == states[1]["updates"] >= last.learner["default"]["updates"] >= 6  # a batch is ahead
    if kind is APPOConfig:
        assert_equal([state["target"] for state in states])
    with pytest.raises(ValueError, match="learners must be at least 1, got 0"):
        kind(learners=0)


def test_what_a_loss_raises_in_one_learner_is_raised(backend: Any) -> None:
    with pytest.raises(LookupError, match="no loss of") as caught, run(in_step(FailsLater(), 2), backend, seed=1) as r:
        r.step(20)
    notes = "\n".join(caught.value.__notes__)
    assert "in node 'TrainOneStep'" in notes


def test_the_death_of_a_learner_that_no_policy_covers_ends_the_run() -> None:
    backend = Delayed(1, die=lambda name, number: name == "learners[1]" and number == 6)
    told = r"learners\[1\] died.*; TrainOneStep\(on_failure=Restart\(n\)\) starts it again"
    with pytest.raises(ActorDied, match=told), run(in_step(rl.losses.PPOLoss(), 3), backend, seed=1) as r:
        r.step(20)


@pytest.mark.parametrize("policy", [flowrl.Ignore(), flowrl.Restart(2, 0.0)])
def test_weights_go_on_to_the_workers_when_the_first_learner_has_died(policy: Any) -> None:
    backend = Delayed(1, die=lambda name, number: name == "learners[0]" and number == 12)
    flow = in_step(rl.losses.PPOLoss(), 2, on_failure=policy)
    with run(flow, backend, seed=1) as running:
        last = running.step(20)[-1]
        assert running.stats().groups["learners"].deaths == 1
        told = [handle.ask(lambda worker: worker._version).result() for handle in running.actors["workers"]]
        learnt = running.actors["learners"][1].ask("get_state").result()
        assert running.policy_state()["weights"].tobytes() == learnt["weights"].tobytes()
        assert running.evaluate(1).mean > 5
        acting = [handle.ask(lambda worker: worker.get_weights()[0]).result() for handle in running.actors["workers"]]
    assert told == [learnt["version"]] * 2
    assert learnt["version"] >= 15
    assert all(weights.tobytes() == learnt["weights"].tobytes() for weights in acting)
    assert last.learner["default"]["updates"] == learnt["updates"]


@pytest.mark.ray
@pytest.mark.timeout(120)
@pytest.mark.parametrize("victim", [0, 1])
def test_the_death_of_a_learners_process_is_a_clear_error(ray_session: None, victim: int) -> None:
    with run(in_step(rl.losses.PPOLoss(), 2), Ray(), seed=0) as running:
        running.step(1)
        os.kill(running.actors["learners"][victim].ask(lambda learner: os.getpid()).result(), signal.SIGKILL)
        with pytest.raises(ActorDied, match=rf"learners\[{victim}\]"):
            running.step(20)


def test_learners_that_lose_each_other_without_a_death_say_what_to_do() -> None:
    class Leaves(rl.Learner):
        def train_in_step(self, *args: Any, **options: Any) -> Any:
            if self._updates:
                self.leave()
            return super().train_in_step(*args, **options)

    spec = rl.PolicySpec(hidden=(16,))
    workers = actors(rl.RolloutWorker, "CartPole-v1", spec, steps=12, count=2, name="workers")
    learners = actors(Leaves, spec, rl.losses.PPOLoss(), count=2, name="learners")
    flow = ParallelRollouts(workers).for_each(AddAdvantages()).gather_sync().for_each(TrainOneStep(learners))
    with pytest.raises(FlowError, match=r"lost each other, though none has died: .*peer_timeout_s=120"):
        run(flow, Local(), seed=0).step(3)


@pytest.mark.timeout(120)
def test_it_learns() -> None:
    """CartPole-v1 on two workers, both in this process."""
    with run(DDPPOConfig().graph(), Local(), seed=0) as running:
        last = next(s for s in running if s.episode_return_mean > 150 or s.env_steps > 60_000)
    assert last.episode_return_mean > 150
    assert last.env_steps < 50_000
