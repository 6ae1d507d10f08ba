"""Environments by id, factory and path; how they reset; how their errors read."""

from __future__ import annotations

import builtins
import sys
import types
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from flowrl.rl.envs import EnvContext, EnvSource, UnknownEnvironment, env_spaces, make_vector_env
from flowrl.rl.envstate import freeze, thaw
from flowrl.rl.spaces import UnsupportedSpace
from flowrl.rl.vector import VectorSource
from flowrl.rl.wrappers import Autoreset, EnvOptions
from tests.rl.counting_envs import Counting, Faulty, Forgetful, Locked, TwoArgumentsError, Walk, broken_constructor

SEEDS = np.random.SeedSequence(7)


def test_an_id_with_a_vector_entry_point_uses_it() -> None:
    source = make_vector_env("CartPole-v1", 3, seeds=SEEDS)
    assert type(source.vector.unwrapped).__name__ == "CartPoleVectorEnv"
    assert source.phantom_rows
    assert source.reset().shape == (3, 4)
    assert source.vector.unwrapped.max_episode_steps == 500


def test_an_id_without_one_is_vectorized_here() -> None:
    source = make_vector_env("MountainCar-v0", 2, env_kwargs={"goal_velocity": 0.02}, seeds=SEEDS)
    assert isinstance(source.vector, SyncVectorEnv)
    assert source.vector.get_attr("goal_velocity") == (0.02, 0.02)


@pytest.mark.parametrize(
    "env",
    [
        Counting,
        lambda lengths: Counting(lengths),
        "tests.rl.counting_envs:Counting",
        lambda lengths, ctx: Counting(lengths),
        lambda lengths: SyncVectorEnv([lambda: Counting(lengths)] * 2),
    ],
    ids=["class", "lambda", "path", "ctx", "vector"],
)
def test_factories_take_keyword_arguments(env: EnvSource) -> None:
    source = make_vector_env(env, 2, env_kwargs={"lengths": (1,)}, seeds=SEEDS)
    source.reset()
    obs, rewards, terminated, _, finals = source.step(np.array([0, 1]))
    assert obs.tolist() == [[0, 1], [0, 1]]
    assert (rewards.tolist(), terminated.tolist(), finals) == ([1, 1], [True, True], [])


def test_contexts_say_which_environment() -> None:
    seen: list[EnvContext] = []

    def factory(ctx: EnvContext) -> Counting:
        seen.append(ctx)
        return Counting()

    make_vector_env(factory, 2, worker_index=3, num_workers=5, seeds=SEEDS)
    make_vector_env(factory, 2, worker_index=3, num_workers=5, seeds=SEEDS)
    assert [(ctx.worker_index, ctx.num_workers, ctx.env_index) for ctx in seen[:2]] == [(3, 5, 0), (3, 5, 1)]
    assert seen[:2] == seen[2:]
    assert seen[0].seed != seen[1].seed


def test_each_environment_has_a_seed_of_its_own() -> None:
    envs: list[Counting] = []
    source = make_vector_env(lambda: envs.append(Counting()) or envs[-1], 3, seeds=SEEDS)
    source.reset()
    again = make_vector_env(lambda: envs.append(Counting()) or envs[-1], 3, seeds=SEEDS)
    again.reset()
    source.reset(at_step=5)
    seeds = [env.seeds for env in envs]
    assert len({str(seed) for seed in seeds[:3]}) == 3
    assert [seed[0] for seed in seeds[:3]] == [seed[0] for seed in seeds[3:]]
    assert all(first != later for first, later in seeds[:3])
    assert all(0 <= seed < 2**31 for pair in seeds[:3] for seed in pair if seed is not None)


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ("CartPole-v7", "no environment 'CartPole-v7' is registered with Gymnasium; did you mean 'CartPole-v[01]'"),
        ("CartPol-v1", "did you mean 'CartPole-v1'"),
        ("Qwxyz-v3", "is the package that registers it imported"),
        ("tests.rl.counting_envs:Nothing", "module 'tests.rl.counting_envs' has no factory 'Nothing'"),
    ],
)
def test_unknown_names(env: str, text: str) -> None:
    with pytest.raises(UnknownEnvironment, match=text) as caught:
        make_vector_env(env, worker_index=2)
    assert caught.value.__notes__ == [f"while making environment {env!r} of worker 2"]


def test_a_module_that_registers_ids_when_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mazes", types.ModuleType("mazes"))
    monkeypatch.setitem(
        gymnasium.registry, "Maze-v0", gymnasium.envs.registration.EnvSpec("Maze-v0", entry_point=Counting)
    )
    assert env_spaces("mazes:Maze-v0", {"num_actions": 5}).action.n == 5


def test_a_missing_module_is_an_import_error() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        make_vector_env("no_such_package.envs:Maze")


def test_envpool_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name == "envpool":
            raise ImportError("no envpool")
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"environment 'envpool:Pong-v5' needs EnvPool.*pip install 'flowrl\[fast\]'"):
        make_vector_env("envpool:Pong-v5")


def test_envpool_is_seeded_when_made(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []

    def make(task: str, **kwargs: Any) -> SyncVectorEnv:
        calls.append({"task": task, **kwargs})
        return SyncVectorEnv([Counting] * kwargs["num_envs"])

    fake = types.ModuleType("envpool")
    fake.make, fake.list_all_envs = make, lambda: ["Pong-v5"]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "envpool", fake)
    source = make_vector_env("envpool:Pong-v5", 2, env_kwargs={"stack_num": 2}, seeds=SEEDS)
    assert source.reset().tolist() == [[0, 0], [0, 0]]
    assert [env.unwrapped.seeds for env in source.vector.envs] == [[None], [None]]
    (call,) = calls
    assert 0 < call.pop("seed") < 2**31
    assert call == {"task": "Pong-v5", "env_type": "gymnasium", "num_envs": 2, "stack_num": 2}
    with pytest.raises(UnknownEnvironment, match="EnvPool has no environment 'Pung-v5'; did you mean 'Pong-v5'"):
        make_vector_env("envpool:Pung-v5")


class Talkative(Counting):
    """Observations that no policy understands."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = gymnasium.spaces.Text(5)


def test_callers_mistakes() -> None:
    with pytest.raises(ValueError, match="num_envs must be at least 1, got 0"):
        make_vector_env("CartPole-v1", 0)
    with pytest.raises(TypeError, match=r"got Counting .*wrap an instance in a factory"):
        make_vector_env(Counting())  # type: ignore[arg-type]
    with pytest.raises(
        TypeError, match=r"factory .*lambda.* must return a gymnasium.Env or VectorEnv, it returned int"
    ):
        make_vector_env(lambda: 3)
    with pytest.raises(ValueError, match="made a VectorEnv of 2 environments, but num_envs is 3; set num_envs=2"):
        make_vector_env(lambda: SyncVectorEnv([Counting] * 2), 3)
    with pytest.raises(UnsupportedSpace, match=r"the observation space of environment Talkative is Text"):
        make_vector_env(Talkative)


def test_a_vector_environment_must_say_how_it_resets() -> None:
    def factory() -> SyncVectorEnv:
        vector = SyncVectorEnv([Counting])
        del vector.metadata["autoreset_mode"]
        return vector

    with pytest.raises(ValueError, match=r"does not say how it resets: its metadata\['autoreset_mode'\] is None"):
        make_vector_env(factory)


def test_errors_keep_their_type_and_say_where() -> None:
    with pytest.raises(TwoArgumentsError) as caught:
        make_vector_env(broken_constructor, 2, worker_index=1)
    assert caught.value.__notes__ == [
        "in the constructor of environment 0",
        "while making environment broken_constructor of worker 1",
    ]
    source = make_vector_env(lambda: Faulty(0), 2)
    with pytest.raises(TwoArgumentsError) as caught:
        source.reset()
    assert caught.value.__notes__ == ["in reset of environment 0"]
    envs = iter([Counting(), Faulty(2)])
    source = make_vector_env(lambda: next(envs), 2)
    source.reset()
    source.step(np.array([0, 0]))
    with pytest.raises(TwoArgumentsError) as caught:
        source.step(np.array([1, 1]))
    assert caught.value.__notes__ == ["in environment 1, at step 2 of its episode, action np.int64(1)"]


def valid_transitions(source: VectorSource, steps: int) -> list[list[tuple[Any, ...]]]:
    """Per environment the transitions (obs, action, reward, terminated, truncated, next obs)."""
    found: list[list[tuple[Any, ...]]] = [[] for _ in range(source.num_envs)]
    obs, ended = source.reset().copy(), np.zeros(source.num_envs, bool)
    for _ in range(steps):
        actions = np.abs(obs.sum(1) * 7).astype(np.int64) % 3  # a function of the observation only
        *arrays, finals = source.step(actions)
        after, rewards, terminated, truncated = (np.copy(array) for array in arrays)
        following = after.copy()
        for n, final in finals:
            following[n] = final
        for n in np.flatnonzero(~ended):
            row = (obs[n], actions[n], rewards[n], terminated[n], truncated[n], following[n])
            found[n].append(tuple(np.asarray(x).tolist() for x in row))
        ended = (terminated | truncated) & source.phantom_rows
        obs = after
    return found


@pytest.mark.parametrize("env", [Walk, lambda: Counting((3, 1, 4), reuse_buffer=True, num_actions=3)])
def test_three_ways_to_reset_give_the_same_transitions(env: EnvSource) -> None:
    ways: list[Autoreset] = ["next_step", "same_step", "disabled"]
    next_step, same_step, disabled = (
        valid_transitions(make_vector_env(env, 3, seeds=SEEDS, options=EnvOptions(autoreset=way)), 120) for way in ways
    )
    assert same_step == disabled
    for with_phantoms, without in zip(next_step, same_step, strict=True):
        assert len(with_phantoms) < len(without) == 120
        assert without[: len(with_phantoms)] == with_phantoms


def test_final_observations_are_copies_though_the_buffer_is_reused() -> None:
    for way in ("same_step", "disabled"):
        source = make_vector_env(lambda: Counting((2,), reuse_buffer=True), 1, options=EnvOptions(autoreset=way))  # type: ignore[arg-type]
        source.reset()
        source.step(np.array([0]))
        obs, _, terminated, _, finals = source.step(np.array([0]))
        assert terminated.tolist() == [True]
        assert obs.tolist() == [[1, 0]]
        assert [(n, final.tolist()) for n, final in finals] == [(0, [0, 2])]


def test_a_vector_environment_of_ones_own_keeps_its_way() -> None:
    source = make_vector_env(lambda: SyncVectorEnv([Counting] * 2, autoreset_mode=AutoresetMode.SAME_STEP), 2)
    assert source.mode is AutoresetMode.SAME_STEP
    assert not source.phantom_rows


def test_frozen_environments_go_on() -> None:
    source, other = (make_vector_env(Walk, 2, seeds=SEEDS) for _ in range(2))
    obs = source.reset().copy()
    source.step(np.array([0, 1]))
    frozen = freeze(source)
    assert frozen is not None
    expected = [np.copy(source.step(np.array([2, 0]))[0]) for _ in range(30)]
    thaw(other, frozen)
    for step in expected:
        np.testing.assert_array_equal(other.step(np.array([2, 0]))[0], step)
    assert obs.shape == (2, 3)


@pytest.mark.parametrize("env", [Forgetful, Locked])
def test_environments_that_cannot_be_frozen_say_so(env: EnvSource) -> None:
    source = make_vector_env(env)
    source.reset()
    assert freeze(source) is None
