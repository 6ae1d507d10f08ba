"""Where checkpoints lie: a directory of this machine (or mounted on it), or any path that fsspec knows."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flowrl.errors import CheckpointError

_LOST_SLASH = re.compile(r"([a-z][a-z0-9+.-]+):/(?!/)")
Where = str | os.PathLike[str]
Arrays = Mapping[str, npt.NDArray[Any]]


def folder(where: Where) -> Folder | RemoteFolder:
    """The directory that a path or a URL such as "s3://bucket/run" names; it need not exist.

    Raises:
        CheckpointError: a URL, and fsspec (or what it needs for this scheme) is not installed; or it lost a slash.
    """
    text = os.fspath(where)
    if "://" not in text:
        _see_that_it_was_no_url(text)
        return Folder(Path(text))
    try:
        from fsspec.core import url_to_fs

        files, path = url_to_fs(text)
    except (ImportError, ValueError) as error:
        raise CheckpointError(
            f"{text} is not a path of this machine, and fsspec cannot open it: {error}; install fsspec and its package "
            "for this scheme, or name a directory"
        ) from error
    if "file" in ((files.protocol,) if isinstance(files.protocol, str) else files.protocol):
        return Folder(Path(path))
    return RemoteFolder(files, path.rstrip("/"), text.rstrip("/"))


def _see_that_it_was_no_url(text: str) -> None:
    """Refuses "s3:/bucket/run", which pathlib makes of a URL: it would be a directory of this machine."""
    found = _LOST_SLASH.match(text)
    if found is None or os.path.isdir(f"{found[1]}:"):
        return
    try:
        from fsspec.registry import known_implementations
    except ImportError:
        return
    if found[1] in known_implementations:
        raise CheckpointError(
            f"{text} is what pathlib makes of a URL: give it as a string, {found[1]}://{text[found.end() :]!s}"
        )


def digest_of(content: bytes) -> dict[str, Any]:
    """What a manifest says of a file: its SHA-256 and its size."""
    return {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}


class Folder:
    """A directory of the local file system. What is written is on the disk when the call returns."""

    def __init__(self, path: Path):
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    def below(self, name: str) -> Folder:
        """The directory `name` in this one."""
        return Folder(self.path / name)

    def names(self) -> list[str]:
        """Of all that is in it, sorted; none where there is no such directory."""
        try:
            return sorted(os.listdir(self.path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def write(self, name: str, content: bytes) -> dict[str, Any]:
        """Writes a file; returns its digest."""
        with open(self.path / name, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        return digest_of(content)

    def write_arrays(self, name: str, arrays: Arrays) -> dict[str, Any]:
        """Writes a file of safetensors; returns its digest."""
        from safetensors import SafetensorError
        from safetensors.numpy import save_file

        path = self.path / name
        try:
            save_file(dict(arrays), path)
        except SafetensorError as error:
            raise _os_error(error, path) from error
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        return self.digest(name)

    def digest(self, name: str) -> dict[str, Any]:
        """The digest of a file.

        Raises:
            OSError: it cannot be read, or is no plain file.
        """
        with os.fdopen(self._open(name), "rb") as file:
            return {"sha256": hashlib.file_digest(file, "sha256").hexdigest(), "bytes": file.tell()}

    def size(self, name: str) -> int:
        """The size of a plain file, in bytes."""
        descriptor = self._open(name)
        try:
            return os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)

    def read(self, name: str, most: int | None = None) -> bytes:
        """A file's content; of a longer one than `most`, its first `most + 1` bytes."""
        with os.fdopen(self._open(name), "rb") as file:
            return file.read() if most is None else file.read(most + 1)

    def read_arrays(self, name: str) -> dict[str, npt.NDArray[Any]]:
        """The arrays of a file of safetensors."""
        from safetensors.numpy import load_file

        os.close(self._open(name))
        return load_file(self.path / name)

    def _open(self, name: str) -> int:
        # A link may lead anywhere, and a pipe would never end.
        descriptor = os.open(self.path / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(f"{self.path / name} is no plain file")
        return descriptor

    def sync(self) -> None:
        """The names in this directory are on the disk, where the file system knows of such a thing."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with suppress(OSError):
                os.fsync(descriptor)
        finally:
            os.close(descriptor)


class RemoteFolder:
    """A directory of a file system that fsspec knows: each file appears whole or not at all, none is renamed."""

    def __init__(self, files: Any, path: str, url: str):
        self.files, self.path, self.url = files, path, url

    def __str__(self) -> str:
        return self.url

    def below(self, name: str) -> RemoteFolder:
        """The directory `name` in this one."""
        return RemoteFolder(self.files, f"{self.path}/{name}", f"{self.url}/{name}")

    def names(self) -> list[str]:
        """Of all that is in it, sorted; none where there is no such directory."""
        self.files.invalidate_cache(self.path)
        try:
            found = self.files.ls(self.path, detail=False)
        except FileNotFoundError:
            return []
        return sorted({entry.rstrip("/").rpartition("/")[2] for entry in found} - {self.path.rpartition("/")[2]})

    def write(self, name: str, content: bytes) -> dict[str, Any]:
        """Writes a file; returns its digest."""
        self.files.makedirs(self.path, exist_ok=True)  # of an object store, nothing
        self.files.pipe_file(f"{self.path}/{name}", content)
        return digest_of(content)

    def write_arrays(self, name: str, arrays: Arrays) -> dict[str, Any]:
        """Writes a file of safetensors; returns its digest."""
        from safetensors.numpy import save

        return self.write(name, save({key: np.asarray(array) for key, array in arrays.items()}))

    def digest(self, name: str) -> dict[str, Any]:
        """The digest of a file."""
        return digest_of(self.read(name))

    def size(self, name: str) -> int:
        """The size of a file, in bytes."""
        self.files.invalidate_cache(self.path)
        return int(self.files.info(f"{self.path}/{name}")["size"])

    def read(self, name: str, most: int | None = None) -> bytes:
        """A file's content; of a longer one than `most`, its first `most + 1` bytes."""
        end = None if most is None else min(most + 1, self.size(name))
        return bytes(self.files.cat_file(f"{self.path}/{name}", start=None, end=end))

    def read_arrays(self, name: str) -> dict[str, npt.NDArray[Any]]:
        """The arrays of a file of safetensors."""
        from safetensors.numpy import load

        return load(self.read(name))

    def remove(self) -> None:
        """Removes it with all that is in it."""
        with suppress(FileNotFoundError):
            self.files.rm(self.path, recursive=True)

    def sync(self) -> None:
        """Nothing: what was written is there."""


def _os_error(error: Exception, path: Path) -> OSError:
    """What safetensors says of a full disk, as Python says it."""
    number = re.search(r"os error (\d+)", str(error))
    code = int(number[1]) if number else None
    return OSError(str(error)) if code is None else OSError(code, os.strerror(code), str(path))
