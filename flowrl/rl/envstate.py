"""Environments as bytes, so that a resumed worker goes on in the middle of an episode, where they allow it."""

from __future__ import annotations

from typing import Any

import cloudpickle
from gymnasium.utils import EzPickle

from flowrl.rl.vector import VectorSource


def freeze(source: VectorSource) -> bytes | None:
    """The environments with their random generators, or None where they cannot be pickled as they stand."""
    if _forgets(source.vector) or any(_forgets(env) for env in getattr(source.vector.unwrapped, "envs", ())):
        return None
    try:
        return bytes(cloudpickle.dumps(source.vector))
    except Exception:  # whatever an environment of somebody else's raises: a thread, a socket, a window
        return None


def thaw(source: VectorSource, frozen: bytes) -> None:
    """Puts the frozen environments in place of those of `source`, which are closed."""
    vector = cloudpickle.loads(frozen)
    source.close()
    source.vector = vector


def _forgets(env: Any) -> bool:
    """Whether pickling keeps only the constructor's arguments: EzPickle's copy is a new environment."""
    while env is not None:
        if isinstance(env, EzPickle) and type(env).__getstate__ is EzPickle.__getstate__:
            return True
        env = env.__dict__.get("env")
    return False
