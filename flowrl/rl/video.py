"""Videos of evaluations, by Gymnasium's recorder."""

from __future__ import annotations

import importlib.util
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.wrappers import RecordVideo

MODES = ("rgb_array", "rgb_array_list")


@dataclass(frozen=True)
class Recording:
    """Which episodes of one environment go into which files: `folder/prefix-episode-0.mp4`, ...

    folder: made where it does not exist. prefix: of the files' names. episodes: how many, from the first.
    """

    folder: str | Path
    prefix: str = "evaluation"
    episodes: int = 1

    def check(self) -> None:
        """Nothing, if videos can be written here.

        Raises:
            ImportError: MoviePy is not installed.
        """
        if importlib.util.find_spec("moviepy") is None:
            raise ImportError(
                f"videos to {str(self.folder)!r} need MoviePy, which is not installed: pip install 'flowrl[video]'"
            )


def record(env: gymnasium.Env[Any, Any], recording: Recording, name: str) -> gymnasium.Env[Any, Any]:
    """The environment with a recorder around it; a file is complete when the next episode begins or it is closed.

    Raises:
        ImportError: MoviePy is not installed.
        ValueError: the environment does not draw pictures.
    """
    recording.check()
    if env.render_mode not in MODES:
        raise ValueError(
            f"a video of {name} needs an environment with render_mode='rgb_array', this one has "
            f"{env.render_mode!r}; a factory must pass on its parameter render_mode, or set it"
        )
    with warnings.catch_warnings():
        # Several evaluations share a folder; their prefixes differ.
        warnings.filterwarnings("ignore", message=".*Overwriting existing videos")
        return RecordVideo(
            env, str(recording.folder), lambda episode: episode < recording.episodes, name_prefix=recording.prefix
        )
