"""Every algorithm, saved in the middle and resumed: number for number as if it had never stopped, on Local."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl import Flow, Local, Run, algorithms, load_policy, run

SMALL: dict[str, Any] = {"envs_per_worker": 2, "unroll": 8}
TRAINED: dict[str, Any] = {**SMALL, "batch_steps": 40, "minibatch": 16}
REPLAYED: dict[str, Any] = {**SMALL, "min_size": 40, "batch": 8, "batches": 2, "samples_per_step": 2.0}
CONFIGS: dict[str, Any] = {
    "ppo": algorithms.PPOConfig(**TRAINED, epochs=2, normalize_rewards=True),
    "ppo_evaluated": algorithms.PPOConfig(**TRAINED, epochs=2, evaluate_every_env_steps=40, evaluate_episodes=2),
    "a2c": algorithms.A2CConfig(**SMALL),
    "a3c": algorithms.A3CConfig(**SMALL),
    "ddppo": algorithms.DDPPOConfig(**TRAINED, epochs=1),
    "impala": algorithms.IMPALAConfig(**SMALL, batch_steps=40, aggregators=1, fan_in=2, replay_proportion=0.5),
    "appo": algorithms.APPOConfig(**SMALL, batch_steps=40, max_policy_lag=3),
    "dqn": algorithms.DQNConfig(**REPLAYED),
    "rainbow": algorithms.DQNConfig(**REPLAYED, prioritized=True, replay_shards=2, num_workers=2),
    "apex": algorithms.ApexConfig(**REPLAYED),
    "r2d2": algorithms.R2D2Config(**REPLAYED, sequence=4, period=2, burn_in=1, n_step=2),
    "sac": algorithms.SACConfig(**REPLAYED),
    "td3": algorithms.TD3Config(**REPLAYED),
}


def shown(r: Run[Any], n: int) -> list[str]:
    """The next summaries without their times; by their text, in which NaN equals NaN."""
    found = []
    for summary in r.step(n):
        said = summary.as_dict()
        found.append(
            repr({name: value for name, value in said.items() if not name.startswith(("time", "env_steps_per"))})
        )
    return found


def weights(r: Run[Any]) -> Any:
    """Those of the first learner."""
    name = next(name for name, handles in r.actors.items() if name == "learner" or len(r.actors) == 1)
    return r.policy(name).get_weights()


def assert_exact(flow: Flow[Any], backend: Any, resume_on: Any, folder: Path, before: int = 3, after: int = 3) -> None:
    """Uninterrupted, saved, and resumed runs give the same summaries and weights."""
    with run(flow, backend, seed=5) as r:
        whole, end = shown(r, before + after), weights(r)
    with run(flow, backend, seed=5) as r:
        begun = shown(r, before)
        r.save(folder)
        assert begun + shown(r, after) == whole
        np.testing.assert_array_equal(weights(r), end)
    with run(flow, resume_on, resume=folder, trust_pickles=True) as r:
        assert shown(r, after) == whole[before:]
        np.testing.assert_array_equal(weights(r), end)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_resumed_run_is_the_uninterrupted_one(name: str, tmp_path: Path) -> None:
    assert_exact(CONFIGS[name].graph(), Local(), Local(), tmp_path / "saved")


def test_a_policy_is_loaded_from_a_checkpoint(tmp_path: Path) -> None:
    with run(CONFIGS["ddppo"].graph(), Local(), seed=1) as r:
        r.step(1)
        assert r.save(tmp_path / "saved") == tmp_path / "saved"
        expected = weights(r)
    np.testing.assert_array_equal(load_policy(tmp_path / "saved").get_weights(), expected)
