"""The command line: `flowrl train ALGORITHM`, `resume DIR`, `eval DIR`, `graph ALGORITHM`, `list`, `replay-crash FILE`.

Exit codes: 0 solved or finished, 1 stopped by its limit without reaching --stop-return, 2 bad usage, 70 an exception
while training (an environment's, an operator's; the traceback is printed) or a stdout that takes nothing, 130
interrupted, 143 terminated. Of replay-crash: 0 the same fault came, 1 it did not, 2 the bundle cannot be played.
"""

from __future__ import annotations

import ast
import errno
import math
import os
import re
import secrets
import sys
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import flowrl
from flowrl.errors import text_of
from flowrl.watched import (
    BAD_USAGE,
    CLOSED_PIPE,
    FAILED,
    INTERRUPTED,
    NOT_REACHED,
    SOLVED_OR_FINISHED,
    UsageError,
    check_env,
    started_ray,
    watched,
)

if TYPE_CHECKING:
    from flowrl.flags import TrainOptions

__all__ = ["BAD_USAGE", "FAILED", "INTERRUPTED", "NOT_REACHED", "SOLVED_OR_FINISHED", "algorithms", "main"]

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # of a file or device that takes no more
COMMANDS = ("train", "resume", "eval", "graph", "list", "replay-crash")
USAGE = """usage: flowrl COMMAND

  flowrl train ALGORITHM --stop-return RETURN | --total-steps N [--env ID] [--out DIR] ...
  flowrl resume DIR [--total-steps N] [--stop-return RETURN] ...
  flowrl eval DIR [--episodes N] ...
  flowrl graph ALGORITHM [--mermaid | --svg FILE] ...
  flowrl list
  flowrl replay-crash FILE [--allow-import]
  flowrl --version

flowrl train ALGORITHM --help says all flags of an algorithm."""


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code of a command; what it says is printed."""
    args = list(sys.argv[1:] if argv is None else argv)
    _open_closed_streams()
    try:
        code = _command(args)
        sys.stdout.flush()  # what cannot be written is told here, and not as the interpreter ends
        return code
    except UsageError as error:
        print(f"flowrl: {error}", file=sys.stderr)
        return BAD_USAGE
    except SystemExit as asked:  # of the parser: --help, or a wrong flag
        return int(asked.code or 0)
    except KeyboardInterrupt:
        print("interrupted before the first result", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # `flowrl graph ppo | head`: nobody reads on
        _unwritable_stdout()
        return CLOSED_PIPE
    except Exception as error:
        full = isinstance(error, OSError) and error.errno in FULL
        problem = _unwritable_stdout("\n" if full else "")
        if full and problem is not None:
            print(f"flowrl: stdout cannot be written: {problem}", file=sys.stderr)
        else:
            traceback.print_exc()
        return FAILED


def _unwritable_stdout(tried: str = "") -> str | None:
    """Why stdout does not take `tried`, if so; what is still buffered would raise again, and is dropped."""
    try:
        sys.stdout.write(tried)
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return error.strerror or text_of(error)
    return None


def _open_closed_streams() -> None:
    """`flowrl ... >&-`: Python has None in place of a closed stream, whose number the next open file would get."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  (for as long as the program runs)


def _command(args: list[str]) -> int:
    if args in (["--version"], ["-V"]):
        print(f"flowrl {flowrl.__version__}")
        return SOLVED_OR_FINISHED
    if args and args[0] in ("--help", "-h", "help"):
        print(USAGE)
        return SOLVED_OR_FINISHED
    if not args:
        raise UsageError(f"which command? There are: {', '.join(COMMANDS)}\n{USAGE}")
    command, rest = args[0], args[1:]
    if command not in COMMANDS:
        near = get_close_matches(command, COMMANDS, n=1)
        raise UsageError(
            f"unknown command {command!r}; "
            + (f"did you mean {near[0]!r}? " if near else "")
            + "there are: "
            + ", ".join(COMMANDS)
        )
    if command == "list":
        if rest:
            raise UsageError(f"list takes no arguments, got {' '.join(rest)}")
        print("\n".join(algorithms()))
        return SOLVED_OR_FINISHED
    if command in ("resume", "eval"):
        from flowrl.cli_saved import evaluate, resume

        _find_modules_here()
        return resume(rest) if command == "resume" else evaluate(rest)
    if command == "replay-crash":
        from flowrl.crash_command import replay

        return replay(rest)
    if rest and rest[0] in ("--help", "-h"):
        print(USAGE, "", *algorithms(), sep="\n")
        return SOLVED_OR_FINISHED
    if not rest or rest[0].startswith("-"):
        raise UsageError(f"{command} needs an algorithm before its flags; there are: {', '.join(_configs())}")
    return _train(rest[0], rest[1:]) if command == "train" else _graph(rest[0], rest[1:])


def _configs() -> dict[str, str]:
    from flowrl.algorithms import CONFIGS

    return CONFIGS


def algorithms() -> list[str]:
    """A line an algorithm: its name, what it is and its paper. No algorithm is imported for it."""
    lines = []
    width = max(len(name) for name in _configs())
    for name in _configs():
        about, paper = _about(name)
        lines.append(f"{name:<{width}}  {about}" + (f"  [{paper}]" if paper else ""))
    return lines


def _about(name: str) -> tuple[str, str]:
    """The first line of an algorithm's docstring, and the paper that it names in parentheses."""
    found = find_spec(f"flowrl.algorithms.{name}")
    assert found is not None, f"CONFIGS names {name!r}, which has no module"
    assert found.origin is not None
    text = ast.get_docstring(ast.parse(Path(found.origin).read_text(encoding="utf-8"))) or ""
    first = text.split("\n")[0]
    paper = re.search(r"\s*\((arXiv:[\d.]+)\)", first)
    return (first, "") if paper is None else (first.replace(paper[0], "", 1), paper[1])


def _flags(command: str, name: str, options: type, args: Sequence[str]) -> tuple[Any, Any]:
    """The algorithm's config and the command's options, from flags."""
    from flowrl.training import config_of

    _find_modules_here()
    try:
        config = config_of(name)
        from flowrl.flags import parse

        return parse(config, options, args, f"flowrl {command} {name}", " ".join(filter(None, _about(name))))
    except ValueError as error:
        raise UsageError(str(error)) from error


def _find_modules_here() -> None:
    """As `python script.py` does: modules beside the user are found by "module:Name". Ray gives workers this folder."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def _graph(name: str, args: Sequence[str]) -> int:
    from flowrl.flags import GraphOptions

    config, options = _flags("graph", name, GraphOptions, args)
    if options.mermaid and options.svg is not None:
        raise UsageError("choose one of --mermaid and --svg")
    flow = _flow(config)
    if options.svg is not None:
        try:
            options.svg.write_text(flow.to_svg(), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{options.svg} cannot be written: {error}") from error
        print(options.svg)
    else:
        print(flow.to_mermaid() if options.mermaid else flow.explain())
    return SOLVED_OR_FINISHED


def _flow(config: Any) -> Any:
    try:
        return config.graph()
    except ValueError as error:  # a number out of range; GraphError is one
        raise UsageError(str(error)) from error


def _train(name: str, args: Sequence[str]) -> int:
    from flowrl.flags import TrainOptions

    config, options = _flags("train", name, TrainOptions, args)
    _check_options(options)
    checkpoint_every = _checkpoints(options)
    check_env(config)
    _claim(options.out)
    if options.seed is None:
        options = replace(options, seed=secrets.randbits(32))
    where = "starting Ray…" if options.backend == "ray" else "in this process"
    print(f"seed {options.seed}; {where}", flush=True)
    backend: Any = flowrl.Local()
    with ThreadPoolExecutor(1) as pool:
        shown = pool.submit(_shown, config)  # imports torch, for seconds, of which Ray needs little while it starts
        if options.backend == "ray":
            backend = started_ray(getattr(config, "num_workers", 1))
        shown.result()
    how = {"total_steps": options.total_steps, "stop_return": options.stop_return, "out": options.out}
    return watched(config, {**how, "seed": options.seed, "checkpoint_every": checkpoint_every}, backend)


def _checkpoints(options: TrainOptions) -> Any:
    from flowrl.checkpoint import Checkpoints
    from flowrl.checkpoint.series import BELOW
    from flowrl.continuing import interval_of

    if options.checkpoint_every is None:
        return None
    where = options.checkpoint_dir or (None if options.out is None else options.out / BELOW)
    if where is None:
        raise UsageError("--checkpoint-every needs --out DIR, or --checkpoint-dir, to know where to save")
    try:
        every = interval_of(options.checkpoint_every)
        return Checkpoints(where, keep_last=options.keep_last, keep_best=options.keep_best, **every)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _shown(config: Any) -> None:
    print(_flow(config).explain(), flush=True)


def _claim(out: Path | None) -> None:
    from flowrl.records import claim

    if out is not None:
        try:
            claim(out)
        except OSError as error:
            raise UsageError(f"--out: {error}") from error


def _check_options(options: TrainOptions) -> None:
    if options.stop_return is None and options.total_steps is None:
        raise UsageError(
            "training would never end: give --stop-return RETURN (till solved) or --total-steps N, or both"
        )
    if options.total_steps is not None and options.total_steps < 1:
        raise UsageError(f"--total-steps must be at least 1, got {options.total_steps}")
    if options.seed is not None and options.seed < 0:
        raise UsageError(f"--seed must be at least 0, got {options.seed}")
    if options.stop_return is not None and not math.isfinite(options.stop_return):
        raise UsageError(f"--stop-return must be a finite number, got {options.stop_return}")


if __name__ == "__main__":
    sys.exit(main())
