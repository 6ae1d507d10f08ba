"""Environments that answer something else than they promise: nothing is broadcast or converted silently."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Tuple
from gymnasium.vector import AutoresetMode

from flowrl.rl.checked import ObsCheck, one_flag, one_reward
from flowrl.rl.envs import make_vector_env
from flowrl.rl.vector import VectorSource
from flowrl.rl.wrappers import EnvOptions, Vectorization
from tests.rl.counting_envs import Counting, CountingVector

QUIET = pytest.mark.filterwarnings("ignore::UserWarning")  # Gymnasium logs what a process raised


class OddVector(CountingVector):
    """A vector of which one part of the step's answer is replaced."""

    def __init__(self, place: int, value: Any, space: Box | None = None):
        super().__init__(3)
        self.place, self.value = place, value
        self.single_observation_space = space or self.single_observation_space

    def step(self, actions: Any) -> tuple[Any, ...]:
        answer = list(super().step(actions))
        answer[self.place] = self.value
        return tuple(answer)


PIXELS = Box(0, 255, (2,), np.uint8)


@pytest.mark.parametrize(
    ("place", "value", "space", "problem"),
    [
        (0, np.zeros((1, 2), np.float32), None, r"observation has shape \(1, 2\), expected shape \(3, 2\) and float32"),
        (0, 4.0, None, r"observation has shape \(\), expected .* for 3 environments: its space is Box"),
        (0, np.zeros((3, 2), "U1"), None, "observation is ndarray"),
        (0, np.full((3, 2), 300.7), PIXELS, "observation holds 300.7 in float64, which uint8 cannot hold"),
        (0, np.full((3, 2), 300), PIXELS, "observation holds 300 in int64, which uint8 cannot hold"),
        (0, np.full((3, 2), np.nan), PIXELS, "observation holds nan in float64, which uint8 cannot hold"),
        (1, 1.0, None, r"rewards of shape \(\), expected 3 numbers"),
        (1, np.ones(1), None, r"rewards of shape \(1,\), expected 3 numbers"),
        (1, np.array(["1", "2", "3"]), None, "rewards must be real numbers, got ndarray"),
        (1, [None] * 3, None, "rewards must be real numbers, got list"),
        (2, False, None, r"terminated must be 3 booleans, got bool False of shape \(\)"),
        (2, np.zeros(1, bool), None, "terminated must be 3 booleans"),
        (3, np.zeros(3), None, "truncated must be 3 booleans"),
        (3, np.array([0, 2, 1]), None, "truncated must be 3 booleans"),
        (4, None, None, "info that step returns must be a dict, got NoneType None"),
    ],
)
def test_a_vector_that_answers_something_else(place: int, value: Any, space: Box | None, problem: str) -> None:
    source = make_vector_env(lambda: OddVector(place, value), 3)
    source.vector.single_observation_space = space or source.vector.single_observation_space
    source = VectorSource(source.vector, None, "Odd")
    if space is None:
        source.reset()
    with pytest.raises((ValueError, TypeError), match=f"^the environments Odd gave what does not fit: .*{problem}"):
        source.step(np.zeros(3, np.int64))


@pytest.mark.parametrize(
    ("place", "value", "expected"),
    [
        (0, [[1, 2]] * 3, [[1, 2]] * 3),
        (1, [1, 2, 3], [1, 2, 3]),
        (1, np.ones((3, 1), np.float32), [1, 1, 1]),
        (2, np.array([0, 1, 1]), [False, True, True]),
        (3, [False, True, False], [False, True, False]),
    ],
)
def test_what_says_the_same_in_another_type_is_taken(place: int, value: Any, expected: list[Any]) -> None:
    source = make_vector_env(lambda: OddVector(place, value), 3)
    source.reset()
    assert np.asarray(source.step(np.zeros(3, np.int64))[place]).tolist() == expected


def test_a_vector_whose_final_observations_are_missing() -> None:
    class Same(CountingVector):
        def __init__(self, finals: Any) -> None:
            super().__init__(3, (1,))
            self.finals = finals
            self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}

        def step(self, actions: Any) -> tuple[Any, ...]:
            *answer, _ = super().step(actions)
            return *answer, {} if self.finals is None else {"final_obs": self.finals}

    for finals in (None, [np.zeros(2), None, np.zeros(2)], np.zeros((1, 2))):
        source = make_vector_env(partial(Same, finals), 3)
        source.reset()
        n = 0 if finals is None else 1
        with pytest.raises(ValueError, match=rf"info\['final_obs'\] holds no observation of environment {n}, whose"):
            source.step(np.zeros(3, np.int64))
    source = make_vector_env(lambda: Same(np.zeros((3, 1))), 3)
    source.reset()
    with pytest.raises(ValueError, match=r"info\['final_obs'\]\[0\]: the observation has shape \(1,\)"):
        source.step(np.zeros(3, np.int64))


class Odd(Counting):
    """Counting of which the answer of the reset, or of the second step, is replaced."""

    def __init__(self, reset: Any = None, step: Any = None):
        super().__init__((9,))
        self.given_reset, self.given_step = reset, step

    def reset(self, **kwargs: Any) -> Any:
        answer = super().reset(**kwargs)
        return answer if self.given_reset is None else self.given_reset(*answer)

    def step(self, action: int) -> Any:
        answer = super().step(action)
        return answer if self.given_step is None or self.step_number < 2 else self.given_step(*answer)


@QUIET
@pytest.mark.parametrize("vector", ["sync", "async"])
@pytest.mark.parametrize(
    ("step", "problem"),
    [
        (lambda o, r, t, u, i: (o, r, "False", u, i), "terminated must be True or False, got str 'False'"),
        (lambda o, r, t, u, i: (o, r, t, float("nan"), i), "truncated must be True or False, got float nan"),
        (lambda o, r, t, u, i: (o, r, None, u, i), "terminated must be True or False, got NoneType None"),
        (lambda o, r, t, u, i: (o, "1.5", t, u, i), "a reward must be a real number, got str '1.5'"),
        (lambda o, r, t, u, i: (o, None, t, u, i), "a reward must be a real number, got NoneType None"),
        (lambda o, r, t, u, i: (o, r, t, i), "step must return .* it returned a tuple of 4; an environment of the old"),
        (lambda o, r, t, u, i: (o, r, t, u, None), "the info that step returns must be a dict, got NoneType None"),
        (
            lambda o, r, t, u, i: (o[:1], r, t, u, i),
            r"the observation has shape \(1,\), expected shape \(2,\) and float32",
        ),
        (lambda o, r, t, u, i: (None, r, t, u, i), r"the observation has shape \(\), expected"),
    ],
)
def test_a_step_that_answers_something_else(vector: Vectorization, step: Any, problem: str) -> None:
    def factory(ctx: Any) -> Counting:
        return Odd(step=step) if ctx.env_index else Counting((9,))

    source = make_vector_env(factory, 2, options=EnvOptions(vector=vector))
    source.reset()
    source.step(np.array([0, 0]))
    with pytest.raises((ValueError, TypeError), match=problem) as caught:
        source.step(np.array([0, 1]))
    assert caught.value.__notes__ == ["in environment 1, at step 2 of its episode, action np.int64(1)"]
    source.close()


@pytest.mark.parametrize(
    ("reset", "problem"),
    [
        (lambda obs, info: obs, r"reset must return \(observation, info\) as in Gymnasium, it returned ndarray array"),
        (lambda obs, info: (obs, info, 1), "it returned a tuple of 3; an environment of the old Gym needs a wrapper"),
        (lambda obs, info: (obs, None), "its info is NoneType None; an empty one is {}"),
        (lambda obs, info: (obs[:1], info), r"the observation has shape \(1,\), expected shape \(2,\)"),
    ],
)
def test_a_reset_that_answers_something_else(reset: Any, problem: str) -> None:
    source = make_vector_env(lambda: Odd(reset=reset), 2)
    with pytest.raises((ValueError, TypeError), match=problem) as caught:
        source.reset()
    assert caught.value.__notes__ == ["in reset of environment 0"]


@QUIET
@pytest.mark.parametrize("vector", ["sync", "async"])
@pytest.mark.parametrize(
    ("wrapper", "inner"),
    [
        (partial(gymnasium.wrappers.TimeLimit, max_episode_steps=9), None),
        (gymnasium.wrappers.PassiveEnvChecker, None),
        (gymnasium.wrappers.FlattenObservation, gymnasium.wrappers.OrderEnforcing),
    ],
)
def test_an_old_step_is_told_under_gymnasiums_own_wrappers_too(vector: Vectorization, wrapper: Any, inner: Any) -> None:
    old = Odd(step=lambda o, r, t, u, i: (o, r, t, i))
    wrappers = (inner, wrapper) if inner else (wrapper,)
    source = make_vector_env(lambda: old, options=EnvOptions(vector=vector, wrappers=wrappers))
    source.reset()
    source.step(np.array([0]))
    told = (
        r"step of Odd must return \(observation, reward, terminated, truncated, info\) as in Gymnasium; its wrapper \w+"
    )
    with pytest.raises(TypeError, match=told + r" got something else \(not enough values .*Shimmy's") as caught:
        source.step(np.array([1]))
    assert caught.value.__notes__ == ["in environment 0, at step 2 of its episode, action np.int64(1)"]
    source.close()


def test_an_old_reset_is_told_under_gymnasiums_own_wrappers_too() -> None:
    wrappers = (gymnasium.wrappers.RecordEpisodeStatistics,)
    source = make_vector_env(lambda: Odd(reset=lambda obs, info: (obs, info, 1)), options=EnvOptions(wrappers=wrappers))
    with pytest.raises(
        TypeError, match=r"reset of Odd must return \(observation, info\) as in Gymnasium; its wrapper Rec"
    ):
        source.reset()


def test_an_environments_own_unpacking_is_its_own_error() -> None:
    class Unpacks(gymnasium.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            one, two = (1, 2, 3)
            return one, two

    source = make_vector_env(Counting, options=EnvOptions(wrappers=(Unpacks, gymnasium.wrappers.OrderEnforcing)))
    source.reset()
    with pytest.raises(ValueError, match="too many values to unpack"):
        source.step(np.array([0]))


def test_skipped_frames_are_checked_too() -> None:
    source = make_vector_env(
        lambda: Odd(step=lambda o, r, t, u, i: (o, "1.5", t, u, i)), options=EnvOptions(frame_skip=2)
    )
    source.reset()
    with pytest.raises(TypeError, match=r"a reward must be a real number, got str '1\.5'"):
        source.step(np.array([0]))


@pytest.mark.parametrize("value", [True, np.True_, 1, np.int8(1), np.array(True)])
def test_flags_that_are_taken(value: Any) -> None:
    assert one_flag("terminated", value) is True


@pytest.mark.parametrize("value", [2, -1, 1.0, "", np.array([True]), [], ()])
def test_flags_that_are_not(value: Any) -> None:
    with pytest.raises(TypeError, match="terminated must be True or False, got"):
        one_flag("terminated", value)


def test_rewards_that_are_taken() -> None:
    for value in (2, 2.0, np.float32(2), np.array(2), np.array([[2.0]])):
        assert one_reward(value) == 2.0
    assert one_reward(True) == 1.0


def test_nested_observations_name_the_part() -> None:
    space = Dict({"arm": Tuple([Box(-1, 1, (2,)), Discrete(4)]), "bits": MultiBinary(3)})
    check = ObsCheck(space)
    good = {"arm": (np.zeros(2), 3), "bits": [0, 1, 1]}
    check(good)
    check(space.sample())
    ObsCheck(space, 5)(gymnasium.vector.utils.batch_space(space, 5).sample())
    for part, value, problem in [
        ("arm", (np.zeros(3), 3), r"the observation 'arm/0' has shape \(3,\), expected shape \(2,\)"),
        ("arm", (np.zeros(2), 2.5), "the observation 'arm/1' holds 2.5 in float64, which int64 cannot hold"),
        ("arm", np.zeros(2), "the observation 'arm' is ndarray"),
        ("arm", (np.zeros(2),), "the observation 'arm' is tuple"),
        ("bits", [[1], [1, 2]], r"the observation 'bits' is list \[\[1\], \[1, 2\]\], expected shape \(3,\) and int8"),
    ]:
        with pytest.raises(ValueError, match=problem):
            check({**good, part: value})
    with pytest.raises(ValueError, match="the observation has no 'bits', its space is Dict"):
        check({"arm": good["arm"], "legs": 4})
