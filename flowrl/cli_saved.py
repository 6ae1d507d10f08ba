"""`flowrl resume DIR` and `flowrl eval DIR`: what was saved goes on, or plays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flowrl
from flowrl.errors import text_of
from flowrl.watched import SOLVED_OR_FINISHED, UsageError, check_env, is_usage, started_ray, watched


def resume(args: Sequence[str]) -> int:
    """Goes on with a training; the exit code."""
    from flowrl.continuing import start_of
    from flowrl.flags import ResumeOptions, parse_options
    from flowrl.goals import goal_of
    from flowrl.records import claim

    directory, rest = _directory("resume", args)
    options = parse_options(ResumeOptions, rest, "flowrl resume DIR", "Goes on with a training from a checkpoint.")
    try:
        start = start_of(directory)
        config = start.rebuilt(trust_names=options.trust_names)
        goal = goal_of(config, start, options.total_steps, options.stop_return)
        if options.out is not None and options.out.absolute() != start.out:
            claim(options.out)
    except (OSError, ValueError) as error:  # CheckpointError is one
        raise UsageError(text_of(error)) from error
    check_env(config)
    where = "starting Ray…" if options.backend == "ray" else "in this process"
    print(f"from {start.path} at {start.env_steps:,} steps; {where}", flush=True)
    backend: Any = flowrl.Local()
    if options.backend == "ray":
        backend = started_ray(getattr(config, "num_workers", 1))
    how = {**goal, "out": options.out, "resume": start.path, "trust_pickles": options.trust_pickles}
    return watched(config, how, backend)


def evaluate(args: Sequence[str]) -> int:
    """Plays whole episodes with a saved policy, and prints what it came to."""
    from flowrl.flags import EvalOptions, parse_options
    from flowrl.playing import evaluate_saved

    directory, rest = _directory("eval", args)
    options = parse_options(EvalOptions, rest, "flowrl eval DIR", "Plays whole episodes with a saved policy.")
    if options.episodes < 1:
        raise UsageError(f"--episodes must be at least 1, got {options.episodes}")
    try:
        found = evaluate_saved(
            directory, episodes=options.episodes, policy=options.policy, env=options.env, seed=options.seed,
            deterministic=not options.sample, trust_names=options.trust_names,
        )  # fmt: skip
    except (flowrl.CheckpointError, FileNotFoundError, LookupError) as error:
        raise UsageError(text_of(error)) from error
    except Exception as error:
        if is_usage(error, options.env):
            raise UsageError(text_of(error)) from error
        raise
    print(found)
    for name, of_policy in found.policies.items():
        print(f"{name}: {of_policy}")
    return SOLVED_OR_FINISHED


def _directory(command: str, args: Sequence[str]) -> tuple[str, Sequence[str]]:
    if args and args[0] in ("--help", "-h"):
        return "", args
    if not args or args[0].startswith("-"):
        raise UsageError(f"{command} needs a directory before its flags: a checkpoint, or the --out of a training")
    return args[0], args[1:]
