"""SAC, TD3 and DDPG as graphs: how they read, what they refuse, and that they learn."""

import dataclasses

import pytest

import flowrl
from flowrl.algorithms import DDPGConfig, SACConfig, TD3Config
from flowrl.rl import PolicySpec

CONFIGS = {"sac": SACConfig, "td3": TD3Config, "ddpg": DDPGConfig}
SHORT = {"min_size": 64, "batch": 32, "samples_per_step": 32, "batches": 4, "capacity": 1000}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_graph_trains_and_counts_what_it_trains(name: str):
    cfg = CONFIGS[name](**SHORT)
    with flowrl.run(cfg.graph(), flowrl.Local(), seed=0) as run:
        for summary in run:
            if summary.env_steps >= 400:
                break
        assert summary.trained_steps == pytest.approx(32 * (summary.env_steps - 64), rel=0.25)
        found = summary.learner["default"]
        assert found["updates"] > 100
        assert {"critic_loss", "actor_loss", "q"} <= set(found)
        policy = run.policy()
    assert policy.act([1.0, 0.0, 0.0], deterministic=True).shape == (1,)


def test_discrete_sac_trains_on_cartpole():
    cfg = SACConfig(env="CartPole-v1", **SHORT)
    with flowrl.run(cfg.graph(), flowrl.Local(), seed=0) as run:
        for summary in run:
            if summary.env_steps >= 300:
                break
        assert 0 < summary.learner["default"]["entropy"] < 0.7
        assert run.policy().act([0.0, 0.0, 0.0, 0.0]) in (0, 1)


@pytest.mark.parametrize("name", CONFIGS)
def test_same_seed_same_numbers(name: str):
    def numbers() -> list[dict]:
        with flowrl.run(CONFIGS[name](**SHORT).graph(), flowrl.Local(), seed=3) as run:
            return [dict(summary.learner["default"]) for summary in run.step(6)]

    first, second = numbers(), numbers()
    assert first == second
    assert len(first) == 6


@pytest.mark.parametrize("name", CONFIGS)
def test_options_of_replay_are_taken(name: str):
    cfg = CONFIGS[name](**SHORT, prioritized=True, n_step=3, replay_shards=2, num_workers=2, critic_learning_rate=1e-3)
    text = cfg.graph().explain()
    assert "UpdatePriorities" in text
    with flowrl.run(cfg.graph(), flowrl.Local(), seed=0) as run:
        assert all(summary.learner["default"]["updates"] for summary in run.step(3))


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (
            lambda: SACConfig(policy=PolicySpec()),
            r"must be PolicySpec\(head='soft_actor', ...\), got head='actor",
        ),
        (lambda: TD3Config(policy=PolicySpec(head="q")), r"head='deterministic_actor', ...\), got head='q'"),
        (lambda: SACConfig(tau=1.5), "tau must be"),
        (lambda: DDPGConfig(batch=0), "batch must be at least 1, got 0"),
        (lambda: DDPGConfig(learning_rate=0.0), "learning_rate must be above 0"),
    ],
)
def test_wrong_settings_are_refused(make, problem: str):
    with pytest.raises(ValueError, match=problem):
        make()


@pytest.mark.parametrize("name", CONFIGS)
def test_pendulum_is_learned(name: str):
    """Random actions get some -1200; a few thousand steps get well above, of which few are trained on."""
    cfg = CONFIGS[name](batch=64, samples_per_step=64, learning_rate=2e-3, tau=0.02, unroll=8)
    with flowrl.run(dataclasses.replace(cfg, batches=16).graph(), flowrl.Local(isolate=False), seed=0) as run:
        for summary in run:
            if summary.env_steps >= 3500:
                break
        assert run.evaluate(20).mean > -600
