"""States as plain values and back: what a checkpoint can hold without pickle, and what an object is made of."""

from __future__ import annotations

import dataclasses
import random
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from enum import Enum
from fractions import Fraction
from typing import Any

import numpy as np

from flowrl.batch import Batch, MultiAgentBatch
from flowrl.checkpoint.encoding import Pickled, State
from flowrl.errors import CheckpointError

TAG = "~"  # the key that says of a dict what it stands for
PLAIN = (type(None), bool, int, float, str, bytes, np.ndarray, Pickled)
BIT_GENERATORS = frozenset({"MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"})
Special = Callable[[Any, str], State]  # a state, or NotImplemented: it is none of its kinds
Revived = Callable[[dict[str, Any]], Any]


def to_plain(value: Any, where: str, special: Special | None = None) -> State:
    """The value as nested dicts, lists and tuples of numbers, strings, bytes, arrays and Pickled.

    Taken apart are also batches, NumPy's seeds and generators, random.Random, sets, deques, counters, fractions, enums,
    named tuples, and dataclasses, each field by field. special: is asked first, of anything that is not plain.

    Raises:
        CheckpointError: a value is none of these; names where it stands and what would help.
    """
    return _Taking(special).apart(value, where)


def from_plain(state: State, special: Callable[[str, Any], Any] | None = None) -> Any:
    """The value that `to_plain` was given. No code of a class is run but NumPy's and flowrl's own.

    special: called with the kind and the content of what its counterpart made; gives the value.

    Raises:
        CheckpointError: it needs a class that is not imported here; names it.
    """
    return _Putting(special).together(state)


class _Taking:
    def __init__(self, special: Special | None):
        self._special = special

    def apart(self, value: Any, where: str) -> State:
        kind = type(value)
        if kind in PLAIN or isinstance(value, np.generic):
            return value
        if kind is list:
            return self._all(value, where)
        if kind is tuple:
            return tuple(self._all(value, where))
        if kind is dict:
            return self._dict(value, where)
        if self._special is not None:
            made = self._special(value, where)
            if made is not NotImplemented:
                return made
        for known, take in _APART.items():
            if isinstance(value, known):
                return {TAG: known.__name__, "of": self.apart(take(value), where)}
        return self._by_class(value, where)

    def _all(self, values: Sequence[Any], where: str) -> list[State]:
        return [self.apart(entry, f"{where}[{at}]") for at, entry in enumerate(values)]

    def _dict(self, value: dict[Any, Any], where: str) -> State:
        if all(type(key) is str for key in value) and TAG not in value:
            return {key: self.apart(entry, f"{where}[{key!r}]") for key, entry in value.items()}
        pairs = [(self.apart(k, f"a key of {where}"), self.apart(v, f"{where}[{k!r}]")) for k, v in value.items()]
        return {TAG: "dict", "of": pairs}

    def _by_class(self, value: Any, where: str) -> State:
        kind = type(value)
        if isinstance(value, Batch):
            columns = {name: np.asarray(array) for name, array in value.items()}
            return {TAG: "Batch", "class": _name_of(kind, where), "of": [columns, value.time_major]}
        if isinstance(value, Enum):
            return {TAG: "Enum", "class": _name_of(kind, where), "of": value.name}
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            return {TAG: "named", "class": _name_of(kind, where), "of": self._all(value, where)}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = [entry.name for entry in dataclasses.fields(value)]
            held = {**dict.fromkeys(fields), **getattr(value, "__dict__", {})}
            parts = {name: self.apart(getattr(value, name), f"{where}.{name}") for name in held}
            return {TAG: "data", "class": _name_of(kind, where), "of": parts}
        raise CheckpointError(
            f"{where} is a {kind.__module__}.{kind.__qualname__}, which cannot be saved without pickle: let get_state "
            "give numbers, strings, arrays, lists, dicts, batches, or dataclasses and named tuples of them"
        )


_DEFAULTS: dict[str, Any] = {"None": None, "int": int, "float": float, "list": list, "dict": dict, "set": set}


def _default_parts(value: defaultdict[Any, Any]) -> list[Any]:
    factory = value.default_factory
    name = next((name for name, known in _DEFAULTS.items() if known is factory), None)
    if name is None:
        raise CheckpointError(f"a defaultdict of {factory!r} cannot be saved; one of int, float, list, dict, set can")
    return [name, dict(value)]


_APART: dict[type, Callable[[Any], Any]] = {
    Counter: lambda value: dict(value),
    defaultdict: _default_parts,
    OrderedDict: lambda value: list(value.items()),
    deque: lambda value: [list(value), value.maxlen],
    set: list,
    frozenset: list,
    Fraction: lambda value: [value.numerator, value.denominator],
    complex: lambda value: [value.real, value.imag],
    MultiAgentBatch: lambda value: [dict(value.items()), value.env_steps],
    np.random.SeedSequence: lambda value: [
        value.entropy, value.spawn_key, value.pool_size, value.n_children_spawned,
    ],
    np.random.Generator: lambda value: value.bit_generator.state,
    random.Random: lambda value: value.getstate(),
}  # fmt: skip


class _Putting:
    def __init__(self, special: Callable[[str, Any], Any] | None):
        self._special = special

    def together(self, state: State) -> Any:
        kind = type(state)
        if kind is list:
            return [self.together(entry) for entry in state]
        if kind is tuple:
            return tuple([self.together(entry) for entry in state])
        if kind is not dict:
            return state
        if TAG not in state:
            return {key: self.together(entry) for key, entry in state.items()}
        name = state[TAG]
        if name == "dict":
            return {self.together(key): self.together(entry) for key, entry in state["of"]}
        put = _TOGETHER.get(name)
        if put is not None:
            return put(self.together(state["of"]))
        if "class" in state:
            return self._of_class(name, class_named(state["class"]), self.together(state["of"]))
        if self._special is None:
            raise CheckpointError(f"the checkpoint holds a {name!r} in a place where there can be none")
        return self._special(name, state["of"])

    def _of_class(self, kind: str, cls: Any, parts: Any) -> Any:
        if kind == "Batch" and issubclass(cls, Batch):
            batch = object.__new__(cls)
            Batch.__init__(batch, parts[0], time_major=parts[1])
            return batch
        if kind == "Enum" and issubclass(cls, Enum):
            return cls.__members__[parts]
        if kind == "named" and issubclass(cls, tuple):
            return tuple.__new__(cls, parts)
        if kind == "data" and dataclasses.is_dataclass(cls):
            made: Any = object.__new__(cls)  # type: ignore[arg-type]  # a class, for its name was one's
            for name, value in parts.items():
                object.__setattr__(made, name, value)
            return made
        raise CheckpointError(f"{cls.__module__}.{cls.__qualname__} is no {kind} any more, as it was in the checkpoint")


def _seed_sequence(parts: list[Any]) -> np.random.SeedSequence:
    entropy, spawn_key, pool_size, spawned = parts
    return np.random.SeedSequence(entropy=entropy, spawn_key=spawn_key, pool_size=pool_size, n_children_spawned=spawned)


def _generator(state: dict[str, Any]) -> np.random.Generator:
    name = state["bit_generator"]
    if name not in BIT_GENERATORS:
        raise CheckpointError(f"the checkpoint holds a random generator {name!r}; NumPy's own are known")
    bits = getattr(np.random, name)(0)
    bits.state = state
    return np.random.Generator(bits)


def _random(state: Any) -> random.Random:
    made = random.Random(0)
    made.setstate(state)
    return made


_TOGETHER: dict[str, Callable[[Any], Any]] = {
    "Counter": Counter,
    "OrderedDict": OrderedDict,
    "defaultdict": lambda parts: defaultdict(_DEFAULTS[parts[0]], parts[1]),
    "deque": lambda parts: deque(parts[0], parts[1]),
    "set": set,
    "frozenset": frozenset,
    "Fraction": lambda parts: Fraction(*parts),
    "complex": lambda parts: complex(*parts),
    "MultiAgentBatch": lambda parts: MultiAgentBatch(parts[0], env_steps=parts[1]),
    "SeedSequence": _seed_sequence,
    "Generator": _generator,
    "Random": _random,
}


def _name_of(cls: type, where: str) -> str:
    """`package.module:Class`, under which it is found again."""
    name = f"{cls.__module__}:{cls.__qualname__}"
    if _found(name) is not cls:
        raise CheckpointError(
            f"{where} is of the class {cls.__qualname__}, which cannot be found again by that name in "
            f"{cls.__module__}: define it at the top of its module"
        )
    return name


def class_named(name: str) -> Any:
    """A class by `package.module:Class`; a module that is not imported yet is not imported for it.

    Raises:
        CheckpointError: there is none.
    """
    found = _found(name) if isinstance(name, str) else None
    if found is None:
        raise CheckpointError(
            f"the checkpoint holds an object of the class {name!r}, which is not imported here: import its module first"
        )
    return found


def _found(name: str) -> Any:
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None
