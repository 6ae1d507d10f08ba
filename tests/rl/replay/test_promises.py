"""What shards on one machine have yet to fill counts for each other, until it is filled or they have gone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from flowrl import Batch
from flowrl.rl import ReplayShard
from flowrl.rl.replay.promises import Promise

KIB = 1024


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards of other tests do not count."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def others(promise: Promise) -> tuple[int, int]:
    with promise.turn() as found:
        return found


def made(size: int, place: str = "memory") -> Promise:
    promise = Promise(place)
    with promise.turn():
        promise.make(size)
    return promise


def rows(count: int) -> Batch:
    return Batch({"x": np.zeros((count, KIB), np.uint8)})


def test_others_count_what_is_not_filled() -> None:
    first, second, elsewhere = made(100), made(40), made(1000, "disk-3")
    assert others(Promise("memory")) == (2, 140)
    assert others(first) == (1, 40)
    first.filled(0.75)
    assert first.unfilled == 25
    assert others(second) == (1, 25)
    with first.turn():
        first.make(200)  # three quarters of it filled, too
    assert others(second) == (1, 50)
    first.filled(1.0)
    assert others(second) == (0, 0)
    assert others(elsewhere) == (0, 0)


def test_what_has_gone_counts_no_more(tmp_path: Path) -> None:
    kept, gone = made(100), made(40)
    del gone
    assert others(kept) == (0, 0)
    assert len([*tmp_path.glob("*/memory.*")]) == 1


def test_a_process_that_was_killed_counts_no_more() -> None:
    """Of another process the promise is seen while it lives, and its death ends it, however it dies."""
    code = (
        "import sys, tempfile; tempfile.tempdir = sys.argv[1]\n"
        "from flowrl.rl.replay.promises import Promise\n"
        "promise = Promise('memory')\n"
        "with promise.turn(): promise.make(70)\n"
        "print('made', flush=True); sys.stdin.read()\n"
    )
    import tempfile

    other = subprocess.Popen(
        [sys.executable, "-c", code, tempfile.gettempdir()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with other:
        assert other.stdout is not None
        assert other.stdout.readline() == "made\n"
        mine = made(5)
        assert others(mine) == (1, 70)
        other.kill()
    assert others(mine) == (0, 0)


def test_shards_that_together_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of 400 KiB each, of which 1 MiB is free: each fits alone, the third does not beside the others."""
    taken = 0
    monkeypatch.setattr("flowrl.rl.replay.memory.free_memory", lambda: 1000 * KIB - taken)
    first, second, third = (ReplayShard(400, index=i, count=3, seed=0) for i in range(3))
    first.add(rows(1))
    second.add(rows(1))
    said = (
        r"needs 400.0 KiB of memory when it is full, 2 more shards on this machine have yet to fill 798.0 KiB, "
        r"together 1.2 MiB, and 1000.0 KiB are free \(x 400.0 KiB\): lower its capacity, spread it over more machines"
    )
    with pytest.raises(MemoryError, match=said):
        third.add(rows(1))
    assert len(third) == 0
    first.add(rows(399))
    taken = 401 * KIB  # what was filled is free no more, and counts once
    with pytest.raises(MemoryError, match=r"1 more shard on this machine has yet to fill 399\.0 KiB"):
        third.add(rows(1))
    del second
    assert third.add(rows(1)) == 1


def test_what_grows_must_fit_beside_what_it_has_yet_to_fill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowrl.rl.replay.memory.free_memory", lambda: 200 * KIB)
    from flowrl.rl.replay.memory import Memory

    memory = Memory()
    memory.promise({"obs": 120 * KIB})
    memory.filled(0.5)
    memory.promise({"more of obs": 100 * KIB}, more=True)
    with pytest.raises(MemoryError, match=r"needs 100.0 KiB .*, has 110.0 KiB of what it took before yet to fill, "):
        memory.promise({"more of obs": 100 * KIB}, more=True)
    memory.promise({"obs": 150 * KIB})  # instead of all before


def test_files_count_for_the_disk_that_they_lie_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 500 * KIB}))
    monkeypatch.setattr("flowrl.rl.replay.memory.free_memory", lambda: 500 * KIB)
    monkeypatch.delattr("os.posix_fallocate")  # files that take their room as they are written
    in_memory = ReplayShard(400)
    in_memory.add(rows(1))
    first, second = (ReplayShard(400, memory_map=tmp_path / f"{i}", index=i, count=2) for i in range(2))
    first.add(rows(1))
    with pytest.raises(MemoryError, match=r"of disk space at .*1 when it is full, 1 more shard on this .* 399\.0 KiB"):
        second.add(rows(1))


def test_without_a_folder_nobody_sees_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    first, second = made(100), made(50)
    assert others(first) == (0, 0)
    assert second.unfilled == 0
