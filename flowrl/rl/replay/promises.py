"""What the replay shards of this machine have yet to fill: each writes it where the others can read it."""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

_NUMBERS = struct.Struct("=qq")  # bytes promised, and how many of them have been filled


class Promise:
    """The bytes of one place that a shard will fill, in a file that is locked while this object lives.

    An array takes its memory as it is written, so that what is free does not show what others will need. Their files
    do; one that is locked no more is of a shard that has gone, in whatever way. On a system without locks, or without
    a folder for temporary files, nobody sees the promises of others.

    place: a name for what is shared: this machine's memory, or a disk.
    """

    def __init__(self, place: str):
        self._place = place
        self._share = 0.0
        self._path: Path | None = None
        self._said: memoryview | None = None  # the numbers in the file, which stays open and locked with it

    @property
    def size(self) -> int:
        """The bytes promised."""
        return 0 if self._said is None else int(self._said[0])

    @property
    def unfilled(self) -> int:
        """The bytes promised that are not filled."""
        return 0 if self._said is None else int(self._said[0] - self._said[1])

    def filled(self, share: float) -> None:
        """Says that such a share of the bytes has been filled."""
        if share != self._share:
            self._share = share
            self._say()

    def _say(self) -> None:
        if self._said is not None:
            self._said[1] = int(self._said[0] * self._share)

    @contextmanager
    def turn(self) -> Iterator[tuple[int, int]]:
        """How many others have promises to fill and how many bytes these lack; meanwhile nobody makes another."""
        with _turn() as folder:
            yield (0, 0) if folder is None else self._others(folder)

    def _others(self, folder: Path) -> tuple[int, int]:
        count = unfilled = 0
        for path in folder.glob(f"{self._place}.*"):
            if path == self._path:
                continue
            with suppress(OSError), open(path, "r+b") as file:  # it may go meanwhile
                if _lock(file, wait=False):
                    path.unlink()
                    continue
                size, filled = _NUMBERS.unpack(file.read())
                count, unfilled = count + (filled < size), unfilled + size - filled
        return count, unfilled

    def make(self, size: int) -> None:
        """Promises so many bytes, instead of what was promised before. Only within `turn`."""
        if self._said is None:
            with suppress(ImportError, AttributeError, OSError):
                self._begin()
        if self._said is not None:
            self._said[0] = size
        self._say()

    def _begin(self) -> None:
        with tempfile.NamedTemporaryFile(prefix=f"{self._place}.", dir=_folder(), delete=False) as file:
            file.write(_NUMBERS.pack(0, 0))  # now, since a full disk would end who writes through the map
            file.flush()
            _lock(file, wait=False)
            self._path, self._said = Path(file.name), memoryview(mmap.mmap(file.fileno(), _NUMBERS.size)).cast("q")


def _folder() -> Path:
    """Where this user's shards promise.

    Raises:
        OSError: there can be no such folder.
    """
    folder = Path(tempfile.gettempdir()) / f"flowrl-replay-{os.getuid()}"
    folder.mkdir(0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} is another user's")
    return folder


@contextmanager
def _turn() -> Iterator[Path | None]:
    """The folder, for one at a time; None where there are no locks or no folder."""
    with ExitStack() as held:
        try:
            folder = _folder()
            _lock(held.enter_context(open(folder / "turn", "wb")), wait=True)
        except (ImportError, AttributeError, OSError):
            folder = None
        yield folder


def _lock(file: IO[Any], *, wait: bool) -> bool:
    """Whether the file is locked now until it is closed; False if it is by another."""
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True
