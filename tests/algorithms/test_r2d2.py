"""R2D2 end to end: sequences flow, a state is stored with them, and a task of memory is learned."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from flowrl import Local, Ray, run
from flowrl.algorithms import R2D2Config
from flowrl.rl import PolicySpec
from tests.rl.memory_envs import Recall

POLICY = PolicySpec(head="q", recurrent="gru", recurrent_size=8, hidden=(8,))
SMALL = R2D2Config(
    policy=POLICY,
    num_workers=1,
    envs_per_worker=2,
    unroll=8,
    min_size=64,
    capacity=1000,
    sequence=8,
    period=4,
    burn_in=2,
    batch=4,
    batches=2,
    samples_per_step=4.0,
    evaluate_every_env_steps=None,
)


@pytest.fixture(params=["local", pytest.param("ray", marks=pytest.mark.ray)])
def backend(request: pytest.FixtureRequest) -> Any:
    """Each backend in turn."""
    if request.param == "ray":
        request.getfixturevalue("ray_session")
    return Ray() if request.param == "ray" else Local()


def test_it_trains_on_sequences(backend: Any) -> None:
    with run(SMALL.graph(), backend, seed=0) as running:
        last = running.step(12)[-1]
        action, state = running.policy().act(np.zeros(4, np.float32))
    assert last.learner["default"]["updates"] == 24
    assert last.trained_steps <= 24 * 4 * 8
    assert action in (0, 1)
    assert state["h"].shape == (8,)


def test_the_same_seed_gives_the_same_numbers() -> None:
    def weights() -> np.ndarray:
        with run(SMALL.graph(), Local(), seed=5) as running:
            running.step(6)
            return np.asarray(running.policy_state()["weights"])

    np.testing.assert_array_equal(weights(), weights())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"burn_in": 8}, "burn_in=8 leaves nothing of a sequence of 8 steps"),
        ({"policy": PolicySpec(head="q")}, "R2D2's policy has a memory"),
        ({"policy": PolicySpec()}, "policy must be of values of actions"),
        ({"max_share": 1.5}, "max_share must be at most 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SMALL, **settings)


def test_it_learns_to_remember() -> None:
    cfg = R2D2Config(
        env=Recall,
        policy=PolicySpec(head="q", recurrent="gru", recurrent_size=32, hidden=(32,), activation="relu"),
        num_workers=1,
        sequence=10,
        period=5,
        burn_in=2,
        batch=32,
        learning_rate=3e-3,
        discount=0.95,
        n_step=3,
        evaluate_every_env_steps=None,
    )
    with run(cfg.graph(), Local(), seed=0) as running:
        for summary in running:
            if summary.env_steps >= 12_000:
                break
        assert running.evaluate(60).mean > 0.9
