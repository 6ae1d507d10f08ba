"""A2C and A3C end to end: both backends, memory, and whose gradients make which weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flowrl import Local, Ray, run
from flowrl.algorithms import A2CConfig, A3CConfig
from flowrl.algorithms.actor_critic import ActorCriticConfig
from flowrl.cli import main
from flowrl.rl import PolicySpec


@pytest.fixture(params=["local", pytest.param("ray", marks=pytest.mark.ray)])
def backend(request: pytest.FixtureRequest) -> Any:
    """Each backend in turn."""
    if request.param == "ray":
        request.getfixturevalue("ray_session")
    return Ray() if request.param == "ray" else Local()


def small(cls: type[ActorCriticConfig], **settings: Any) -> Any:
    """In miniature: gradients of some 16 steps."""
    given = {"envs_per_worker": 2, "unroll": 8, "policy": PolicySpec(hidden=(8,))}
    return cls(**{**given, **settings})


@pytest.mark.parametrize("cls", [A2CConfig, A3CConfig])
def test_they_run_on_both_backends(cls: Any, backend: Any) -> None:
    recurrent = PolicySpec(hidden=(8,), recurrent="gru", recurrent_size=8)
    with run(small(cls, policy=recurrent, microbatch=1).graph(), backend, seed=0) as running:
        last = running.step(6)[-1]
        assert running.evaluate(2).episodes == 2
    assert last.learner["default"]["updates"] == 6
    assert np.isfinite(list(last.learner["default"].values())).all()


def test_a2c_trains_on_everything_once_and_a3c_on_what_has_come() -> None:
    with run(small(A2CConfig, num_workers=3).graph(), Local(), seed=0) as running:
        summaries = running.step(5)
    assert [summary.trained_steps for summary in summaries] == [summary.env_steps for summary in summaries]
    assert "deterministic" in A2CConfig().graph().explain()
    with run(small(A3CConfig, num_async=2).graph(), Local(), seed=0) as running:
        last = running.step(7)[-1]
    assert 7 * 8 < last.trained_steps <= last.env_steps


def test_the_same_seed_gives_the_same_numbers_and_microbatches_change_nothing() -> None:
    def weights(seed: int, microbatch: int | None = None) -> np.ndarray:
        with run(small(A2CConfig, microbatch=microbatch).graph(), Local(), seed=seed) as running:
            running.step(5)
            return np.asarray(running.policy_state()["weights"])

    np.testing.assert_array_equal(weights(3), weights(3))
    np.testing.assert_allclose(weights(3, microbatch=4), weights(3), rtol=0, atol=1e-5)
    assert (weights(3) != weights(4)).any()


def test_the_command_line_knows_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    said = capsys.readouterr().out
    assert "a2c" in said
    assert "a3c" in said
    assert main(["graph", "a2c", "--num-workers", "3"]) == 0
    assert "AverageGradients(n=3)" in capsys.readouterr().out


@pytest.mark.parametrize("cls", [A2CConfig, A3CConfig])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"unroll": 0}, "unroll must be at least 1, got 0"),
        ({"microbatch": 0}, "microbatch must be at least 1, got 0"),
        ({"gae_lambda": 2.0}, r"gae_lambda must be at most 1, got 2.0"),
        ({"video_dir": "videos"}, "set evaluate_every_env_steps too"),
    ],
)
def test_settings_that_make_no_sense_are_refused(cls: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cls(**settings)
