"""Run as a script: saves in children that kill themselves at a line drawn by chance; each time a whole one is left.

Only the light package is imported, and forked. Prints one JSON object of what was seen.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from flowrl.checkpoint import (
    Checkpoints,
    CheckpointWriter,
    Series,
    checkpoint_at,
    read_manifest,
    read_state,
    write_state,
    writer,
)

OURS = os.path.dirname(writer.__file__)
RENAMING = {"put", "_in_two_steps", "clean", "_remove", "_write_index", "close", "commit"}


def save(path: str, about: Mapping[str, Any], step: int) -> None:
    with CheckpointWriter(path) as writing:
        arrays = {"weights": np.full(1000, step), "step": step}
        learner = write_state(writing.directory, "learner", arrays)
        worker = write_state(writing.directory, "workers[0]", (step, b"x" * (step % 100)))
        writing.commit({"actors": [learner, worker], "step": step, "about": dict(about)})


def loaded(path: str) -> int:
    """The step of the checkpoint there, all of which must be of that step."""
    manifest = read_manifest(path)
    step = int(manifest["step"])
    learner, worker = manifest["actors"]
    state = read_state(manifest["directory"], "learner", learner)
    assert state["step"] == step
    assert (state["weights"] == step).all()
    assert read_state(manifest["directory"], "workers[0]", worker) == (step, b"x" * (step % 100))
    return step


def both(root: Path, step: int) -> None:
    """Replaces one checkpoint, and adds one to a series of which two are kept."""
    save(str(root / "one"), {}, step)
    series = Series(Checkpoints(root / "series", every_s=1.0, keep_last=2, keep_best=1))
    series.save(lambda path, about: save(path, about, step), step, float(-step))


def lines_of(act: Any, names: set[str]) -> int:
    """How many lines of the package (of functions with these names, if any are given) an act runs."""
    count = 0

    def tracer(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.startswith(OURS) or (names and frame.f_code.co_name not in names):
            return None
        count += event == "line"
        return tracer

    sys.settrace(tracer)
    try:
        act()
    finally:
        sys.settrace(None)
    return count


def kill_at(line: int, act: Any, names: set[str]) -> None:
    """In a child: does it, and dies by SIGKILL before the line of that number."""
    count = 0

    def tracer(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.startswith(OURS) or (names and frame.f_code.co_name not in names):
            return None
        count += event == "line"
        if count >= line:
            os.kill(os.getpid(), signal.SIGKILL)
        return tracer

    child = os.fork()
    if child == 0:
        sys.settrace(tracer)
        try:
            act()
        except BaseException:
            os._exit(1)
        os.kill(os.getpid(), signal.SIGKILL)  # it had fewer lines to run than the one before
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), f"the child was to be killed, and ended with {status}"


def main(root: Path, points: int, in_two_steps: bool) -> None:
    os.fsync = lambda descriptor: None  # what a killed process has written stays; only a power cut would take it
    names = RENAMING if in_two_steps else set()
    if in_two_steps:
        writer._exchanged = lambda one, other: False  # as on a file system that cannot exchange two directories
    both(root, 0)
    rng = random.Random(0)
    newer = older = leftovers = 0
    for step in range(1, points + 1):
        lines = lines_of(lambda step=step: both(root, 1000 * step - 1), names)
        assert (loaded(str(root / "one")), loaded(checkpoint_at(root / "series"))) == (1000 * step - 1,) * 2
        kill_at(rng.randint(1, lines), lambda step=step: both(root, 1000 * step), names)
        found = (loaded(str(root / "one")), loaded(checkpoint_at(root / "series")))
        assert set(found) <= {1000 * step - 1, 1000 * step}, found
        newer += found[0] == 1000 * step
        older += found[0] == 1000 * step - 1
        leftovers += any(name.startswith(".") for name in [*os.listdir(root), *os.listdir(root / "series")])
    both(root, 10**9)
    names = {"one": sorted(os.listdir(root)), "series": sorted(os.listdir(root / "series"))}
    print(json.dumps({"newer": newer, "older": older, "leftovers": leftovers, **names}))


def write(root: Path, start: int, in_two_steps: bool) -> None:
    """Saves thirty times, beside others who do."""
    os.fsync = lambda descriptor: None
    if in_two_steps:
        writer._exchanged = lambda one, other: False
    for step in range(start, start + 60, 2):
        both(root, step)
    print(json.dumps({"written": 30}))


if __name__ == "__main__":
    act = write if sys.argv[4:] else main
    act(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "two")
