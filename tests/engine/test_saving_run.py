"""A run that saves itself: what was handed out is in the checkpoint, and the rest comes from there."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl import Batch, Local
from flowrl.checkpoint import Checkpoints, newest
from flowrl.engine.run import Run


def steps(values: list[int]) -> list[Batch]:
    """A batch of ten environment steps each."""
    return [Batch({"rewards": np.full(10, value, np.float32)}) for value in values]


def graph() -> flowrl.Flow[float]:
    return flowrl.from_items(steps([*range(12)]), num_shards=2).gather_sync().for_each(lambda b: float(b["rewards"][0]))


def there(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("step-*"))


def test_a_run_saves_itself_between_items(tmp_path: Path) -> None:
    with flowrl.run(graph(), Local(), seed=1, checkpoint=Checkpoints(tmp_path, every_env_steps=40)) as running:
        assert running.step(5) == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert len(there(tmp_path)) == 1, "the round of the fourth item brought 40 steps, when three were had"
    with flowrl.run(graph(), Local(), resume=newest(tmp_path)) as again:
        assert list(again) == [float(value) for value in range(3, 12)]


def test_in_the_background_it_does_so_too_and_a_resumed_one_goes_on(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path, every_env_steps=20, keep_last=2)
    with flowrl.run(graph(), Local(), checkpoint=kept) as running:
        running.background().join(30)
    first = there(tmp_path)
    assert len(first) == 2
    with flowrl.run(graph(), Local(), resume=newest(tmp_path), checkpoint=kept) as again:
        rest = list(again)
    assert rest == [float(value) for value in range(12 - len(rest), 12)]


def test_the_best_by_what_the_items_say(tmp_path: Path) -> None:
    class Said:
        def __init__(self, value: float):
            self.score = -value

    flow = graph().for_each(Said)
    kept = Checkpoints(tmp_path, every_env_steps=20, keep_last=1, keep_best=1, metric="score")
    with flowrl.run(flow, Local(), checkpoint=kept) as running:
        assert len(list(running)) == 12
    from flowrl.checkpoint import best

    assert Path(best(tmp_path)).name == there(tmp_path)[0] < Path(newest(tmp_path)).name


def test_a_save_that_fails_goes_to_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(self: Run[Any], path: Any, **more: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Run, "save", full)
    with (
        caplog.at_level(logging.WARNING, "flowrl"),
        flowrl.run(graph(), Local(), checkpoint=Checkpoints(tmp_path, every_env_steps=20)) as running,
    ):
        assert len(list(running)) == 12
    assert "No space left on device; the one before it stays" in caplog.text


def test_what_says_nothing_of_checkpoints_is_refused() -> None:
    with pytest.raises(TypeError, match=r"checkpoint must be flowrl\.checkpoint\.Checkpoints.*, got 'x'"):
        flowrl.run(graph(), Local(), checkpoint="x")  # type: ignore[arg-type]
