"""A policy as plain values and arrays, and back: its weights, what it is made of, its spaces; nothing is pickled."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from flowrl.errors import CheckpointError
from flowrl.rl.initial import num_weights
from flowrl.rl.spaces import check_policy, runs_in_numpy
from flowrl.rl.spec import PolicySpec, Spaces

if TYPE_CHECKING:
    from flowrl.rl.policy import Policy

Arrays = dict[str, npt.NDArray[Any]]


def policy_as_plain(state: Mapping[str, Any]) -> tuple[dict[str, Any], Arrays]:
    """A policy's state (`run.policy_state()`) as what JSON can say, and arrays: its weights and the bounds of Boxes.

    Raises:
        CheckpointError: a space that has no such form.
    """
    arrays: Arrays = {"weights": np.ascontiguousarray(state["weights"], dtype=np.float32)}
    said = {
        "policy_id": state["policy_id"],
        "version": int(state["version"]),
        "spec": _spec_as_json(state["spec"]),
        "observation": _space_as_json(state["spaces"].observation, "observation", arrays),
        "action": _space_as_json(state["spaces"].action, "action", arrays),
    }
    return said, arrays


def policy_from_plain(
    said: Mapping[str, Any], arrays: Mapping[str, Any], place: str, model: Callable[[Any, Any], Any] | None
) -> Policy:
    """The policy of what `policy_as_plain` gave. No code runs because it names it.

    place: where it was read, for errors. model: the function that makes the module, for one of a user's own.

    Raises:
        CheckpointError: it is damaged, or of a user's own module and `model` is not given.
    """
    from flowrl.rl.policy import Policy

    with damage(place):
        named = said["spec"]["model"]
    if named is not None and model is None:
        raise CheckpointError(
            f"the policy in {place} is of the module {named}, and a file may not choose what code runs: give the "
            "function yourself: load_policy(path, model=...)"
        )
    with damage(place):
        spaces = Spaces(
            _space_from_json(said["observation"], "observation", arrays),
            _space_from_json(said["action"], "action", arrays),
        )
        spec = PolicySpec(**{**said["spec"], "model": None if named is None else model})
        weights = arrays["weights"]
        check_policy(spec, spaces)
        if named is None:
            _check_count(spec, spaces, weights)
    if named is not None:
        # Whatever the user's own function raises is no damage.
        policy = Policy(spec, spaces)
        policy.set_weights(weights)
        return policy
    with damage(place):
        policy = Policy(spec, spaces)
        policy.set_weights(weights)
    return policy


@contextmanager
def damage(place: str) -> Iterator[None]:
    """Whatever goes wrong inside is damage of what was read."""
    try:
        yield
    except Exception as error:
        what = f"{error} is missing" if type(error) is KeyError else str(error) or type(error).__name__
        raise CheckpointError(f"the policy in {place} is damaged: {what}") from error


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
    raise CheckpointError(
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
