"""DQN and its successors end to end: what flows, what is trained how often, resuming, and that it learns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl import Local, Ray, run
from flowrl.algorithms import ApexConfig, DQNConfig, apex, dqn
from flowrl.cli import main
from flowrl.operators import ParallelRollouts
from flowrl.rl import PolicySpec
from flowrl.rl.losses import C51Loss, DQNLoss
from flowrl.rl.schedules import Linear

RAINBOW = PolicySpec(head="q", hidden=(16,), dueling=True, noisy=True, atoms=11, value_range=(0.0, 50.0))


@pytest.fixture(params=["local", pytest.param("ray", marks=pytest.mark.ray)])
def backend(request: pytest.FixtureRequest) -> Any:
    """Each backend in turn."""
    if request.param == "ray":
        request.getfixturevalue("ray_session")
    return Ray() if request.param == "ray" else Local()


def small(**settings: Any) -> DQNConfig:
    """DQN in miniature."""
    given = {"envs_per_worker": 2, "unroll": 8, "min_size": 64, "batch": 16, "batches": 2, "capacity": 500}
    target = {"target_every": 5, "tau": None}
    policy = PolicySpec(head="q", hidden=(16,))
    return DQNConfig(**{**given, **target, "policy": policy, "samples_per_step": 4.0, **settings})


def small_apex(**settings: Any) -> ApexConfig:
    """Ape-X in miniature."""
    given = {"envs_per_worker": 2, "unroll": 8, "min_size": 64, "batch": 16, "batches": 2, "capacity": 500}
    policy = PolicySpec(head="q", hidden=(16,))
    return ApexConfig(**{**given, "policy": policy, "evaluate_every_env_steps": None, **settings})


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"prioritized": True, "n_step": 3, "replay_shards": 2},
        {"policy": RAINBOW, "prioritized": True},
        {"tau": 0.1, "target_every": None},
    ],
)
def test_it_trains_as_often_as_it_is_told(settings: dict[str, Any]) -> None:
    with run(small(**settings).graph(), Local(), seed=0) as running:
        summaries = running.step(60)
        last = summaries[-1]
        target = running.actors["learner"][0].ask("get_state").result()["target"]
    assert last.learner["default"]["updates"] == 120
    assert last.trained_steps == 60 * 32
    # 4 rows a step from the moment on that 64 are stored, give or take what is under way.
    assert abs(last.trained_steps - 4 * (last.env_steps - 64)) <= 4 * 5 * 16 + 2 * 32
    assert np.isfinite([value for value in last.learner["default"].values()]).all()
    assert target is not None


def test_the_same_seed_gives_the_same_numbers() -> None:
    def weights(seed: int) -> np.ndarray:
        with run(small(policy=RAINBOW, prioritized=True).graph(), Local(), seed=seed) as running:
            running.step(10)
            return np.asarray(running.policy_state()["weights"])

    np.testing.assert_array_equal(weights(3), weights(3))
    assert (weights(3) != weights(4)).any()


@pytest.mark.parametrize("config", [small(), small(policy=RAINBOW, prioritized=True, num_workers=2), small_apex()])
def test_it_runs_on_both_backends(config: Any, backend: Any) -> None:
    with run(config.graph(), backend, seed=0) as running:
        last = running.step(12)[-1]
        assert running.policy().act(np.zeros(4, np.float32)) in (0, 1)
        assert running.evaluate(2).episodes == 2
    assert last.trained_steps >= 12 * 32  # Ape-X has more messages under way
    assert last.env_steps >= 64


def test_every_environment_of_all_apex_workers_explores_by_its_own_share() -> None:
    with run(small_apex(num_workers=2).graph(), Local(), seed=0) as running:
        running.step(3)
        shares = [worker.ask("get_state").result()["epsilon"] for worker in running.actors["workers"]]
    np.testing.assert_allclose(np.concatenate(shares), [0.4 ** (1 + 7 * i / 3) for i in range(4)])


def test_apex_stores_priorities_and_updates_them() -> None:
    with run(small_apex().graph(), Local(), seed=0) as running:
        running.step(20)
        states = [shard.ask("get_state").result() for shard in running.actors["replay"]]
    assert len(states) == 2
    assert "InitialPriorities" in apex.graph(small_apex()).explain()


def test_epsilon_falls_and_is_none_with_noise() -> None:
    assert small().exploration == Linear(1.0, 0.04, 6_000)
    assert small(policy=RAINBOW).exploration == 0.0
    assert small(epsilon=0.25).exploration == 0.25
    with run(small(epsilon=Linear(1.0, 0.0, 200)).graph(), Local(), seed=0) as running:
        running.step(40)
        assert running.actors["workers"][0].ask("get_state").result()["epsilon"] == 0.0


def test_the_loss_follows_from_the_policy() -> None:
    assert dqn.loss_of(PolicySpec(head="q"), double=False, huber=True) == DQNLoss(double=False, huber=True)
    assert dqn.loss_of(RAINBOW, double=True, huber=True) == C51Loss(double=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policy": PolicySpec()}, "policy must be of values of actions"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"samples_per_step": 0.0}, "samples_per_step must be above 0"),
        ({"tau": 0.1, "target_every": 5}, "by target_every or by tau: .* got target_every=5 and tau=0.1"),
        ({"tau": None, "target_every": None}, "by target_every or by tau: .* got target_every=None and tau=None"),
        ({"tau": 1.5, "target_every": None}, "tau must be at most 1"),
        ({"tau": None, "target_every": 0}, "target_every must be at least 1"),
        ({"video_dir": "videos"}, "set evaluate_every_env_steps too"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DQNConfig(**settings)
    with pytest.raises(ValueError, match=message):
        ApexConfig(**{"evaluate_every_env_steps": None, **settings})


def test_the_tail_can_be_put_behind_other_rollouts() -> None:
    cfg = small()
    workers = flowrl.actors(
        flowrl.rl.RolloutWorker, "CartPole-v1", cfg.policy, steps=8, num_envs=2, next_obs=True, count=1, name="workers"
    )
    learner = flowrl.actor(flowrl.rl.Learner, cfg.policy, DQNLoss(), name="learner")
    replay = flowrl.actors(flowrl.rl.ReplayShard, 500, min_size=32, samples_per_insert=2.0, count=1, name="replay")
    rollouts = ParallelRollouts(workers).for_each(flowrl.operators.NStep(2, 0.9)).gather_sync()
    with run(rollouts.through(dqn.learn(cfg, learner, replay, workers)), Local(), seed=0) as running:
        assert [info.policy_version for info in running.step(3)] == [1, 2, 3]


def test_the_command_line_knows_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    said = capsys.readouterr().out
    assert "dqn" in said
    assert "apex" in said
    assert main(["graph", "apex"]) == 0
    assert "StoreToReplay" in capsys.readouterr().out


RAINBOW_100 = PolicySpec(head="q", dueling=True, noisy=True, atoms=51, value_range=(0.0, 100.0), normalize_obs=True)


def best_return(config: Any, at_least: float, within_steps: int) -> float:
    """The best of the greedy evaluations in training, up to the first that is good enough."""
    best, looked = 0.0, 0
    with run(config.graph(), Local(), seed=0) as running:
        for summary in running:
            if summary.env_steps - looked >= 1000:
                looked = summary.env_steps
                best = max(best, running.evaluate(10).mean)
            if best >= at_least or summary.env_steps >= within_steps:
                break
    return best


@pytest.mark.parametrize(
    ("config", "at_least", "within_steps"),
    [
        (DQNConfig(), 300.0, 15_000),
        (DQNConfig(policy=RAINBOW_100, prioritized=True), 120.0, 15_000),
        (ApexConfig(evaluate_every_env_steps=None), 200.0, 60_000),
    ],
    ids=["dqn", "rainbow", "apex"],
)
def test_it_learns_to_balance(config: Any, at_least: float, within_steps: int) -> None:
    """A policy that learned nothing gets some 10, a random one some 20."""
    assert best_return(config, at_least, within_steps) >= at_least


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_dqn_solves_cartpole(seed: int) -> None:
    config = DQNConfig(evaluate_every_env_steps=1000)
    assert flowrl.train(config, stop_return=475, total_steps=25_000, backend=Local(), seed=seed).solved
