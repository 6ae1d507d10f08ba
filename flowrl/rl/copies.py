"""The copies of one environment: made, wrapped, and joined into a vector as the options say."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from flowrl.errors import add_note
from flowrl.rl.located import CONSTRUCTOR, Located, fault_of, raise_own
from flowrl.rl.video import Recording, record
from flowrl.rl.wrappers import EnvOptions, wrap

Env = gymnasium.Env[Any, Any]
Vector = VectorEnv[Any, Any, Any]
ENVPOOL, ATARI = "envpool:", "ALE/"
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


@dataclass(frozen=True)
class Copies:
    """A copy for each context, of one environment; `vector` makes them. `halved`: there are others."""

    name: str
    kwargs: dict[str, Any]
    contexts: tuple[EnvContext, ...]
    options: EnvOptions
    recording: Recording | None = None
    halved: bool = False

    def vector(self, source: str | Callable[..., Any]) -> Vector:
        """The vector of copies of a registered id, an EnvPool task, or what a factory makes."""
        if not isinstance(source, str):
            return self._manufactured(source)
        if source.startswith(ENVPOOL):
            self._refuse_options("EnvPool's environments are", recorded="no video can be made")
            return _envpool(source.removeprefix(ENVPOOL), len(self.contexts), self.kwargs, self.contexts[0].seed)
        return self._registered(source)

    def _registered(self, env_id: str) -> Vector:
        if env_id.startswith(ATARI):
            _register_atari(env_id)
        try:
            spec = gymnasium.spec(env_id)
        except gymnasium.error.Error as error:
            raise UnknownEnvironment(
                f"no environment {env_id!r} is registered with Gymnasium; {_nearest(env_id, gymnasium.registry)}"
            ) from error
        own = spec.vector_entry_point is not None and not spec.additional_wrappers
        asked = self.options.vector == "entry_point"
        if asked or (self.options.vector == "auto" and own and self.options.plain and self.recording is None):
            if not own:
                raise ValueError(f"{env_id!r} has no vector entry point; vector='sync' or 'async' can step its copies")
            self._refuse_options(f"the vector environment of {env_id!r} is", recorded="vector='sync' can be recorded")
            return gymnasium.make_vec(
                env_id, len(self.contexts), vectorization_mode="vector_entry_point", **self.kwargs
            )
        kwargs = dict(self.kwargs)
        if self.options.atari is not None and "frameskip" in spec.kwargs:
            kwargs.setdefault("frameskip", 1)  # the preprocessing skips
        return self._vectorized(lambda ctx: gymnasium.make(spec, **kwargs, **self._render_mode(ctx)))

    def _manufactured(self, factory: Callable[..., Any]) -> Vector:
        takes = _parameters(factory)

        def make(ctx: EnvContext) -> Any:
            mode = self._render_mode(ctx) if "render_mode" in takes else {}
            return factory(**self.kwargs, **mode, **({"ctx": ctx} if "ctx" in takes else {}))

        if self.options.vector == "async":
            return self._vectorized(make)
        first = self._made(make, self.contexts[0])
        if isinstance(first, VectorEnv):
            return self._own_vector(first)
        if self.options.vector == "entry_point":
            raise ValueError(
                f"factory {self.name} makes single environments, so there is no vector entry point; vector='sync' or "
                f"'async' can step its copies"
            )
        if self.options.apart:
            with suppress(Exception):  # it was made to see what the factory makes
                first.close()
            return self._vectorized(make)
        ready = {self.contexts[0]: first}
        return self._vectorized(lambda ctx: ready.pop(ctx) if ctx in ready else make(ctx))

    def _own_vector(self, vector: Vector) -> Vector:
        if self.halved:
            raise ValueError(
                f"the VectorEnv of factory {self.name} is one piece, so EnvOptions(double_buffer=True) cannot step a "
                f"half of it; give a factory of single environments, an id, or leave double_buffer out"
            )
        count = len(self.contexts)
        if vector.num_envs != count:
            raise ValueError(
                f"factory {self.name} made a VectorEnv of {vector.num_envs} environments, but num_envs is {count}; "
                f"set num_envs={vector.num_envs}"
            )
        self._refuse_options(f"the VectorEnv of factory {self.name} is", recorded="no video can be made")
        base = vector.unwrapped
        if isinstance(base, SyncVectorEnv):
            base.envs = [env if isinstance(env, Located) else Located(env, n) for n, env in enumerate(base.envs)]
        return vector

    def _vectorized(self, make: Callable[[EnvContext], Any]) -> Vector:
        # Observations are copied into the fragment at once, so the vector need not copy them too.
        settings = {"copy": False, "autoreset_mode": MODES[self.options.autoreset], **self.options.vector_kwargs}
        if self.options.apart:
            makers = [partial(self._located, make, ctx, apart=True) for ctx in self.contexts]
            try:
                return AsyncVectorEnv(makers, **settings)
            except Exception as error:
                fault = fault_of(error, None, self.name, "constructor", self.contexts[0].env_index)
                if fault.kind == "exit":
                    add_note(fault.error, f"{CONSTRUCTOR} {self.contexts[0].env_index} or one behind it")
                raise_own(fault)
        remaining = iter([self._located(make, ctx) for ctx in self.contexts])
        vector = SyncVectorEnv([lambda: next(remaining)] * len(self.contexts), **settings)
        vector.env_fns = ()  # used up; they would keep the vector from being pickled
        return vector

    def _located(self, make: Callable[[EnvContext], Any], ctx: EnvContext, *, apart: bool = False) -> Located:
        env = self._made(make, ctx)
        if not isinstance(env, gymnasium.Env):
            kind = type(env).__name__
            if isinstance(env, VectorEnv):
                kind += "; a vector of one's own is stepped with vector='auto'"
            raise TypeError(f"factory {self.name} must return a gymnasium.Env or VectorEnv, it returned {kind}")
        if self.recording is not None and ctx.env_index == 0:
            env = record(env, self.recording, self.name)
        return Located(wrap(env, self.options), ctx.env_index, apart=apart)

    def _made(self, make: Callable[[EnvContext], Any], ctx: EnvContext) -> Any:
        try:
            return make(ctx)
        except Exception as error:
            add_note(error, f"{CONSTRUCTOR} {ctx.env_index}")
            raise

    def _render_mode(self, ctx: EnvContext) -> dict[str, Any]:
        recorded = self.recording is not None and ctx.env_index == 0
        return {"render_mode": "rgb_array"} if recorded and "render_mode" not in self.kwargs else {}

    def _refuse_options(self, what: str, *, recorded: str) -> None:
        """Nothing, if a vector environment that comes whole can do all that is asked for."""
        if self.recording is not None:
            raise ValueError(f"{what} one piece, so {recorded}")
        names = [*self.options.wraps, *(["vector_kwargs"] if self.options.vector_kwargs else [])]
        names += ["autoreset"] if self.options.autoreset != "next_step" else []
        names += ["vector"] if self.options.vector in ("sync", "async") else []
        if names:
            raise ValueError(
                f"{what} one piece that is made with its own arguments, so EnvOptions({', '.join(names)}) cannot "
                f"change it: give it what it understands in env_kwargs, or name single environments"
            )


def _envpool(task: str, num_envs: int, kwargs: dict[str, Any], seed: int) -> Vector:
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


def _register_atari(env_id: str) -> None:
    if env_id in gymnasium.registry:
        return
    try:
        import ale_py
    except ImportError as error:
        raise ImportError(
            f"environment {env_id!r} needs ale-py, which is not installed: pip install 'flowrl[atari]'"
        ) from error
    gymnasium.register_envs(ale_py)


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(map(repr, near))}?" if near else "is the package that registers it imported?"


def _parameters(factory: Callable[..., Any]) -> frozenset[str]:
    try:
        return frozenset(inspect.signature(factory).parameters)
    except ValueError:  # some built-in callables have no signature
        return frozenset()
