"""Reproduction bundles: what led to an environment's fault as one file without pickle, written and read."""

from __future__ import annotations

import inspect
import json
import logging
import platform
import re
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any
from uuid import uuid4

import gymnasium
import numpy as np
import numpy.typing as npt

import flowrl
from flowrl.errors import text_of
from flowrl.rl.located import Fault
from flowrl.rl.wrappers import EnvOptions

FORMAT = 1
KEY = "flowrl_crash"
MOST = 20  # bundles of one worker; those that come later say nothing new
_log = logging.getLogger("flowrl")


@dataclass(frozen=True)
class Place:
    """Where a fault was: all that is needed to make the environment again, but for its constructor's own chance."""

    env: str | Callable[..., Any]
    env_kwargs: Mapping[str, Any] | None
    options: EnvOptions
    worker_index: int
    num_workers: int
    num_envs: int
    entropy: Any
    spawn_key: tuple[int, ...]


@dataclass(frozen=True)
class Way:
    """What was played until the fault.

    actions: (R, M, ...) as environments take them, since the seeded reset at the worker's step `at_step`; where that is
        None only since a reset without a seed, before which the environment's generator had the state `generator`. Both
        None: the way cannot be played again from its beginning.
    agents: for several agents, the actions by agent, step by step, since the episode's reset.
    step: of the episode. action: the last.
    """

    actions: npt.NDArray[Any]
    at_step: int | None = None
    generator: Mapping[str, Any] | None = None
    step: int = 0
    action: Any = None
    agents: list[list[list[Any]]] | None = None


@dataclass(frozen=True)
class Crash:
    """What a bundle says: `about` as JSON, and the actions (R, M, ...)."""

    about: dict[str, Any]
    actions: npt.NDArray[Any]

    def __str__(self) -> str:
        about, error = self.about, self.about["error"]
        which = "environments" if about["environment"] is None else f"environment {about['environment']}"
        return (
            f"{about['env']}, {which} of worker {about['worker_index']}: {error['type']} in {about['call']}, at step "
            f"{about['step']} of its episode, seed {about['seed']}, action {about['action']}; flowrl "
            f"{about['flowrl']}, Python {about['python']}, NumPy {about['numpy']}, Gymnasium {about['gymnasium']}"
        )


def write_crash(folder: str | PathLike[str], fault: Fault, place: Place, way: Way) -> Path | None:
    """The bundle's path, or None where it cannot be written; the reason is logged."""
    from safetensors.numpy import save_file

    about = _about(fault, place, way)
    slug = re.sub(r"[^A-Za-z0-9]+", "-", about["env"]).strip("-")[-40:]
    which = "all" if fault.env is None else str(fault.env)
    path = Path(folder) / f"{slug}-worker{place.worker_index}-env{which}-{uuid4().hex[:8]}.crash"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(".part")
        save_file({"actions": np.ascontiguousarray(way.actions)}, aside, metadata={KEY: json.dumps(about)})
        aside.rename(path)
    except Exception as error:  # a fault is told in any case
        _log.warning("no reproduction of a fault could be written to %s: %s", folder, text_of(error))
        return None
    return path


def read_crash(path: str | PathLike[str]) -> Crash:
    """What a bundle says. Nothing in it is run.

    Raises:
        ValueError: it is no bundle, damaged, or of a newer format.
        OSError: it cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    Path(path).open("rb").close()
    try:
        with safe_open(str(path), framework="np") as file:
            about = json.loads((file.metadata() or {})[KEY])
            actions = file.get_tensor("actions")
        found = about["format"]
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise ValueError(f"{path} is no bundle of a crash, or damaged: {text_of(error)}") from error
    if found != FORMAT:
        raise ValueError(f"{path} has format {found!r}; this version of flowrl reads format {FORMAT}")
    return Crash(about, actions)


def _about(fault: Fault, place: Place, way: Way) -> dict[str, Any]:
    error = fault.error
    trace = "".join(traceback.format_exception(error))
    kwargs, unwritable = _written(place.env_kwargs or {})
    options = asdict(EnvOptions(frame_skip=place.options.frame_skip, frame_stack=place.options.frame_stack))
    kept = {name: options[name] for name in ("frame_skip", "frame_stack")}
    atari = place.options.atari
    return {
        "format": FORMAT,
        "flowrl": flowrl.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "gymnasium": gymnasium.__version__,
        "env": name_of(place.env),
        "factory": not isinstance(place.env, str),
        "env_kwargs": kwargs,
        "unwritable_kwargs": unwritable,
        "options": {
            **kept,
            "atari": None if atari is None else dict(atari),
            "autoreset": place.options.autoreset,
            "vector": place.options.vector,
        },
        "wrappers": [name_of(wrapper) for wrapper in place.options.wrappers],
        "timeout_s": place.options.env_timeout_s,
        "worker_index": place.worker_index,
        "num_workers": place.num_workers,
        "num_envs": place.num_envs,
        "environment": fault.env,
        "entropy": place.entropy,
        "spawn_key": list(place.spawn_key),
        "seed": fault.seed,
        "at_step": way.at_step,
        "generator": _plain_or_none(way.generator),
        "agents": way.agents,
        "kind": fault.kind,
        "call": fault.call,
        "step": way.step,
        "action": np.asarray(way.action).tolist() if way.agents is None else way.action,
        "exit_code": fault.exit_code,
        "error": {
            "type": f"{type(error).__module__}.{type(error).__qualname__}",
            "message": text_of(error),
            "notes": [str(note) for note in getattr(error, "__notes__", ())],
            "traceback": trace,
        },
    }


def name_of(made: Any) -> str:
    """An id as it is, a factory or class as "module:qualified.name"."""
    if isinstance(made, str):
        return made
    plain = inspect.unwrap(getattr(made, "func", made))
    return f"{getattr(plain, '__module__', '?')}:{getattr(plain, '__qualname__', type(plain).__qualname__)}"


def _written(kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Keyword arguments that JSON holds, and how the others look."""
    kept: dict[str, Any] = {}
    others: dict[str, str] = {}
    for name, value in kwargs.items():
        try:
            same = json.loads(json.dumps(value))
        except (TypeError, ValueError):
            others[name] = repr(value)
        else:
            kept[name] = same
    return kept, others


def _plain_or_none(state: Mapping[str, Any] | None) -> Any:
    try:
        return None if state is None else json.loads(json.dumps(state))
    except TypeError:  # a generator whose state is an array
        return None
