"""A process that is killed, has no room, or is not alone, while it saves: there is always a whole checkpoint."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.checkpoint import CheckpointWriter, newest, read_manifest, write_state, writer
from flowrl.checkpoint.storage import Folder
from tests.checkpoint.killed import both, loaded, save

ROOT = Path(__file__).resolve().parent.parent.parent


def script(name: str, *args: Any) -> subprocess.Popen[str]:
    """A light process that runs a script beside this one."""
    return subprocess.Popen(
        [sys.executable, "-m", f"tests.checkpoint.{name}", *map(str, args)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def said_by(process: subprocess.Popen[str]) -> Any:
    out, error = process.communicate(timeout=110)
    assert process.returncode == 0, error
    return json.loads(out)


@pytest.mark.parametrize("how", ["one", "two"])
def test_killed_at_any_moment_a_save_leaves_the_old_checkpoint_or_the_new_one(tmp_path: Path, how: str) -> None:
    """A hundred points, drawn from all lines that a save runs; `two`: where directories cannot be exchanged."""
    said = said_by(script("killed", tmp_path, 50, how))
    assert said["newer"] + said["older"] == 50
    assert said["newer"] > 5
    assert said["older"] > 5
    assert said["leftovers"] > 5
    assert said["one"] == ["one", "series"], "the next writer removes what the killed ones have left"
    assert said["series"][0] == "index.json"
    assert all(name.startswith("step-") for name in said["series"][1:])
    assert 2 <= len(said["series"][1:]) <= 3


@pytest.mark.parametrize("exchange", [True, False])
def test_a_full_disk_leaves_the_old_checkpoint_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool
) -> None:
    """Each write of a save in turn finds no room; a second checkpoint beside it is not touched either."""
    if not exchange:
        monkeypatch.setattr(writer, "_exchanged", lambda one, other: False)
    both(tmp_path, 1)
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
    synced, left = os.fsync, 5

    def full(descriptor: int) -> None:
        nonlocal left
        left -= 1
        if left < 0 and not os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        synced(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    for room in range(6):
        left = room
        if room < 5:  # two states of two files each, and the manifest
            with pytest.raises(OSError, match="No space left on device"):
                save(str(tmp_path / "one"), {}, 2)
            assert loaded(str(tmp_path / "one")) == 1
            assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*")) == before
    save(str(tmp_path / "one"), {}, 2)
    assert loaded(str(tmp_path / "one")) == 2


def test_what_safetensors_says_of_a_file_with_no_room_is_an_error_of_the_system(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            Folder(tmp_path).write_arrays("w.safetensors", {"w": np.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.errno == errno.EFBIG


def _written_and_raised(writing: CheckpointWriter, error: type[BaseException]) -> None:
    write_state(writing.directory, "a", 1)
    raise error


def test_an_error_while_saving_leaves_nothing_behind(tmp_path: Path) -> None:
    for error in (KeyboardInterrupt, ValueError):
        with pytest.raises(error), CheckpointWriter(tmp_path / "c") as writing:
            _written_and_raised(writing, error)
    with CheckpointWriter(tmp_path / "c") as writing:
        write_state(writing.directory, "a", 1)  # and no commit
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("how", ["one", "two"])
def test_two_processes_may_write_into_one_directory(tmp_path: Path, how: str) -> None:
    """Each replaces one checkpoint and adds to one series, while this one reads: all that it finds is whole."""
    both(tmp_path, 0)
    writing = [script("killed", tmp_path, start, how, "write") for start in (1, 2)]
    read = 0
    while read < 5 or any(process.poll() is None for process in writing):
        assert read_manifest(tmp_path / "one")["step"] >= 0
        assert newest(tmp_path / "series")  # and one of the writers may remove it by now
        read += 1
    for process in writing:
        assert said_by(process) == {"written": 30}
    both(tmp_path, 10**9)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "series"]


def test_what_a_living_process_writes_is_no_leftover(tmp_path: Path) -> None:
    with CheckpointWriter(tmp_path / "a") as one, CheckpointWriter(tmp_path / "a") as other:
        assert one.directory != other.directory
        for writing in (other, one):
            writing.commit({"by": writing.directory})
        assert [path.name for path in tmp_path.iterdir() if path.name == "a"] == ["a"]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path.write_text("x"), "is a file; a checkpoint needs a directory of its own"),
        (lambda path: [path.mkdir(), (path / "thesis.tex").touch()], "holds other things and no manifest.json"),
    ],
)
def test_no_checkpoint_is_written_over_other_things(tmp_path: Path, make: Any, said: str) -> None:
    make(tmp_path / "c")
    with pytest.raises(FileExistsError, match=said), CheckpointWriter(tmp_path / "c"):
        pass


def test_a_link_to_a_checkpoint_stays_one(tmp_path: Path) -> None:
    save(str(tmp_path / "real"), {}, 1)
    (tmp_path / "link").symlink_to("real")
    save(str(tmp_path / "link"), {}, 2)
    assert (tmp_path / "link").is_symlink()
    assert loaded(str(tmp_path / "real")) == 2
