"""The pool of frames: ids given, freed and given again, and how it grows."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from flowrl.rl import ReplayShard
from flowrl.rl.replay.frames import Frames
from flowrl.rl.replay.memory import Memory, in_words


@pytest.mark.parametrize("files", [False, True])
def test_grows_and_keeps_what_it_holds(tmp_path: Path, files: bool) -> None:
    frames = Frames(Memory(tmp_path if files else None), "obs/camera", 2, 3, np.dtype(np.uint8))
    held: dict[int, int] = {}
    for row in range(40):
        for given in frames.take(1 + row % 3).tolist():
            assert given not in held
            held[given] = row
            frames.array[given] = row
            frames.last_row[given] = row
        assert {given: int(frames.array[given, 2]) for given in held} == held
        if row % 4 == 3:
            oldest = row - 2
            frames.release(np.array([*held, *held], np.int32), oldest)  # twice each: freed once
            held = {given: last for given, last in held.items() if last >= oldest}
            assert frames.in_use == len(held)
    assert len(frames.array) < 20


def test_two_shards_do_not_write_into_one_file(tmp_path: Path) -> None:
    one, other = Memory(tmp_path, "replay-0"), Memory(tmp_path, "replay-0")
    arrays = [memory.empty("obs", (4,), np.int64) for memory in (one, other)]
    arrays[0][:], arrays[1][:] = 1, 2
    assert arrays[0].tolist() == [1, 1, 1, 1]
    del one, other
    Memory(tmp_path, "replay-0").empty("obs", (4,), np.int64)  # whose shard has gone, its name is free again
    assert sorted(p.name for p in tmp_path.glob("*.bin")) == ["replay-0-2.obs.bin", "replay-0.obs.bin"]


@pytest.mark.parametrize("what", ["file", "file/below"])
def test_a_folder_that_cannot_be_is_named_at_once(tmp_path: Path, what: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"memory_map='.*file.*' must be a folder that can be written to: "):
        ReplayShard(10, memory_map=tmp_path / what)


def test_the_disk_is_taken_at_once_so_that_nobody_dies_of_a_full_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory(tmp_path)
    memory.promise({"obs": 2**20})
    array = memory.empty("obs", (2**17,), np.int64)
    assert os.stat(tmp_path / "replay.obs.bin").st_blocks * 512 >= 2**20
    memory.filled(0.1)
    assert memory._promise.unfilled == 0  # it is no longer free
    array[:] = 3
    memory.promise({"more of obs": 2**20}, more=True)
    assert memory.longer("obs", array, 2**18)[: 2**17].tolist() == [3] * 2**17

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    told = r"replay.rewards.bin cannot take the 8.0 KiB that it holds when .*: No space left on device; lower its capac"
    with pytest.raises(OSError, match=told) as caught:
        memory.empty("rewards", (2**10,), np.int64)
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EINVAL])
def test_where_the_disk_cannot_be_taken_at_once_others_reckon_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def cannot(*_: int) -> None:
        raise OSError(code, "not here")

    monkeypatch.setattr("os.posix_fallocate", cannot)
    memory = Memory(tmp_path)
    memory.promise({"obs": 2**20})
    memory.empty("obs", (2**17,), np.int64)[:] = 3
    memory.filled(0.25)
    assert memory._promise.unfilled == 3 * 2**18


def test_a_folder_has_a_name() -> None:
    with pytest.raises(ValueError, match="memory_map must be a folder, or None for memory, got ''"):
        ReplayShard(10, memory_map="")


def test_a_limit_of_the_disk_names_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 100}))
    with pytest.raises(MemoryError, match="or set memory_map to a folder of another disk"):
        Memory(tmp_path).promise({"obs": 200})


def test_growth_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = Frames(Memory(), "obs", 2, 1000, np.dtype(np.uint8))
    frames.take(2)
    monkeypatch.setattr("flowrl.rl.replay.memory.free_memory", lambda: 100)
    with pytest.raises(MemoryError, match="more of obs"):
        frames.take(1)


@pytest.mark.parametrize(("size", "words"), [(12, "12 bytes"), (1536, "1.5 KiB"), (3 * 2**30, "3.0 GiB")])
def test_sizes_in_words(size: int, words: str) -> None:
    assert in_words(size) == words
