"""The checkpoints of one run, `DIR/step-000000012345/` each: when one is due, which are kept, newest, and best."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowrl.checkpoint.manifest import MANIFEST, read_manifest, set_aside
from flowrl.checkpoint.storage import Folder, RemoteFolder, Where, folder
from flowrl.checkpoint.writer import GONE, beside, locked, made_aside
from flowrl.errors import CheckpointError
from flowrl.numbers import check_finite, check_whole

INDEX = "index.json"
BELOW = "checkpoints"  # where `flowrl.train(out=...)` puts them
STEP = re.compile(r"step-\d{12,}")
SERIES = "series"  # in the manifest's "about": what is said of a checkpoint as one of several

Save = Callable[[str, Mapping[str, Any]], Any]  # (path, about): writes a checkpoint there


@dataclass(frozen=True)
class Checkpoints:
    """Where, how often and how long the checkpoints of a run are kept.

    Raises:
        ValueError: a number out of range; neither an interval in steps nor one in seconds.
    """

    directory: str | os.PathLike[str]
    """Where they are written, each as `step-000000012345`; a path, or a URL that fsspec knows."""
    every_env_steps: int | None = None
    """Save when so many environment steps were taken since the last one; None: not by steps."""
    every_s: float | None = None
    """Save when so many seconds have passed since the last one; None: not by time. With both, whichever comes first."""
    keep_last: int = 3
    """How many of the newest are kept."""
    keep_best: int = 1
    """How many of the best are kept, besides; 0: none for being good."""
    metric: str = "episode_return_mean"
    """By which the best are chosen, the greater the better: an attribute of the items that the run gives, which are
    Summaries for the algorithms."""

    def __post_init__(self) -> None:
        if not isinstance(self.directory, str | os.PathLike) or not os.fspath(self.directory):
            raise ValueError(f"directory must be a path or a URL, got {self.directory!r}")
        if self.every_env_steps is not None:
            check_whole("every_env_steps", self.every_env_steps)
        if self.every_s is not None:
            check_finite("every_s", self.every_s)
            if self.every_s <= 0:
                raise ValueError(f"every_s must be above 0, got {self.every_s!r}")
        if self.every_env_steps is None and self.every_s is None:
            raise ValueError("Checkpoints needs every_env_steps or every_s, or none would ever be written")
        check_whole("keep_last", self.keep_last)
        check_whole("keep_best", self.keep_best, 0)


@dataclass(frozen=True)
class Saved:
    """One checkpoint of a series. number: counts the saves, so that the newest is known whatever the steps say."""

    name: str
    number: int
    env_steps: int
    score: float | None


class Series:
    """The checkpoints in a directory as a run writes them, from the environment steps that it begins with."""

    def __init__(self, settings: Checkpoints, env_steps: int = 0):
        self.settings = settings
        self._steps, self._at = env_steps, time.monotonic()

    def due(self, env_steps: int) -> bool:
        """Whether it is time for the next one."""
        every, every_s = self.settings.every_env_steps, self.settings.every_s
        by_steps = every is not None and env_steps - self._steps >= every
        return by_steps or (every_s is not None and time.monotonic() - self._at >= every_s)

    def skip(self, env_steps: int) -> None:
        """As if one had been saved now: the next is due an interval later."""
        self._steps, self._at = env_steps, time.monotonic()

    def score(self, item: Any) -> float | None:
        """How good the run is, by the newest item that it gave; None where it says nothing of it."""
        value = getattr(item, self.settings.metric, None)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return None
        return float(value)

    def save(self, save: Save, env_steps: int, score: float | None, about: Mapping[str, Any] | None = None) -> str:
        """Writes the next one with `save`, then removes those that are not to be kept; returns its path."""
        where = folder(self.settings.directory)
        before = listed(where)
        name = f"step-{env_steps:012d}"
        saved = Saved(name, max((each.number for each in before), default=0) + 1, env_steps, score)
        path = str(where.below(name))
        save(path, {**(about or {}), SERIES: {"number": saved.number, "score": score}})
        self.skip(env_steps)
        self._tidy(where, [*(each for each in before if each.name != name), saved])
        return path

    def _tidy(self, where: Folder | RemoteFolder, all_of_them: list[Saved]) -> None:
        kept = {each.name for each in all_of_them[-self.settings.keep_last :]}
        kept |= {each.name for each in _by_score(all_of_them)[: self.settings.keep_best]}
        for each in all_of_them:
            if each.name not in kept:
                _remove(where, each.name)
        _write_index(where, [each for each in all_of_them if each.name in kept])


def listed(where: Folder | RemoteFolder) -> list[Saved]:
    """The whole checkpoints of a series in a directory, in the order in which they were saved."""
    found = []
    for name in where.names():
        if STEP.fullmatch(name) is None:
            continue
        try:
            manifest = read_manifest(str(where.below(name)), whole=False)
            said = manifest.get("about", {}).get(SERIES, {})
            number, steps, score = said.get("number", 0), int(name.removeprefix("step-")), said.get("score")
            found.append(Saved(name, int(number), steps, None if score is None else float(score)))
        except (CheckpointError, AttributeError, TypeError, ValueError):
            continue
    return sorted(found, key=lambda each: (each.number, each.name))


def newest(directory: Where) -> str:
    """The path of the whole checkpoint that was saved last in a directory.

    Raises:
        CheckpointError: there is none.
    """
    return _chosen(directory, lambda found: found[-1])


def best(directory: Where) -> str:
    """The path of the whole checkpoint with the greatest score in a directory; the newest, where none has a score.

    Raises:
        CheckpointError: there is none.
    """
    return _chosen(directory, lambda found: next(iter(_by_score(found)), found[-1]))


def _chosen(directory: Where, choose: Callable[[list[Saved]], Saved]) -> str:
    where = folder(directory)
    found = listed(where)
    if not found:
        raise CheckpointError(f"there is no whole checkpoint in {where}")
    return str(where.below(choose(found).name))


def checkpoint_at(path: Where) -> str:
    """The checkpoint that a path means: itself, or the newest in a directory of several or in the `out` of a training.

    Raises:
        CheckpointError: there is none.
    """
    where = folder(path)
    names = where.names()
    if MANIFEST in names or (isinstance(where, Folder) and not names and set_aside(where) is not None):
        return str(where)
    for series in (where, where.below(BELOW)):
        if any(STEP.fullmatch(name) for name in series.names()):
            return newest(str(series))
    raise CheckpointError(
        f"there is no checkpoint in {where}: it has no {MANIFEST}, and no step-… (nor has {where.below(BELOW)}); "
        "a training leaves some there with checkpoint_every= (--checkpoint-every)"
    )


def _by_score(found: list[Saved]) -> list[Saved]:
    """Those with a score, the best first; of equals, the newer."""
    scored = [(each.score, each.number, each) for each in found if each.score is not None]
    return [each for *_, each in sorted(scored, key=lambda entry: entry[:2], reverse=True)]


def _write_index(where: Folder | RemoteFolder, kept: list[Saved]) -> None:
    """What scripts and people look at; flowrl itself asks the checkpoints."""
    scored = _by_score(kept)
    content = {
        "latest": kept[-1].name,
        "best": scored[0].name if scored else None,
        "checkpoints": {each.name: {"env_steps": each.env_steps, "score": each.score} for each in kept},
    }
    text = (json.dumps(content, indent=1) + "\n").encode()
    if isinstance(where, RemoteFolder):
        where.write(INDEX, text)
        return
    aside, lock = made_aside(where.path / INDEX)  # a directory, which the next writer finds if this process is killed
    try:
        Folder(aside).write(INDEX, text)
        (aside / INDEX).replace(where.path / INDEX)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        os.close(lock)
    where.sync()


def _remove(where: Folder | RemoteFolder, name: str) -> None:
    """Takes a checkpoint away: at no moment is there half of one."""
    if isinstance(where, RemoteFolder):
        below = where.below(name)
        below.files.rm(f"{below.path}/{MANIFEST}")
        below.remove()
        return
    path: Path = where.path / name
    gone = beside(path, GONE)
    lock = locked(path)
    with suppress(FileNotFoundError):  # another process has it taken away
        path.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)
    if lock is not None:
        os.close(lock)
