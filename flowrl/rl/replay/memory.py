"""Where replay's arrays lie: in memory, checked before it is taken, or in files of a folder."""

from __future__ import annotations

import errno
import itertools
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from flowrl.rl.replay.promises import Promise

Array = npt.NDArray[Any]
_CGROUP = Path("/sys/fs/cgroup")


class Memory:
    """Makes the arrays of one shard, after it has said how much they take.

    folder: where they lie as files, one an array; None: in memory. `owner` begins the files' names; where another
        shard that lives has files of that name there, with a number behind it.

    Raises:
        ValueError: its name is empty.
        OSError: the folder cannot be made or written to.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, owner: str = "replay"):
        if folder is not None and not os.fspath(folder):
            raise ValueError("memory_map must be a folder, or None for memory, got ''")
        self._folder = None if folder is None else Path(folder)
        self._owner, place = owner, "memory"
        if self._folder is not None:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._owner, self._lock = _claimed(self._folder, owner)
                place = f"disk-{self._folder.stat().st_dev}"
            except OSError as error:
                said = f"memory_map={str(folder)!r} must be a folder that can be written to: {error.strerror or error}"
                raise OSError(error.errno, said) from error

        self._promise = Promise(place)
        self._reserved = False  # whether what was promised has been taken from the disk

    def promise(self, sizes: Mapping[str, int], *, more: bool = False) -> None:
        """Nothing, if arrays of these bytes, by name, fit into what is free now, less what other shards of this
        machine have yet to fill; then those reckon with these.

        more: beside what was promised before, not instead of it.

        Raises:
            MemoryError: they do not; says which array takes how much, and what to do.
        """
        need, where = sum(sizes.values()), "memory"
        with self._promise.turn() as (others, unfilled):
            if self._folder is None:
                free = free_memory()
            else:
                free, where = shutil.disk_usage(self._folder).free, f"disk space at {self._folder}"
            own = self._promise.unfilled if more else 0
            if free is None or need + own + unfilled <= free:
                if not more:
                    self._promise.filled(0.0)
                self._reserved = False
                self._promise.make(need + (self._promise.size if more else 0))
                return
        largest = sorted(sizes.items(), key=lambda entry: -entry[1])[:4]
        parts = ", ".join(f"{name} {in_words(size)}" for name, size in largest)
        before = [f"has {in_words(own)} of what it took before yet to fill"] * bool(own)
        they = f"{others} more shards on this machine have" if others > 1 else "1 more shard on this machine has"
        before += [f"{they} yet to fill {in_words(unfilled)}"] * bool(unfilled)
        said = "".join(f", {each}" for each in before)
        if before:
            said += f", together {in_words(need + own + unfilled)},"
        files = (
            "keep it in files (memory_map=)" if self._folder is None else "set memory_map to a folder of another disk"
        )
        raise MemoryError(
            f"a replay shard needs {in_words(need)} of {where} when it is full{said} and {in_words(free)} are free "
            f"({parts}{' …' if len(sizes) > 4 else ''}): lower its capacity, spread it over more machines, or {files}"
        )

    def filled(self, share: float) -> None:
        """Says that such a share of what was promised has been written."""
        self._promise.filled(1.0 if self._reserved else share)

    def empty(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """An array, not filled. In memory its pages are taken as they are written, of a disk all at once.

        Raises:
            OSError: the disk has no room for it.
        """
        if self._folder is None:
            return np.empty(shape, dtype)
        return self._mapped(name, shape, np.dtype(dtype), "w+b")

    def longer(self, name: str, array: Array, rows: int) -> Array:
        """The array with more rows; the one given is used no more.

        Raises:
            OSError: the disk has no room for it.
        """
        if self._folder is not None:
            return self._mapped(name, (rows, *array.shape[1:]), array.dtype, "r+b")
        array.resize((rows, *array.shape[1:]), refcheck=False)  # nobody else holds it; Linux moves pages, no bytes
        return array

    def _mapped(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], mode: str) -> Array:
        path, size = self._file(name), dtype.itemsize * math.prod(shape)
        try:
            with open(path, mode) as file:
                self._reserved = _reserve(file, size)
        except OSError as error:
            raise OSError(
                error.errno,
                f"{path} cannot take the {in_words(size)} that it holds when the replay shard is full: "
                f"{error.strerror or error}; lower its capacity, or set memory_map to a folder with more room",
            ) from error
        return np.asarray(np.memmap(path, dtype, "r+", shape=shape))

    def _file(self, name: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{self._owner}.{name.replace('/', '.')}.bin"


def _reserve(file: IO[bytes], size: int) -> bool:
    """Makes a file so long; whether its blocks were taken, too.

    A file with holes would end the process (SIGBUS) that writes into one when the disk is full.

    Raises:
        OSError: there is no room.
    """
    file.truncate(size)
    try:
        os.posix_fallocate(file.fileno(), 0, size)
    except AttributeError:
        return False
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        return False
    return True


def _claimed(folder: Path, owner: str) -> tuple[str, IO[str]]:
    """A beginning of file names that no other shard uses while the file returned, a lock, is open."""
    for number in itertools.count(1):
        name = owner if number == 1 else f"{owner}-{number}"
        lock = open(folder / f"{name}.lock", "w")  # noqa: SIM115  (it stays open)
        try:
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        except (ImportError, OSError):  # a system or a file system without locks
            pass
        return name, lock
    raise AssertionError("numbers do not end")


def free_memory() -> int | None:
    """The bytes of memory that this process may still take; None where nobody says."""
    try:
        import psutil

        free = int(psutil.virtual_memory().available)
    except ImportError:
        try:
            free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (AttributeError, ValueError, OSError):
            return None
    try:  # the container's own limit
        limit, used = ((_CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return free if limit == "max" else min(free, max(0, int(limit) - int(used)))
    except (OSError, ValueError):
        return free


def in_words(size: int) -> str:
    """A size in the unit that suits it."""
    for unit, bytes_each in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= bytes_each:
            return f"{size / bytes_each:.1f} {unit}"
    return f"{size} bytes"
