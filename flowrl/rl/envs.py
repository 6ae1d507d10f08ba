"""Environments: whatever a user names (an id, a factory, a path) becomes one vector of seeded copies."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, VectorEnv

from flowrl.errors import add_note
from flowrl.numbers import check_whole
from flowrl.rl.agents_env import AgentsEnv, agents_env
from flowrl.rl.copies import ENVPOOL, Copies, EnvContext, UnknownEnvironment
from flowrl.rl.crashes import Place
from flowrl.rl.halves import Halves, check_double_buffer
from flowrl.rl.located import CONSTRUCTOR
from flowrl.rl.spaces import check_spaces
from flowrl.rl.spec import Spaces
from flowrl.rl.vector import VectorSource, env_seeds
from flowrl.rl.video import Recording
from flowrl.rl.watchdog import Watchdog
from flowrl.rl.wrappers import EnvOptions

__all__ = [
    "EnvContext",
    "EnvSource",
    "UnknownEnvironment",
    "describe",
    "env_spaces",
    "make_agents_env",
    "make_vector_env",
]

EnvSource = str | Callable[..., Any]


def make_vector_env(
    env: EnvSource,
    num_envs: int = 1,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    options: EnvOptions = EnvOptions(),  # noqa: B008  (frozen)
    worker_index: int = 0,
    num_workers: int = 1,
    seeds: np.random.SeedSequence | None = None,
    recording: Recording | None = None,
    half: range | None = None,
) -> VectorSource:
    """`num_envs` copies of an environment as one.

    Args:
        env: a Gymnasium id; a factory of an `Env`, called once a copy, or of a whole `VectorEnv`;
            "pkg.module:Name" of a factory or class; or "envpool:Name". A factory with a parameter
            named `ctx` is given an `EnvContext`.
        env_kwargs: keyword arguments of the constructor or factory.
        options: what is put around each copy and how they are stepped together; a vector environment
            of its own keeps its way.
        seeds: the stream that all environments are seeded from, each its own where that is possible.
        recording: a video of environment 0.
        half: only these of the copies, each with the seed that it has among all.

    Raises:
        UnknownEnvironment: no such id; names the nearest.
        UnsupportedSpace: no policy can observe or act in its spaces.
        ImportError: EnvPool, Atari's emulator, MoviePy or the named module is not installed.
        ValueError: a number below 1, or options that a vector environment of its own cannot follow.
        Whatever the constructor raises, with a note which environment it was.
    """
    check_whole("num_envs", num_envs)
    seeds = np.random.SeedSequence() if seeds is None else seeds
    own_seeds, copies = env_seeds(seeds, num_envs), range(num_envs) if half is None else half
    contexts = tuple(EnvContext(worker_index, num_workers, i, own_seeds[i]) for i in copies)
    plan = Copies(describe(env), dict(env_kwargs or {}), contexts, options, recording, halved=half is not None)

    def build() -> VectorEnv[Any, Any, Any]:
        try:
            return plan.vector(_resolve(env))
        except Exception as error:
            add_note(error, f"while making environment {plan.name} of worker {worker_index}")
            raise

    vector = build()
    try:
        check_spaces(Spaces(vector.single_observation_space, vector.single_action_space), f"environment {plan.name}")
        seeded = isinstance(env, str) and env.startswith(ENVPOOL)
        name = plan.name if half is None else f"{plan.name}[{half.start}:{half.stop}]"
        timeout_s = options.env_timeout_s
        watchdog = None if timeout_s is None or type(vector) is AsyncVectorEnv else Watchdog(timeout_s)
        return VectorSource(
            vector, None if seeded else seeds, name, build, first=copies.start, timeout_s=timeout_s, watchdog=watchdog
        )
    except ValueError:
        vector.close()
        raise


@dataclass(frozen=True)
class WorkersEnvironments:
    """The environments of one rollout worker, as `make_vector_env` makes them; called with a stream of seeds."""

    env: EnvSource
    num_envs: int
    env_kwargs: Mapping[str, Any] | None
    options: EnvOptions
    worker_index: int
    num_workers: int

    def __call__(self, seeds: np.random.SeedSequence, half: range | None = None) -> VectorSource:
        """All of them, or a half, as one vector."""
        return make_vector_env(
            self.env,
            self.num_envs,
            env_kwargs=self.env_kwargs,
            options=self.options,
            worker_index=self.worker_index,
            num_workers=self.num_workers,
            seeds=seeds,
            half=half,
        )

    def place(self, seeds: np.random.SeedSequence) -> Place:
        """What these environments are, for who wants to make one of them again."""
        options, key = self.options, tuple(seeds.spawn_key)
        return Place(
            self.env, self.env_kwargs, options, self.worker_index, self.num_workers, self.num_envs, seeds.entropy, key
        )

    def to_sample(self, seeds: np.random.SeedSequence) -> VectorSource | Halves:
        """All of them, in halves if the options say so.

        Raises:
            ValueError: there is only one to be halved, or a factory's own vector.
        """
        check_double_buffer(self.options, self.num_envs)
        if not self.options.double_buffer:
            return self(seeds)
        middle = (self.num_envs + 1) // 2
        first = self(seeds, range(middle))
        try:
            return Halves(first, self(seeds, range(middle, self.num_envs)), describe(self.env))
        except BaseException:
            first.close()
            raise


def make_agents_env(
    env: EnvSource,
    env_kwargs: Mapping[str, Any] | None,
    *,
    worker_index: int = 0,
    num_workers: int = 1,
    env_index: int = 0,
    seed: int = 0,
) -> AgentsEnv:
    """One copy of an environment of several agents.

    env: a factory (with a parameter `ctx` it gets an EnvContext), "pkg.module:Name" of one, or a module of PettingZoo's
        kind, "pkg.module_v1", whose `parallel_env` is taken, else its `env`.

    Raises:
        UnknownEnvironment: no such module, or nothing in it that makes an environment.
        TypeError: it does not follow the protocol (`flowrl.rl.agents_env.AgentsEnv`).
        Whatever the constructor raises, with a note which environment it was.
    """
    factory = _agents_factory(env)
    kwargs = dict(env_kwargs or {})
    try:
        takes = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # of a builtin
        takes = {}  # type: ignore[assignment]
    if "ctx" in takes:
        kwargs["ctx"] = EnvContext(worker_index, num_workers, env_index, seed)
    try:
        return agents_env(lambda: _constructed(factory, kwargs, env_index))
    except Exception as error:
        add_note(error, f"while making environment {describe(env)} of worker {worker_index}")
        raise


def _constructed(factory: Callable[..., Any], kwargs: Mapping[str, Any], env_index: int) -> Any:
    try:
        return factory(**kwargs)
    except Exception as error:
        add_note(error, f"{CONSTRUCTOR} {env_index}")
        raise


def _agents_factory(env: EnvSource) -> Callable[..., Any]:
    if isinstance(env, str) and ":" not in env:
        try:
            module = importlib.import_module(env)
        except ModuleNotFoundError as error:
            raise UnknownEnvironment(
                f"no module {env!r} ({error}); an environment of several agents is a factory, 'pkg.module:Name', or a "
                "module such as 'mpe2.simple_spread_v3' (`pip install 'flowrl[multiagent]'` brings PettingZoo and mpe2)"
            ) from error
        factory = getattr(module, "parallel_env", None) or getattr(module, "env", None)
        if not callable(factory):
            raise UnknownEnvironment(f"module {env!r} has neither parallel_env nor env, which would make one")
        return factory
    found = _resolve(env)
    if isinstance(found, str):
        raise UnknownEnvironment(f"{found!r} is a Gymnasium id, of an environment with one agent")
    return found


def env_spaces(
    env: EnvSource,
    env_kwargs: Mapping[str, Any] | None = None,
    options: EnvOptions = EnvOptions(),  # noqa: B008  (frozen)
) -> Spaces:
    """The spaces of an environment with its wrappers, made once and closed again."""
    source = make_vector_env(env, env_kwargs=env_kwargs, options=options, seeds=np.random.SeedSequence(0))
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
