"""Evaluations of what a training of several agents left: with and without checkpoints, whatever played it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl import Local
from flowrl.algorithms import (
    DDPGConfig,
    DQNConfig,
    LeaguePlayConfig,
    MADDPGConfig,
    MultiAgentPPOConfig,
    PPOAndDQNConfig,
    PPOConfig,
    QMIXConfig,
)
from flowrl.cli import main
from flowrl.playing import evaluate_saved

SMALL: dict[str, Any] = {"num_workers": 1, "envs_per_worker": 2, "unroll": 16}
CONFIGS = {
    "ppo_and_dqn": PPOAndDQNConfig(
        **SMALL, ppo=PPOConfig(batch_steps=64, minibatch=32, epochs=1), dqn=DQNConfig(min_size=32, batch=16, batches=1)
    ),
    "multi_agent_ppo": MultiAgentPPOConfig(**SMALL, ppo=PPOConfig(batch_steps=64, minibatch=32, epochs=1)),
    "qmix": QMIXConfig(**SMALL, dqn=DQNConfig(min_size=32, batch=16, batches=1, n_step=1)),
    "maddpg": MADDPGConfig(**SMALL, ddpg=DDPGConfig(min_size=32, batch=16, batches=1)),
    "league_play": LeaguePlayConfig(**SMALL, ppo=PPOConfig(batch_steps=64, minibatch=32, epochs=1)),
}


def trained(name: str, out: Path, **more: Any) -> flowrl.TrainResult:
    return flowrl.train(CONFIGS[name], total_steps=128, out=out, backend=Local(), seed=3, progress=False, **more)


@pytest.mark.parametrize("name", CONFIGS)
def test_all_agents_play_what_was_saved_without_a_checkpoint(name: str, tmp_path: Path) -> None:
    result = trained(name, tmp_path)
    seen = evaluate_saved(tmp_path, episodes=3)
    assert seen.episodes == 3
    assert set(seen.policies) == set(result.policies)
    assert evaluate_saved(tmp_path, episodes=3) == seen  # of the same seed
    with pytest.raises(flowrl.CheckpointError, match=r"policy='main' cannot play alone"):
        evaluate_saved(tmp_path, policy="main")
    for policy, kept in result.policies.items():
        loaded = flowrl.load_policy(tmp_path, name=policy)
        np.testing.assert_array_equal(loaded.acting_weights(), kept.acting_weights())


def test_what_plays_are_the_weights_that_were_saved(tmp_path: Path) -> None:
    """Of two trainings that differ in length alone, each plays as its own policies do."""
    found = []
    for steps in (64, 256):
        out = tmp_path / str(steps)
        flowrl.train(CONFIGS["ppo_and_dqn"], total_steps=steps, out=out, backend=Local(), seed=3, progress=False)
        found.append(evaluate_saved(out, episodes=3))
    assert found[0] != found[1]


def test_it_plays_from_a_checkpoint_alone_and_says_nothing_of_resuming(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained("ppo_and_dqn", tmp_path, checkpoint_every=64)
    beside = evaluate_saved(tmp_path, episodes=3)
    caplog.clear()
    alone = evaluate_saved(flowrl.checkpoint.newest(tmp_path / "checkpoints"), episodes=3)
    assert alone == beside
    assert not caplog.records


def test_of_several_policies_one_is_to_be_named(tmp_path: Path) -> None:
    trained("ppo_and_dqn", tmp_path)
    with pytest.raises(LookupError, match=r"must name one of the policies in .*: dqn, ppo"):
        flowrl.load_policy(tmp_path)
    with pytest.raises(LookupError, match="is called 'sac'; there are: dqn, ppo"):
        flowrl.load_policy(tmp_path / "policies", name="sac")
    assert flowrl.load_policy(tmp_path / "policies", name="dqn").spec.head == "q"


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained("ppo_and_dqn", tmp_path)
    assert main(["eval", str(tmp_path), "--episodes", "2"]) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0].startswith("Evaluation(return ")
    assert [line.partition(":")[0] for line in lines[1:]] == ["ppo", "dqn"]
    assert not said.err
