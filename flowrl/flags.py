"""A config dataclass as command-line flags: one a field, its docstring as the help."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from flowrl.errors import text_of
from flowrl.failures import FailurePolicy, Ignore, Raise, Restart

Options = TypeVar("Options")


@dataclass(frozen=True)
class TrainOptions:
    """How to train, beside the algorithm's own settings."""

    stop_return: float | None = None
    """Solved when the mean return of the last 100 training episodes reaches it and 20 greedy episodes confirm it."""
    total_steps: int | None = None
    """Stop after so many environment steps."""
    backend: Literal["ray", "local"] = "ray"
    """Where the actors run: in processes of Ray, or in this process."""
    seed: int | None = None
    """Of every random stream in the run; drawn where none is given."""
    out: Path | None = None
    """A directory for metrics.jsonl, metrics.csv, the settings (run.json) and the policy, which Ctrl-C saves too."""

    checkpoint_every: str | None = None
    """Save all that the run is (`flowrl resume` goes on from it) after so many environment steps, or a time: 10min, 2h;
    also at the end and at Ctrl-C."""
    checkpoint_dir: str | None = None
    """Where checkpoints go, a directory or a URL (s3://...); OUT/checkpoints where nothing is said."""
    keep_last: int = 3
    """How many of the newest checkpoints are kept."""
    keep_best: int = 1
    """How many of those with the best mean return are kept, besides."""


@dataclass(frozen=True)
class ResumeOptions:
    """How to go on; what is not said is as it was."""

    total_steps: int | None = None
    """Stop after so many environment steps, those before the checkpoint included."""
    stop_return: float | None = None
    """Solved when the mean return of the last 100 training episodes reaches it and 20 greedy episodes confirm it."""
    backend: Literal["ray", "local"] = "ray"
    """Where the actors run: in processes of Ray, or in this process."""
    out: Path | None = None
    """Another directory for the records, the policy and the next checkpoints."""
    trust_pickles: tyro.conf.FlagCreatePairsOff[bool] = False
    """Unpickle the environments, so that episodes go on in the middle. That runs code which the checkpoint chooses."""
    trust_names: tyro.conf.FlagCreatePairsOff[bool] = False
    """Import what the settings name ("package.module:Name"). That runs code which the checkpoint chooses."""


@dataclass(frozen=True)
class EvalOptions:
    """What is played."""

    episodes: int = 20
    """How many whole episodes."""
    policy: str | None = None
    """Whose policy, where there are several: its id, or its learner's name."""
    env: str | None = None
    """Another environment than that of the training."""
    seed: int = 0
    """Of the environments and of sampled actions."""
    sample: tyro.conf.FlagCreatePairsOff[bool] = False
    """Draw the actions, as in training, instead of the most probable ones."""
    trust_names: tyro.conf.FlagCreatePairsOff[bool] = False
    """Import what the settings name ("package.module:Name"). That runs code which the checkpoint chooses."""


@dataclass(frozen=True)
class GraphOptions:
    """In which form the graph is shown; as a tree where nothing else is asked for."""

    mermaid: tyro.conf.FlagCreatePairsOff[bool] = False
    """Print it as a Mermaid flowchart."""
    svg: Path | None = None
    """Write it to this file as a picture."""


def parse(config: type, options: type[Options], args: Sequence[str], prog: str, about: str) -> tuple[Any, Options]:
    """The config and the options that the flags say; all fields of both are flags.

    Raises:
        SystemExit: with 2 where a flag is wrong (the message is printed), with 0 after --help.
        ValueError: the config refuses a value.
    """
    level = tyro.conf.arg(name="")  # neither adds a prefix to its fields' flags
    offered = _offered(config)
    both = make_dataclass(
        "Flags",
        [
            ("config", Annotated[offered, level], field(default_factory=offered)),
            ("options", Annotated[options, level], field(default_factory=options)),
        ],
    )
    flags: Any = tyro.cli(
        both, args=args, prog=prog, description=about, registry=_registry(), config=(tyro.conf.SuppressFixed,)
    )
    return _unwrapped(config, flags.config), flags.options


def _offered(config: type) -> type:
    """The config, whose inner configs have no flags for the fields that it keeps for itself (`fixed_inside`)."""
    fixed: Mapping[str, frozenset[str]] = getattr(config, "fixed_inside", {})
    if not fixed:
        return config
    kinds, plain = get_type_hints(config), config()
    narrowed = []
    for name, names in fixed.items():
        kind = _with_fixed(kinds[name], names)
        narrowed.append((name, kind, field(default=_as(kind, getattr(plain, name)))))
    return make_dataclass(config.__name__, narrowed, bases=(config,), frozen=True)


def _with_fixed(config: type, names: frozenset[str]) -> type:
    kinds = get_type_hints(config)
    fixed: list[Any] = [
        (each.name, Annotated[kinds[each.name], tyro.conf.Fixed], _again(each))
        for each in fields(config)
        if each.name in names
    ]
    return make_dataclass(config.__name__, fixed, bases=(config,), frozen=True)


def _again(each: Any) -> Any:
    if each.default_factory is MISSING:
        return field(default=each.default)
    return field(default_factory=each.default_factory)


def _as(config: Any, made: Any, **other: Any) -> Any:
    """The fields of `made`, or others, as a config of this class."""
    return config(**{each.name: getattr(made, each.name) for each in fields(config)} | other)


def _unwrapped(config: type, made: Any) -> Any:
    """What flags made of `_offered(config)`, as the config itself."""
    fixed = getattr(config, "fixed_inside", {})
    if not fixed:
        return made
    kinds = get_type_hints(config)
    return _as(config, made, **{name: _as(kinds[name], getattr(made, name)) for name in fixed})


def parse_options(options: type[Options], args: Sequence[str], prog: str, about: str) -> Options:
    """The options that the flags say.

    Raises:
        SystemExit: with 2 where a flag is wrong (the message is printed), with 0 after --help.
    """
    return tyro.cli(options, args=args, prog=prog, description=about)


def _registry() -> ConstructorRegistry:
    registry = ConstructorRegistry()
    registry.primitive_rule(_rule)
    return registry


def _rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """How the types that only Python can spell are spelled as words."""
    kind: Any = info.type
    if get_origin(kind) in (Union, UnionType):
        if kinds := [part for part in (Restart, Ignore, Raise) if part in get_args(kind)]:
            words = [part.__name__.lower() + ("[:TIMES[:BACKOFF_S]]" if part is Restart else "") for part in kinds]
            read = partial(fault_policy_of, kinds=tuple(kinds))
            return PrimitiveConstructorSpec(1, "|".join(words), read, _always, _fault_shown)
        rest = [part for part in get_args(kind) if part is not NoneType]
        kind = rest[0] if len(rest) == 1 else kind
    if get_origin(kind) is Mapping:
        return PrimitiveConstructorSpec("*", "JSON|KEY=VALUE", mapping_of, _always, _mapping_shown)
    if get_origin(kind) is Callable:
        return PrimitiveConstructorSpec(1, "PKG.MODULE:NAME", lambda words: named(words[0]), _always, _shown)
    return None


def mapping_of(words: Sequence[str]) -> dict[str, Any] | None:
    """A dictionary from JSON objects and key=value words; a value that is not JSON is a string. None for "None".

    Raises:
        ValueError: a word is neither.
    """
    if list(words) == ["None"]:
        return None
    found: dict[str, Any] = {}
    for word in words:
        if word.lstrip().startswith("{"):
            try:
                found.update(json.loads(word))
            except json.JSONDecodeError as error:
                raise ValueError(f"not a JSON object: {word} ({error})") from error
            continue
        key, equals, value = word.partition("=")
        if not equals or not key.isidentifier():
            raise ValueError(f"expected a JSON object or key=value, got {word!r}")
        try:
            found[key] = json.loads(value)
        except json.JSONDecodeError:
            found[key] = {"True": True, "False": False, "None": None}.get(value, value)
    return found


def fault_policy_of(words: Sequence[str], kinds: tuple[type, ...] = (Restart, Ignore, Raise)) -> FailurePolicy:
    """Raise() of "raise", Ignore() of "ignore", Restart() of "restart", "restart:5" or "restart:5:0.5", if of `kinds`.

    Raises:
        ValueError: something else.
    """
    kind, *numbers = words[0].split(":")
    try:
        for plain in (Raise, Ignore):
            if kind == plain.__name__.lower() and plain in kinds and not numbers:
                return plain()
        if kind == "restart" and len(numbers) <= 2:
            times, pause_s = [*numbers, *("3", "0.1")[len(numbers) :]]
            return Restart(int(times), float(pause_s))
    except ValueError as error:
        raise ValueError(f"{words[0]}: {error}") from error
    others = ", ".join(plain.__name__.lower() for plain in (Ignore, Raise) if plain in kinds)
    raise ValueError(f"expected restart, restart:TIMES, restart:TIMES:BACKOFF_S, {others}, got {words[0]!r}")


def _fault_shown(policy: FailurePolicy) -> list[str]:
    if isinstance(policy, Restart):
        return [f"restart:{policy.times}:{policy.backoff_s:g}"]
    return [type(policy).__name__.lower()]


def named(path: str) -> Any:
    """What "pkg.module:Name" names; None for "None".

    Raises:
        ValueError: it is not of that form, or there is no such thing.
    """
    if path == "None":
        return None
    module, colon, name = path.partition(":")
    if not colon or not module or not name:
        raise ValueError(f"expected pkg.module:Name, got {path!r}")
    try:
        found = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{path} cannot be imported: {text_of(error)}") from error
    return found


def _always(value: Any) -> bool:
    return True


def _shown(value: Any) -> list[str]:
    return [str(getattr(value, "__qualname__", value))]


def _mapping_shown(value: Mapping[str, Any] | None) -> list[str]:
    return ["None"] if value is None else [f"{key}={json.dumps(entry)}" for key, entry in value.items()]
