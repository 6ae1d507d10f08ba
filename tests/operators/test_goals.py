"""RelabelGoals: goals that were reached, rewards for them, rows that stand alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl import Batch, Local
from flowrl.operators import NStep, RelabelGoals


def reached(achieved: Any, desired: Any) -> Any:
    """0 where the goal is reached, else -1: as in Fetch."""
    return np.where(np.abs(achieved - desired).max(axis=1) < 0.5, 0.0, -1.0)


def walk(ends: dict[int, str] | None = None, steps: int = 6, envs: int = 2, **more: Any) -> Batch:
    """Position t + 100 n is reached by step t of environment n; nobody wanted that."""
    at = (np.arange(1, steps + 1)[:, None] + 100 * np.arange(envs))[..., None].astype(np.float64)
    flags = {kind: np.zeros((steps, envs), np.bool_) for kind in ("terminated", "truncated")}
    for row, kind in (ends or {}).items():
        flags[kind][row] = True
    return Batch(
        {
            "obs/observation": at - 1,
            "obs/achieved_goal": at - 1,
            "obs/desired_goal": np.full_like(at, -7, np.float32),
            "next_obs/observation": at,
            "next_obs/achieved_goal": at,
            "next_obs/desired_goal": np.full_like(at, -7, np.float32),
            "rewards": np.full((steps, envs), -1, np.float32),
            **flags,
            **more,
        },
        time_major=True,
    )


def relabelled(op: RelabelGoals, batch: Batch) -> Batch:
    with flowrl.run(flowrl.from_items([batch], num_shards=1).for_each(op).gather_sync(), Local()) as run:
        (result,) = run.step(1)
    return result


def test_final_is_the_last_of_the_episode() -> None:
    batch = walk({2: "terminated"})
    result = relabelled(RelabelGoals(reached, "final", copies=1), batch)
    assert result.leading == (6, 4)
    for name in batch:  # what was there stands in front
        np.testing.assert_array_equal(result[name][:, :2], batch[name])
    goals = result["obs/desired_goal"][:, 2:, 0]
    np.testing.assert_array_equal(goals[:, 0], [3, 3, 3, 6, 6, 6])  # reached by the rows that end the two episodes
    np.testing.assert_array_equal(goals[:, 1], [103, 103, 103, 106, 106, 106])
    assert result["obs/desired_goal"].dtype == np.float32
    np.testing.assert_array_equal(result["next_obs/desired_goal"][:, 2:], result["obs/desired_goal"][:, 2:])
    np.testing.assert_array_equal(result["rewards"][:, 2], [-1, -1, 0, -1, -1, 0])
    assert result["rewards"].dtype == np.float32
    np.testing.assert_array_equal(result["terminated"][:, 2], batch["terminated"][:, 0])
    assert result["truncated"][:, 2:].all()


def test_future_goals_come_from_the_same_episode_and_not_from_before() -> None:
    batch = walk({1: "truncated", 3: "terminated"}, steps=8)
    result = relabelled(RelabelGoals(reached, copies=50), batch)
    goals = result["obs/desired_goal"][:, 2:, 0].reshape(8, 50, 2)
    last = np.array([2, 2, 4, 4, 8, 8, 8, 8])
    for t in range(8):
        assert set(goals[t, :, 0]) == set(range(t + 1, last[t] + 1))
        assert set(goals[t, :, 1]) == set(range(t + 101, last[t] + 101))


def test_reset_rows_belong_to_no_episode() -> None:
    valid = np.ones((6, 2), np.bool_)
    valid[3] = False
    result = relabelled(RelabelGoals(reached, "final", copies=1), walk(valid=valid))
    np.testing.assert_array_equal(result["obs/desired_goal"][:, 2, 0], [3, 3, 3, 4, 6, 6])
    np.testing.assert_array_equal(result["valid"][:, 2:], valid)


def test_goals_depend_on_the_batch_and_the_seed_alone() -> None:
    batch, other = walk(), walk(steps=7)
    first = relabelled(RelabelGoals(reached), batch)
    assert relabelled(RelabelGoals(reached), batch) == first
    assert relabelled(RelabelGoals(reached, seed=1), batch) != first
    assert relabelled(RelabelGoals(reached), other).leading == (7, 10)


def test_success_may_end_the_episode() -> None:
    op = RelabelGoals(reached, "final", copies=1, terminated=lambda achieved, desired: reached(achieved, desired) == 0)
    np.testing.assert_array_equal(relabelled(op, walk())["terminated"][:, 2], [0, 0, 0, 0, 0, 1])


def test_n_step_sums_no_rewards_over_different_goals() -> None:
    source = flowrl.from_items([walk()], num_shards=1).for_each(RelabelGoals(reached, "final", copies=1))
    with flowrl.run(source.for_each(NStep(3, 0.5)).gather_sync(), Local()) as run:
        first, _ = list(run)
    np.testing.assert_array_equal(first["rewards"][:, 0], [-1.75] * 4)  # the original rows, over three steps
    np.testing.assert_array_equal(first["rewards"][:, 2], [-1] * 4)
    np.testing.assert_array_equal(first["discounts"][:, 2], [0.5] * 4)


def test_what_it_refuses() -> None:
    with pytest.raises(ValueError, match="strategy must be 'future' or 'final', got 'episode'"):
        RelabelGoals(reached, "episode")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="copies must be at least 1, got 0"):
        RelabelGoals(reached, copies=0)
    with pytest.raises(ValueError, match="reward must be a function"):
        RelabelGoals(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"terminated must be a function .*, got 5"):
        RelabelGoals(reached, terminated=5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="needs the columns obs/achieved_goal, obs/desired_goal"):
        relabelled(RelabelGoals(reached), walk().without([name for name in walk() if name.startswith("obs/")]))
    with pytest.raises(ValueError, match=r"reward must give one number a row, \(12,\), got \(12, 1\)"):
        relabelled(RelabelGoals(lambda achieved, desired: achieved), walk())
    assert repr(RelabelGoals(reached)) == "RelabelGoals(reached, 'future', copies=4, seed=0)"
