"""An algorithm's settings as JSON and back, without a file choosing what is imported."""

from __future__ import annotations

import dataclasses
import math
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from numbers import Integral, Real
from typing import Any

from flowrl.errors import CheckpointError, text_of

OURS = "flowrl."  # of modules whose frozen dataclasses may be made because a file says so


def config_as_json(config: Any) -> Any:
    """A config dataclass as JSON; what JSON cannot hold, such as a lambda, stands in it as its repr."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        if not type(config).__module__.startswith(OURS):
            return {"object": repr(config)[:200]}
        inside = {entry.name: config_as_json(getattr(config, entry.name)) for entry in dataclasses.fields(config)}
        return {"class": f"{type(config).__module__}:{type(config).__qualname__}", "fields": inside}
    if config is None or isinstance(config, bool | str):
        return config
    if isinstance(config, Integral):  # NumPy's too
        return int(config)
    if isinstance(config, Real):
        return float(config) if math.isfinite(config) else {"float": repr(float(config))}
    if isinstance(config, Mapping):
        return {"map": [[config_as_json(key), config_as_json(entry)] for key, entry in config.items()]}
    if isinstance(config, list):
        return [config_as_json(entry) for entry in config]
    if isinstance(config, tuple):
        return {"tuple": [config_as_json(entry) for entry in config]}
    if isinstance(config, os.PathLike):
        return os.fspath(config)
    name = f"{getattr(config, '__module__', None)}:{getattr(config, '__qualname__', None)}"
    return {"named": name} if _found(name) is config else {"object": repr(config)[:200]}


def config_from_json(said: Any, place: str, *, trust_names: bool) -> Any:
    """The config that `config_as_json` was given; the module of its class has been imported.

    place: where it was read, for errors. trust_names: whether what it names ("package.module:Name" of an environment, a
        module of one's own) may be imported.

    Raises:
        CheckpointError: it names what is not trusted, holds what no file can, or is not of this version of flowrl.
    """
    try:
        return _Rebuilding(trust_names).value(said, "config")
    except CheckpointError as error:
        raise CheckpointError(f"the settings in {place} cannot be used: {error}") from error
    except Exception as error:
        raise CheckpointError(
            f"the settings in {place} cannot be used: {text_of(error)}; give the config yourself: "
            "flowrl.train(config, resume=...)"
        ) from error


# Flowrl's own, which do nothing but play, whatever they are given.
OWN_ENVIRONMENTS = frozenset(
    f"flowrl.rl.games:{name}" for name in ("connect_four", "kuhn_poker", "leduc_poker", "rock_paper_scissors")
)


class _Rebuilding:
    def __init__(self, trust_names: bool):
        self._trust = trust_names

    def value(self, said: Any, where: str) -> Any:
        if isinstance(said, list):
            return [self.value(entry, where) for entry in said]
        if not isinstance(said, dict):
            return said
        if "class" in said:
            return self._config(said["class"], said["fields"], where)
        [(kind, inside)] = said.items()
        if kind == "float":
            return float(inside)
        if kind == "tuple":
            return tuple(self.value(entry, where) for entry in inside)
        if kind == "map":
            return {self.value(key, where): self.value(entry, where) for key, entry in inside}
        if kind == "named":
            return self._named(inside, where)
        raise CheckpointError(
            f"{where} was {inside}, which no file can hold; give the config yourself: flowrl.train(config, resume=...)"
        )

    def _config(self, name: Any, inside: Mapping[str, Any], where: str) -> Any:
        found = _found(name) if isinstance(name, str) and name.startswith(OURS) else None
        if not (isinstance(found, type) and dataclasses.is_dataclass(found) and _is_frozen(found)):
            raise CheckpointError(f"{where} is of {name!r}, which is no setting of this version of flowrl")
        fields = {entry.name: entry for entry in dataclasses.fields(found)}
        unknown = sorted(inside.keys() - fields.keys())
        if unknown:
            raise CheckpointError(f"{name} has no {', '.join(unknown)} in this version of flowrl")
        given = {key: self.value(entry, f"{where}.{key}") for key, entry in inside.items()}
        if "env" in given:
            self._check_env(
                given["env"], fields["env"].default, f"{where}.env", getattr(found, "several_agents", False)
            )
        return found(**given)

    def _check_env(self, env: Any, default: Any, where: str, several_agents: bool) -> None:
        """Nothing, unless to make the environment would import what only the file names."""
        names_module = isinstance(env, str) and (several_agents or ":" in env) and not env.startswith("envpool:")
        own = isinstance(env, str) and env in OWN_ENVIRONMENTS
        if names_module and env != default and not own and not self._trust:
            raise _untrusted(where, env)

    def _named(self, name: Any, where: str) -> Any:
        if not self._trust:
            raise _untrusted(where, name)
        module, _, path = name.partition(":")
        found = import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
        return found


def _untrusted(where: str, name: Any) -> CheckpointError:
    return CheckpointError(
        f"{where} is {name!r}, which would be imported, and run: if you trust this checkpoint, say trust_names=True "
        "(--trust-names), or give it yourself: flowrl.train(config, resume=...), or env= (--env) where it is played"
    )


def _is_frozen(cls: type) -> bool:
    return bool(getattr(cls, "__dataclass_params__").frozen)  # noqa: B009  (which type checkers do not know)


def _found(name: str) -> Any:
    """What "package.module:Name" names, if that module is imported; a file makes none be."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found
