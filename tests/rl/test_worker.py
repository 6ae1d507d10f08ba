"""The rollout worker: golden fragments, figures, seeds, weights, exploration."""

from __future__ import annotations

import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv

from flowrl.metrics import Listed, Sum
from flowrl.rl.inference import NumpyInference
from flowrl.rl.initial import initial_weights
from flowrl.rl.spec import PolicySpec
from flowrl.rl.worker import RolloutWorker
from tests.rl.counting_envs import Counting, Walk
from tests.rl.test_inference import Shared

ALL = {"obs", "actions", "rewards", "terminated", "truncated", "valid", "logp", "values", "next_values"}


def values_of(worker: RolloutWorker, obs: Any) -> np.ndarray:
    """The critic's opinion of observations, computed apart."""
    spaces = worker.spaces()["default"]
    net = NumpyInference(PolicySpec(), spaces)
    net.set_weights(worker.get_state()["weights"])
    return net.values(np.asarray(obs, np.float32))


def test_a_fragment_worked_by_hand() -> None:
    worker = RolloutWorker(lambda: Counting((3, 1)), steps=7, next_obs=True, seed=0)
    answer = worker.sample()
    batch = answer.payload
    assert set(batch) == ALL | {"next_obs"}
    assert batch.time_major
    assert batch.leading == (7, 1)
    # Episode 0 has steps 1, 2, 3; row 3 only resets; episode 1 has step 1; row 5 resets; row 6 begins episode 2.
    assert batch["valid"][:, 0].tolist() == [True, True, True, False, True, False, True]
    assert batch["obs"][:, 0].tolist() == [[0, 0], [0, 1], [0, 2], [0, 3], [1, 0], [1, 1], [2, 0]]
    assert batch["next_obs"][:, 0].tolist() == [[0, 1], [0, 2], [0, 3], [1, 0], [1, 1], [2, 0], [2, 1]]
    assert batch["rewards"][:, 0].tolist() == [1, 2, 3, 0, 1, 0, 1]
    assert batch["terminated"][:, 0].tolist() == [False, False, True, False, True, False, False]
    assert not batch["truncated"].any()
    np.testing.assert_allclose(batch["values"][:, 0], values_of(worker, batch["obs"][:, 0]), atol=1e-6)
    # Where a step ended an episode its next value is that of (0, 3) and (1, 1), not of the reset observation.
    np.testing.assert_allclose(batch["next_values"][:, 0], values_of(worker, batch["next_obs"][:, 0]), atol=1e-6)
    assert answer.env_steps == batch.info().env_steps == 5
    assert answer.policy_version == 0
    assert answer.metrics == {
        "episode_return": Listed((6.0, 1.0)),
        "episode_length": Listed((3, 1)),
        "episodes": Sum(2),
    }


@pytest.mark.parametrize("truncates", [False, True])
def test_both_flags_are_kept_as_the_environment_gave_them(truncates: bool) -> None:
    batch = RolloutWorker(lambda: Counting((2,), truncates=truncates), steps=2, seed=0).sample().payload
    assert batch["terminated"][:, 0].tolist() == [False, not truncates]
    assert batch["truncated"][:, 0].tolist() == [False, truncates]
    batch = RolloutWorker(lambda: Counting((2,), both=True), steps=2, seed=0).sample().payload
    assert batch["terminated"][1, 0]
    assert batch["truncated"][1, 0]


@pytest.mark.parametrize("mode", ["SameStep", "Disabled"])
def test_final_observations_where_rows_do_not_show_them(mode: str) -> None:
    def vector() -> SyncVectorEnv:
        envs = [lambda: Counting((3,)), lambda: Counting((2, 4))]
        return SyncVectorEnv(envs, copy=False, autoreset_mode=mode)

    worker = RolloutWorker(vector, steps=4, num_envs=2, next_obs=True, seed=0)
    batch = worker.sample().payload
    assert batch["valid"].all()
    assert batch["obs"][:, 1].tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert batch["next_obs"][:, 1].tolist() == [[0, 1], [0, 2], [1, 1], [1, 2]]
    np.testing.assert_allclose(batch["next_values"][:, 1], values_of(worker, batch["next_obs"][:, 1]), atol=1e-6)
    np.testing.assert_allclose(batch["values"], values_of(worker, batch["obs"].reshape(8, 2)).reshape(4, 2), atol=1e-6)
    assert worker.sample().metrics["episode_length"] == Listed((3, 4, 2))


def test_episodes_go_on_over_fragments() -> None:
    short = RolloutWorker(Walk, steps=4, num_envs=3, next_obs=True, seed=5)
    long = RolloutWorker(Walk, steps=20, num_envs=3, next_obs=True, seed=5)
    whole, parts = long.sample(), [short.sample() for _ in range(5)]
    for name, column in whole.payload.items():
        joined = np.concatenate([part.payload[name] for part in parts])
        np.testing.assert_allclose(joined, column, atol=1e-6, err_msg=name)
        assert column.dtype == joined.dtype != np.float64
    for name in ("episode_return", "episode_length"):
        joined = [value for part in parts for value in part.metrics[name].values]
        assert joined
        np.testing.assert_allclose(joined, whole.metrics[name].values)
    assert sum(part.env_steps or 0 for part in parts) == whole.env_steps


def test_returns_are_raw_and_counted_over_valid_rows() -> None:
    worker = RolloutWorker("CartPole-v1", steps=100, num_envs=4, seed=1)
    answers = [worker.sample() for _ in range(3)]
    returns = [x for answer in answers for x in answer.metrics["episode_return"].values]
    lengths = [x for answer in answers for x in answer.metrics["episode_length"].values]
    assert returns == lengths
    state = worker.get_state()
    assert sum(lengths) + state["lengths"].sum() == sum(answer.payload["valid"].sum() for answer in answers)
    assert len(returns) == sum(answer.metrics["episodes"].value for answer in answers)


def test_actions_are_stored_as_indices_and_given_with_their_start() -> None:
    envs: list[Counting] = []
    worker = RolloutWorker(
        lambda: envs.append(Counting((99,), start=5, num_actions=3)) or envs[-1], steps=30, num_envs=2, seed=0
    )
    batch = worker.sample().payload
    assert set(np.unique(batch["actions"])) == {0, 1, 2}
    assert batch["actions"].dtype == np.int64
    for n, env in enumerate(envs):
        assert env.actions == (batch["actions"][:, n] + 5).tolist()


def test_integer_observations_stay_and_floats_are_float32() -> None:
    assert RolloutWorker(lambda: Counting(dtype=np.uint8), steps=2).sample().payload["obs"].dtype == np.uint8
    assert RolloutWorker(lambda: Counting(dtype=np.float64), steps=2).sample().payload["obs"].dtype == np.float32


def test_a_batch_is_never_overwritten() -> None:
    worker = RolloutWorker(lambda: Counting((3,), reuse_buffer=True), steps=8, num_envs=2, next_obs=True, seed=0)
    batch = worker.sample().payload
    kept = {name: column.copy() for name, column in batch.items()}
    for _ in range(3):
        worker.sample()
    for name, column in batch.items():
        np.testing.assert_array_equal(column, kept[name])


def test_a_seed_decides_and_workers_differ() -> None:
    same = [RolloutWorker("CartPole-v1", steps=20, num_envs=2, seed=3, index=i).sample().payload for i in (0, 0, 1)]
    assert same[0] == same[1]
    assert not np.array_equal(same[0]["obs"], same[2]["obs"])
    sequence = np.random.SeedSequence(3)
    one, two = (RolloutWorker("CartPole-v1", steps=20, seed=sequence, index=i).sample().payload for i in (0, 1))
    assert one == two  # a sequence is the worker's own stream already


def test_global_generators_are_not_touched() -> None:
    def states() -> tuple[Any, ...]:
        return random.getstate(), [str(part) for part in np.random.get_state()], torch.get_rng_state().tolist()

    before = states()
    for spec in (PolicySpec(), PolicySpec(model=Shared)):
        worker = RolloutWorker("CartPole-v1", spec, steps=20, num_envs=2, seed=3)
        worker.set_epsilon(0.5)
        worker.sample()
        worker.evaluate(2, 0, deterministic=False)
        worker.set_state(worker.get_state())
    assert states() == before


def test_columns_are_known_without_a_worker() -> None:
    assert RolloutWorker.batch_columns("NoSuchEnv-v0", PolicySpec(), steps=3) == ALL
    assert RolloutWorker.batch_columns("NoSuchEnv-v0", next_obs=True) == ALL | {"next_obs"}
    assert RolloutWorker.batch_columns("NoSuchEnv-v0", values=False) == ALL - {"values", "next_values"}
    assert RolloutWorker.default_cpus == 1


@pytest.mark.parametrize("spec", [PolicySpec(), PolicySpec(head="q"), PolicySpec(recurrent="gru", recurrent_size=4)])
def test_values_are_left_out_and_nothing_else_changes(spec: PolicySpec) -> None:
    def sampled(**options: Any) -> dict[str, Any]:
        worker = RolloutWorker("CartPole-v1", spec, steps=30, num_envs=2, next_obs=True, seed=0, **options)
        columns = RolloutWorker.batch_columns("CartPole-v1", spec, next_obs=True, **options)
        assert {name.split("/")[0] for name in worker.sample().payload} == columns
        return dict(worker.sample().payload)

    without, whole = sampled(values=False), sampled()
    assert whole.keys() - without.keys() == {"values", "next_values"}
    for name, column in without.items():
        np.testing.assert_array_equal(column, whole[name], err_msg=name)


# the policy
def test_weights_and_their_version() -> None:
    worker = RolloutWorker("CartPole-v1", steps=20, num_envs=2, seed=0)
    other = initial_weights(PolicySpec(), worker.spaces()["default"], 77)
    other.flags.writeable = False  # as the object store hands it out
    worker.set_weights(other, 12)
    answer = worker.sample()
    assert answer.policy_version == 12
    batch = answer.payload
    np.testing.assert_allclose(batch["values"][0], values_of(worker, batch["obs"][0]), atol=1e-6)
    np.testing.assert_array_equal(worker.get_state()["weights"], other)
    with pytest.raises(
        ValueError, match=r"this policy has 9,155 weights in one flat vector, got an array of shape \(3,\)"
    ):
        worker.set_weights(np.zeros(3, np.float32), 13)
    with pytest.raises(ValueError, match="9,155 of 9,155 weights are not finite"):
        worker.set_weights(np.full(9155, np.nan, np.float32), 13)
    assert worker.sample().policy_version == 12


def test_epsilon() -> None:
    worker = RolloutWorker(lambda: Counting((99,), num_actions=4), steps=50, num_envs=8, seed=0)
    worker.set_epsilon(1.0, policy="default")
    batch = worker.sample().payload
    np.testing.assert_allclose(batch["logp"], np.log(0.25), atol=1e-6)
    assert np.bincount(batch["actions"].ravel(), minlength=4).min() > 60
    for wrong in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match=f"epsilon is a probability, from 0 to 1, got {wrong}"):
            worker.set_epsilon(wrong)
    with pytest.raises(ValueError, match="this worker has the policy 'default' only, got 'red'"):
        worker.set_epsilon(0.5, policy="red")


def test_another_policy_can_be_put_in_place() -> None:
    worker = RolloutWorker("CartPole-v1", steps=5, seed=0)
    first = worker.get_state()["weights"]
    worker.set_policy(PolicySpec(hidden=(3,)), version=4)
    assert len(worker.get_state()["weights"]) == (15 + 8) + (15 + 4)
    assert worker.sample().policy_version == 4
    worker.set_policy(PolicySpec(), first, 5)
    np.testing.assert_array_equal(worker.get_state()["weights"], first)
    with pytest.raises(ValueError, match="42 weights in one flat vector"):
        worker.set_policy(PolicySpec(hidden=(3,)), first)
    assert worker.sample().policy_version == 5


def test_a_torch_model_of_the_users_own() -> None:
    worker, twin = (RolloutWorker("CartPole-v1", PolicySpec(model=Shared), steps=30, seed=2) for _ in range(2))
    batch = worker.sample().payload
    assert batch == twin.sample().payload
    assert np.isfinite(batch["next_values"]).all()
    assert worker.evaluate(2, 0).payload.episodes == 2


def test_the_default_model_needs_no_torch() -> None:
    script = (
        "import sys; from flowrl.rl import RolloutWorker\n"
        "worker = RolloutWorker('CartPole-v1', steps=5); worker.sample(); worker.evaluate(1); worker.get_state()\n"
        "print(sorted(name for name in ('torch', 'ray') if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
