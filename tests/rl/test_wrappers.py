"""What stands around each copy: frame skip and stack, Atari's preprocessing, wrappers of one's own; frames counted."""

from __future__ import annotations

import sys
import types
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from flowrl.metrics import Sum
from flowrl.rl.envs import env_spaces, make_vector_env
from flowrl.rl.spec import PolicySpec
from flowrl.rl.worker import RolloutWorker
from flowrl.rl.wrappers import EnvOptions, FrameSkip, frames_per_step, wrap
from tests.rl.counting_envs import Columns, Counting, CountingVector, register


def test_frame_skip_adds_rewards_up_and_stops_at_the_end() -> None:
    env = FrameSkip(Counting((5,)), 3)
    env.reset()
    obs, reward, terminated, _, _ = env.step(0)
    assert (obs.tolist(), float(reward), terminated) == ([0, 3], 6.0, False)
    obs, reward, terminated, _, _ = env.step(0)
    assert (obs.tolist(), float(reward), terminated) == ([0, 5], 9.0, True)
    with_columns = FrameSkip(Columns((5,)), 2)
    with_columns.reset()
    assert with_columns.step(0)[1].tolist() == [3]


@pytest.mark.parametrize("vector", ["sync", "async"])
def test_frames_are_counted_apart(vector: Any) -> None:
    options = EnvOptions(frame_skip=3, vector=vector)
    worker = RolloutWorker(lambda: Counting((6,)), steps=4, num_envs=2, env_options=options, seed=0)
    answer = worker.sample()
    worker.close()
    # Two steps of three frames, a reset, a step.
    assert answer.payload["rewards"][:, 0].tolist() == [6, 15, 0, 6]
    assert answer.env_steps == 6
    assert answer.metrics["frames"] == Sum(18)
    assert answer.metrics["episode_length"].values == (2, 2)
    assert "frames" not in RolloutWorker(Counting, steps=4).sample().metrics


def test_frames_of_a_step_are_the_product_of_all_layers() -> None:
    class Physics(Counting):
        frame_skip = 5

    class Emulator(Counting):
        _frameskip = (2, 5)  # drawn at random

    assert frames_per_step(Counting()) == 1
    assert frames_per_step(Emulator()) == 1
    assert frames_per_step(FrameSkip(Physics(), 2)) == 10
    assert frames_per_step(gymnasium.wrappers.MaxAndSkipObservation(Physics(), skip=4)) == 20
    assert make_vector_env(Physics).frame_skip == 5

    class Whole(CountingVector):
        frame_skip = 7

    assert make_vector_env(lambda: Whole(2), 2).frame_skip == 7
    assert make_vector_env(lambda: CountingVector(2), 2).frame_skip == 1


def test_frame_stack() -> None:
    options = EnvOptions(frame_stack=3)
    assert env_spaces(Counting, options=options).observation.shape == (3, 2)
    batch = RolloutWorker(lambda: Counting((3,), reuse_buffer=True), steps=6, env_options=options).sample().payload
    steps = [[[0, 0], [0, 0], [0, 0]], [[0, 0], [0, 0], [0, 1]], [[0, 0], [0, 1], [0, 2]], [[0, 1], [0, 2], [0, 3]]]
    assert batch["obs"][:4, 0].tolist() == steps
    assert batch["obs"][4, 0].tolist() == [[1, 0]] * 3
    assert batch["valid"][:, 0].tolist() == [True, True, True, False, True, True]


def test_wrappers_come_in_order() -> None:
    def doubled(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
        return gymnasium.wrappers.TransformReward(env, lambda reward: 2 * float(reward) + 1)

    options = EnvOptions(frame_skip=2, wrappers=(doubled,), frame_stack=2)
    env = wrap(Counting((9,)), options)
    env.reset()
    obs, reward, *_ = env.step(0)
    assert (obs.tolist(), reward) == ([[0, 0], [0, 2]], 2 * (1 + 2) + 1)
    assert options.wraps == ("frame_skip", "wrappers", "frame_stack")
    assert not options.plain
    assert EnvOptions().plain


def test_an_entry_point_steps_back_where_copies_are_wrapped() -> None:
    env_id = register("Stacked-v0")
    try:
        assert isinstance(make_vector_env(env_id, 2).vector.unwrapped, CountingVector)
        for options in (
            EnvOptions(frame_stack=2),
            EnvOptions(autoreset="disabled"),
            EnvOptions(vector_kwargs={"copy": True}),
        ):
            assert not isinstance(make_vector_env(env_id, 2, options=options).vector.unwrapped, CountingVector)
    finally:
        del gymnasium.registry[env_id]


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"frame_skip": 0}, "frame_skip must be at least 1, got 0"),
        ({"frame_stack": True}, "frame_stack must be an integer of at least 1, got True"),
        ({"vector": "processes"}, "vector must be one of 'auto', 'sync', 'async', 'entry_point', got 'processes'"),
        ({"autoreset": "never"}, "autoreset must be one of 'next_step', 'same_step', 'disabled', got 'never'"),
    ],
)
def test_mistakes(kwargs: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        EnvOptions(**kwargs)


# Atari
class Emulator(gymnasium.Env[Any, int]):
    """As much of Atari's environment as the preprocessing touches; the picture shows the number of the frame."""

    action_space = Discrete(3)
    observation_space = Box(0, 255, (210, 160, 3), np.uint8)

    def __init__(self, frameskip: int = 4):
        self._frameskip, self.frame, self.ale = frameskip, 0, self

    def get_action_meanings(self) -> list[str]:
        return ["NOOP", "FIRE", "UP"]

    def lives(self) -> int:
        return 3 - self.frame // 20

    def getScreenGrayscale(self, buffer: Any) -> None:  # noqa: N802
        buffer[:] = self.frame

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.frame = 0
        return np.zeros((210, 160, 3), np.uint8), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.frame += self._frameskip
        return np.zeros((210, 160, 3), np.uint8), 1.0, self.frame >= 60, False, {}


@pytest.fixture
def opencv(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenCV's resize where it is not installed."""
    fake = types.ModuleType("cv2")
    fake.INTER_AREA = 3  # type: ignore[attr-defined]
    fake.resize = lambda picture, size, interpolation: picture[: size[1], : size[0]].copy()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cv2", fake)


def test_ataris_preprocessing(opencv: None) -> None:
    env_id = "Emulator-v0"
    gymnasium.registry[env_id] = gymnasium.envs.registration.EnvSpec(
        env_id, entry_point=Emulator, disable_env_checker=True, kwargs={"frameskip": 4}
    )
    options = EnvOptions(atari={"noop_max": 0, "screen_size": 36}, frame_stack=4)
    try:
        spec = PolicySpec(hidden=(8,), convolutions=((2, 8, 8),), image_features=8)
        worker = RolloutWorker(env_id, spec, steps=3, env_options=options, reward_clip=1.0)
        answer = worker.sample()
    finally:
        del gymnasium.registry[env_id]
    obs = answer.payload["obs"]
    assert (obs.dtype, obs.shape) == (np.uint8, (3, 1, 4, 36, 36))
    # The emulator's own skip is off, the preprocessing repeats four frames and shows the newest.
    assert obs[:, 0, :, 0, 0].tolist() == [[0, 0, 0, 0], [0, 0, 0, 4], [0, 0, 4, 8]]
    assert answer.payload["rewards"].ravel().tolist() == [1, 1, 1]
    assert answer.metrics["frames"] == Sum(12)


def test_a_lost_life_may_end_an_episode(opencv: None) -> None:
    def factory() -> Emulator:
        return Emulator(1)

    spec = PolicySpec(hidden=(8,), convolutions=((2, 8, 8),), image_features=8)
    for ends, lengths in ((True, (5, 5)), (False, (15,))):
        options = EnvOptions(atari={"noop_max": 0, "screen_size": 36, "terminal_on_life_loss": ends}, frame_stack=2)
        worker = RolloutWorker(factory, spec, steps=16, env_options=options)
        assert worker.sample().metrics["episode_length"].values[:2] == lengths


def test_atari_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    monkeypatch.setitem(sys.modules, "cv2", None)
    monkeypatch.delitem(gymnasium.registry, "ALE/Pong-v5", raising=False)
    with pytest.raises(ImportError, match=r"environment 'ALE/Pong-v5' needs ale-py.*pip install 'flowrl\[atari\]'"):
        make_vector_env("ALE/Pong-v5")
    with pytest.raises(ImportError, match=r"preprocessing needs OpenCV: pip install 'flowrl\[atari\]'"):
        make_vector_env(Emulator, options=EnvOptions(atari={}))


def test_a_game_of_the_emulator() -> None:
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    options = EnvOptions(atari={}, frame_stack=4)
    source = make_vector_env("ALE/Pong-v5", 2, options=options, seeds=np.random.SeedSequence(0))
    obs = source.reset()
    assert (obs.shape, obs.dtype, source.frame_skip) == ((2, 4, 84, 84), np.uint8, 4)
    again = make_vector_env("ALE/Pong-v5", 2, options=options, seeds=np.random.SeedSequence(0))
    np.testing.assert_array_equal(again.reset(), obs)
    for _ in range(5):
        np.testing.assert_array_equal(source.step(np.array([2, 3]))[0], again.step(np.array([2, 3]))[0])
