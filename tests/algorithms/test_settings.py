"""Settings that make no sense are refused while the config is made or the graph is built, by name and value."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from flowrl.algorithms.a2c import A2CConfig
from flowrl.algorithms.a3c import A3CConfig
from flowrl.algorithms.apex import ApexConfig
from flowrl.algorithms.appo import APPOConfig
from flowrl.algorithms.ddpg import DDPGConfig
from flowrl.algorithms.ddppo import DDPPOConfig
from flowrl.algorithms.dqn import DQNConfig
from flowrl.algorithms.impala import IMPALAConfig
from flowrl.algorithms.ppo import PPOConfig
from flowrl.algorithms.r2d2 import R2D2Config
from flowrl.algorithms.sac import SACConfig
from flowrl.algorithms.td3 import TD3Config
from flowrl.rl import PolicySpec

REPLAYING: tuple[Any, ...] = (DQNConfig, ApexConfig, R2D2Config, SACConfig, TD3Config, DDPGConfig)
STREAMING: tuple[Any, ...] = (PPOConfig, DDPPOConfig, A2CConfig, A3CConfig, IMPALAConfig, APPOConfig)
NAN = float("nan")


@pytest.mark.parametrize("config", [PPOConfig, *REPLAYING])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"env": None}, "env must be a Gymnasium id, 'package.module:Name' or a factory, got None"),
        ({"env_kwargs": 5}, "env_kwargs must be a mapping of names to values, got 5"),
        ({"env_options": None}, r"env_options must be EnvOptions\(...\), got None"),
        ({"policy": "mlp"}, r"policy must be PolicySpec\(...\), got 'mlp'"),
        ({"reward_clip": -1.0}, "reward_clip must be above 0, got -1.0"),
        ({"reward_clip": "x"}, "reward_clip must be a finite number, got 'x'"),
        (
            {"learning_rate": "x"},
            "learning_rate must be a number, or a function of the run's environment steps, got 'x'",
        ),
        ({"learning_rate": True}, "learning_rate must be a number, or a function"),
        ({"learning_rate": lambda steps: None}, "the schedule of learning_rate gave no number at env_steps=0"),
        ({"video_dir": 5, "evaluate_every_env_steps": 1}, "video_dir must be a path, got 5"),
    ],
)
def test_what_all_share(config: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**settings)


@pytest.mark.parametrize("config", STREAMING)
@pytest.mark.parametrize("head", ["q", "soft_actor"])
def test_the_head_of_another_algorithm_is_refused(config: Any, head: Any) -> None:
    with pytest.raises(ValueError, match=rf"policy must be PolicySpec\(head='actor_critic', ...\), got head='{head}'"):
        config(policy=PolicySpec(head=head))


@pytest.mark.parametrize("config", REPLAYING)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": -0.1}, "alpha must be at least 0, got -0.1"),
        ({"alpha": 50.0}, "alpha must be at most 40, got 50.0"),
        ({"beta": None}, "beta must be a number, or a function of the run's environment steps, got None"),
        ({"beta": NAN}, "beta must be at least 0 and finite, got nan"),
        ({"epsilon": "x"}, "epsilon must be a"),
        ({"epsilon": 1.5}, "epsilon must be .*, got 1.5"),
        ({"capacity": 30, "min_size": 31}, "min_size=31 rows can never be stored in 1 shard of capacity=30: lower"),
        ({"capacity": 30, "replay_shards": 3, "min_size": 91}, "min_size=91 .* in 3 shards of capacity=30"),
    ],
)
def test_what_those_with_replay_share(config: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**{"replay_shards": 1, **settings}).graph()


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        (DQNConfig, {"prioritized": "no"}, "prioritized must be True or False, got 'no'"),
        (ApexConfig, {"double": 1}, "double must be True or False, got 1"),
        (DQNConfig, {"policy": PolicySpec(head="q", recurrent="gru")}, "without memory, got recurrent='gru'"),
        (ApexConfig, {"policy": PolicySpec(head="q", recurrent="gru")}, "R2D2 replays sequences"),
        (ApexConfig, {"tau": NAN, "target_every": None}, "tau must be a finite number, got nan"),
        (SACConfig, {"tau": NAN}, "tau must be a finite number, got nan"),
        (SACConfig, {"learn_temperature": None}, "learn_temperature must be True or False, got None"),
        (SACConfig, {"target_entropy": "x"}, "target_entropy must be a finite number, got 'x'"),
        (SACConfig, {"max_grad_norm": 0.0}, "max_grad_norm must be above 0, got 0.0"),
        (SACConfig, {"critic_learning_rate": -1.0}, "critic_learning_rate must be above 0 and finite, got -1.0"),
        (TD3Config, {"policy_delay": 0}, "policy_delay must be at least 1, got 0"),
        (TD3Config, {"target_noise": "x"}, "target_noise must be a finite number, got 'x'"),
        (TD3Config, {"noise_clip": -1.0}, "noise_clip must be at least 0, got -1.0"),
        (R2D2Config, {"rescale": "x"}, "rescale must be a finite number, got 'x'"),
        (R2D2Config, {"rescale": 0.0}, "rescale must be above 0, got 0.0"),
        (R2D2Config, {"burn_in": 4, "unroll": 4}, "burn_in=4 leaves nothing of fragments of unroll=4 steps"),
        (R2D2Config, {"period": 17}, "period=17 leaves rows out between sequences of 16 steps"),
        (R2D2Config, {"capacity": 100, "min_size": 50}, "a sequence goes over 128 rows, .* capacity=100 keeps fewer"),
        (
            R2D2Config,
            {"policy": PolicySpec(head="q", recurrent="gru", atoms=5, value_range=(0, 1))},
            "learns mean returns: leave atoms=5 out",
        ),
    ],
)
def test_what_one_has(config: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**settings)


@pytest.mark.parametrize("config", [*STREAMING, *REPLAYING])
def test_integers_may_be_numpys(config: Any) -> None:
    """What a config accepts no operator or group refuses, under a name that the user has not set."""
    counts = {each.name: each.default for each in fields(config) if each.type in ("int", "int | None")}
    if "tau" in {each.name for each in fields(config)} and counts.get("target_every", 1) is None:
        del counts["target_every"]  # the target follows by tau
    config(**{name: np.int64(100_000 if value is None else value) for name, value in counts.items()}).graph()


@pytest.mark.parametrize("config", [PPOConfig, DDPPOConfig])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"microbatch": 0}, "microbatch must be at least 1, got 0"),
        ({"microbatch": 1.5}, "microbatch must be an integer of at least 1, got 1.5"),
        ({"clip_value": NAN}, "clip_value must be above 0 and finite, got nan"),
        ({"clip_value": "x"}, "clip_value must be a number, or a function of the run's environment steps, got 'x'"),
    ],
)
def test_what_ppo_refuses_by_itself(config: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**settings)
