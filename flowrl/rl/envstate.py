"""Environments as bytes, so that a resumed worker goes on in the middle of an episode, where they allow it."""

from __future__ import annotations

from typing import Any

import cloudpickle
from gymnasium.utils import EzPickle

from flowrl.checkpoint import Pickled
from flowrl.rl.halves import Halves
from flowrl.rl.vector import VectorSource


def freeze(source: VectorSource | Halves) -> Pickled | None:
    """The environments with their random generators, or None where they cannot be pickled as they stand."""
    vectors = [part.vector for part in _parts(source)]
    for vector in vectors:
        if forgets(vector) or any(forgets(env) for env in getattr(vector.unwrapped, "envs", ())):
            return None
    try:
        return Pickled(cloudpickle.dumps(vectors))
    except Exception:  # whatever an environment of somebody else's raises: a thread, a socket, a window
        return None


def thaw(source: VectorSource | Halves, frozen: Pickled | None) -> bool:
    """Puts the frozen environments in place of those of `source`, which are closed; whether it could.

    Not if there are none, if nobody trusted them, or if only one of both is in halves.
    """
    if frozen is None or frozen.payload is None:
        return False
    parts, vectors = _parts(source), cloudpickle.loads(frozen.payload)
    if len(parts) != len(vectors):
        return False
    for part, vector in zip(parts, vectors, strict=True):
        part.close()
        part.vector = vector
    return True


def _parts(source: VectorSource | Halves) -> tuple[VectorSource, ...]:
    return source.parts if isinstance(source, Halves) else (source,)


def forgets(env: Any) -> bool:
    """Whether pickling keeps only the constructor's arguments: EzPickle's copy is a new environment."""
    while env is not None:
        if isinstance(env, EzPickle) and type(env).__getstate__ is EzPickle.__getstate__:
            return True
        env = env.__dict__.get("env")
    return False
