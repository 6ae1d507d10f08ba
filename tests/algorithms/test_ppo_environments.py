"""PPO's settings of environments, rewards and evaluation, end to end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl import Local
from flowrl.algorithms import PPOConfig
from flowrl.rl import EnvOptions, PolicySpec
from tests.rl.counting_envs import Counting, Walk

SMALL: dict[str, Any] = {
    "policy": PolicySpec(hidden=(8,)), "envs_per_worker": 2, "unroll": 16, "batch_steps": 50, "epochs": 2,
    "minibatch": 32,
}  # fmt: skip


def summaries(cfg: PPOConfig, n: int = 3, seed: int = 3) -> tuple[list[Any], Any]:
    with flowrl.run(cfg.graph(), Local(), seed=seed) as running:
        return running.step(n), running.stats()


def numbers(items: list[Any]) -> list[Any]:
    return [(item.env_steps, item.episode_return_mean, dict(item.learner["default"])) for item in items]


def test_evaluation_on_a_schedule_changes_no_number_of_training() -> None:
    plain, _ = summaries(PPOConfig(Walk, **SMALL), 4)
    cfg = PPOConfig(Walk, **SMALL, evaluate_every_env_steps=50, evaluate_episodes=3)
    evaluated, stats = summaries(cfg, 4)
    assert numbers(evaluated) == numbers(plain)
    assert evaluated[-1].nodes["EvaluateEvery"]["evaluated_episodes"] == 9
    assert stats.groups["evaluators"].calls == 3  # the fourth is out
    assert "EvaluateEvery" in cfg.graph().explain()
    assert "Evaluate" not in PPOConfig(Walk).graph().explain()


def test_rewards_are_normalized_over_all_workers() -> None:
    def factory(ctx: Any) -> Counting:
        return Counting((3 + 5 * ctx.worker_index,))

    cfg = PPOConfig(factory, **SMALL, normalize_rewards=True, reward_clip=2.0)
    with flowrl.run(cfg.graph(), Local(), seed=0) as running:
        items = running.step(4)
        moments = running._engine.accounts.table.moments("reward_moments")
        assert running.stats().nodes["ShareRewardMoments"].messages == 0
        known = [handle.ask("get_state").result()["rewards"] for handle in running.actors["workers"]]
    assert moments.count == items[-1].env_steps
    for state in known:
        assert state["moments"]["count"] == moments.count
        np.testing.assert_allclose([state["moments"]["mean"], state["moments"]["m2"]], [moments.mean, moments.m2])
    assert {6.0, 36.0} >= set(running._engine.accounts.table.window("episode_return"))  # raw


@pytest.mark.parametrize(
    "options",
    [
        EnvOptions(frame_stack=2, frame_skip=2),
        EnvOptions(autoreset="same_step"),
        EnvOptions(autoreset="disabled"),
        EnvOptions(vector="async"),
    ],
    ids=repr,
)
def test_the_options_of_environments_reach_workers_and_evaluators(options: EnvOptions) -> None:
    cfg = PPOConfig(Walk, **SMALL, env_options=options, evaluate_every_env_steps=40, evaluate_episodes=2)
    items, _ = summaries(cfg, 2)
    assert items[-1].nodes["EvaluateEvery"]["evaluated_episodes"] >= 2
    assert np.isfinite(items[-1].learner["default"]["value_loss"])
    if options.frame_skip == 2:
        frames = [figures["frames"] for figures in items[-1].nodes.values() if "frames" in figures]
        assert frames == [2 * items[-1].env_steps]
    if options.autoreset != "next_step":
        assert items[-1].env_steps == 2 * 2 * 2 * 16  # no row that only resets


def test_a_video_needs_evaluations() -> None:
    with pytest.raises(ValueError, match=r"video_dir='videos' is for evaluations: set evaluate_every_env_steps too"):
        PPOConfig(Walk, video_dir="videos")
