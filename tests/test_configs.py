"""Settings come back from JSON as they were, and a file cannot choose what is imported."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from flowrl import CheckpointError, rl
from flowrl.algorithms import CONFIGS, DQNConfig, LeaguePlayConfig, PPOAndDQNConfig, PPOConfig
from flowrl.configs import config_as_json, config_from_json
from flowrl.rl.schedules import Linear
from flowrl.training import config_of
from tests.rl.counting_envs import Counting


def through_json(config: Any, **trust: bool) -> Any:
    return config_from_json(json.loads(json.dumps(config_as_json(config))), "DIR", **{"trust_names": False, **trust})


def test_flowrls_own_games_need_no_trust() -> None:
    config = LeaguePlayConfig(env="flowrl.rl.games:connect_four", env_kwargs={"tactics": True})
    assert through_json(config) == config
    with pytest.raises(CheckpointError, match=r"'flowrl.rl.games:nash_conv', which would be imported"):
        through_json(LeaguePlayConfig(env="flowrl.rl.games:nash_conv"))


@pytest.mark.parametrize("name", CONFIGS)
def test_the_defaults_of_each_algorithm_come_back(name: str) -> None:
    assert through_json(config_of(name)()) == config_of(name)()


@pytest.mark.parametrize(
    "config",
    [
        PPOConfig(learning_rate=Linear(1e-3, 0.0, 1000), policy=rl.PolicySpec(hidden=(8,), squash=True), epochs=3),
        PPOConfig(env_kwargs={"render_mode": None, "nested": {"a": [1, (2, 3)]}}, clip_value=0.5),
        DQNConfig(policy=rl.PolicySpec(head="q", atoms=11, value_range=(-1.0, 1.0)), env="envpool:Pong-v5"),
        PPOAndDQNConfig(dqn_agents=("a", "b"), ppo=PPOConfig(epochs=2, batch_steps=100)),
    ],
)
def test_settings_come_back_as_they_were(config: Any) -> None:
    assert through_json(config) == config


@pytest.mark.parametrize(
    "config",
    [
        PPOConfig(env=Counting),
        PPOConfig(env="tests.rl.counting_envs:Counting"),
        PPOConfig(policy=rl.PolicySpec(model=Counting)),
        PPOAndDQNConfig(env="mpe2.simple_spread_v3"),
    ],
)
def test_names_are_imported_only_if_they_are_trusted(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert through_json(config, trust_names=True) == config
    monkeypatch.setattr("flowrl.configs.import_module", lambda name: pytest.fail(f"imported {name}"))
    with pytest.raises(
        CheckpointError, match=r"settings in DIR cannot be used: config\.(env|policy\.model) is '.*if you trust"
    ):
        through_json(config)


def test_what_no_file_holds_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"config\.env was <function .*lambda> at .*give the config yourself"):
        through_json(PPOConfig(env=lambda: None), trust_names=True)


def changed(**changes: Any) -> Any:
    said = config_as_json(PPOConfig())
    return {**said, "fields": {**said["fields"], **changes}}


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (
            {"class": "subprocess:Popen", "fields": {"args": "true"}},
            "config is of 'subprocess:Popen', which is no setting",
        ),
        ({"class": "flowrl.cli:UsageError", "fields": {}}, "which is no setting of this version"),
        ({"class": "flowrl.training:TrainResult", "fields": {}}, "which is no setting of this version"),
        (changed(warp=9), "flowrl.algorithms.ppo:PPOConfig has no warp in this version"),
        (changed(epochs=0), "epochs must be at least 1, got 0"),
        (changed(policy={"class": "os:PathLike", "fields": {}}), "config.policy is of 'os:PathLike'"),
        (changed(clip={"unknown": 1}), "config.clip was 1, which no file can hold"),
        (changed(clip={}), "cannot be used"),
        ({"class": 3, "fields": 3}, "is of 3, which is no setting"),
    ],
)
def test_other_things_are_no_settings(said: Any, problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem):
        config_from_json(said, "DIR", trust_names=False)


def test_settings_that_an_older_flowrl_did_not_have_get_their_defaults() -> None:
    said = config_as_json(PPOConfig(epochs=2))
    del said["fields"]["entropy_cost"]
    assert config_from_json(said, "DIR", trust_names=False) == replace(PPOConfig(), epochs=2)
