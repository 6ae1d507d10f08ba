"""The rollout worker: evaluation apart from training, its state, and its failures."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from flowrl.rl.envs import EnvSource
from flowrl.rl.spec import PolicySpec
from flowrl.rl.worker import RolloutWorker
from tests.rl.counting_envs import Counting, Faulty, Forgetful, TwoArgumentsError, Walk
from tests.rl.test_inference import Shared


# evaluation
def test_evaluation_leaves_training_alone() -> None:
    worker, twin = (RolloutWorker(Walk, steps=30, num_envs=2, seed=0) for _ in range(2))
    assert worker.sample().payload == twin.sample().payload
    first = worker.evaluate(5, 1, deterministic=False)
    worker.evaluate(3, 2, weights=np.zeros(len(worker.get_state()["weights"]), np.float32))
    assert worker.sample().payload == twin.sample().payload
    assert first.payload == worker.evaluate(5, 1, deterministic=False).payload == twin.evaluate(5, 1, False).payload
    assert first.payload != worker.evaluate(5, 2, deterministic=False).payload
    assert first.payload.episodes == 5
    assert first.env_steps == 0


def test_evaluation_of_other_weights_names_their_version() -> None:
    worker = RolloutWorker("CartPole-v1", steps=5, num_envs=4, seed=0)
    worker.set_weights(worker.get_state()["weights"], 9)
    assert worker.evaluate(2).policy_version == 9
    # Pushes to where the cart drifts and the pole leans; the actor's second row of weights is all that counts.
    spec = PolicySpec(hidden=())
    worker.set_policy(spec)
    good = np.zeros(15, np.float32)
    good[4:8] = 0.1, 0.5, 1.0, 1.0
    answer = worker.evaluate(8, 0, True, good, 33)
    assert answer.policy_version == 33
    assert answer.payload.mean == 500.0
    assert answer.payload.ci95 == 0.0
    assert not np.array_equal(worker.get_state()["weights"], good)


# state
@pytest.mark.parametrize(
    ("env", "spec"),
    [("CartPole-v1", PolicySpec()), (Walk, PolicySpec()), ("CartPole-v1", PolicySpec(model=Shared))],
)
def test_a_restored_worker_goes_on_number_for_number(env: EnvSource, spec: PolicySpec) -> None:
    worker = RolloutWorker(env, spec, steps=25, num_envs=3, seed=0)
    worker.set_epsilon(0.2)
    worker.sample()
    worker.set_weights(worker.get_state()["weights"] * np.float32(1.1), 6)
    state = worker.get_state()
    expected = [worker.sample() for _ in range(3)]
    other = RolloutWorker(env, spec, steps=25, num_envs=3, seed=99)
    other.sample()
    other.set_state(state)
    for answer in expected:
        got = other.sample()
        assert got.payload == answer.payload
        assert (got.metrics, got.policy_version) == (answer.metrics, answer.policy_version)
    worker.set_state(state)
    assert worker.sample().payload == expected[0].payload


def test_state_before_the_first_sample() -> None:
    worker, other = (RolloutWorker("CartPole-v1", steps=10, seed=4) for _ in range(2))
    other.set_state(worker.get_state())
    assert other.sample().payload == worker.sample().payload


def test_environments_that_cannot_be_saved_begin_anew_with_fresh_seeds() -> None:
    worker = RolloutWorker(Forgetful, steps=10, num_envs=2, seed=4)
    first = worker.sample().payload
    state = worker.get_state()
    assert state["envs"] is None
    again, twin = (RolloutWorker(Forgetful, steps=10, num_envs=2, seed=4) for _ in range(2))
    for restored in (again, twin):
        restored.set_state(state)
    batch = again.sample().payload
    assert batch == twin.sample().payload
    assert batch["valid"][0].all()
    assert not np.array_equal(batch["obs"][0], first["obs"][0])


def test_state_of_another_policy_is_refused() -> None:
    state = RolloutWorker("CartPole-v1", PolicySpec(hidden=(3,))).get_state()
    with pytest.raises(ValueError, match="this policy has 9,155 weights"):
        RolloutWorker("CartPole-v1").set_state(state)


def test_close_again_does_nothing() -> None:
    worker = RolloutWorker("MountainCar-v0", steps=2)
    worker.sample()
    worker.close()
    worker.close()


# failures
def test_callers_mistakes() -> None:
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        RolloutWorker("CartPole-v1", steps=0)
    with pytest.raises(ValueError, match="num_envs must be at least 1, got -1"):
        RolloutWorker("CartPole-v1", num_envs=-1)


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("obs", r"environment 1 gave obs\[1\] = nan, .*, at step 2 of its episode, vector step 6 of the worker"),
        ("rewards", "environment 1 gave rewards = inf, .*, at step 2 of its episode, vector step 6 of the worker"),
        ("huge", r"environment 1 gave rewards = 1e\+300, which float32 cannot hold"),
    ],
)
def test_numbers_that_are_not_finite_stop_before_any_batch(what: str, text: str) -> None:
    # Environment 1 by rows: an episode of one step, a reset, another, a reset, then one that goes wrong at its step 2.
    envs = iter([Counting((99,)), Faulty(2, what, (1, 1, 9))])
    worker = RolloutWorker(lambda: next(envs), steps=3, num_envs=2, seed=0, index=3, count=4)
    assert worker.sample().env_steps == 5
    with pytest.raises(FloatingPointError, match=text) as caught:
        worker.sample()
    *_, note = caught.value.__notes__
    assert note.startswith("in worker 3 of 4, environment ")
    assert note.endswith("(one of its 2), after 6 vector steps")


def test_a_final_observation_that_is_not_finite() -> None:
    def vector() -> SyncVectorEnv:
        return SyncVectorEnv([lambda: Faulty(3, "obs")], autoreset_mode="SameStep")

    with pytest.raises(FloatingPointError, match=r"environment 0 gave the final obs = nan, .* at step 3 of its"):
        RolloutWorker(vector, steps=5).sample()


def test_a_reset_that_is_not_finite() -> None:
    with pytest.raises(FloatingPointError, match=r"environment 0 gave obs\[1\] = nan at its reset"):
        RolloutWorker(lambda: Faulty(0, "obs"), steps=5).sample()


def test_an_environments_error_keeps_its_type_and_the_next_sample_begins_anew() -> None:
    worker = RolloutWorker(lambda: Faulty(2), steps=4, seed=0)
    for steps in (1, 2):
        with pytest.raises(TwoArgumentsError, match="the arm is stuck") as caught:
            worker.sample()
        where, *_, which = caught.value.__notes__
        assert where.startswith("in environment 0, at step 2 of its episode, action ")
        assert which.endswith(f"after {steps} vector steps")
    assert worker.get_state()["obs"] is None
    with pytest.raises(TwoArgumentsError) as caught:
        RolloutWorker(lambda: Faulty(2), index=1).evaluate(1)
    assert caught.value.__notes__[-1].startswith("in an evaluation by worker 1, environment ")
