"""A policy on disk: flat weights as safetensors, everything else as a JSON manifest; nothing is pickled."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np

from flowrl.rl.spec import PolicySpec, Spaces

if TYPE_CHECKING:
    from flowrl.rl.policy import Policy

FORMAT = 1
_MANIFEST, _WEIGHTS = "policy.json", "policy.safetensors"


def save_policy(path: str | os.PathLike[str], state: Mapping[str, Any]) -> Path:
    """Writes a policy's state (`run.policy_state()`) into a directory, aside and then renamed; returns the directory.

    Raises:
        ValueError: a space that has no place in the manifest.
    """
    from safetensors.numpy import save_file

    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{target.name}.{uuid4().hex}")
    aside.mkdir()
    try:
        arrays = {"weights": np.ascontiguousarray(state["weights"], dtype=np.float32)}
        manifest = {
            "format": FORMAT,
            "policy_id": state["policy_id"],
            "version": int(state["version"]),
            "spec": _spec_as_json(state["spec"]),
            "observation": _space_as_json(state["spaces"].observation, "observation", arrays),
            "action": _space_as_json(state["spaces"].action, "action", arrays),
        }
        save_file(arrays, aside / _WEIGHTS)
        (aside / _MANIFEST).write_text(json.dumps(manifest, indent=1))
        for name in (_WEIGHTS, _MANIFEST):
            with open(aside / name, "rb") as written:
                os.fsync(written.fileno())
        if target.exists():
            old = target.with_name(f".{target.name}.{uuid4().hex}.old")
            target.rename(old)
            aside.rename(target)
            shutil.rmtree(old)
        else:
            aside.rename(target)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return target


def load_policy(path: str | os.PathLike[str], *, model: Callable[[Any, Any], Any] | None = None) -> Policy:
    """The policy that `save_policy` (or `flowrl.train(out=...)`) wrote: `policy.act(obs)`.

    model: the function that makes the module, for a policy of a user's own module that cannot be found by its name.

    Raises:
        FileNotFoundError: there is no saved policy.
        ValueError: it is damaged, of a newer format, or its module cannot be found.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    from flowrl.rl.policy import Policy

    folder = _folder_of(Path(path))
    try:
        manifest = json.loads((folder / _MANIFEST).read_text())
        arrays = load_file(folder / _WEIGHTS)
    except (json.JSONDecodeError, UnicodeDecodeError, SafetensorError, FileNotFoundError) as error:
        raise ValueError(f"the policy in {folder} is damaged: {error}") from error
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found != FORMAT:
        raise ValueError(f"the policy in {folder} has format {found!r}; this version of flowrl reads format {FORMAT}")
    try:
        spaces = Spaces(
            _space_from_json(manifest["observation"], "observation", arrays),
            _space_from_json(manifest["action"], "action", arrays),
        )
        spec = _spec_from_json(manifest["spec"], model, folder)
        weights = arrays["weights"]
    except KeyError as error:
        raise ValueError(f"the policy in {folder} is damaged: {error} is missing") from error
    policy = Policy(spec, spaces)
    policy.set_weights(weights)
    return policy


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


def _spec_from_json(spec: Mapping[str, Any], model: Callable[[Any, Any], Any] | None, folder: Path) -> PolicySpec:
    if spec["model"] is not None and model is None:
        module, _, name = spec["model"].partition(":")
        try:
            found: Any = import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError) as error:
            raise ValueError(
                f"the policy in {folder} was made by {spec['model']}, which cannot be imported ({error}); "
                "give the function yourself: load_policy(path, model=...)"
            ) from error
        model = found
    return PolicySpec(**{**spec, "model": model})


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
