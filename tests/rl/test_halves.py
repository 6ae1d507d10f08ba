"""Double-buffered sampling: the same transitions as without it, half by half; its state, failures and refusals."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces as gym_spaces
from gymnasium.vector import SyncVectorEnv

import flowrl
from flowrl.algorithms import PPOConfig
from flowrl.operators import ParallelRollouts
from flowrl.rl import InferenceServer
from flowrl.rl.envs import EnvSource
from flowrl.rl.spec import PolicySpec
from flowrl.rl.worker import RolloutWorker
from flowrl.rl.wrappers import EnvOptions
from tests.rl.counting_envs import Counting, CountingVector, Faulty, Nested, TwoArgumentsError, Walk, register
from tests.rl.sampled_env import Sampled

SEEN, FIVE = gym_spaces.Box(-1, 1, (3,)), gym_spaces.Discrete(5, start=2)
WITH_MASK = gym_spaces.Dict(seen=SEEN, action_mask=gym_spaces.MultiBinary(5))
BOX = gym_spaces.Box(-1, 2, (2,), np.float32)
INNER = PolicySpec(hidden=(8,))
QUIET = pytest.mark.filterwarnings(
    "ignore:.*(ERROR. Traceback|Received the following error|Raising the last exception).*"
)
CASES: dict[str, tuple[EnvSource, PolicySpec, dict[str, Any]]] = {
    "walk": (Walk, INNER, {}),
    "three": (Walk, INNER, {"num_envs": 3}),
    "two": (Walk, INNER, {"num_envs": 2}),
    "next_obs": (Walk, INNER, {"next_obs": True, "normalize_rewards": 0.9, "reward_clip": 1.0}),
    "obs_statistics": (Walk, PolicySpec(hidden=(8,), normalize_obs=True), {}),
    "memory": (Walk, PolicySpec(hidden=(8,), recurrent="lstm", recurrent_size=4), {}),
    "mask_obs": (partial(Sampled, WITH_MASK, FIVE, masks="obs"), INNER, {"next_obs": True}),
    "mask_info": (partial(Sampled, SEEN, FIVE, masks="info"), INNER, {"next_obs": True}),
    "nested": (partial(Nested, (3, 1, 4)), INNER, {"next_obs": True}),
    "gaussian": (partial(Sampled, SEEN, BOX), INNER, {}),
    "deterministic": (partial(Sampled, SEEN, BOX), PolicySpec(hidden=(8,), head="deterministic_actor"), {}),
    "soft": (partial(Sampled, SEEN, BOX), PolicySpec(hidden=(8,), head="soft_actor"), {}),
    "q": (Walk, PolicySpec(hidden=(8,), head="q"), {"next_obs": True}),
    "noisy": (Walk, PolicySpec(hidden=(8,), head="q", noisy=True), {}),
}


def worker_of(env: EnvSource, spec: PolicySpec = INNER, *, double: bool, options: Any = None, **kwargs: Any) -> Any:
    """A worker of four environments, with or without the flag."""
    settings = EnvOptions(**{"vector": "sync", "double_buffer": double, **(options or {})})
    return RolloutWorker(env, spec, **{"steps": 17, "num_envs": 4, "seed": 3, **kwargs}, env_options=settings)


def assert_same(one: Any, other: Any) -> None:
    """Two answers, but for rounding: a policy's products of half as many rows may round otherwise."""
    assert set(one.payload) == set(other.payload)
    for name in one.payload:
        np.testing.assert_allclose(one.payload[name], other.payload[name], atol=1e-5, err_msg=name)
    assert one.payload.time_major == other.payload.time_major
    assert (one.env_steps, one.policy_version) == (other.env_steps, other.policy_version)
    assert one.metrics["episodes"] == other.metrics["episodes"]
    np.testing.assert_allclose(*(answer.metrics["episode_return"].values for answer in (one, other)), rtol=1e-6)
    assert one.metrics["episode_length"] == other.metrics["episode_length"]


@pytest.mark.parametrize("autoreset", ["next_step", "same_step", "disabled"])
@pytest.mark.parametrize("case", CASES)
def test_the_same_transitions_as_without_it(case: str, autoreset: str) -> None:
    env, spec, kwargs = CASES[case]
    plain, double = (worker_of(env, spec, double=d, options={"autoreset": autoreset}, **kwargs) for d in (False, True))
    explores = spec.head == "q" or case in ("walk", "mask_obs")
    for fragment in range(3):
        if explores:
            epsilon = np.linspace(0, 0.5, plain.get_state()["ended"].size)
            plain.set_epsilon(epsilon)
            double.set_epsilon(epsilon)
        if fragment == 1:
            flat = plain.get_state()["weights"] * np.float32(1.2)
            plain.set_weights(flat, 7)
            double.set_weights(flat, 7)
        assert_same(plain.sample(), double.sample())
    assert plain.get_state()["rng"] == double.get_state()["rng"]
    double.close()
    double.close()


@pytest.mark.parametrize(("case", "autoreset"), [("walk", "next_step"), ("mask_info", "same_step")])
def test_the_same_transitions_in_processes_of_their_own(case: str, autoreset: str) -> None:
    env, spec, _ = CASES[case]
    options = {"autoreset": autoreset}
    plain = worker_of(env, spec, double=False, options=options, next_obs=True)
    double = worker_of(env, spec, double=True, options={**options, "vector": "async"}, next_obs=True)
    for _ in range(3):
        assert_same(plain.sample(), double.sample())
    assert double.get_state()["envs"] is None
    double.close()


def test_a_deterministic_policy_in_ids_with_a_vector_of_their_own() -> None:
    # Counting's numbers depend on neither seeds nor actions, however many the vector steps together.
    env_id = register("Halved-v0", lengths=(3, 5))
    plain, double = (worker_of(env_id, double=d, options={"vector": "entry_point"}) for d in (False, True))
    try:
        for _ in range(2):
            assert_same(plain.sample(), double.sample())
    finally:
        del gymnasium.registry[env_id]


def test_evaluations_are_the_same() -> None:
    plain, double = (worker_of(Walk, double=d) for d in (False, True))
    double.sample()
    assert plain.evaluate(6, 1).payload == double.evaluate(6, 1).payload


# how it goes on
class Meeting(gymnasium.Env[Any, int]):
    """Environment 0, whose steps end only when the policy has seen environment 1; they observe which they are."""

    observation_space, action_space = gym_spaces.Box(0, 1, (1,), np.float32), gym_spaces.Discrete(2)
    seen, threads = threading.Semaphore(0), set[str]()

    def __init__(self, ctx: Any):
        self.index = ctx.env_index

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.array([self.index], np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.threads.add(threading.current_thread().name)
        met = self.index == 1 or self.seen.acquire(timeout=20)
        return np.array([self.index], np.float32), float(met), False, False, {}


class Meets(torch.nn.Module):
    """A policy that tells environment 0 when it computes an action for environment 1."""

    def __init__(self, obs_space: Any, action_space: Any):
        super().__init__()
        self.both = torch.nn.Linear(1, 3)

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if len(obs) == 1 and obs[0, 0] == 1:
            Meeting.seen.release()
        out = self.both(obs)
        return out[..., :2], out[..., 2]


def test_one_half_steps_while_the_other_halfs_actions_are_computed() -> None:
    worker = worker_of(Meeting, PolicySpec(model=Meets), double=True, num_envs=2, steps=5)
    assert worker.sample().payload["rewards"].tolist() == [[1, 1]] * 5
    (name,) = Meeting.threads
    assert name.startswith("environments")
    worker.close()


@pytest.mark.parametrize("case", ["memory", "mask_obs", "nested"])
@pytest.mark.parametrize("vector", ["sync", "async"])
def test_central_inference_steps_both_halves(case: str, vector: str) -> None:
    env, spec, _ = CASES[case]
    reset = {"autoreset": "same_step"}
    plain = worker_of(env, spec, double=False, options=reset, next_obs=True)
    double, server = (
        worker_of(env, spec, double=True, options={"vector": vector, **reset}, next_obs=True),
        InferenceServer(),
    )
    server.set_weights(plain.get_state()["weights"], 0)
    for _ in range(2):
        asked: Any = double.begin_sample()
        while not hasattr(asked, "metrics"):
            asked = double.go_on(server.serve(("worker",), asked.payload).payload, 0)
        assert_same(plain.sample(), asked)
    double.close()


# state
def test_a_restored_worker_goes_on_number_for_number() -> None:
    worker = worker_of(Walk, double=True, num_envs=5)
    worker.sample()
    state = worker.get_state()
    expected = [worker.sample() for _ in range(2)]
    other = worker_of(Walk, double=True, num_envs=5, seed=99)
    other.sample()
    other.set_state(state)
    for answer in expected:
        got = other.sample()
        assert got.payload == answer.payload
        assert got.metrics == answer.metrics


@pytest.mark.parametrize("double", [False, True])
def test_a_state_of_the_other_kind_begins_new_episodes(double: bool) -> None:
    giver, taker, twin = (worker_of(Walk, double=d) for d in (not double, double, double))
    giver.sample()
    state = giver.get_state()
    for worker in (taker, twin):
        worker.set_state(state)
    got = taker.sample()
    assert got.payload == twin.sample().payload
    assert got.payload["valid"][0].all()
    assert got.policy_version == state["version"]


def test_set_policy_keeps_what_is_seen_of_the_environments() -> None:
    memory = PolicySpec(hidden=(8,), recurrent="gru", recurrent_size=4)
    env = partial(Sampled, WITH_MASK, FIVE, masks="obs")
    plain, double = (worker_of(env, double=d) for d in (False, True))
    for worker in (plain, double):
        worker.sample()
        worker.set_policy(memory)
    assert_same(plain.sample(), double.sample())


# failures
def faulty(ctx: Any, at: int = 2, what: str = "raise") -> Counting:
    """Environment 2 of 4, the first of the second half, goes wrong; the others go on."""
    return Faulty(at, what, (9,)) if ctx.env_index == 2 else Counting((9,))


@QUIET
@pytest.mark.parametrize("vector", ["sync", "async"])
def test_an_error_names_the_environment_and_the_next_sample_begins_anew(vector: str) -> None:
    worker = worker_of(faulty, double=True, steps=4, options={"vector": vector})
    for steps in (1, 2):
        with pytest.raises(TwoArgumentsError, match="the arm is stuck") as caught:
            worker.sample()
        where, *_, which = caught.value.__notes__
        assert where.startswith("in environment 2, at step 2 of its episode, action ")
        assert f"(one of its 4), after {steps} vector steps" in which
    assert worker.get_state()["obs"] is None
    worker.close()


def test_numbers_that_are_not_finite_name_the_environment_among_all() -> None:
    worker = worker_of(partial(faulty, what="obs"), double=True, steps=4)
    with pytest.raises(FloatingPointError, match=r"environment 2 gave obs\[1\] = nan, .*, at step 2 of its episode"):
        worker.sample()
    worker = worker_of(partial(faulty, at=0, what="obs"), double=True, steps=4)
    with pytest.raises(FloatingPointError, match=r"environment 2 gave obs\[1\] = nan at its reset"):
        worker.sample()


def test_what_a_vector_says_of_its_rows_counts_within_the_half() -> None:
    env = partial(Sampled, SEEN, FIVE, masks="info")

    def sometimes(ctx: Any) -> Any:
        return env() if ctx.env_index != 3 else Sampled(SEEN, FIVE)

    with pytest.raises(ValueError, match=r"environment 1 of .*sometimes\[2:4\] gave info\['action_mask'\]"):
        worker_of(sometimes, double=True).sample()


def test_masks_in_one_half_only_are_refused() -> None:
    def half(ctx: Any) -> Any:
        return Sampled(SEEN, FIVE, masks="info" if ctx.env_index < 2 else "")

    with pytest.raises(
        ValueError, match=r"half\[0:2\] gave info\['action_mask'\] at their reset, .*half\[2:4\] gave n"
    ):
        worker_of(half, double=True).sample()


def test_an_interrupt_in_the_wait_leaves_nothing_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = worker_of(Walk, double=True, options={"vector": "async"}, steps=4)
    worker.sample()
    half = worker._view.halves[0]
    with monkeypatch.context() as patch:

        def interrupted(timeout: Any = None) -> Any:
            raise KeyboardInterrupt

        patch.setattr(half._source.vector, "step_wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            worker.sample()
    batch = worker.sample().payload
    assert batch.valid[0].all()
    worker.close()


# what does not go together
def test_one_environment_cannot_be_halved() -> None:
    options = EnvOptions(double_buffer=True)
    with pytest.raises(ValueError, match="takes 2 at least, got 1; give the worker more, or leave double_buffer out"):
        worker_of(Walk, double=True, num_envs=1)
    workers = flowrl.actors(RolloutWorker, Walk, env_options=options, count=2, name="workers")
    with pytest.raises(ValueError, match="takes 2 at least, got 1"):
        ParallelRollouts(workers).gather_sync().check()
    with pytest.raises(ValueError, match="takes 2 at least, got 1"):
        PPOConfig(envs_per_worker=1, env_options=options).graph().check()


def test_a_vector_of_ones_own_cannot_be_halved() -> None:
    def whole() -> Any:
        return SyncVectorEnv([Counting] * 4)

    for factory in (whole, lambda: CountingVector(2)):
        with pytest.raises(ValueError, match=r"is one piece, so EnvOptions\(double_buffer=True\) cannot step a half"):
            worker_of(factory, double=True, options={"vector": "auto"})


def test_ppo_trains_with_it() -> None:
    """With the same seed PPO's summaries are those without it, as long as rounding moves no action."""
    found = []
    for double in (False, True):
        options = EnvOptions(vector="sync", double_buffer=double)
        cfg = PPOConfig(env_options=options, num_workers=1, envs_per_worker=4, unroll=32, batch_steps=120, epochs=1)
        with flowrl.run(cfg.graph(), flowrl.Local(), seed=0) as run:
            found.append([(s.env_steps, s.episode_return_mean) for s in run.step(3)])
    assert found[0] == found[1]
