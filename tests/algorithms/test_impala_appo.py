"""IMPALA and APPO end to end: both backends, how old weights may be, replayed fragments, memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl import Local, Ray, run
from flowrl.algorithms import APPOConfig, IMPALAConfig, impala
from flowrl.cli import main
from flowrl.operators import ParallelRollouts
from flowrl.rl import PolicySpec, RolloutWorker


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> Any:
    """The backend of that name."""
    if request.param == "ray":
        request.getfixturevalue("ray_session")
    return Ray() if request.param == "ray" else Local()


def small(cls: Any = IMPALAConfig, **settings: Any) -> Any:
    """In miniature: batches of two fragments of some 16 steps."""
    given = {"envs_per_worker": 2, "unroll": 8, "batch_steps": 20, "policy": PolicySpec(hidden=(16,))}
    return cls(**{**given, **settings})


ALGORITHMS = pytest.mark.parametrize("cls", [IMPALAConfig, APPOConfig])
MEMORY = PolicySpec(hidden=(8,), recurrent="lstm", recurrent_size=8)


@pytest.mark.parametrize(
    ("backend", "cls", "policy"),
    [
        ("local", IMPALAConfig, PolicySpec(hidden=(16,))),
        ("local", IMPALAConfig, MEMORY),
        ("local", APPOConfig, PolicySpec(hidden=(16,))),
        ("local", APPOConfig, MEMORY),
        pytest.param("ray", IMPALAConfig, PolicySpec(hidden=(16,)), marks=pytest.mark.ray),
        pytest.param("ray", APPOConfig, MEMORY, marks=pytest.mark.ray),
    ],
    indirect=["backend"],
)
def test_they_run_on_both_backends(cls: Any, policy: PolicySpec, backend: Any) -> None:
    with run(small(cls, policy=policy).graph(), backend, seed=0) as running:
        last = running.step(8)[-1]
        assert running.evaluate(2).episodes == 2
    assert last.learner["default"]["updates"] >= 8
    assert 8 * 20 <= last.trained_steps <= last.env_steps * cls().epochs
    assert np.isfinite(list(last.learner["default"].values())).all()


@ALGORITHMS
@pytest.mark.parametrize("env", ["Pendulum-v1", "tests.rl.memory_envs:Recall"])
def test_they_take_other_environments(env: str, cls: Any) -> None:
    with run(small(cls, env=env).graph(), Local(), seed=0) as running:
        assert np.isfinite(running.step(4)[-1].learner["default"]["policy_loss"])


@ALGORITHMS
def test_the_same_seed_gives_the_same_numbers(cls: Any) -> None:
    def weights(seed: int) -> np.ndarray:
        with run(small(cls, minibatch=3).graph(), Local(), seed=seed) as running:
            running.step(5)
            return np.asarray(running.policy_state()["weights"])

    np.testing.assert_array_equal(weights(3), weights(3))
    assert (weights(3) != weights(4)).any()


class Fixed(RolloutWorker):
    """A worker that notes, for each fragment, the version of the weights that made it."""

    def sample(self) -> Any:
        self.versions = [*getattr(self, "versions", []), self._version]
        return super().sample()


@pytest.mark.parametrize("num_async", [1, 3])
def test_a_worker_has_the_newest_weights_after_at_most_num_async_of_its_fragments(num_async: int) -> None:
    cfg = small(num_async=num_async, batch_steps=1, in_flight=1)
    workers = flowrl.actors(Fixed, cfg.env, cfg.policy, steps=4, next_obs=True, count=2, name="workers")
    learner = flowrl.actor(flowrl.rl.Learner, cfg.policy, flowrl.rl.losses.VTraceLoss(), name="learner")
    taken: list[tuple[str, int]] = []  # of each fragment: its worker, and the newest version when it was taken in

    def note(batch: Any, ctx: Any) -> None:
        taken.append((ctx.origins[0].name, ctx.published(ctx.actors(learner)[0])[0]))

    fragments = ParallelRollouts(workers).gather_async(num_async=num_async).tap(note)
    with run(fragments.through(impala.learn(cfg, learner)), Local(), seed=0) as running:
        running.step(30)
        made = {handle.name: handle.ask(lambda self: self.versions).result() for handle in running.actors["workers"]}
    for name, versions in made.items():
        newest = [version for worker, version in taken if worker == name]
        assert len(newest) > 5
        for fragment in range(num_async, len(newest)):
            assert versions[fragment] >= newest[fragment - num_async]
        assert versions[-1] > 5


def test_replayed_fragments_are_trained_on_again() -> None:
    with run(small(replay_proportion=1.0, replay_slots=4).graph(), Local(), seed=0) as running:
        last = running.step(20)[-1]
    replayed = last.nodes["MixInReplay"]["replayed"]
    assert replayed > 15
    assert last.trained_steps > 1.6 * (last.env_steps - 8 * 16)


def test_fragments_that_are_too_old_are_dropped() -> None:
    for bound in (None, 1):
        with run(small(num_async=6, max_policy_lag=bound).graph(), Local(), seed=0) as running:
            training = running.step(20)[-1].nodes["TrainOneStep"]
        assert (training["policy_age_p95"] <= 1) == (bound is not None)
        assert (training.get("dropped_steps", 0) > 0) == (bound is not None)


def test_aggregators_join_fragments_on_their_way() -> None:
    with run(small(aggregators=2, fan_in=3).graph(), Local(), seed=0) as running:
        running.step(5)
        stats = running.stats()
    assert stats.groups["aggregators"].calls >= 5
    assert stats.nodes["aggregate"].steps >= 3 * stats.nodes["aggregate"].items


def test_appo_tells_its_learner_when_the_target_follows() -> None:
    with run(small(APPOConfig, epochs=1, minibatch=None, target_every=3).graph(), Local(), seed=0) as running:
        learner = running.actors["learner"][0]
        follows = []
        for _ in range(6):
            running.step()
            state = learner.ask("get_state").result()
            follows.append((state["weights"] == state["target"]).all())
            assert state["updates"] % 3 == state["target_updates"]["since"]
    assert 1 <= sum(follows) <= 3


def test_the_config_is_the_graph(capsys: pytest.CaptureFixture[str]) -> None:
    assert "MixInReplay" not in IMPALAConfig().graph().explain()
    assert "num_async=3" in IMPALAConfig(num_async=3).graph().explain()
    assert main(["list"]) == 0
    said = capsys.readouterr().out
    assert "impala" in said
    assert "appo" in said
    assert main(["graph", "appo", "--target-every", "7"]) == 0
    assert "every_updates=7" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"unroll": 0}, "unroll must be at least 1, got 0"),
        ({"minibatch": 0}, "minibatch must be at least 1, got 0"),
        ({"replay_proportion": -1.0}, r"replay_proportion must be at least 0, got -1.0"),
        ({"max_policy_lag": -1}, "max_policy_lag must be at least 0, got -1"),
        ({"aggregators": -1}, "aggregators must be at least 0, got -1"),
        ({"vtrace_lambda": 2.0}, r"vtrace_lambda must be at most 1, got 2.0"),
        ({"video_dir": "videos"}, "set evaluate_every_env_steps too"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    for cls in (IMPALAConfig, APPOConfig):
        with pytest.raises(ValueError, match=message):
            cls(**settings)
