"""A reproduction bundle played again: the same environment, seed and actions, up to the same fault or past it."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from time import monotonic
from typing import Any

import numpy as np

from flowrl.errors import text_of
from flowrl.rl.agents_env import AgentsEnv
from flowrl.rl.checked import ObsCheck
from flowrl.rl.crashes import Crash, read_crash
from flowrl.rl.envs import EnvSource, make_agents_env, make_vector_env
from flowrl.rl.vector import VectorSource
from flowrl.rl.wrappers import EnvOptions, Vectorization

LOOK_S = 0.05


class CannotReplay(ValueError):  # noqa: N818  (as Gymnasium's own)
    """A bundle cannot be played again as it was asked for; says what to give."""


@dataclass(frozen=True)
class Replayed:
    """Whether the same fault came at the same place, the error that came (None where none travels), and one line."""

    reproduced: bool
    error: Exception | None
    said: str


@dataclass
class Progress:
    """How far a replay is: in which call, of which row (from 0; -1: none yet)."""

    call: str = "constructor"
    row: int = -1
    since: float = field(default_factory=monotonic)
    error: Exception | None = None

    def enters(self, call: str, row: int = -1) -> None:
        """The next call begins."""
        self.call, self.row, self.since = call, row, monotonic()


def replay_crash(
    path: str | PathLike[str],
    *,
    env: EnvSource | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    env_options: EnvOptions | None = None,
    allow_import: bool = False,
) -> Replayed:
    """What comes of playing a bundle again, in this process; one whose environment ended its process in a child.

    env, env_kwargs, env_options: in place of what the bundle names, where that cannot be imported or was not written.
    allow_import: whether factories and wrappers that the bundle names may be imported, which runs their code.

    Raises:
        ValueError: the file is no bundle.
        CannotReplay: the environment cannot be made from what the bundle says, or the way to the fault is not known.
    """
    crash = read_crash(path)
    make = _maker(crash, env, env_kwargs, env_options, allow_import)
    if crash.about["kind"] == "exit":
        return _in_a_child(crash, make)
    progress = Progress()
    if crash.about["kind"] == "timeout":
        return _with_a_deadline(crash, make, progress)
    _play(crash, make, progress)
    return _judged(crash, progress)


Make = Callable[[], "VectorSource | AgentsEnv"]


def _maker(
    crash: Crash,
    env: EnvSource | None,
    env_kwargs: Mapping[str, Any] | None,
    env_options: EnvOptions | None,
    allow_import: bool,
) -> Make:
    about = crash.about
    named = [about["env"]] if env is None and ":" in about["env"] else []
    if about["wrappers"] and env_options is None:
        named += about["wrappers"]
    hidden = [name for name in named if "<" in name or name.startswith("__main__:")]
    if hidden:
        raise CannotReplay(
            f"the bundle names {', '.join(hidden)}, which no import finds: replay it in Python, with "
            "flowrl.rl.replay_crash.replay_crash(path, env=..., env_options=...)"
        )
    if named and not allow_import:
        raise CannotReplay(
            f"the bundle names {', '.join(named)}, and a file may not choose what code runs: look at it, then say "
            "--allow-import (allow_import=True)"
        )
    if about["unwritable_kwargs"] and env_kwargs is None:
        shown = ", ".join(f"{name}={value}" for name, value in about["unwritable_kwargs"].items())
        raise CannotReplay(
            f"keyword arguments of the environment could not be written to the bundle ({shown}): replay it in Python, "
            "with flowrl.rl.replay_crash.replay_crash(path, env_kwargs=...)"
        )
    if about["agents"] is None and about["at_step"] is None and about["generator"] is None and crash.actions.size:
        raise CannotReplay(
            "the way to the fault is not known from its beginning: more was played since the environment's seed than "
            "is kept, and the state of its random numbers could not be read"
        )
    source = about["env"] if env is None else env
    kwargs = about["env_kwargs"] if env_kwargs is None else env_kwargs
    seeds = np.random.SeedSequence(about["entropy"], spawn_key=tuple(about["spawn_key"]))
    one = about["environment"]
    if about["agents"] is not None:
        return lambda: make_agents_env(
            source, kwargs, worker_index=about["worker_index"], num_workers=about["num_workers"], env_index=one,
            seed=int(seeds.generate_state(1)[0] >> 1),
        )  # fmt: skip
    options = _options(about, env_options, allow_import)
    return lambda: make_vector_env(
        source, about["num_envs"], env_kwargs=kwargs, options=options, worker_index=about["worker_index"],
        num_workers=about["num_workers"], seeds=seeds, half=None if one is None else range(one, one + 1),
    )  # fmt: skip


def _options(about: Mapping[str, Any], given: EnvOptions | None, allow_import: bool) -> EnvOptions:
    """Those of the bundle, or those given; in this process, and without a second bundle."""
    vector: Vectorization = "auto" if about["environment"] is None else "sync"
    if given is None:
        from importlib import import_module

        given = EnvOptions(**{name: value for name, value in about["options"].items() if name != "vector"})
        if about["wrappers"] and allow_import:
            found = []
            for name in about["wrappers"]:
                module, _, path = name.partition(":")
                wrapper: Any = import_module(module)
                for part in path.split("."):
                    wrapper = getattr(wrapper, part)
                found.append(wrapper)
            given = replace(given, wrappers=tuple(found))
    return replace(given, vector=vector, env_timeout_s=None, crash_dir=None, double_buffer=False, vector_kwargs={})


def _play(crash: Crash, make: Make, progress: Progress) -> None:
    """Plays to the end, or to the first error, which `progress` then has."""
    try:
        for call, row in _calls(crash, make):
            progress.enters(call, row)
    except Exception as error:
        progress.error = error


def _calls(crash: Crash, make: Make) -> Iterator[tuple[str, int]]:
    """Plays a bundle; before each call it says which."""
    about = crash.about
    yield "constructor", -1
    env = make()
    try:
        yield "reset", -1
        if isinstance(env, AgentsEnv):
            yield from _agents_calls(env, about)
            return
        _check(env.reset(about["at_step"] or 0))
        if about["generator"] is not None and about["at_step"] is None:
            for one in env.vector.unwrapped.envs:  # type: ignore[attr-defined]
                one.unwrapped.np_random.bit_generator.state = about["generator"]
            env.vector.reset()
        for row, actions in enumerate(crash.actions):
            yield "step", row
            obs_N, rewards_N, _, _, finals = env.step(actions)
            _check(obs_N)
            for _, final in finals:
                _check(final)
            if not np.isfinite(np.asarray(rewards_N, np.float32)).all():
                raise FloatingPointError(f"rewards {rewards_N} at row {row}")
    finally:
        env.close()


def _agents_calls(env: AgentsEnv, about: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    moment = env.reset(about["seed"])
    for row, given in enumerate(about["agents"]):
        yield "step", row
        actions = {}
        for agent, action in given:
            space = env.spaces(agent).action
            value = np.asarray(action, space.dtype)
            actions[agent] = value if value.ndim else value[()]
        moment = env.step(actions)
        for agent, obs in moment.acting.items():
            ObsCheck(env.spaces(agent).observation)(obs)
            _check(obs)
        if not np.isfinite([*moment.rewards.values(), 0.0]).all():
            raise FloatingPointError(f"rewards {moment.rewards} at row {row}")
        if moment.over and row + 1 < len(about["agents"]):
            raise RuntimeError(f"the episode has ended with step {row + 1}, and the bundle goes on")


def _check(obs: Any) -> None:
    """Nothing, if every float of a (nested) observation is finite."""
    if isinstance(obs, Mapping):
        obs = tuple(obs.values())
    if isinstance(obs, tuple):
        for part in obs:
            _check(part)
        return
    array = np.asarray(obs)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise FloatingPointError(f"an observation holds {array[~np.isfinite(array)][0]}: {array}")


def _judged(crash: Crash, progress: Progress) -> Replayed:
    about = crash.about
    if progress.error is None:
        return Replayed(False, None, f"nothing failed: {progress.row + 1} steps went well")
    error = progress.error
    name = f"{type(error).__module__}.{type(error).__qualname__}"
    where = "in the same place" if _same_place(crash, progress) else f"elsewhere, in {progress.call}"
    same = name == about["error"]["type"] or (about["kind"] == "not_finite" and isinstance(error, FloatingPointError))
    what = "the same error" if same else f"another error ({name})"
    return Replayed(same and _same_place(crash, progress), error, f"{what} came {where}: {text_of(error)}")


def _same_place(crash: Crash, progress: Progress) -> bool:
    about = crash.about
    if about["call"] == "constructor":
        return progress.call == "constructor"
    steps = len(crash.actions) if about["agents"] is None else len(about["agents"])
    return progress.row == steps - 1


def _with_a_deadline(crash: Crash, make: Make, progress: Progress) -> Replayed:
    """In a thread of its own, which is left where it hangs."""
    timeout_s = crash.about["timeout_s"]
    thread = threading.Thread(target=_play, args=(crash, make, progress), daemon=True)
    thread.start()
    while thread.is_alive():
        if progress.call != "constructor" and monotonic() - progress.since > timeout_s:
            same = _same_place(crash, progress)
            where = "in the same place" if same else f"elsewhere, at row {progress.row}"
            return Replayed(same, None, f"{progress.call} takes longer than {timeout_s:g} s {where}")
        thread.join(LOOK_S)
    return replace(_judged(crash, progress), reproduced=False)


def _in_a_child(crash: Crash, make: Make) -> Replayed:
    """In a process that may end."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(crash, make, there))
    child.start()
    there.close()
    rows = -1
    try:
        while True:
            told = here.recv()
            if isinstance(told, str):
                child.join()
                return Replayed(False, None, told)
            rows = told
    except EOFError:
        child.join()
    same = _same_place(crash, Progress("step", rows))
    where = "in the same place" if same else f"elsewhere, at row {rows}"
    return Replayed(same, None, f"the process ended {where}, with exit code {child.exitcode}")


def _child(crash: Crash, make: Make, told: Any) -> None:
    progress = Progress()
    try:
        for call, row in _calls(crash, make):
            progress.enters(call, row)
            told.send(row)
    except Exception as error:
        progress.error = error
    told.send(_judged(crash, progress).said)
