"""What is damaged, foreign or hostile gives one clear error: nothing is changed, executed, or allocated for it."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import pickle
import random
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl import CheckpointError
from flowrl.checkpoint import CheckpointWriter, Pickled, checkpoint_at, read_manifest, read_state, write_state
from flowrl.checkpoint import manifest as manifests
from tests.checkpoint.states import same

SEEN: list[str] = []  # what was executed while one looked
WATCHED = (
    "pickle.find_class",
    "os.system",
    "subprocess.Popen",
    "os.exec",
    "exec",
    "import",
    "socket.connect",
    "compile",
)


def watch(event: str, args: Any) -> None:
    if LOOKING and event in WATCHED:
        SEEN.append(event)


LOOKING: list[bool] = []
sys.addaudithook(watch)


class Canary:
    """Unpickled, it would run a command."""

    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/flowrl-canary",)


STATE = {
    "weights": np.arange(12, dtype=np.float32).reshape(3, 4).T,
    "rng": np.random.default_rng(1).bit_generator.state,
    "mixed": [(1, 2.5, None), {3: b"bytes", ("k", 1): float("inf")}, np.float64(3), np.array(["a", "bc"])],
    "envs": Pickled(pickle.dumps(Canary())),
}


def files_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a good checkpoint; all that is imported when one is read has been."""
    path = tmp_path_factory.mktemp("whole") / "c"
    with CheckpointWriter(path) as writer:
        states = {"learner": write_state(writer.directory, "learner", STATE)}
        states["workers[0]"] = write_state(writer.directory, "workers[0]", {"step": 3})
        writer.commit({"seed": 5, "env_steps": 100, "states": states, "extra": {"of": [1.5, None, "x"]}})
    load(path)
    return files_of(path)


def load(path: Path) -> tuple[Any, ...]:
    """All that is in a checkpoint."""
    manifest = read_manifest(path)
    directory = manifest.pop("directory")
    states = manifest.get("states")
    found = [states.get(name) if isinstance(states, dict) else None for name in ("learner", "workers[0]")]
    learner = read_state(directory, "learner", found[0], trust_pickles=True)
    worker = read_state(directory, "workers[0]", found[1], trust_pickles=True)
    return manifest.get("seed"), manifest.get("env_steps"), manifest.get("extra"), learner, worker


EXPECTED = (5, 100, {"of": [1.5, None, "x"]}, STATE, {"step": 3})


def tried(path: Path) -> tuple[Any, ...] | CheckpointError:
    """What loading came to; an exception of any other type is a failure, and so is anything executed."""
    SEEN.clear()
    LOOKING.append(True)
    try:
        return load(path)
    except CheckpointError as error:
        return error
    finally:
        LOOKING.clear()
        assert not SEEN


def clear(error: CheckpointError) -> bool:
    """Whether it is one line that names a file."""
    text = str(error)
    return "\n" not in text and ("/c/" in text or "/c:" in text or "/c " in text) and len(text) < 700


# --- mutations of bytes
def flip(rng: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 8])):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(rng: random.Random, content: bytes) -> bytes:
    return content[: rng.randrange(len(content))]


def swap(rng: random.Random, content: bytes) -> bytes:
    a, b = sorted(rng.randrange(len(content)) for _ in range(2))
    length = min(rng.randint(1, 64), b - a)
    return (
        content[:a]
        + content[b : b + length]
        + content[a + length : b]
        + content[a : a + length]
        + content[b + length :]
    )


def insert(rng: random.Random, content: bytes) -> bytes:
    at = rng.randrange(len(content))
    return content[:at] + rng.randbytes(rng.randint(1, 20)) + content[at:]


HOSTILE: list[Any] = [
    None, True, -1, 0, 2**63, 10**400, 1e308, "", "../../etc/passwd", "/etc/passwd", "x" * 5000, [], {}, [[]] * 3,
    {"map": {}}, {"array": "0"}, {"tuple": 3}, {"pickle": [0, 10**12]}, {"int": "0x" + "f" * 5000}, {"float": "nan"},
    {"pairs": [[{}, 1]]}, {"scalar": "O", "hex": "00"}, {"array": "0", "dtype": "O", "shape": [1]}, {"bytes": ["a"]},
]  # fmt: skip


def places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of a JSON document."""
    keys = list(tree) if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    for key in keys:
        yield tree, key
        yield from places(tree[key])


def replace_value(rng: random.Random, content: bytes) -> bytes:
    """One value of a JSON document becomes another one of its own, or a hostile one."""
    tree = json.loads(content)
    found = list(places(tree))
    (into, key), (other, its) = rng.choice(found), rng.choice(found)
    into[key] = copy.deepcopy(rng.choice(HOSTILE) if rng.random() < 0.7 else other[its])
    return json.dumps(tree).encode()


def renewed(files: dict[str, bytes]) -> dict[str, bytes]:
    """The same with digests that agree, as somebody would make them who means harm."""
    try:
        manifest = json.loads(files["manifest.json"])
        for entry in manifests.entries(manifest):
            for kind in ("files", "pickles"):
                for name in files.keys() & entry.get(kind, {}).keys():
                    content = files[name]
                    entry[kind][name] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
        manifest.pop("sha256", None)
        manifest["sha256"] = manifests._digest(manifest)
    except (AttributeError, KeyError, TypeError, ValueError):
        return files
    return {**files, "manifest.json": json.dumps(manifest).encode()}


def put(directory: Path, files: dict[str, bytes]) -> None:
    directory.mkdir(exist_ok=True)
    for name, content in files.items():
        (directory / name).write_bytes(content)


@pytest.mark.parametrize("harm", [False, True], ids=["by accident", "with digests that agree"])
def test_five_hundred_mutations_each_give_an_error_or_the_same_state(
    tmp_path: Path, whole: dict[str, bytes], harm: bool
) -> None:
    rng = random.Random(7)
    directory = tmp_path / "c"
    put(directory, whole)
    refused = 0
    for _ in range(500):
        name = rng.choice([*whole, "manifest.json"])
        acts: list[Callable[[random.Random, bytes], bytes]] = [flip, cut, swap, insert]
        if name.endswith(".json"):
            acts += [replace_value] * 4
        changed = {**whole, name: rng.choice(acts)(rng, whole[name])}
        changed = renewed(changed) if harm else changed
        put(directory, {name: content for name, content in changed.items() if content is not whole[name]})
        found = tried(directory)
        assert files_of(directory) == changed
        put(directory, {name: whole[name] for name, content in changed.items() if content is not whole[name]})
        if isinstance(found, CheckpointError):
            assert clear(found), found
            refused += 1
        elif not harm:
            assert same(list(found), list(EXPECTED)), name
    assert refused > (200 if harm else 450)
    assert not os.path.exists("/tmp/flowrl-canary")


def with_manifest(files: dict[str, bytes], change: Callable[[dict[str, Any]], Any]) -> dict[str, bytes]:
    manifest = json.loads(files["manifest.json"])
    change(manifest)
    return renewed({**files, "manifest.json": json.dumps(manifest).encode()})


def named(name: str) -> Callable[[dict[str, Any]], Any]:
    """The learner's tree is said to lie in another file."""

    def change(manifest: dict[str, Any]) -> None:
        files = manifest["states"]["learner"]["files"]
        files[name] = files.pop("learner.json")

    return change


@pytest.mark.parametrize(
    "name", ["../learner.json", "/etc/hostname", "a/../../b", "", "..", "a\0b", "c:x", "manifest.json"]
)
def test_a_manifest_cannot_name_a_file_elsewhere(tmp_path: Path, whole: dict[str, bytes], name: str) -> None:
    put(tmp_path / "c", with_manifest(whole, named(name)))
    with pytest.raises(CheckpointError, match=re.escape(f"names the file {name!r}, which is not in the checkpoint's")):
        read_manifest(tmp_path / "c")


@pytest.mark.parametrize("inside", ["..", "/tmp", "a/b", 3])
def test_a_manifest_cannot_name_a_directory_elsewhere(tmp_path: Path, whole: dict[str, bytes], inside: Any) -> None:
    put(tmp_path / "c", with_manifest(whole, lambda manifest: manifest.update(folder=inside)))
    with pytest.raises(CheckpointError, match="it names the directory"):
        read_manifest(tmp_path / "c")


def test_links_and_pipes_are_not_followed(tmp_path: Path, whole: dict[str, bytes]) -> None:
    put(tmp_path / "elsewhere", whole)
    for name in whole:
        directory = tmp_path / f"c{name}" / "c"
        directory.mkdir(parents=True)
        put(directory, {other: content for other, content in whole.items() if other != name})
        (directory / name).symlink_to(tmp_path / "elsewhere" / name)
        found = tried(directory)
        assert isinstance(found, CheckpointError)
        assert f"/c/{name}: it cannot be read" in str(found)
        (directory / name).unlink()
        os.mkfifo(directory / name)
        assert isinstance(tried(directory), CheckpointError)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"a":' * 10_000 + b"1" + b"}" * 10_000, "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b'{"format": "flowrl-checkpoint", "version": ' + b"9" * 10_000 + b"}", "it is not JSON"),
        (b'{"format": "flowrl-checkpoint", "version": NaN}', "it holds NaN"),
        (b'{"format": "flowrl-checkpoint", "version": true}', "it has the version 'True'"),
        (b'{"format": "flowrl-checkpoint", "version": 0}', "it has the version '0'"),
        (b'{"format": "flowrl-checkpoint", "version": 1}', "its content is not what was saved"),
        (
            b'{"format": "flowrl-checkpoint", "version": 2}',
            r"written by a newer flowrl \(its version is 2, .* up to 1\)",
        ),
        (b'{"format": "somebody-elses"}', "is not of a flowrl checkpoint"),
        (b"[1, 2]", "is not of a flowrl checkpoint"),
        (b"", "it is not JSON"),
        (b"\xff\xfe", "it is not JSON"),
    ],
)
def test_a_manifest_that_is_none(tmp_path: Path, content: bytes, said: str) -> None:
    put(tmp_path / "c", {"manifest.json": content})
    with pytest.raises(CheckpointError, match=said) as caught:
        read_manifest(tmp_path / "c")
    assert clear(caught.value)


def test_a_manifest_of_a_terabyte_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    with open(tmp_path / "c" / "manifest.json", "wb") as file:
        file.truncate(2**40)
    with pytest.raises(CheckpointError, match="it has more than 67,108,864 bytes"):
        read_manifest(tmp_path / "c")


def tree(value: Any) -> bytes:
    return json.dumps({"format": "flowrl-state", "version": 1, "state": value}).encode()


def header(size: int, text: str = "") -> bytes:
    return size.to_bytes(8, "little") + text.encode()


def tensors(said: dict[str, Any], data: bytes = b"") -> bytes:
    text = json.dumps(said)
    return header(len(text), text) + data


GIANT = {"dtype": "U8", "shape": [2**62], "data_offsets": [0, 2**62]}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("learner.safetensors", header(2**63)),
        ("learner.safetensors", header(2**40, "{}")),
        ("learner.safetensors", tensors({"0": GIANT})),
        ("learner.safetensors", tensors({"0": {**GIANT, "shape": [2**32, 2**32, 2**32]}})),
        ("learner.safetensors", tensors({"0": {**GIANT, "shape": [0, 2**62], "data_offsets": [0, 0]}})),
        ("learner.safetensors", tensors({"0": {**GIANT, "shape": [-1], "data_offsets": [0, 8]}}, b"8 bytes.")),
        ("learner.safetensors", tensors({"0": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}, b"ab")),
        ("learner.safetensors", tensors({"0": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}}, b"ab more")),
        ("learner.json", b'{"format": "flowrl-state", "version": 9, "state": 0}'),
        ("learner.json", tree({"array": "0", "dtype": "S2000000000", "shape": [0]})),
        ("learner.json", tree({"array": "0", "dtype": "<f8", "shape": [2**40]})),
        ("learner.json", tree({"array": "0", "dtype": "|O", "shape": [6]})),
        ("learner.json", tree({"pickle": [0, 2**70]})),
        ("learner.json", tree({"pickle": [-5, 2]})),
        ("learner.json", tree({"unknown": 1})),
        ("learner.json", tree({})),
    ],
)
def test_files_that_lie_about_what_they_hold(
    tmp_path: Path, whole: dict[str, bytes], name: str, content: bytes
) -> None:
    """Their digests agree with the manifest: only what they say of themselves is wrong."""
    put(tmp_path / "c", renewed({**whole, name: content}))
    found = tried(tmp_path / "c")
    assert isinstance(found, CheckpointError), found
    assert clear(found), found


def test_an_array_that_is_named_again_and_again_is_refused(tmp_path: Path, whole: dict[str, bytes]) -> None:
    key = next(iter(json.loads(whole["learner.safetensors"][8:].split(b"}}")[0] + b"}}")))
    content = tree([{"bytes": key}] * 100_000)
    put(tmp_path / "c", renewed({**whole, "learner.json": content}))
    assert isinstance(tried(tmp_path / "c"), CheckpointError)


def test_a_missing_file_is_named(tmp_path: Path, whole: dict[str, bytes]) -> None:
    put(tmp_path / "c", whole)
    (tmp_path / "c" / "workers[0].json").unlink()
    with pytest.raises(
        CheckpointError, match=r"damaged: .*/c/workers\[0\]\.json: it is missing; use another checkpoint"
    ):
        read_manifest(tmp_path / "c")


def test_no_checkpoint_at_all(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(CheckpointError, match=r"there is no checkpoint in .*: it has no manifest\.json"):
            read_manifest(path)
    with pytest.raises(CheckpointError, match=r"it has no manifest.json, and no step-… \(nor has .*/checkpoints\)"):
        checkpoint_at(tmp_path)


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        ({"format": 1}, "a manifest may not have 'format', which the format itself uses"),
        ({"x": float("nan")}, "a manifest must be JSON, without NaN and infinity"),
        ({"x": object()}, "a manifest must be JSON"),
        ({}, r"the manifest does not name left\.json, which is in "),
    ],
)
def test_a_wrong_manifest_is_not_written(tmp_path: Path, manifest: Any, said: str) -> None:
    with CheckpointWriter(tmp_path / "c") as writer:
        entry = write_state(writer.directory, "left", 0)
        with pytest.raises(CheckpointError, match=said):
            writer.commit({**manifest, **({"entry": entry} if manifest else {})})
    assert [*tmp_path.iterdir()] == []


def test_an_entry_that_lies_on_another_machine_is_not_committed(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    entry = write_state(tmp_path / "theirs", "workers[0]", 0)
    with (
        pytest.raises(
            CheckpointError, match=r"workers\[0\]\.json was written, but is not in .*: name a directory that all"
        ),
        CheckpointWriter(tmp_path / "c") as writer,
    ):
        writer.commit({"entry": entry})
