"""A training's checkpoints: when they are written, what they say of the training, and how one goes on from there."""

from __future__ import annotations

import logging
import re
import signal
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import flowrl
from flowrl.checkpoint import Checkpoints, Series, checkpoint_at, read_manifest
from flowrl.checkpoint.series import BELOW, STEP
from flowrl.checkpoint.storage import Where
from flowrl.configs import config_as_json, config_from_json
from flowrl.engine.interrupts import interrupted
from flowrl.errors import CheckpointError, add_note

TRAINING = "training"  # in the manifest's "about": what is said there of the training
INTERRUPTED_S = 3.0  # how long actors may take to give their states, where a user waits for the prompt
UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}
KEPT = ("every_env_steps", "every_s", "keep_last", "keep_best", "metric")  # of Checkpoints, what goes on by itself

_log = logging.getLogger("flowrl")


@dataclass(frozen=True)
class Start:
    """The checkpoint that a training goes on from.

    path: of the checkpoint. series: the directory of several that it is in. env_steps, iteration: what was reached.
    algorithm: its name, None for a flow or a config of one's own. config: as `config_as_json` gives it. goal:
    total_steps and stop_return. kept: fields of Checkpoints. out: the directory with the records that it continues.
    """

    path: str
    series: str | None
    env_steps: int
    iteration: int
    algorithm: str | None
    config: Any
    goal: Mapping[str, Any]
    kept: Mapping[str, Any] | None
    out: Path | None

    def rebuilt(self, *, trust_names: bool = False) -> Any:
        """The config that the training began with.

        Raises:
            CheckpointError: it was a flow or a config of one's own, or names what is not trusted.
        """
        from flowrl.training import config_of

        try:
            cls = config_of(str(self.algorithm))
        except ValueError:
            raise CheckpointError(
                f"{self.path} is of no algorithm of flowrl's: go on in Python, with the same flow or config: "
                "flowrl.train(what, resume=...)"
            ) from None
        config = config_from_json(self.config, self.path, trust_names=trust_names)
        if type(config) is not cls:
            raise CheckpointError(f"{self.path} says that it is of {self.algorithm}, but holds other settings")
        return config


def start_of(path: Where) -> Start:
    """From where a training goes on: at a checkpoint, at the newest of several, or of those in a training's `out`.

    Raises:
        CheckpointError: there is none, it is damaged, or not of a training.
    """
    checkpoint = checkpoint_at(path)
    manifest = read_manifest(checkpoint, whole=False)
    said = manifest.get("about", {}).get(TRAINING)
    if not isinstance(said, Mapping):
        raise CheckpointError(
            f"{checkpoint} was not written by flowrl.train; go on with flowrl.run(flow, resume={checkpoint!r})"
        )
    series, out = _places(checkpoint)
    kept, goal = said.get("kept"), said.get("goal")
    try:
        return Start(
            checkpoint, series, int(manifest["run"]["env_steps"]), int(said["iteration"]), said.get("algorithm"),
            said.get("config"), goal if isinstance(goal, Mapping) else {},
            kept if isinstance(kept, Mapping) else None, out,
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{checkpoint} does not say what a training needs to go on: {error!r}") from error


def _places(checkpoint: str) -> tuple[str | None, Path | None]:
    """The directory of several that a checkpoint is in, and the `out` of the training around that."""
    series, _, name = checkpoint.rstrip("/").rpartition("/")
    if STEP.fullmatch(name) is None:
        return None, None
    if "://" in checkpoint:
        return series, None
    here = Path(checkpoint).absolute().parent
    return str(here), here.parent if here.name == BELOW else None


def recipe(what: Any) -> dict[str, Any]:
    """What a checkpoint or run.json says of an algorithm, so that it can be made again without imports by name."""
    from flowrl.training import algorithm_of

    name = algorithm_of(what)
    return {"algorithm": name, "config": None if name is None else config_as_json(what)}


def checkpoints_of(
    every: int | str | Checkpoints | None, folder: Path | None, start: Start | None
) -> Checkpoints | None:
    """Where and when to save, from what the user says of it; else as before, where a training goes on.

    Raises:
        ValueError: it is none of these; or neither says where.
    """
    if isinstance(every, Checkpoints):
        return every
    if every is None:
        return None if start is None or start.kept is None else _as_before(start, folder)
    if folder is None:
        raise ValueError("checkpoint_every needs out=DIR, or Checkpoints(directory, ...), to know where to save")
    return Checkpoints(folder / BELOW, **interval_of(every))


def _as_before(start: Start, folder: Path | None) -> Checkpoints | None:
    where = start.series if folder in (None, start.out) else str(folder / BELOW) if folder is not None else None
    if where is None:
        return None
    try:
        return Checkpoints(where, **{name: (start.kept or {})[name] for name in KEPT})
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{start.path} does not say how often to save: {error!r}") from error


def interval_of(every: int | str) -> dict[str, Any]:
    """The fields of Checkpoints for a number of environment steps, or for a time: "90s", "10min", "2h".

    Raises:
        ValueError: it is none of these.
    """
    if not isinstance(every, str):
        return {"every_env_steps": every}
    text = every.replace("_", "")
    if text.isdigit():
        return {"every_env_steps": int(text)}
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|h)", text.strip())
    if found is None:
        raise ValueError(
            f"checkpoint_every must be environment steps, or a time such as '90s', '10min' or '2h', got {every!r}"
        )
    return {"every_s": float(found[1]) * UNITS[found[2]]}


class Saving:
    """Writes the checkpoints of a training. newest: the path of the last one; None before it."""

    def __init__(self, settings: Checkpoints | None, what: Any, goal: Mapping[str, Any], start: Start | None):
        self.newest = None if start is None else start.path
        self._what, self._goal = what, goal
        self._series = None if settings is None else Series(settings, 0 if start is None else start.env_steps)

    def look(self, running: Any, summary: Any) -> None:
        """Saves, if it is time. What the system refuses (a full disk, an actor that is late) goes to the log."""
        if self._series is None or not self._series.due(summary.env_steps):
            return
        try:
            self.save(running, summary)
        except OSError as error:
            self._series.skip(summary.env_steps)
            _log.warning("no checkpoint at %s environment steps: %s; the one before it stays", summary.env_steps, error)

    def save(self, running: Any, summary: Any, timeout_s: float | None = 300.0) -> str | None:
        """Saves now; returns the path, or None where no checkpoints are wanted."""
        if self._series is None:
            return None
        kept = {name: getattr(self._series.settings, name) for name in KEPT}
        said = {**recipe(self._what), "goal": dict(self._goal), "kept": kept, "iteration": summary.iteration}
        self.newest = self._series.save(
            lambda path, about: running.save(path, about=about, timeout_s=timeout_s),
            summary.env_steps, self._series.score(summary),
            {TRAINING: {**said, "flowrl": flowrl.__version__}},
        )  # fmt: skip
        return self.newest


class Terminable(AbstractContextManager["Terminable"]):
    """Inside, SIGTERM does what Ctrl-C does, and SystemExit(143) comes out; a handler of the user's is left alone."""

    def __init__(self) -> None:
        self._before: Any = None  # the handler that ours stands in for; None where it does not
        self._came = False

    def __enter__(self) -> Terminable:
        self.take_over()
        return self

    def take_over(self) -> None:
        """Sets the handler, again where what was started meanwhile has set its own (Ray does, in Python and below)."""
        if threading.current_thread() is not threading.main_thread():
            return
        found = signal.getsignal(signal.SIGTERM)
        rays = str(getattr(found, "__module__", "")).startswith("ray.")
        if found is signal.SIG_DFL or rays or found == self._terminated:
            if found != self._terminated:
                self._before = found
            signal.signal(signal.SIGTERM, self._terminated)

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        self._came = True
        interrupted(number, frame)  # not by SIGINT, which is ignored in a shell's background

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
        if self._came and isinstance(error, KeyboardInterrupt):
            leaving = SystemExit(128 + signal.SIGTERM)
            for note in getattr(error, "__notes__", ()):
                add_note(leaving, note)
            raise leaving from error
