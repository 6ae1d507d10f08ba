"""Several checkpoints of one run: when one is due, which stay, which is newest and which best."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flowrl import CheckpointError
from flowrl.checkpoint import (
    Checkpoints,
    CheckpointWriter,
    Series,
    best,
    checkpoint_at,
    newest,
    read_manifest,
    write_state,
)
from flowrl.checkpoint import series as of_series


def save(path: str, about: Mapping[str, Any]) -> None:
    with CheckpointWriter(path) as writer:
        writer.commit({"about": dict(about), "state": write_state(writer.directory, "x", path)})


def names(directory: Any) -> list[str]:
    return sorted(path.name for path in Path(directory).iterdir())


def saved(directory: Any, scores: list[float | None], **settings: Any) -> Series:
    """A series with a checkpoint of each score, ten steps apart."""
    series = Series(Checkpoints(directory, **{"every_env_steps": 10, **settings}))
    for number, score in enumerate(scores, 1):
        series.save(save, 10 * number, score)
    return series


@pytest.mark.parametrize("scheme", ["", "memory://"])
def test_the_last_and_the_best_are_kept(tmp_path: Path, scheme: str) -> None:
    pytest.importorskip("fsspec")
    where = f"{scheme}{tmp_path}/s"
    saved(where, [1.0, 9.0, 2.0, 8.0, None, 3.0], keep_last=2, keep_best=2)
    there = of_series.listed(of_series.folder(where))
    assert [(each.env_steps, each.score) for each in there] == [(20, 9.0), (40, 8.0), (50, None), (60, 3.0)]
    assert newest(where) == f"{where}/step-000000000060"
    assert best(where) == f"{where}/step-000000000020"
    assert checkpoint_at(where) == newest(where)
    assert checkpoint_at(best(where)) == best(where)
    index = json.loads(of_series.folder(where).read("index.json"))
    assert (index["latest"], index["best"]) == ("step-000000000060", "step-000000000020")
    assert index["checkpoints"]["step-000000000050"] == {"env_steps": 50, "score": None}
    assert len(index["checkpoints"]) == 4


def test_none_is_kept_for_being_good_if_nobody_asks(tmp_path: Path) -> None:
    saved(tmp_path, [9.0, 1.0, 2.0], keep_last=1, keep_best=0)
    assert names(tmp_path) == ["index.json", "step-000000000030"]


def test_without_scores_the_best_is_the_newest(tmp_path: Path) -> None:
    saved(tmp_path, [None, None])
    assert best(tmp_path) == newest(tmp_path) == str(tmp_path / "step-000000000020")


def test_a_run_that_went_back_goes_on_to_be_the_newest(tmp_path: Path) -> None:
    """Resumed from step 10, its checkpoints come later than those of the steps that it had reached before."""
    saved(tmp_path, [1.0, 2.0, 3.0], keep_last=2, keep_best=0)
    again = Series(Checkpoints(tmp_path, every_env_steps=10, keep_last=2, keep_best=0), env_steps=10)
    again.save(save, 15, None)
    assert newest(tmp_path) == str(tmp_path / "step-000000000015")
    assert names(tmp_path) == ["index.json", "step-000000000015", "step-000000000030"]
    again.save(save, 30, None)
    assert newest(tmp_path) == str(tmp_path / "step-000000000030")
    assert names(tmp_path) == ["index.json", "step-000000000015", "step-000000000030"]


def test_a_half_written_one_is_never_picked_and_never_removed(tmp_path: Path) -> None:
    series = saved(tmp_path, [1.0, 2.0], keep_last=2, keep_best=0)
    half = tmp_path / "step-000000000030"
    shutil.copytree(tmp_path / "step-000000000020", half)
    (half / "x.json").write_bytes((half / "x.json").read_bytes()[:-1])
    assert newest(tmp_path) == str(tmp_path / "step-000000000020")
    (half / "manifest.json").unlink()
    assert newest(tmp_path) == str(tmp_path / "step-000000000020")
    for steps in (40, 50, 60):
        series.save(save, steps, None)
    assert half.is_dir(), "what cannot be read may be somebody's only copy"
    with pytest.raises(CheckpointError, match="there is no whole checkpoint in"):
        newest(half)


def test_the_index_is_for_others_and_may_be_lost(tmp_path: Path) -> None:
    saved(tmp_path, [5.0, 1.0])
    (tmp_path / "index.json").write_text("nonsense")
    assert best(tmp_path) == str(tmp_path / "step-000000000010")


def test_one_is_due_by_steps_or_by_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(of_series.time, "monotonic", lambda: clock.now)
    series = Series(Checkpoints(tmp_path, every_env_steps=100, every_s=60.0), env_steps=1000)
    assert not series.due(1099)
    assert series.due(1100)
    clock.now = 159.9
    assert not series.due(1000)
    clock.now = 160.0
    assert series.due(1000)
    series.save(save, 1050, None)
    assert not series.due(1149)
    assert series.due(1150)
    series.skip(1150)
    assert not series.due(1249)
    by_steps = Series(Checkpoints(tmp_path, every_env_steps=100))
    clock.now = 1e9
    assert not by_steps.due(99)


def test_the_score_is_a_number_of_the_newest_item(tmp_path: Path) -> None:
    series = Series(Checkpoints(tmp_path, every_env_steps=1))
    items = [SimpleNamespace(episode_return_mean=value) for value in (3, 2.5, math.nan, math.inf, None, True, "9")]
    assert [series.score(item) for item in [*items, 7]] == [3.0, 2.5, None, None, None, None, None, None]
    assert Series(Checkpoints(tmp_path, every_s=1, metric="iteration")).score(SimpleNamespace(iteration=4)) == 4.0


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({}, "needs every_env_steps or every_s, or none would ever be written"),
        ({"every_env_steps": 0}, "every_env_steps must be at least 1, got 0"),
        ({"every_s": 0}, "every_s must be above 0, got 0"),
        ({"every_s": math.nan}, "every_s must be a finite number"),
        ({"every_s": 1, "keep_last": 0}, "keep_last must be at least 1, got 0"),
        ({"every_s": 1, "keep_best": -1}, "keep_best must be at least 0, got -1"),
        ({"every_s": 1, "directory": ""}, "directory must be a path or a URL, got ''"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Checkpoints(**{"directory": "x", **settings})


def test_manifests_of_others_in_the_directory_are_passed_over(tmp_path: Path) -> None:
    saved(tmp_path, [1.0])
    other = tmp_path / "step-000000000099"
    with CheckpointWriter(other) as writer:
        writer.commit({"about": {"series": {"number": "many", "score": []}}})
    assert newest(tmp_path) == str(tmp_path / "step-000000000010")
    assert read_manifest(other)["about"]["series"]["number"] == "many"
