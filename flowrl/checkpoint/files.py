"""One state on disk: `NAME.json` (its tree), `NAME.safetensors` (its arrays) and, if it holds any, `NAME.pickle`."""

from __future__ import annotations

import hashlib
import json
from typing import Any, NoReturn
from urllib.parse import quote

from flowrl.checkpoint.encoding import Pickled, State, decode, encode
from flowrl.checkpoint.storage import Folder, RemoteFolder, Where, folder
from flowrl.errors import CheckpointError, text_of

FORMAT, VERSION = "flowrl-state", 1
KIND = "flowrl-state"  # by which an entry is known in a manifest
LONGEST_NAME = 150  # file systems take 255 bytes, of which suffixes and a temporary name need some

# What a manifest says of a state: {"kind": KIND, "files": {file: {"sha256": ..., "bytes": ...}}, "pickles": likewise}.
Entry = dict[str, Any]


def file_name(name: str) -> str:
    """A name as the stem of a file on any system: "workers[3]" stays, "a/b" becomes "a%2Fb"."""
    stem = quote(name, safe="[]")
    if stem.startswith("."):
        stem = "%2E" + stem[1:]
    if not stem or len(stem) > LONGEST_NAME:
        stem = f"{stem[: LONGEST_NAME - 20]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    return stem


def write_state(directory: Where, name: str, state: State) -> Entry:
    """Writes a state into an existing directory, and returns its entry for the manifest; also called inside actors.

    state: nested dicts, lists and tuples of None, bool, int, float, str, bytes, NumPy arrays and scalars, and Pickled.

    Raises:
        CheckpointError: a value has no place in a checkpoint; names where in the state it is.
        OSError: it cannot be written.
    """
    where, stem = folder(directory), file_name(name)
    try:
        encoded = encode(state)
    except CheckpointError as error:
        raise CheckpointError(f"the state of {name!r} cannot be saved: {error}") from None
    entry: Entry = {"kind": KIND, "files": {}}
    if encoded.arrays:
        file = f"{stem}.safetensors"
        entry["files"][file] = where.write_arrays(file, encoded.arrays)
    if encoded.pickles is not None:
        file = f"{stem}.pickle"
        entry["pickles"] = {file: where.write(file, bytes(encoded.pickles))}
    document = {"format": FORMAT, "version": VERSION, "state": encoded.tree}
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    entry["files"][f"{stem}.json"] = where.write(f"{stem}.json", text.encode())
    return entry


def read_state(directory: Where, name: str, entry: Any, *, trust_pickles: bool = False) -> State:
    """The state that `write_state` was given, after its files were held against the entry. No code is executed.

    directory: that of the checkpoint; `read_manifest(path)["directory"]`.
    trust_pickles: whether each Pickled in it comes with its bytes. Nothing unpickles them here.

    Raises:
        CheckpointError: a file is missing, damaged or of a newer format; names it.
    """
    where, stem = folder(directory), file_name(name)
    tree_file, arrays_file, pickle_file = (f"{stem}.{kind}" for kind in ("json", "safetensors", "pickle"))
    said = entry if isinstance(entry, dict) else {}
    files, pickles = _mapping(said.get("files")), _mapping(said.get("pickles"))
    if tree_file not in files:
        raise CheckpointError(f"the checkpoint {where} holds no state of {name!r}")
    content = _checked(where, tree_file, files[tree_file])
    tree = parsed(content, f"{where}/{tree_file}", FORMAT, VERSION).get("state")
    arrays = _arrays(where, arrays_file, files[arrays_file]) if arrays_file in files else {}
    trusted = trust_pickles and pickle_file in pickles
    payload = _checked(where, pickle_file, pickles[pickle_file]) if trusted else None
    try:
        return decode(tree, arrays, payload)
    except Exception as error:
        damaged(f"{where}/{tree_file}", f"it holds no state ({text_of(error)})", error)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def check_file(where: Folder | RemoteFolder, name: str, expected: Any, *, whole: bool) -> None:
    """Nothing, if the file is there, of its size and, if `whole`, with the content that was written.

    Raises:
        CheckpointError: it is not; names it.
    """
    try:
        size = where.size(name)
        if not isinstance(expected, dict) or expected.get("bytes") != size:
            damaged(f"{where}/{name}", f"it has {size:,} bytes, not as many as were saved")
        found = where.digest(name) if whole else expected
    except (OSError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        damaged(f"{where}/{name}", _unreadable(error), error)
    if found != expected:
        damaged(f"{where}/{name}", "its content is not what was saved")


def _arrays(where: Folder | RemoteFolder, name: str, expected: Any) -> dict[str, Any]:
    check_file(where, name, expected, whole=True)
    try:
        return where.read_arrays(name)
    except Exception as error:  # of safetensors, a class of its own
        damaged(f"{where}/{name}", text_of(error), error)


def _checked(where: Folder | RemoteFolder, name: str, expected: Any) -> bytes:
    check_file(where, name, expected, whole=True)
    return where.read(name)


def parsed(content: bytes, place: str, kind: str, version: int) -> dict[str, Any]:
    """A JSON object of one of our formats.

    Raises:
        CheckpointError: it is none, or of a newer version.
    """
    try:
        document = json.loads(content, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        damaged(place, f"it is not JSON ({text_of(error)[:200]})", error)
    if not isinstance(document, dict) or document.get("format") != kind:
        raise CheckpointError(f"{place} is not of a flowrl checkpoint (no format {kind!r}); name another directory")
    found = document.get("version")
    if type(found) is not int or found < 1:
        damaged(place, f"it has the version {str(found)[:40]!r}")
    if found > version:
        raise CheckpointError(
            f"{place} was written by a newer flowrl (its version is {found}, this one reads up to {version}); "
            "upgrade flowrl"
        )
    return document


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"it holds {text}")


def _unreadable(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "it is missing"
    return f"it cannot be read: {getattr(error, 'strerror', None) or text_of(error)}"


def damaged(place: str, what: str, error: BaseException | None = None) -> NoReturn:
    """Raises CheckpointError: a file of a checkpoint is damaged, and what to do."""
    raise CheckpointError(
        f"the checkpoint is damaged: {place}: {what}; use another checkpoint, the one before it for instance"
    ) from error


__all__ = ["Entry", "Pickled", "State", "file_name", "read_state", "write_state"]
