"""However copies are stepped and reset, the valid transitions are the same; buffers, rewards and errors on the way."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from flowrl.batch import Batch
from flowrl.rl.envs import EnvSource, make_vector_env
from flowrl.rl.vector import VectorSource
from flowrl.rl.worker import RolloutWorker
from flowrl.rl.wrappers import Autoreset, EnvOptions, Vectorization
from tests.rl.counting_envs import (
    Columns,
    Counting,
    CountingVector,
    Faulty,
    Locked,
    Nested,
    TwoArgumentsError,
    Walk,
    broken_constructor,
    register,
)

SEEDS = np.random.SeedSequence(7)
TOGETHER, APART = (3, 3), (3, 1, 4)
MODES: list[Autoreset] = ["next_step", "same_step", "disabled"]
QUIET = pytest.mark.filterwarnings("ignore::UserWarning")  # Gymnasium logs what a process raised


def test_both_kinds_of_process_are_tried_here() -> None:
    assert make_vector_env(Counting).vector.unwrapped.__class__ is SyncVectorEnv
    source = make_vector_env(Counting, options=EnvOptions(vector="async"))
    assert isinstance(source.vector, AsyncVectorEnv)
    source.close()


def rows_of(batches: list[Batch], n: int) -> list[tuple[Any, ...]]:
    """One environment's valid transitions (obs, reward, terminated, truncated, next obs, next value − its own)."""
    rows = []
    for batch in batches:
        for t in np.flatnonzero(batch["valid"][:, n]):
            names = ("obs", "rewards", "terminated", "truncated", "next_obs")
            rows.append(tuple(batch[name][t, n].tolist() for name in names))
    return rows


def counted(lengths: tuple[int, ...], first: int, steps: int) -> list[tuple[Any, ...]]:
    """What Counting does, worked out apart; environment `first` begins with that entry of `lengths`."""
    rows, episode = [], 0
    while len(rows) < steps:
        length = lengths[(episode + first) % len(lengths)]
        for step in range(length):
            ended = step + 1 == length
            rows.append(([episode, step], float(step + 1), ended, False, [episode, step + 1]))
        episode += 1
    return rows[:steps]


class Rotated(Counting):
    """Counting whose copies end apart: the n-th begins with the n-th of `lengths`."""

    def __init__(self, lengths: tuple[int, ...], first: int):
        super().__init__(lengths[first:] + lengths[:first], reuse_buffer=True)


@pytest.mark.parametrize("vector", ["sync", "async"])
@pytest.mark.parametrize("autoreset", MODES)
@pytest.mark.parametrize("lengths", [TOGETHER, APART])
def test_every_way_gives_the_same_valid_transitions(
    vector: Vectorization, autoreset: Autoreset, lengths: tuple[int, ...]
) -> None:
    def factory(ctx: Any) -> Counting:
        return Rotated(lengths, ctx.env_index if lengths is APART else 0)

    options = EnvOptions(vector=vector, autoreset=autoreset)
    worker = RolloutWorker(factory, steps=7, num_envs=3, env_options=options, next_obs=True, seed=0)
    answers = [worker.sample() for _ in range(5)]
    worker.close()
    batches = [answer.payload for answer in answers]
    for n in range(3):
        found = rows_of(batches, n)
        assert found == counted(lengths, n if lengths is APART else 0, len(found))
        assert len(found) == 35 if autoreset != "next_step" else 24 <= len(found) < 35
    lengths_seen = [length for answer in answers for length in answer.metrics["episode_length"].values]
    returns_seen = [total for answer in answers for total in answer.metrics["episode_return"].values]
    assert set(lengths_seen) == set(lengths)
    assert returns_seen == [n * (n + 1) / 2 for n in lengths_seen]


@pytest.mark.parametrize("lengths", [TOGETHER, APART])
def test_a_vector_of_its_own_kind_gives_them_too(lengths: tuple[int, ...]) -> None:
    env_id = register("Counting-v0", lengths=lengths)
    try:
        workers = {
            vector: RolloutWorker(
                env_id, steps=30, num_envs=2, env_options=EnvOptions(vector=vector), next_obs=True, seed=0
            )
            for vector in ("auto", "entry_point", "sync", "async")
        }
        kinds = {vector: type(worker._source.vector.unwrapped) for vector, worker in workers.items()}
        assert kinds["auto"] is kinds["entry_point"] is CountingVector
        batches = {vector: worker.sample().payload for vector, worker in workers.items()}
        for worker in workers.values():
            worker.close()
    finally:
        del gymnasium.registry[env_id]
    assert batches["auto"] == batches["entry_point"]
    for batch in batches.values():
        for n in range(2):
            found = rows_of([batch], n)
            assert found == counted(lengths, 0, len(found))


def test_processes_and_copies_here_walk_alike() -> None:
    here, there = (
        RolloutWorker(Walk, steps=40, num_envs=3, env_options=EnvOptions(vector=vector), seed=3)  # type: ignore[arg-type]
        for vector in ("sync", "async")
    )
    for _ in range(2):
        assert here.sample().payload == there.sample().payload
    there.close()


def test_options_of_the_vector_pass_through() -> None:
    options = EnvOptions(vector="async", vector_kwargs={"shared_memory": False, "copy": True})
    source = make_vector_env(Counting, 2, options=options, seeds=SEEDS)
    assert not source.vector.shared_memory
    assert source.reset().tolist() == [[0, 0], [0, 0]]
    assert source.step(np.array([0, 1]))[0].tolist() == [[0, 1], [0, 1]]
    source.close()

    def factory(ctx: Any) -> Counting:
        env = Counting()
        env.observation_space = gymnasium.spaces.Box(0, 100 + ctx.env_index, (2,))
        return env

    options = EnvOptions(vector_kwargs={"observation_mode": "different"})
    assert make_vector_env(factory, 2, options=options).spaces.observation.high.tolist() == [100, 100]
    with pytest.raises(RuntimeError, match="not equivalent"):
        make_vector_env(factory, 2)


@pytest.mark.parametrize("autoreset", MODES)
def test_nested_observations_and_their_last_ones(autoreset: Autoreset) -> None:
    source = make_vector_env(lambda: Nested((2, 1)), 2, options=EnvOptions(autoreset=autoreset), seeds=SEEDS)
    source.reset()
    source.step(np.array([0, 0]))
    obs, rewards, terminated, _, finals = source.step(np.array([0, 0]))
    assert (rewards.tolist(), terminated.tolist()) == ([2, 2], [True, True])
    if autoreset == "next_step":
        assert finals == []
        final, obs = obs, source.step(np.array([0, 0]))[0]
        assert (final["count"].tolist(), final["pair"][1].tolist()) == ([[1, 0], [1, 0]], [1, 1])  # the buffer went on
    else:
        assert [n for n, _ in finals] == [0, 1]
        for _, final in finals:
            assert (final["count"].tolist(), final["pair"][0].tolist(), final["pair"][1]) == ([0, 2], [2], 0)
    assert obs["count"].tolist() == [[1, 0], [1, 0]]
    assert obs["pair"][1].tolist() == [1, 1]


@pytest.mark.parametrize("autoreset", MODES)
def test_infos_belong_to_the_observations_handed_out(autoreset: Autoreset) -> None:
    envs = iter([Columns((2,)), Columns((9,))])
    source = make_vector_env(lambda: next(envs), 2, options=EnvOptions(autoreset=autoreset), seeds=SEEDS)
    source.reset()
    masks = [source.info["action_mask"]]
    for _ in range(2):
        _, rewards, *_ = source.step(np.array([0, 0]))
        masks.append(source.info["action_mask"])
    assert (rewards.shape, rewards.tolist()) == ((2,), [2, 2])
    # (1, step % 2): environment 0 ends with its second step; what is told then is of its reset, where that has come.
    assert [mask.tolist() for mask in masks] == [[[1, 0], [1, 0]], [[1, 1], [1, 1]], [[1, 0], [1, 0]]]
    assert source.info["_action_mask"].tolist() == [True, True]


def test_an_info_of_the_reset_takes_the_place_of_the_last_one() -> None:
    class Told(Counting):
        def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
            return super().reset(**kwargs)[0], {"told": np.array([-1.0]), "fresh": True}

        def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
            *given, _ = super().step(action)
            return *given, {"told": np.array([float(self.step_number)])}

    envs = iter([Told((2,)), Told((9,))])
    source = make_vector_env(lambda: next(envs), 2, options=EnvOptions(autoreset="disabled"), seeds=SEEDS)
    source.reset()
    for _ in range(2):
        source.step(np.array([0, 0]))
    assert source.info["told"].tolist() == [[-1], [2]]
    assert source.info["fresh"].tolist() == source.info["_fresh"].tolist() == [True, False]


def test_rewards_of_shape_one() -> None:
    worker = RolloutWorker(Columns, steps=7, num_envs=2, seed=0)
    assert worker.sample().payload["rewards"][:, 0].tolist() == [1, 2, 3, 0, 1, 2, 3]
    with_column = make_vector_env(lambda: CountingVector(2, column=True), 2)
    with_column.reset()
    assert with_column.step(np.array([0, 0]))[1].tolist() == [1, 1]
    several = make_vector_env(lambda: Columns(rewards=3), 2)
    several.reset()
    with pytest.raises(
        ValueError, match=r"a reward must be one number, got array\(\[1., 1., 1.\]\) of shape"
    ) as caught:
        several.step(np.array([0, 0]))
    assert caught.value.__notes__ == ["in environment 0, at step 1 of its episode, action np.int64(0)"]


def test_a_vector_whose_rewards_are_several() -> None:
    class Two(CountingVector):
        def step(self, actions: Any) -> tuple[Any, ...]:
            obs, rewards, *rest = super().step(actions)
            return obs, np.stack([rewards, rewards], 1), *rest

    source = make_vector_env(lambda: Two(3), 3)
    source.reset()
    with pytest.raises(ValueError, match=r"rewards of shape \(3, 2\), expected 3 numbers"):
        source.step(np.zeros(3, np.int64))


# errors
@pytest.fixture
def faulty() -> Iterator[VectorSource]:
    """Two environments in processes of their own, of which one fails at its second step."""

    def factory(ctx: Any) -> Counting:
        return Faulty(2) if ctx.env_index else Counting((99,))

    source = make_vector_env(factory, 2, options=EnvOptions(vector="async"), seeds=SEEDS)
    source.reset()
    yield source
    source.close()


@QUIET
def test_an_error_in_another_process_keeps_type_place_and_traceback(faulty: VectorSource) -> None:
    faulty.step(np.array([0, 0]))
    with pytest.raises(Exception, match="the arm is stuck") as caught:
        faulty.step(np.array([0, 1]))
    assert type(caught.value) is TwoArgumentsError
    assert caught.value.args == ("the arm is stuck", 2)
    assert caught.value.__notes__ == ["in environment 1, at step 2 of its episode, action np.int64(1)"]
    assert "in _fault" in str(caught.value.__cause__)
    # The vector that lost a process is made anew at the next reset.
    assert faulty.reset(1).tolist() == [[0, 0], [0, 0]]
    assert faulty.step(np.array([0, 0]))[1].tolist() == [1, 1]


class Closed(RuntimeError):  # noqa: N818
    """An exception that cannot travel."""

    def __init__(self, stream: Any):
        super().__init__("closed")
        self.stream = stream


def raising(error: Any, ctx: Any) -> Counting:
    """A factory of an environment whose first step does as it is told."""
    env = Counting()

    def step(action: int) -> Any:
        if callable(error):
            error()
        raise Closed(value for value in ())

    env.step = step  # type: ignore[method-assign]
    return env


@QUIET
def test_an_error_with_percent_signs_travels() -> None:
    def fail() -> None:
        raise ValueError("50% s of it, 100%")

    source = make_vector_env(partial(raising, fail), options=EnvOptions(vector="async"))
    source.reset()
    with pytest.raises(ValueError, match="50% s of it, 100%"):
        source.step(np.array([0]))
    source.close()


@QUIET
def test_an_error_that_cannot_travel_names_its_type() -> None:
    source = make_vector_env(partial(raising, None), options=EnvOptions(vector="async"))
    source.reset()
    with pytest.raises(Exception, match="Closed: closed") as caught:
        source.step(np.array([0]))
    assert type(caught.value).__name__ == "RemoteError"
    source.close()


def test_a_process_that_ends() -> None:
    source = make_vector_env(partial(raising, partial(os._exit, 3)), options=EnvOptions(vector="async"))
    source.reset()
    with pytest.raises(RuntimeError, match=r"a process of the async environments .* has ended without an answer"):
        source.step(np.array([0]))
    assert source.reset().tolist() == [[0, 0]]
    source.close()


def test_constructors_in_processes() -> None:
    with pytest.raises(TwoArgumentsError) as caught:
        make_vector_env(broken_constructor, options=EnvOptions(vector="async"))
    assert caught.value.__notes__[0] == "in the constructor of environment 0"
    with pytest.raises(TypeError, match=r"returned SyncVectorEnv; a vector of one's own is stepped with vector='auto'"):
        make_vector_env(lambda: SyncVectorEnv([Counting]), options=EnvOptions(vector="async"))


def test_environments_in_processes_are_not_saved() -> None:
    worker = RolloutWorker(Walk, steps=5, env_options=EnvOptions(vector="async"), seed=0)
    worker.sample()
    assert worker.get_state()["envs"] is None
    worker.close()


# what does not go together
@pytest.mark.parametrize(
    ("env", "options", "text"),
    [
        ("MountainCar-v0", EnvOptions(vector="entry_point"), "'MountainCar-v0' has no vector entry point"),
        (Counting, EnvOptions(vector="entry_point"), "factory Counting makes single environments, so there is no vec"),
        (
            "CartPole-v1",
            EnvOptions(vector="entry_point", frame_stack=2, wrappers=(Locked,)),  # type: ignore[arg-type]
            r"vector environment of 'CartPole-v1' is one piece .*, so EnvOptions\(wrappers, frame_stack\) cannot",
        ),
        (CountingVector, EnvOptions(vector="async"), "must return a gymnasium.Env"),
        (CountingVector, EnvOptions(autoreset="disabled"), r"factory CountingVector is .* EnvOptions\(autoreset\)"),
        (
            CountingVector,
            EnvOptions(vector="sync", vector_kwargs={"copy": True}),
            r"EnvOptions\(vector_kwargs, vector\)",
        ),
    ],
)
def test_refusals(env: EnvSource, options: EnvOptions, text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        make_vector_env(env, options=options)
