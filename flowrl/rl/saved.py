"""A policy on disk: flat weights as safetensors, everything else as a JSON manifest; nothing is pickled."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from flowrl.checkpoint import checkpoint_at, read_manifest, read_state
from flowrl.errors import CheckpointError
from flowrl.records import POLICIES, POLICY
from flowrl.rl.plain_policy import Arrays, damage, policy_as_plain, policy_from_plain

if TYPE_CHECKING:
    from flowrl.rl.policy import Policy

FORMAT = 1
_MANIFEST, _WEIGHTS = "policy.json", "policy.safetensors"


def save_policy(path: str | os.PathLike[str], state: Mapping[str, Any]) -> Path:
    """Writes a policy's state (`run.policy_state()`) into a directory, aside and then renamed; returns the directory.

    A policy that is there is replaced, and other files beside it are kept. A symbolic link stays one.

    Raises:
        CheckpointError: a space that has no place in the manifest.
        FileExistsError: something else is there: a file, a directory of other things, the working directory.
    """
    from safetensors.numpy import save_file

    target = Path(path).resolve()
    _refuse_others(Path(path), target)
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{target.name}.{uuid4().hex}")
    aside.mkdir()
    try:
        said, arrays = policy_as_plain(state)
        manifest = {"format": FORMAT, "weights_sha256": _digest(arrays["weights"]), **said}
        save_file(arrays, aside / _WEIGHTS)
        (aside / _MANIFEST).write_text(json.dumps(manifest, indent=1))
        for name in (_WEIGHTS, _MANIFEST):
            with open(aside / name, "rb") as written:
                os.fsync(written.fileno())
        _put(aside, target)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return Path(path)


def _refuse_others(path: Path, target: Path) -> None:
    """Nothing, if a policy may take this place."""
    if Path.cwd().is_relative_to(target):
        raise FileExistsError(f"{path} is or holds the working directory; a policy needs a directory of its own")
    if not target.exists():
        return
    if not target.is_dir():
        raise FileExistsError(f"{path} is a file; a policy needs a directory of its own")
    if not (target / _MANIFEST).is_file() and any(target.iterdir()):
        raise FileExistsError(
            f"{path} holds other things and no {_MANIFEST}, so no policy is written over it; name a new directory"
        )


def _put(aside: Path, target: Path) -> None:
    """Renames a directory to `target`; what was there comes back if that fails."""
    if not target.exists():
        aside.rename(target)
        return
    old = target.with_name(f".{target.name}.{uuid4().hex}.old")
    target.rename(old)
    try:
        aside.rename(target)
    except BaseException:
        old.rename(target)
        raise
    for entry in old.iterdir():
        if entry.name not in (_MANIFEST, _WEIGHTS):
            entry.rename(target / entry.name)
    shutil.rmtree(old)


def load_policy(
    path: str | os.PathLike[str], *, name: str | None = None, model: Callable[[Any, Any], Any] | None = None
) -> Policy:
    """The policy that `save_policy`, `flowrl.train(out=...)` or a checkpoint holds: `policy.act(obs)`.

    No code runs because a file names it.

    path: a saved policy, a directory of those of several ids, a checkpoint, a directory of several checkpoints (the
        newest counts), or the `out` of a training, of whose policies the one that was trained longest counts.
    name: whose, where there are several: a policy's id or its learner's name.
    model: the function that makes the module, for a policy of a user's own module.

    Raises:
        FileNotFoundError: there is no saved policy and no checkpoint.
        LookupError: there are several policies and none is named, or none of this name.
        CheckpointError: it is damaged, of a newer format, or of a user's own module and `model` is not given.
    """
    saved = [] if "://" in os.fspath(path) else _folders_of(Path(path))
    found: list[Found] = [(*_read(folder), str(folder)) for folder in saved]
    try:
        checkpoint = checkpoint_at(path)
    except CheckpointError:
        if not saved:
            raise FileNotFoundError(
                f"no saved policy in {path}: it has no {_MANIFEST} (nor has {Path(path) / 'policy'}), and no checkpoint"
            ) from None
    else:
        found += _in_checkpoint(checkpoint)
    said, arrays, place = _chosen(found, name, path)
    return policy_from_plain(said, arrays, place, model)


Found = tuple[Mapping[str, Any], Arrays, str]  # what a policy is made of, its arrays, where it was read


def _chosen(found: list[Found], name: str | None, path: Any) -> Found:
    """Of several, the one that is named; of one policy in several places, the one that was trained longest."""
    ids = sorted({str(said.get("policy_id")) for said, _, _ in found})
    able = [each for each in found if name is None or name in (each[0].get("policy_id"), each[0].get("learner"))]
    if not found:
        raise CheckpointError(f"the checkpoint in {path} is of a run without learners, and so without policies")
    if not able:
        raise LookupError(f"no policy in {path} is called {name!r}; there are: {', '.join(ids) or 'none'}")
    if name is None and len(ids) > 1:
        raise LookupError(f"load_policy(path, name=...) must name one of the policies in {path}: {', '.join(ids)}")
    if len(able) == 1:
        return able[0]
    with damage(able[0][2]):
        return max(able, key=lambda each: each[0]["version"])


def _in_checkpoint(path: str) -> list[Found]:
    """The policies of the learners of a run that was saved."""
    manifest = read_manifest(path, whole=False)
    policies = manifest.get("policies")
    found: list[Found] = []
    for learner, entry in (policies if isinstance(policies, dict) else {}).items():
        state = read_state(manifest["directory"], f"{learner}[0] policy", entry)
        with damage(path):
            found.append(({**state["said"], "learner": learner}, state["arrays"], path))
    return found


def _read(folder: Path) -> tuple[dict[str, Any], Arrays]:
    """What a saved policy is made of, and its arrays."""
    from safetensors.numpy import load_file

    with damage(str(folder)):
        manifest = json.loads((folder / _MANIFEST).read_text())
        arrays = load_file(folder / _WEIGHTS)
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if type(found) is not int or found != FORMAT:
        raise CheckpointError(
            f"the policy in {folder} has format {found!r}; this version of flowrl reads format {FORMAT}"
        )
    with damage(str(folder)):
        weights = arrays["weights"]
        # Files of before the digest have none.
        if _digest(weights) != manifest.get("weights_sha256", _digest(weights)):
            raise ValueError("the weights are not those that were saved")
    return manifest, arrays


def _digest(weights: npt.NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(weights).data).hexdigest()


def _folders_of(path: Path) -> list[Path]:
    """Where a policy is saved; of several those that lie beside each other."""
    one = [folder for folder in (path, path / POLICY) if (folder / _MANIFEST).is_file()]
    several = [folder.parent for place in (path / POLICIES, path) for folder in sorted(place.glob(f"*/{_MANIFEST}"))]
    return one[:1] or several
