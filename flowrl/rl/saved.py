"""A policy on disk: flat weights as safetensors, everything else as a JSON manifest; nothing is pickled."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from flowrl.rl.initial import num_weights
from flowrl.rl.spaces import check_policy, runs_in_numpy
from flowrl.rl.spec import PolicySpec, Spaces

if TYPE_CHECKING:
    from flowrl.rl.policy import Policy

FORMAT = 1
_MANIFEST, _WEIGHTS = "policy.json", "policy.safetensors"


def save_policy(path: str | os.PathLike[str], state: Mapping[str, Any]) -> Path:
    """Writes a policy's state (`run.policy_state()`) into a directory, aside and then renamed; returns the directory.

    A policy that is there is replaced, and other files beside it are kept. A symbolic link stays one.

    Raises:
        ValueError: a space that has no place in the manifest.
        FileExistsError: something else is there: a file, a directory of other things, the working directory.
    """
    from safetensors.numpy import save_file

    target = Path(path).resolve()
    _refuse_others(Path(path), target)
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{target.name}.{uuid4().hex}")
    aside.mkdir()
    try:
        arrays = {"weights": np.ascontiguousarray(state["weights"], dtype=np.float32)}
        manifest = {
            "format": FORMAT,
            "policy_id": state["policy_id"],
            "version": int(state["version"]),
            "weights_sha256": _digest(arrays["weights"]),
            "spec": _spec_as_json(state["spec"]),
            "observation": _space_as_json(state["spaces"].observation, "observation", arrays),
            "action": _space_as_json(state["spaces"].action, "action", arrays),
        }
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


def load_policy(path: str | os.PathLike[str], *, model: Callable[[Any, Any], Any] | None = None) -> Policy:
    """The policy that `save_policy` (or `flowrl.train(out=...)`) wrote: `policy.act(obs)`.

    No code runs because a file names it.

    model: the function that makes the module, for a policy of a user's own module.

    Raises:
        FileNotFoundError: there is no saved policy.
        ValueError: it is damaged, of a newer format, or of a user's own module and `model` is not given.
    """
    from safetensors.numpy import load_file

    from flowrl.rl.policy import Policy

    folder = _folder_of(Path(path))
    with _damage(folder):
        manifest = json.loads((folder / _MANIFEST).read_text())
        arrays = load_file(folder / _WEIGHTS)
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if type(found) is not int or found != FORMAT:
        raise ValueError(f"the policy in {folder} has format {found!r}; this version of flowrl reads format {FORMAT}")
    with _damage(folder):
        named = manifest["spec"]["model"]
    if named is not None and model is None:
        raise ValueError(
            f"the policy in {folder} is of the module {named}, and a file may not choose what code runs: give the "
            "function yourself: load_policy(path, model=...)"
        )
    with _damage(folder):
        spaces = Spaces(
            _space_from_json(manifest["observation"], "observation", arrays),
            _space_from_json(manifest["action"], "action", arrays),
        )
        spec = PolicySpec(**{**manifest["spec"], "model": None if named is None else model})
        weights = arrays["weights"]
        # Files of before the digest have none.
        if _digest(weights) != manifest.get("weights_sha256", _digest(weights)):
            raise ValueError("the weights are not those that were saved")
        check_policy(spec, spaces)
        if named is None:
            _check_count(spec, spaces, weights)
    if named is not None:
        # Whatever the user's own function raises is no damage.
        policy = Policy(spec, spaces)
        policy.set_weights(weights)
        return policy
    with _damage(folder):
        policy = Policy(spec, spaces)
        policy.set_weights(weights)
    return policy


@contextmanager
def _damage(folder: Path) -> Iterator[None]:
    """Whatever goes wrong inside is damage of what was read."""
    try:
        yield
    except Exception as error:
        what = f"{error} is missing" if type(error) is KeyError else str(error) or type(error).__name__
        raise ValueError(f"the policy in {folder} is damaged: {what}") from error


def _digest(weights: npt.NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(weights).data).hexdigest()


def _check_count(spec: PolicySpec, spaces: Spaces, weights: npt.NDArray[Any]) -> None:
    """Nothing, if a default model of this spec may have these weights; asked before memory is taken for it."""
    if runs_in_numpy(spec, spaces):
        expected = num_weights(spec, spaces)
        if weights.shape != (expected,):
            raise ValueError(f"its model has {expected} weights, the file holds an array of shape {weights.shape}")
        return
    widths = [spec.recurrent_size if spec.recurrent else 1, *spec.hidden]
    least = sum(out * into for into, out in itertools.pairwise(widths))
    least += widths[0] ** 2 if spec.recurrent else 0
    least += (spec.image_features or 0) + sum(channels for channels, _, _ in spec.convolutions or ())
    if weights.ndim != 1 or len(weights) < least:
        raise ValueError(f"its model has at least {least} weights, the file holds an array of shape {weights.shape}")


def _folder_of(path: Path) -> Path:
    for folder in (path, path / "policy"):
        if (folder / _MANIFEST).is_file():
            return folder
    raise FileNotFoundError(f"no saved policy in {path}: it has no {_MANIFEST} (nor has {path / 'policy'})")


def _spec_as_json(spec: PolicySpec) -> dict[str, Any]:
    model = None
    if spec.model is not None:
        model = f"{getattr(spec.model, '__module__', '?')}:{getattr(spec.model, '__qualname__', '?')}"
    others = {field.name: getattr(spec, field.name) for field in fields(spec) if field.name != "model"}
    return {"model": model, **others}


def _space_as_json(space: Any, role: str, arrays: dict[str, Any]) -> dict[str, Any]:
    """A space as JSON; the bounds of Boxes go to `arrays`, under names that begin with `role`."""
    kind = type(space).__name__
    if kind == "Discrete":
        return {"kind": kind, "n": int(space.n), "start": int(space.start)}
    if kind == "MultiDiscrete":
        lists = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
        return {"kind": kind, **lists, "dtype": str(space.dtype)}
    if kind == "MultiBinary":
        return {"kind": kind, "shape": list(space.shape)}
    if kind == "Box":
        arrays[f"{role}.low"] = np.ascontiguousarray(space.low)
        arrays[f"{role}.high"] = np.ascontiguousarray(space.high)
        return {"kind": kind, "shape": list(space.shape), "dtype": str(space.dtype)}
    if kind in ("Dict", "Tuple"):
        # Pairs, because a JSON object would make strings of a Dict's integer keys.
        parts = space.spaces.items() if kind == "Dict" else enumerate(space.spaces)
        return {"kind": kind, "parts": [[key, _space_as_json(part, f"{role}/{key}", arrays)] for key, part in parts]}
    raise ValueError(
        f"a policy with the {role} space {space!r} cannot be saved; Box, Discrete, MultiDiscrete, MultiBinary, Dict "
        "and Tuple can"
    )


def _space_from_json(space: Mapping[str, Any], role: str, arrays: Mapping[str, Any]) -> Any:
    from gymnasium import spaces

    kind = space["kind"]
    if kind == "Discrete":
        return spaces.Discrete(space["n"], start=space["start"])
    if kind == "MultiDiscrete":
        dtype = np.dtype(space["dtype"]).type
        return spaces.MultiDiscrete(np.array(space["nvec"]), dtype=dtype, start=np.array(space["start"]))
    if kind == "MultiBinary":
        shape = space["shape"]
        return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)
    if kind == "Box":
        shape, dtype = tuple(space["shape"]), np.dtype(space["dtype"]).type
        return spaces.Box(arrays[f"{role}.low"], arrays[f"{role}.high"], shape, dtype)
    if kind in ("Dict", "Tuple"):
        parts = {key: _space_from_json(part, f"{role}/{key}", arrays) for key, part in space["parts"]}
        return spaces.Dict(parts) if kind == "Dict" else spaces.Tuple(list(parts.values()))
    raise ValueError(f"unknown kind of {role} space: {kind!r}")
