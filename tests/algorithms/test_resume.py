"""Every algorithm, saved in the middle and resumed: number for number as if it had never stopped, on Local."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl import CheckpointError, Flow, Local, Ray, Run, actor, actors, algorithms, load_policy, rl, run
from flowrl.operators import AddAdvantages, ConcatBatches, ParallelRollouts, ReportMetrics, SendWeights, TrainOneStep

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
    learner = next(name for name in r.actors if "learner" in name or len(r.actors) == 1)
    return r.policy(learner).get_weights()


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


def central(gather: str) -> Flow[Any]:
    """PPO whose workers ask a server for actions."""
    workers = actors(rl.RolloutWorker, "CartPole-v1", steps=8, num_envs=2, count=2, name="workers")
    server = actor(rl.InferenceServer, name="server")
    learner = actor(rl.Learner, rl.PolicySpec(), rl.losses.PPOLoss(), name="learner")
    rollouts = ParallelRollouts(workers, inference=server).for_each(AddAdvantages())
    gathered = rollouts.gather_sync() if gather == "sync" else rollouts.gather_async()
    trained = gathered.for_each(ConcatBatches(30)).for_each(TrainOneStep(learner))
    return trained.for_each(SendWeights(learner, to=server)).for_each(ReportMetrics())


def test_workers_that_ask_a_server_go_on_between_two_fragments(tmp_path: Path) -> None:
    assert_exact(central("sync"), Local(), Local(), tmp_path / "saved")


def test_fragments_that_a_server_is_asked_for_come_to_their_end_before_they_are_saved(tmp_path: Path) -> None:
    with run(central("async"), Local(), seed=5) as r:
        before = r.step(3)[-1]
        r.save(tmp_path / "saved")
        here = r.step(3)
    with run(central("async"), Local(), resume=tmp_path / "saved", trust_pickles=True) as r:
        after = r.step(3)
    for summaries in (here, after):
        steps = [before.env_steps, *(summary.env_steps for summary in summaries)]
        assert steps == sorted(set(steps))


def test_episodes_of_several_agents_go_on_in_the_middle(tmp_path: Path) -> None:
    dqn = algorithms.DQNConfig(min_size=40, batch=8, batches=2, samples_per_step=2.0)
    ppo = algorithms.PPOConfig(batch_steps=40, epochs=1)
    flow = algorithms.PPOAndDQNConfig(envs_per_worker=2, unroll=16, ppo=ppo, dqn=dqn).graph()
    assert_exact(flow, Local(), Local(), tmp_path / "saved")


def test_ppo_on_ray_goes_on_there_and_here(ray_session: None, tmp_path: Path) -> None:
    flow = CONFIGS["ppo"].graph()
    with run(flow, Local(), seed=5) as r:
        whole, end = shown(r, 5), weights(r)
    with run(flow, Ray(), seed=5) as r:
        assert shown(r, 3) == whole[:3]
        r.save(tmp_path / "saved")
    for backend in (Ray(), Local()):
        with run(flow, backend, resume=tmp_path / "saved", trust_pickles=True) as r:
            assert shown(r, 2) == whole[3:]
            np.testing.assert_array_equal(weights(r), end)


def test_without_trust_episodes_begin_anew_and_counters_go_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    flow = CONFIGS["dqn"].graph()
    with run(flow, Local(), seed=5) as r:
        before = r.step(3)[-1]
        r.save(tmp_path / "saved")
    with run(flow, Local(), resume=tmp_path / "saved") as r:
        after = r.step(3)
    told = [record.getMessage() for record in caplog.records if "trust_pickles=True" in record.getMessage()]
    assert len(told) == 1
    assert "the environments of workers[0] begin new episodes" in told[0]
    assert [summary.iteration for summary in after] == [4, 5, 6]
    assert before.env_steps <= after[0].env_steps <= after[-1].env_steps
    assert before.trained_steps < after[0].trained_steps
    assert before.episodes <= after[0].episodes


COUNTS: dict[str, tuple[Any, Any]] = {
    "more workers": (CONFIGS["ppo"], replace(CONFIGS["ppo"], num_workers=3)),
    "fewer workers": (CONFIGS["ppo"], replace(CONFIGS["ppo"], num_workers=1)),
    "fewer shards": (
        replace(CONFIGS["apex"], replay_shards=3),
        replace(CONFIGS["apex"], replay_shards=1, num_workers=1),
    ),
    "more shards": (replace(CONFIGS["apex"], replay_shards=1), replace(CONFIGS["apex"], replay_shards=2)),
    "other learners": (replace(CONFIGS["impala"], learners=1), replace(CONFIGS["impala"], learners=2, aggregators=2)),
    "fewer learners": (replace(CONFIGS["impala"], learners=3), replace(CONFIGS["impala"], learners=1)),
}


@pytest.mark.parametrize("name", COUNTS)
def test_other_numbers_of_actors_go_on_training(name: str, tmp_path: Path) -> None:
    saved, resumed = COUNTS[name]
    with run(saved.graph(), Local(), seed=5) as r:
        before = r.step(3)[-1]
        version = r.policy_state()["version"]
        r.save(tmp_path / "saved")
    with run(resumed.graph(), Local(), resume=tmp_path / "saved", trust_pickles=True) as r:
        assert r.policy_state()["version"] == version
        steps = [before, *r.step(6)]
        r.save(tmp_path / "again")
    with run(saved.graph(), Local(), resume=tmp_path / "again", trust_pickles=True) as r:
        steps += r.step(2)
    for figure in ("iteration", "env_steps", "trained_steps", "episodes"):
        values = [getattr(summary, figure) for summary in steps]
        assert values == sorted(values), figure
    assert steps[-1].trained_steps > before.trained_steps


def test_rows_of_a_shard_that_there_is_no_more_are_kept(tmp_path: Path) -> None:
    three, one = COUNTS["fewer shards"]
    with run(three.graph(), Local(), seed=5) as r:
        r.step(3)
        r.save(tmp_path / "saved")
        held = sum(handle.ask(len).result() for handle in r.actors["replay"])
    with run(one.graph(), Local(), resume=tmp_path / "saved") as r:
        assert r.actors["replay"][0].ask(len).result() == held


def test_sequences_stay_in_their_shards(tmp_path: Path) -> None:
    two = replace(CONFIGS["r2d2"], replay_shards=2)
    with run(two.graph(), Local(), seed=5) as r:
        r.step(1)
        r.save(tmp_path / "saved")
    with pytest.raises(CheckpointError, match="there must be as many replay shards as before"):
        run(CONFIGS["r2d2"].graph(), Local(), resume=tmp_path / "saved")
