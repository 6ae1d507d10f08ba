"""QMIX solves the two-step game of its paper, of which values that are summed, or learned apart, get 7."""

from __future__ import annotations

from typing import Any

import pytest

import flowrl
from flowrl import Local
from flowrl.algorithms import DQNConfig, QMIXConfig
from flowrl.cli import main
from flowrl.rl import PolicySpec
from tests.rl.team_envs import TwoStep


def config(**settings: Any) -> QMIXConfig:
    """All actions are uniform, as in the paper."""
    dqn = DQNConfig(
        policy=PolicySpec(head="q", hidden=(32,)), epsilon=1.0, n_step=1, min_size=200, batch=64, batches=16,
        samples_per_step=32.0, learning_rate=3e-3, capacity=5_000, tau=0.05, target_every=None,
    )  # fmt: skip
    given = {"env": TwoStep, "dqn": dqn, "envs_per_worker": 8, "unroll": 16, "embedding": 8}
    return QMIXConfig(**{**given, **settings})


@pytest.mark.parametrize(("mixing", "expected"), [("qmix", 8.0), ("vdn", 7.0)])
def test_the_two_step_game(mixing: Any, expected: float) -> None:
    with flowrl.run(config(mixing=mixing).graph(), Local(isolate=False), seed=0) as run:
        for summary in run:
            if summary.learner["shared"]["updates"] >= 800:
                break
        found = run.evaluate(4)
    assert found.returns == (2 * expected,) * 4  # each of the two agents is given the team's reward


def test_settings_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(ValueError, match=r"team_reward must be one of \('mean', 'sum'\), got 'most'"):
        QMIXConfig(team_reward="most")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"dqn.num_workers=3 has no part in a mix"):
        QMIXConfig(dqn=DQNConfig(num_workers=3))


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--envs-per-worker", "2", "--dqn.min-size", "20", "--dqn.batch", "8", "--dqn.batches", "1"]
    small += ["--total-steps", "100", "--backend", "local", "--seed", "0", "--dqn.samples-per-step", "1"]
    assert main(["train", "qmix", *small]) == 0
    assert "JoinAgents" in capsys.readouterr().out
