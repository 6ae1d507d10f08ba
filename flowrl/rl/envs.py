"""Environments: whatever a user names (an id, a factory, a path) becomes one vector of seeded copies."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from flowrl.errors import add_note
from flowrl.rl.spaces import check_spaces
from flowrl.rl.spec import Spaces
from flowrl.rl.vector import Located, VectorSource, env_seeds

EnvSource = str | Callable[..., Any]
Autoreset = Literal["next_step", "same_step", "disabled"]
ENVPOOL = "envpool:"
MODES = {
    "next_step": AutoresetMode.NEXT_STEP,
    "same_step": AutoresetMode.SAME_STEP,
    "disabled": AutoresetMode.DISABLED,
}


class UnknownEnvironment(ValueError):  # noqa: N818  (as Gymnasium's own)
    """No environment of this name is registered; the message suggests the nearest."""


@dataclass(frozen=True)
class EnvContext:
    """What a factory with a parameter named `ctx` is told about the environment that it makes.

    worker_index, num_workers: which rollout worker of how many; env_index: which environment of this
    worker; seed: an integer of this environment's own, for what its `reset(seed=)` does not reach.
    """

    worker_index: int = 0
    num_workers: int = 1
    env_index: int = 0
    seed: int = 0


def make_vector_env(
    env: EnvSource,
    num_envs: int = 1,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    worker_index: int = 0,
    num_workers: int = 1,
    seeds: np.random.SeedSequence | None = None,
    autoreset: Autoreset = "next_step",
) -> VectorSource:
    """`num_envs` copies of an environment as one.

    Args:
        env: a Gymnasium id; a factory of an `Env`, called once a copy, or of a whole `VectorEnv`;
            "pkg.module:Name" of a factory or class; or "envpool:Name". A factory with a parameter
            named `ctx` is given an `EnvContext`.
        env_kwargs: keyword arguments of the constructor or factory.
        seeds: the stream that all environments are seeded from, each its own where that is possible.
        autoreset: how copies that are vectorized here reset; a vector environment of its own keeps its way.

    Raises:
        UnknownEnvironment: no such id; names the nearest.
        UnsupportedSpace: no policy can observe or act in its spaces.
        ImportError: EnvPool or the named module is not installed.
        Whatever the constructor raises, with a note which environment it was.
    """
    if num_envs < 1:
        raise ValueError(f"num_envs must be at least 1, got {num_envs}")
    seeds = np.random.SeedSequence() if seeds is None else seeds
    name, kwargs, own_seeds = describe(env), dict(env_kwargs or {}), env_seeds(seeds, num_envs)
    try:
        source = _resolve(env)
        if isinstance(source, str) and source.startswith(ENVPOOL):
            vector = _envpool(source.removeprefix(ENVPOOL), num_envs, kwargs, own_seeds[0])
        elif isinstance(source, str):
            vector = _registered(source, num_envs, kwargs, autoreset)
        else:
            contexts = [EnvContext(worker_index, num_workers, i, seed) for i, seed in enumerate(own_seeds)]
            vector = _manufactured(source, contexts, kwargs, autoreset, name)
    except Exception as error:
        add_note(error, f"while making environment {name} of worker {worker_index}")
        raise
    try:
        check_spaces(Spaces(vector.single_observation_space, vector.single_action_space), f"environment {name}")
        seeded = isinstance(source, str) and source.startswith(ENVPOOL)
        return VectorSource(vector, None if seeded else seeds, name)
    except ValueError:
        vector.close()
        raise


def env_spaces(env: EnvSource, env_kwargs: Mapping[str, Any] | None = None) -> Spaces:
    """The spaces of an environment, made once and closed again."""
    source = make_vector_env(env, env_kwargs=env_kwargs, seeds=np.random.SeedSequence(0))
    source.close()
    return source.spaces


def describe(env: EnvSource) -> str:
    """A name for messages: the id, or the factory's qualified name."""
    return repr(env) if isinstance(env, str) else str(getattr(env, "__qualname__", None) or repr(env))


def _resolve(env: EnvSource) -> EnvSource:
    """A factory, or the string where it names a registered id or an EnvPool task."""
    if not isinstance(env, str):
        if not callable(env):
            raise TypeError(
                f"env must be a Gymnasium id, a factory or 'pkg.module:Name', got {type(env).__name__} {env!r}; "
                f"wrap an instance in a factory, so that every worker makes its own: lambda: ..."
            )
        return env
    module, colon, name = env.partition(":")
    if not colon or env.startswith(ENVPOOL) or "/" in module:
        return env
    found = getattr(importlib.import_module(module), name, None)
    if callable(found):
        return found
    # Gymnasium's own "module:Id-v0" imports the module for what it registers.
    if name in gymnasium.registry:
        return name
    raise UnknownEnvironment(f"module {module!r} has no factory {name!r}, nor does it register such an environment")


def _registered(env_id: str, num_envs: int, kwargs: dict[str, Any], autoreset: Autoreset) -> VectorEnv[Any, Any, Any]:
    try:
        spec = gymnasium.spec(env_id)
    except gymnasium.error.Error as error:
        raise UnknownEnvironment(
            f"no environment {env_id!r} is registered with Gymnasium; {_nearest(env_id, gymnasium.registry)}"
        ) from error
    if spec.vector_entry_point is not None and not spec.additional_wrappers:
        return gymnasium.make_vec(env_id, num_envs, vectorization_mode="vector_entry_point", **kwargs)
    return _vectorize([Located(gymnasium.make(env_id, **kwargs), i) for i in range(num_envs)], autoreset)


def _envpool(task: str, num_envs: int, kwargs: dict[str, Any], seed: int) -> VectorEnv[Any, Any, Any]:
    try:
        import envpool
    except ImportError as error:
        raise ImportError(
            f"environment 'envpool:{task}' needs EnvPool, which is not installed: pip install 'flowrl[fast]'"
        ) from error
    tasks = envpool.list_all_envs()
    if task not in tasks:
        raise UnknownEnvironment(f"EnvPool has no environment {task!r}; {_nearest(task, tasks)}")
    return envpool.make(task, env_type="gymnasium", num_envs=num_envs, seed=seed, **kwargs)


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(map(repr, near))}?" if near else "is the package that registers it imported?"


def _manufactured(
    factory: Callable[..., Any], contexts: list[EnvContext], kwargs: dict[str, Any], autoreset: Autoreset, name: str
) -> VectorEnv[Any, Any, Any]:
    takes_context = _has_parameter(factory, "ctx")
    envs: list[gymnasium.Env[Any, Any]] = []
    for ctx in contexts:
        try:
            made = factory(**kwargs, ctx=ctx) if takes_context else factory(**kwargs)
        except Exception as error:
            add_note(error, f"in the constructor of environment {ctx.env_index}")
            raise
        if isinstance(made, VectorEnv):
            if made.num_envs != len(contexts):
                raise ValueError(
                    f"factory {name} made a VectorEnv of {made.num_envs} environments, but num_envs is "
                    f"{len(contexts)}; set num_envs={made.num_envs}"
                )
            return made
        if not isinstance(made, gymnasium.Env):
            raise TypeError(
                f"factory {name} must return a gymnasium.Env or VectorEnv, it returned {type(made).__name__}"
            )
        envs.append(Located(made, ctx.env_index))
    return _vectorize(envs, autoreset)


def _has_parameter(factory: Callable[..., Any], name: str) -> bool:
    try:
        return name in inspect.signature(factory).parameters
    except ValueError:  # some built-in callables have no signature
        return False


def _vectorize(envs: list[gymnasium.Env[Any, Any]], autoreset: Autoreset) -> VectorEnv[Any, Any, Any]:
    remaining = iter(envs)
    # Observations are copied into the fragment at once, so the vector need not copy them too.
    vector = SyncVectorEnv([lambda: next(remaining)] * len(envs), copy=False, autoreset_mode=MODES[autoreset])
    vector.env_fns = ()  # used up; they would keep the vector from being pickled
    return vector
