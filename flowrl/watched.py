"""Training as the command line runs it: what is wrong said before anything starts, the end told, an exit code."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

import flowrl
from flowrl.errors import text_of

if TYPE_CHECKING:
    from flowrl.training import Progress, TrainResult

SOLVED_OR_FINISHED, NOT_REACHED, BAD_USAGE, FAILED, INTERRUPTED, CLOSED_PIPE = 0, 1, 2, 70, 130, 141
TERMINATED = 128 + signal.SIGTERM


class UsageError(Exception):
    """What was asked for cannot be done; one line says why and what to do."""


def check_env(config: Any) -> None:
    """Makes the environment once, so that what is wrong with it is said before any actor starts."""
    if not hasattr(config, "env"):
        return
    envs = import_module("flowrl.rl.envs")
    try:
        if getattr(config, "several_agents", False):
            envs.make_agents_env(config.env, config.env_kwargs).close()
        else:
            envs.env_spaces(config.env, getattr(config, "env_kwargs", None))
    except Exception as error:
        if is_usage(error, config.env):
            raise UsageError(text_of(error)) from error
        raise


def is_usage(error: Exception, env: Any) -> bool:
    """Whether what was named as the environment is at fault, and not a program."""
    envs, spaces = import_module("flowrl.rl.envs"), import_module("flowrl.rl.spaces")
    if isinstance(error, envs.UnknownEnvironment | spaces.UnsupportedSpace):
        return True
    if isinstance(error, ModuleNotFoundError):  # the very module that was named, or a package around it
        named = str(env).partition(":")[0]
        return error.name is not None and f"{named}.".startswith(f"{error.name}.")
    if isinstance(error, ImportError):
        return str(env).startswith(envs.ENVPOOL)
    return isinstance(error, TypeError) and "unexpected keyword argument" in text_of(error)


def started_ray(workers: int) -> Any:
    """A backend whose Ray is up. In the main thread: Ray's processes end with the thread that started them."""
    from flowrl.backends.protocol import GroupPlan
    from flowrl.backends.ray import Ray

    try:
        first = Ray()
        first.open([GroupPlan("workers", workers, 1.0, 0.0)])
        first.close()
    except flowrl.StartError as error:
        raise UsageError(str(error)) from error
    return Ray()


def watched(config: Any, how: Mapping[str, Any], backend: Any) -> int:
    """Trains as `flowrl.train(config, **how)`, shows how it goes on stdout, and gives the exit code."""
    from flowrl.console import print_end, reached, returned, watcher

    latest: list[Progress] = []
    screen = watcher(sys.stdout)

    def observe(progress: Progress) -> None:
        latest[:] = [progress]
        screen.show(progress)

    try:
        result = _trained(config, {**how, "backend": backend, "observe": observe}, screen)
    except (KeyboardInterrupt, SystemExit) as interrupt:
        if not latest:
            raise
        last = latest[0].history[-1]
        for note in getattr(interrupt, "__notes__", ()):
            print(note)
        print(f"interrupted: {reached(last)}, {returned(last)}", flush=True)
        return INTERRUPTED if isinstance(interrupt, KeyboardInterrupt) else TERMINATED
    print_end(result, how.get("stop_return"))
    return NOT_REACHED if result.solved is False else SOLVED_OR_FINISHED


def _trained(config: Any, how: Mapping[str, Any], screen: Any) -> TrainResult:
    from flowrl.rl.unsupported import UnsupportedSpace
    from flowrl.training import train

    try:
        return train(config, **how, progress=False)
    except (flowrl.StartError, flowrl.GraphError, flowrl.CheckpointError, UnsupportedSpace) as error:
        raise UsageError(text_of(error)) from error  # the last: the environment's actions are none for this algorithm
    finally:
        screen.close()
