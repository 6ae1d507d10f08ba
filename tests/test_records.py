"""Records on disk: every figure as JSON, the numbers as CSV, and no record of a run that never began."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.algorithms import PPOConfig
from flowrl.operators.reporting import Summary
from flowrl.records import RecordFiles, as_json, check_unused, claim
from flowrl.rl.spec import PolicySpec


def summary(iteration: int, learner: dict[str, dict[str, float]], mean: float = 2.5) -> Summary:
    """A Summary with few figures."""
    return Summary(
        iteration=iteration,
        env_steps=10 * iteration,
        agent_steps=10 * iteration,
        trained_steps=0,
        time_s=0.5,
        env_steps_per_s=20.0,
        episodes=iteration,
        episode_return_mean=mean,
        episode_length_mean=mean,
        learner=learner,
        nodes={"TrainOneStep": {"rows": 10.0}},
    )


def read(folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """The JSON objects and the CSV rows."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    with open(folder / "metrics.csv", newline="") as file:
        return lines, list(csv.DictReader(file))


def test_a_summary_is_a_line_and_a_row(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "run"
    with RecordFiles(folder) as files:
        files.write(summary(1, {"default": {"kl": 0.25}}))
        lines, rows = read(folder)  # each is there at once, whatever happens to the run
        assert len(lines) == len(rows) == 1
        files.write(summary(2, {"default": {"kl": 0.5}}))
    lines, rows = read(folder)
    assert [line["iteration"] for line in lines] == [1, 2]
    assert lines[1] == summary(2, {"default": {"kl": 0.5}}).as_dict()
    assert [row["learner/default/kl"] for row in rows] == ["0.25", "0.5"]
    assert [row["env_steps"] for row in rows] == ["10", "20"]
    assert "nodes" not in rows[0]
    assert "learner" not in rows[0]


def test_nan_is_null_in_json_and_nan_in_csv(tmp_path: Path) -> None:
    with RecordFiles(tmp_path) as files:
        files.write(summary(1, {"default": {"kl": float("inf")}}, mean=float("nan")))
    lines, rows = read(tmp_path)
    assert lines[0]["episode_return_mean"] is None
    assert lines[0]["learner"]["default"]["kl"] is None
    assert rows[0]["episode_return_mean"] == "nan"


def test_the_columns_are_those_of_the_first_summary(tmp_path: Path) -> None:
    with RecordFiles(tmp_path) as files:
        files.write(summary(1, {"a": {"kl": 1.0}}))
        files.write(summary(2, {"b": {"kl": 2.0}}))
    lines, rows = read(tmp_path)
    assert rows[1]["learner/a/kl"] == ""
    assert "learner/b/kl" not in rows[1]
    assert lines[1]["learner"] == {"b": {"kl": 2.0}}


def test_a_run_that_never_began_leaves_no_record(tmp_path: Path) -> None:
    with RecordFiles(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []
    check_unused(tmp_path)


@pytest.mark.parametrize("name", ["metrics.jsonl", "metrics.csv", "run.json", "policy"])
def test_records_of_another_run_are_kept(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("precious")
    with pytest.raises(FileExistsError, match=f"holds {name} of another run; choose another directory for out"):
        RecordFiles(tmp_path)
    assert (tmp_path / name).read_text() == "precious"
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(FileExistsError, match=f"directory for out, or go on with that run: flowrl resume {tmp_path}$"):
        RecordFiles(tmp_path)


def test_the_settings_are_written_with_the_first_summary(tmp_path: Path) -> None:
    with RecordFiles(tmp_path) as files:
        files.settings = {"seed": 3, "config": PPOConfig(env=read, env_kwargs={"size": (1, 2)}, policy=PolicySpec())}
        assert list(tmp_path.iterdir()) == []
        files.write(summary(1, {}))
    found = json.loads((tmp_path / "run.json").read_text())
    assert found["seed"] == 3
    assert found["config"]["env"] == f"{__name__}:read"
    assert found["config"]["env_kwargs"] == {"size": [1, 2]}
    assert found["config"]["policy"].items() >= {"model": None, "hidden": [64, 64], "activation": "tanh"}.items()
    assert found["config"]["learning_rate"] == PPOConfig().learning_rate


def test_what_json_has_no_word_for_is_its_repr() -> None:
    assert as_json([float("nan"), {1}, b"x", True]) == ["nan", "{1}", "b'x'", True]
    assert json.dumps(as_json([np.int64(3), np.float32(0.5)])) == "[3, 0.5]"


@pytest.mark.parametrize("place", ["afile/run", "dangling"])
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "afile").write_text("")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(OSError, match=f"{place} cannot be written .*; choose another directory for out"):
        claim(tmp_path / place)


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(NotADirectoryError, match="out is a file; choose a directory for out"):
        RecordFiles(tmp_path / "out")
