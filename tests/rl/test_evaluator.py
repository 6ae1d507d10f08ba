"""Evaluators: their share, their seeds, their videos."""

from __future__ import annotations

import importlib.machinery
import sys
import types
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from flowrl.rl.envs import make_vector_env
from flowrl.rl.evaluation import Evaluation
from flowrl.rl.evaluator import Evaluator
from flowrl.rl.initial import initial_weights
from flowrl.rl.spec import PolicySpec
from flowrl.rl.video import Recording
from flowrl.rl.wrappers import EnvOptions
from tests.rl.counting_envs import Counting, Faulty, TwoArgumentsError, Walk

SPEC = PolicySpec(hidden=(8,))


def weights(env: Any = Walk, **kwargs: Any) -> Any:
    source = make_vector_env(env, **kwargs)
    return initial_weights(SPEC, source.spaces, np.random.SeedSequence(1))


def test_each_evaluator_plays_its_share() -> None:
    shares = []
    for index in range(3):
        answer = Evaluator(Walk, SPEC, index=index, count=3, seed=0).evaluate(5, weights=weights(), version=7)
        assert (answer.policy_version, answer.env_steps) == (7, 0)
        shares.append(answer.payload)
    assert [share.episodes for share in shares if share] == [2, 2, 1]
    whole = Evaluation.concat([share for share in shares if share])
    assert whole.episodes == 5
    assert len(set(whole.returns)) == 5  # seeds of its own each
    assert Evaluator(Walk, SPEC, index=2, count=3).evaluate(2, weights=weights()).payload is None


def test_those_that_are_left_share_all_episodes() -> None:
    left = [Evaluator(Walk, SPEC, index=index, count=3, seed=0) for index in (0, 2)]
    shares = [one.evaluate(5, weights=weights(), share=(place, 2)).payload for place, one in enumerate(left)]
    assert [share.episodes for share in shares if share] == [3, 2]
    own = left[1].evaluate(6, weights=weights()).payload
    assert left[1].evaluate(4, weights=weights(), share=(1, 2)).payload == own  # the streams are its own


def test_the_same_evaluation_again_is_the_same() -> None:
    evaluator, twin = (Evaluator(Walk, SPEC, num_envs=2, seed=4) for _ in range(2))
    first = evaluator.evaluate(5, 1, False, weights())
    assert evaluator.evaluate(5, 2, False, weights()).payload != first.payload
    assert (
        evaluator.evaluate(5, 1, False, weights()).payload
        == first.payload
        == twin.evaluate(5, 1, False, weights()).payload
    )
    assert Evaluator(Walk, SPEC, num_envs=2, seed=5).evaluate(5, 1, False, weights()).payload != first.payload


def test_no_more_environments_than_episodes() -> None:
    made: list[Counting] = []

    def factory() -> Counting:
        made.append(Counting((4,)))
        return made[-1]

    evaluator = Evaluator(factory, SPEC, num_envs=8)
    answer = evaluator.evaluate(3, weights=weights(factory))
    assert answer.payload == Evaluation((10.0,) * 3, (4,) * 3)
    assert sum(bool(env.actions) for env in made) == 3


def test_evaluation_with_the_options_of_training() -> None:
    options = EnvOptions(frame_stack=2, frame_skip=2, vector="async")
    evaluator = Evaluator(lambda: Counting((6,)), SPEC, env_options=options, num_envs=2)
    flat = weights(lambda: Counting((6,)), options=options)
    assert evaluator.evaluate(2, weights=flat).payload == Evaluation((21.0,) * 2, (3,) * 2)


def test_what_it_refuses() -> None:
    with pytest.raises(ValueError, match="num_envs must be at least 1, got 0"):
        Evaluator(Walk, num_envs=0)
    with pytest.raises(ValueError, match="an Evaluator has no weights of its own"):
        Evaluator(Walk).evaluate(1)
    with pytest.raises(ValueError, match="weights in one flat vector"):
        Evaluator(Walk, SPEC).evaluate(1, weights=np.zeros(3, np.float32))
    with pytest.raises(TwoArgumentsError) as caught:
        Evaluator(lambda: Faulty(1), SPEC, index=1, count=2).evaluate(4, weights=weights(Counting))
    assert caught.value.__notes__[-1].startswith("in an evaluation by evaluator 1 of 2, environment ")


# videos
class Drawn(Walk):
    """A walk that draws a grey picture."""

    metadata: ClassVar[dict[str, Any]] = {"render_fps": 10, "render_modes": ["rgb_array"]}

    def __init__(self, render_mode: str | None = None):
        super().__init__()
        self.render_mode = render_mode

    def render(self) -> Any:
        return np.full((16, 16, 3), 100, np.uint8)


@pytest.fixture
def clips(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """MoviePy where it is not installed: (file, frames) of every clip."""
    written: list[tuple[str, int]] = []

    class Clip:
        def __init__(self, frames: list[Any], fps: int):
            assert fps == 10
            self.frames = len(frames)

        def write_videofile(self, path: str, logger: Any) -> None:
            Path(path).write_bytes(b"video")
            written.append((Path(path).name, self.frames))

    names = ("moviepy", "moviepy.video", "moviepy.video.io", "moviepy.video.io.ImageSequenceClip")
    modules = {name: types.ModuleType(name) for name in names}
    for name, module in modules.items():
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, module)
    modules[names[-1]].ImageSequenceClip = Clip  # type: ignore[attr-defined]
    return written


@pytest.mark.filterwarnings("error")
def test_the_first_episode_of_each_evaluation_becomes_a_video(tmp_path: Path, clips: list[tuple[str, int]]) -> None:
    evaluator = Evaluator(Drawn, SPEC, num_envs=2, video_dir=tmp_path / "videos", seed=0)
    for version in (3, 8):
        found = evaluator.evaluate(4, 0, True, weights(Drawn), version).payload
        assert found is not None
        assert clips[-1] == (f"version-{version}-episode-0.mp4", found.lengths[0] + 1)
    assert sorted(path.name for path in (tmp_path / "videos").iterdir()) == [name for name, _ in clips]
    plain = Evaluator(Drawn, SPEC, num_envs=2, seed=0).evaluate(4, 0, True, weights(Drawn), 3).payload
    assert plain == found
    other = Evaluator(Drawn, SPEC, video_dir=tmp_path, index=1, count=2)
    other.evaluate(2, weights=weights(Drawn))
    assert len(clips) == 2  # the first of those that share it alone records
    other.evaluate(2, weights=weights(Drawn), version=9, share=(0, 1))
    assert clips[-1][0] == "version-9-episode-0.mp4"


def test_an_environment_that_draws_nothing(tmp_path: Path, clips: list[tuple[str, int]]) -> None:
    evaluator = Evaluator(lambda: Walk(), SPEC, video_dir=tmp_path)
    with pytest.raises(ValueError, match=r"needs an environment with render_mode='rgb_array', this one has None"):
        evaluator.evaluate(1, weights=weights())
    with pytest.raises(ValueError, match=r"the vector environment of 'CartPole-v1' is one piece, so vector='sync' can"):
        make_vector_env("CartPole-v1", options=EnvOptions(vector="entry_point"), recording=Recording(tmp_path))


def test_videos_without_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "moviepy", None)
    with pytest.raises(ImportError, match=r"need MoviePy, which is not installed: pip install 'flowrl\[video\]'"):
        Evaluator(Walk, video_dir=tmp_path)


def test_a_video_of_cartpole(tmp_path: Path) -> None:
    pytest.importorskip("moviepy")
    pytest.importorskip("pygame")
    flat = weights("CartPole-v1")
    Evaluator("CartPole-v1", SPEC, video_dir=tmp_path).evaluate(2, 0, True, flat, 5)
    (file,) = tmp_path.iterdir()
    assert file.name == "version-5-episode-0.mp4"
    assert file.stat().st_size > 1000
