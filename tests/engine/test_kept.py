"""A learner that dies goes on from its last snapshot: versions never go back, and what is lost is counted."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl import Ignore, Raise, Restart
from flowrl.algorithms import DQNConfig, PPOConfig, a3c, dqn, impala, ppo
from flowrl.backends.protocol import Backend
from flowrl.errors import ActorDied
from flowrl.operators import TrainOneStep
from flowrl.rl import Learner, PolicySpec
from flowrl.rl.losses import PPOLoss
from flowrl.testing import Delayed
from tests.rl.counting_envs import Counting

SMALL: dict[str, Any] = {"num_workers": 2, "envs_per_worker": 2, "unroll": 8}


def ppo_of(**more: Any) -> PPOConfig:
    return PPOConfig(**SMALL, batch_steps=32, epochs=1, **more)


def versions_and_stats(flow: Any, backend: Backend, steps: int) -> tuple[list[int], Any]:
    """The newest version that the learner has published, after each item; and the figures at the end."""
    versions: list[int] = []
    with flowrl.run(flow, backend, seed=3) as run:
        for _ in range(steps):
            run.step(1)
            published = run._engine.states["learner"][0].published
            assert published is not None
            versions.append(published[0])
        return versions, run.stats()


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("likely", [0.5, 1.0])
def test_it_goes_on_from_its_snapshot(every: int, likely: float) -> None:
    died: list[int] = []

    def die(actor: str, n: int) -> bool:
        if actor == "learner[0]" and n in (25, 60):
            died.append(n)
        return actor == "learner[0]" and n in (25, 60)

    cfg = ppo_of(on_learner_failure=Restart(2, backoff_s=0.01), snapshot_every=every)
    versions, stats = versions_and_stats(cfg.graph(), Delayed(0, likely=likely, die=die), 50)
    assert died == [25, 60]
    assert versions == sorted(versions)
    assert stats.metrics["learner"]["restarts"] == 2
    assert stats.metrics["learner"]["default/restored"] == 2
    # At most as old as the distance of two snapshots; what was out is lost as a batch.
    assert 0 <= stats.metrics["learner"]["default/updates_lost"] <= 2 * every
    assert stats.metrics["TrainOneStep"]["items_lost"] <= 2
    node = stats.metrics["TrainOneStep"]
    assert 0 <= stats.env_steps - node["default/trained_steps"] - node["steps_lost"] <= 2 * 32  # on their way
    assert any(w.startswith("learner[0] died (") and "goes on from its last snapshot" in w for w in stats.warnings)


def test_what_it_learned_is_kept() -> None:
    spaces = {"default": flowrl.rl.envs.env_spaces(Counting)}  # type: ignore[attr-defined]
    one, other = (Learner(PolicySpec(), PPOLoss(), seed=seed) for seed in (1, 2))
    one.build(spaces)
    one._version = one._updates = 5
    state = one.get_state()
    other.build(spaces)
    answer = other.resume(state, 9)
    assert (answer.policy_version, other.version) == (10, 10)
    assert answer.metrics["default", "updates_lost"].value == 4
    assert np.array_equal(other.policy.get_weights(), one.policy.get_weights())
    assert other.resume(state, 3).policy_version == 6


def test_it_dies_too_often_or_before_anything_is_known() -> None:
    cfg = ppo_of(on_learner_failure=Restart(2, backoff_s=0.01))
    backend = Delayed(0, die=lambda actor, n: actor == "learner[0]" and n >= 20)
    with (
        flowrl.run(cfg.graph(), backend, seed=3) as run,
        pytest.raises(ActorDied, match=r"learner\[0\] died after 2 restarts: .* node TrainOneStep has on_failure=Rest"),
    ):
        run.step(100)
    once = Delayed(0, die=lambda actor, n: actor == "learner[0]" and n == 20)
    with flowrl.run(ppo_of().graph(), once, seed=3) as run, pytest.raises(ActorDied, match=r"learner\[0\] died"):
        run.step(100)


@pytest.mark.parametrize(
    "cfg",
    [
        a3c.A3CConfig(**SMALL, on_learner_failure=Restart(2, backoff_s=0.01)),
        impala.IMPALAConfig(**SMALL, batch_steps=32, on_learner_failure=Restart(2, backoff_s=0.01)),
        dqn.DQNConfig(
            **SMALL, min_size=32, batches=2, prioritized=True, on_learner_failure=Restart(2, backoff_s=0.01),
            on_shard_failure=Restart(2, backoff_s=0.01),
        ),
    ],
    ids=["a3c", "impala", "dqn"],
)  # fmt: skip
def test_in_other_graphs(cfg: Any) -> None:
    def die(actor: str, n: int) -> bool:
        return (actor == "learner[0]" and n == 25) or (actor == "replay[0]" and n == 40)

    versions, stats = versions_and_stats(cfg.graph(), Delayed(1, die=die), 60)
    assert versions == sorted(versions)
    assert versions[-1] > 20
    assert stats.metrics["learner"]["restarts"] == 1


def test_the_death_changes_nothing_where_nobody_dies() -> None:
    def summaries(cfg: PPOConfig) -> list[Any]:
        with flowrl.run(cfg.graph(), flowrl.Local(), seed=5) as run:
            return [repr({**s.as_dict(), "time_s": 0, "env_steps_per_s": 0, "nodes": 0}) for s in run.step(5)]

    assert summaries(ppo_of()) == summaries(ppo_of(on_learner_failure=Restart(1), snapshot_every=1))


def test_settings_that_make_no_sense() -> None:
    learner = ppo.learner_of(ppo_of())
    with pytest.raises(ValueError, match=r"on_failure=Ignore\(\) has nobody to go on with, 'learner' is one actor"):
        TrainOneStep(learner, on_failure=Ignore())
    with pytest.raises(ValueError, match="snapshot_every must be"):
        TrainOneStep(learner, on_failure=Restart(), snapshot_every=0)
    with pytest.raises(ValueError, match=r"on_failure must be Restart\(\.\.\.\), Ignore\(\) or Raise\(\), got 3"):
        TrainOneStep(learner, on_failure=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="on_learner_failure must be"):
        ppo_of(on_learner_failure=Ignore())
    with pytest.raises(ValueError, match="on_shard_failure must be"):
        DQNConfig(on_shard_failure="ignore")  # type: ignore[arg-type]
    assert TrainOneStep(learner, on_failure=Raise()).kept is None


@pytest.mark.ray
def test_a_killed_learner_on_ray(ray_session: None) -> None:
    cfg = ppo_of(on_learner_failure=Restart(2, backoff_s=0.01), snapshot_every=2)
    with flowrl.run(cfg.graph(), flowrl.Ray(), seed=3) as run:
        run.step(5)
        os.kill(run.actors["learner"][0].ask(process_of).result(), signal.SIGKILL)
        while run.stats().metrics.get("learner", {}).get("restarts", 0) == 0:
            run.step(1)
        summaries = run.step(5)
        assert run.stats().metrics["learner"]["default/updates_lost"] <= 4
        assert summaries[-1].env_steps > summaries[0].env_steps


def process_of(learner: Any) -> int:
    """The id of the process that it lives in."""
    return os.getpid()
