"""The manifest of a checkpoint: written last, it names every file with its digest, and carries its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from flowrl.checkpoint.files import KIND, check_file, damaged, parsed
from flowrl.checkpoint.storage import Folder, RemoteFolder, Where, folder
from flowrl.errors import CheckpointError

MANIFEST = "manifest.json"
FORMAT, VERSION = "flowrl-checkpoint", 1
MOST_BYTES = 64 * 2**20  # of a manifest
TRIES = 10  # at a checkpoint that is being replaced
OURS = ("format", "version", "sha256", "folder", "directory")  # what the format itself puts into a manifest


def read_manifest(path: Where, *, whole: bool = True) -> dict[str, Any]:
    """The manifest of the checkpoint at a path, after it and all files that it names were checked.

    It is as given to `CheckpointWriter.commit`, plus "directory": where `read_state` finds the files.

    whole: whether the content of the files is held against their digests; otherwise only that they are there with
        their sizes.

    Raises:
        CheckpointError: there is no checkpoint, it is damaged, foreign, or of a newer format. One line says which file
            and what to do; nothing was changed and nothing of it executed.
    """
    for _ in range(TRIES):
        where = folder(path)
        if isinstance(where, Folder) and not where.path.exists():
            where = set_aside(where) or where
        manifest = _read(where)
        try:
            return _checked(where, dict(manifest), whole)
        except CheckpointError:
            if not _replaced(where, manifest):
                raise
    raise CheckpointError(f"the checkpoint {where} is replaced by another process all the time; try again")


def _replaced(where: Folder | RemoteFolder, manifest: dict[str, Any]) -> bool:
    """Whether there is another manifest now, so that its files were not those of this one."""
    try:
        return _read(where) != manifest
    except CheckpointError:
        return isinstance(where, Folder) and not where.path.exists()


def _checked(where: Folder | RemoteFolder, manifest: dict[str, Any], whole: bool) -> dict[str, Any]:
    inside = manifest.pop("folder", "")
    if not (isinstance(inside, str) and (inside == "" or inside.isalnum())):
        damaged(f"{where}/{MANIFEST}", f"it names the directory {inside!r}")
    files = where.below(inside) if inside else where
    for entry in entries(manifest):
        for kind in ("files", "pickles"):
            said = entry.get(kind, {})
            if not isinstance(said, Mapping):
                damaged(f"{where}/{MANIFEST}", f"its {kind} are {str(said)[:80]}")
            for name, expected in said.items():
                check_name(name, f"{where}/{MANIFEST}")
                check_file(files, name, expected, whole=whole)
    return {**manifest, "directory": str(files)}


def _read(where: Folder | RemoteFolder) -> dict[str, Any]:
    place = f"{where}/{MANIFEST}"
    try:
        content = where.read(MANIFEST, MOST_BYTES)
    except FileNotFoundError:
        raise CheckpointError(f"there is no checkpoint in {where}: it has no {MANIFEST}") from None
    except (OSError, ValueError) as error:
        damaged(place, f"it cannot be read: {error}", error)
    if len(content) > MOST_BYTES:
        damaged(place, f"it has more than {MOST_BYTES:,} bytes")
    manifest = parsed(content, place, FORMAT, VERSION)
    written = manifest.pop("sha256", None)
    try:
        actual = _digest(manifest)
    except (ValueError, RecursionError) as error:
        damaged(place, "it cannot be checked", error)
    if written != actual:
        damaged(place, "its content is not what was saved")
    del manifest["format"], manifest["version"]
    return manifest


def write_manifest(
    where: Folder | RemoteFolder, manifest: Mapping[str, Any], files: Folder | RemoteFolder, inside: str = ""
) -> None:
    """Writes the manifest of files that lie in `files`, which is `where` itself or the directory `inside` in it.

    Raises:
        CheckpointError: it is no JSON, uses a name of the format's own, or does not name exactly the files there are.
    """
    taken = sorted({*OURS} & manifest.keys())
    if taken:
        raise CheckpointError(f"a manifest may not have {', '.join(map(repr, taken))}, which the format itself uses")
    _check_complete(manifest, files)
    document = {**manifest, "format": FORMAT, "version": VERSION, **({"folder": inside} if inside else {})}
    try:
        plain = json.loads(json.dumps(document, allow_nan=False))  # tuples as lists, as they are when it is read
        document = {"format": FORMAT, "version": VERSION, "sha256": _digest(plain), **plain}
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"a manifest must be JSON, without NaN and infinity: {error}") from error
    where.write(MANIFEST, (json.dumps(document, indent=1) + "\n").encode())


def _check_complete(manifest: Mapping[str, Any], files: Folder | RemoteFolder) -> None:
    named: set[str] = set()
    for entry in entries(manifest):
        named.update(entry["files"], entry.get("pickles", {}))
    there = {*files.names()} - {MANIFEST}
    if named - there:
        raise CheckpointError(
            f"{', '.join(sorted(named - there))} was written, but is not in {files}: name a directory that all "
            "machines of the run share, or a URL"
        )
    if there - named:
        raise CheckpointError(f"the manifest does not name {', '.join(sorted(there - named))}, which is in {files}")


def entries(manifest: Any) -> Iterator[Mapping[str, Any]]:
    """What `write_state` returned, wherever in the manifest it stands."""
    if isinstance(manifest, Mapping):
        if manifest.get("kind") == KIND and isinstance(manifest.get("files"), Mapping):
            yield manifest
            return
        manifest = list(manifest.values())
    if isinstance(manifest, list | tuple):
        for inner in manifest:
            yield from entries(inner)


def check_name(name: Any, place: str) -> None:
    """Nothing, if a file of this name can only lie in the directory itself."""
    if not isinstance(name, str) or name in ("", ".", "..", MANIFEST) or any(char in name for char in "/\\\0:"):
        damaged(place, f"it names the file {name!r}, which is not in the checkpoint's directory")


def _digest(manifest: Any) -> str:
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def set_aside(where: Folder) -> Folder | None:
    """The checkpoint that was being replaced, on a file system that needs two steps for it."""
    beside = Folder(where.path.parent)
    for name in beside.names():
        if name.startswith(f".{where.path.name}.") and name.endswith(".old"):
            return beside.below(name)
    return None
