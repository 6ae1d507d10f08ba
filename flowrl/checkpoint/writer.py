"""A checkpoint is written aside, synced and renamed: at any moment there is the old one, or the new one, whole."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any
from uuid import uuid4

from flowrl.checkpoint.manifest import MANIFEST, write_manifest
from flowrl.checkpoint.storage import Folder, RemoteFolder, Where, folder

ASIDE, OLD, GONE = "writing", "old", "gone"  # what the name of a directory ends with that is no checkpoint
_LEFT = re.compile(rf"\.(?P<name>.+)\.[0-9a-f]{{32}}\.(?P<kind>{ASIDE}|{OLD}|{GONE})")
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
TRIES = 100  # at a rename that another process's rename made impossible


class CheckpointWriter:
    """A context in which a checkpoint is written into `directory`, aside; `commit` puts it in its place.

    A checkpoint that is there is replaced in one step. Left without a commit, or by an exception, it leaves nothing
    behind, and the old one is as it was. What killed processes have left beside it is removed; each writer holds a lock
    on its directory, so that nobody removes what a living process (of any machine that shares the file system) writes.

    Raises:
        FileExistsError: something else is there: a file, a directory of other things.
        OSError: it cannot be written.
    """

    directory: str

    def __init__(self, path: Where):
        self._where = folder(path)
        self._aside: _Aside | _RemoteAside | None = None

    def __enter__(self) -> CheckpointWriter:
        if isinstance(self._where, Folder):
            self._aside = _Aside(self._where.path)
        else:
            self._aside = _RemoteAside(self._where)
        self.directory = str(self._aside.files)
        return self

    def commit(self, manifest: Mapping[str, Any]) -> None:
        """Writes the manifest, of which all files must be entries, and puts the checkpoint in its place."""
        assert self._aside is not None, "commit belongs inside `with CheckpointWriter(path) as writer`"
        self._aside.commit(manifest)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._aside is not None:
            self._aside.close()


class _Aside:
    """A locked directory beside the checkpoint's."""

    def __init__(self, target: Path):
        # Not resolve(): a link to a directory stays one, of which the target is replaced.
        self._target = Path(os.path.realpath(target))
        _refuse_others(target, self._target)
        self._target.parent.mkdir(parents=True, exist_ok=True)
        clean(self._target.parent)
        self._path, self._lock = made_aside(self._target)
        self.files = Folder(self._path)

    def commit(self, manifest: Mapping[str, Any]) -> None:
        write_manifest(self.files, manifest, self.files)
        self.files.sync()
        put(self._path, self._target)
        Folder(self._target.parent).sync()

    def close(self) -> None:
        shutil.rmtree(self._path, ignore_errors=True)  # the old checkpoint, if there was one and all went well
        os.close(self._lock)


class _RemoteAside:
    """A directory in the checkpoint's; it counts when the manifest, which is replaced whole, says so."""

    def __init__(self, where: RemoteFolder):
        self._where, self._name = where, uuid4().hex
        self.files: RemoteFolder = where.below(self._name)
        self._committed = False

    def commit(self, manifest: Mapping[str, Any]) -> None:
        write_manifest(self._where, manifest, self.files, self._name)
        self._committed = True

    def close(self) -> None:
        if not self._committed:
            self.files.remove()
            return
        for name in self._where.names():
            if name not in (self._name, MANIFEST):
                self._where.below(name).remove()


def _refuse_others(path: Path, target: Path) -> None:
    """Nothing, if a checkpoint may take this place."""
    if not target.exists():
        return
    if not target.is_dir():
        raise FileExistsError(f"{path} is a file; a checkpoint needs a directory of its own")
    if Path.cwd().is_relative_to(target):
        raise FileExistsError(f"{path} is or holds the working directory; a checkpoint needs a directory of its own")
    if not (target / MANIFEST).is_file() and any(target.iterdir()):
        raise FileExistsError(
            f"{path} holds other things and no {MANIFEST}, so no checkpoint is written over it; name a new directory"
        )


def made_aside(target: Path) -> tuple[Path, int]:
    """A new directory beside the target, and the lock on it, which is to be closed."""
    while True:
        path = beside(target, ASIDE)
        path.mkdir()
        lock = locked(path)
        if lock is not None:
            return path, lock


def beside(target: Path, kind: str) -> Path:
    """A name of nothing yet, in the same directory."""
    return target.with_name(f".{target.name}.{uuid4().hex}.{kind}")


def locked(path: Path) -> int | None:
    """The lock on a directory, held until it is closed or the process ends; None where another has it, or it is gone.

    On a file system without locks on directories, what is opened is not locked.
    """
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except OSError:
        pass
    # Between its making and the lock, somebody may have taken it for a leftover.
    try:
        if os.path.samestat(os.stat(path), os.fstat(lock)):
            return lock
    except OSError:
        pass
    os.close(lock)
    return None


def put(aside: Path, target: Path) -> None:
    """Puts a directory in the place of another, in one step where the system can; what was there is then at `aside`."""
    for _ in range(TRIES):
        try:
            if not target.exists():
                aside.rename(target)  # over an empty directory, too
                return
            if not _exchanged(aside, target):
                _in_two_steps(aside, target)
            return
        except OSError as error:  # another process put or removed one meanwhile
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST) or not aside.exists():
                raise
    raise FileExistsError(f"{target} is replaced by other processes all the time; let one process write there")


def _exchanged(one: Path, other: Path) -> bool:
    """Whether two directories could change names in one step, which Linux can on most of its file systems."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(one), None, str(other))


def _in_two_steps(aside: Path, target: Path) -> None:
    """In between, readers find the old one by its name, and a later writer puts it back if this process is killed."""
    old = beside(target, OLD)
    lock = locked(target)  # the directory keeps it under its new name
    try:
        target.rename(old)
        try:
            aside.rename(target)
        except BaseException:
            old.rename(target)
            raise
        shutil.rmtree(old, ignore_errors=True)
    finally:
        if lock is not None:
            os.close(lock)


def clean(parent: Path) -> None:
    """Removes what processes have left that were killed while they wrote or removed a checkpoint in this directory."""
    for name in Folder(parent).names():
        found = _LEFT.fullmatch(name)
        path = parent / name
        if found is None or path.is_symlink() or not path.is_dir():
            continue
        lock = locked(path)
        if lock is None:
            continue
        try:
            target = parent / found["name"]
            if found["kind"] == OLD and not target.exists():
                with suppress(OSError):
                    path.rename(target)
                continue
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(lock)


__all__ = ["CheckpointWriter"]
