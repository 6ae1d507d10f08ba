"""Two policies in one environment, each trained by its own tail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl import Local, Ray
from flowrl.algorithms import DQNConfig, PPOAndDQNConfig, PPOConfig, ppo_and_dqn
from flowrl.cli import main
from flowrl.flags import TrainOptions, parse
from flowrl.rl import PolicySpec
from flowrl.rl.schedules import Linear

SMALL = PPOAndDQNConfig(
    num_workers=1,
    envs_per_worker=2,
    unroll=16,
    ppo=PPOConfig(policy=PolicySpec(hidden=(8,)), batch_steps=64, epochs=2, minibatch=64),
    dqn=DQNConfig(
        policy=PolicySpec(head="q", hidden=(8,)), min_size=64, capacity=1000, samples_per_step=1.0, batch=16, batches=2
    ),
)


@pytest.fixture(params=["local", pytest.param("ray", marks=pytest.mark.ray)])
def backend(request: pytest.FixtureRequest) -> Local | Ray:
    if request.param == "ray":
        request.getfixturevalue("ray_session")
    return Ray() if request.param == "ray" else Local()


def test_each_policy_is_trained_by_its_own_rows_and_reaches_the_workers(backend: Local | Ray) -> None:
    with flowrl.run(SMALL.graph(), backend, seed=0) as run:
        summaries = run.step(30)
        last = summaries[-1]
        worker = run.actors["workers"][0].ask("get_state").result()["policies"]
        learners = {name: run.policy_state(name) for name in ("ppo", "dqn")}
    assert last.agent_steps > last.env_steps > 0
    assert last.learner["ppo"]["updates"] > 0
    assert last.learner["dqn"]["updates"] > 0
    assert {"entropy", "kl"} <= set(last.learner["ppo"])  # PPO's figures, which DQN's do not overwrite
    assert "entropy" not in last.learner["dqn"]
    for name, state in learners.items():
        assert state["policy_id"] == name
        assert 0 < worker[name]["version"] <= state["version"]
    assert len(worker["ppo"]["weights"]) != len(worker["dqn"]["weights"])


def test_replay_keeps_to_the_ratio_of_its_own_agents_steps() -> None:
    with flowrl.run(SMALL.graph(), Local(), seed=0) as run:
        run.step(200)
        replay = run.stats().metrics["replay"]
    assert replay["samples_per_insert"] == pytest.approx(1.0, rel=0.1)


def test_a_policy_that_nobody_plays_leaves_the_other_to_train() -> None:
    cfg = PPOAndDQNConfig(
        dqn_agents=(), num_workers=1, envs_per_worker=2, unroll=16, ppo=SMALL.ppo, dqn=SMALL.dqn
    )  # fmt: skip
    with flowrl.run(cfg.graph(), Local(), seed=0) as run:
        last = run.step(5)[-1]
    assert last.learner["ppo"]["updates"] > 0
    assert "updates" not in last.learner.get("dqn", {})


def test_the_same_seed_gives_the_same_numbers_on_local() -> None:
    def trained() -> list[np.ndarray]:
        with flowrl.run(ppo_and_dqn.graph(SMALL), Local(), seed=3) as run:
            run.step(12)
            return [run.policy_state(name)["weights"] for name in ("ppo", "dqn")]

    for one, other in zip(trained(), trained(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_settings_without_a_part_in_a_mix_are_refused() -> None:
    with pytest.raises(ValueError, match=r"ppo.num_workers=4 has no part in a mix: environments and workers are"):
        PPOAndDQNConfig(ppo=PPOConfig(num_workers=4))
    with pytest.raises(ValueError, match=r"ppo.normalize_rewards=True has no part in a mix"):
        PPOAndDQNConfig(ppo=PPOConfig(normalize_rewards=True))


def test_flags_are_those_that_have_a_part(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--ppo.epochs", "3", "--dqn.policy.hidden", "8", "--env-kwargs", "agents=2"]
    config, _ = parse(PPOAndDQNConfig, TrainOptions, given, "flowrl", "")
    assert config == PPOAndDQNConfig(
        ppo=PPOConfig(**{**vars(PPOAndDQNConfig().ppo), "epochs": 3}),
        dqn=DQNConfig(policy=PolicySpec(head="q", normalize_obs=True, hidden=(8,)), samples_per_step=8.0),
        env_kwargs={"agents": 2},
    )
    assert type(config.ppo) is PPOConfig
    for flag in ("--ppo.num-workers", "--dqn.env", "--ppo.normalize-rewards", "--dqn.evaluate-episodes"):
        with pytest.raises(SystemExit):
            parse(PPOAndDQNConfig, TrainOptions, [flag, "1"], "flowrl", "")
        assert f"Unrecognized options: {flag}" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse(PPOAndDQNConfig, TrainOptions, ["--help"], "flowrl", "")
    shown = capsys.readouterr().out
    assert "--ppo.policy.hidden" in shown
    assert not any(flag in shown for flag in ("--ppo.num-workers", "--dqn.env", "--ppo.unroll", "{fixed}"))


def test_both_policies_come_back_and_are_saved(tmp_path: Path) -> None:
    result = flowrl.train(SMALL, total_steps=300, backend=Local(), seed=0, out=tmp_path)
    assert result.policy is None  # which of them?
    assert set(result.policies) == {"ppo", "dqn"}
    assert result.checkpoint == tmp_path / "policies"
    for name, policy in result.policies.items():
        loaded = flowrl.load_policy(result.checkpoint / name)
        np.testing.assert_array_equal(loaded.get_weights(), policy.get_weights())
        assert loaded.act(np.zeros(4, np.float32)) in (0, 1)
    with pytest.raises(FileExistsError, match=r"holds .* of another run"):
        flowrl.train(SMALL, total_steps=300, backend=Local(), seed=0, out=tmp_path)


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--num-workers", "1", "--envs-per-worker", "2", "--unroll", "16", "--ppo.batch-steps", "64"]
    small += ["--dqn.min-size", "64", "--dqn.batches", "1", "--total-steps", "300", "--backend", "local", "--seed", "0"]
    assert main(["train", "ppo_and_dqn", *small]) == 0
    assert "by_policy('dqn')" in capsys.readouterr().out
    assert main(["train", "ppo_and_dqn", "--env", "no.such_v0", *small]) == 2
    assert "no module 'no.such_v0'" in capsys.readouterr().err


def greedy(run: flowrl.Run[Any], episodes: int) -> dict[str, float]:
    return {name: found.mean for name, found in run.evaluate(episodes).policies.items()}


def test_both_policies_learn() -> None:
    cfg = PPOAndDQNConfig(
        env_kwargs={"agents": 2},
        dqn_agents=("agent_1",),
        num_workers=1,
        unroll=64,
        ppo=PPOConfig(batch_steps=250, learning_rate=3e-3, gae_lambda=0.95, minibatch=256),
        dqn=DQNConfig(samples_per_step=16.0, min_size=500, epsilon=Linear(1.0, 0.05, 1500)),
    )
    with flowrl.run(cfg.graph(), Local(isolate=False), seed=0) as run:
        for summary in run:
            if summary.env_steps >= 6_000:
                break
        assert min(greedy(run, 10).values()) >= 80.0  # a random policy reaches some 22


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_both_policies_reach_450_with_the_defaults(seed: int) -> None:
    with flowrl.run(PPOAndDQNConfig().graph(), Local(isolate=False), seed=seed) as run:
        for summary in run:
            if summary.env_steps >= 60_000:
                break
        assert min(greedy(run, 20).values()) >= 450.0
