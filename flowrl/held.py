"""The actor groups that an operator holds, and may so message: in its fields, or in a callable's closure."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Iterator
from typing import Any

from flowrl.handles import ActorGroup

_DEEPEST = 4  # containers, closures and objects within each other
_WIDEST = 1_000  # entries: a container of more holds data
_PLAIN = (list, tuple, set, frozenset, dict)


def held_groups(op: Any) -> list[ActorGroup[Any]]:
    """The groups in an operator's dataclass fields, each once, in order.

    Also those in tuples, lists, sets and dicts there (of up to 1,000 entries: a longer one holds data) and in other
    dataclasses, and those that a callable there was given: by its closure, by the globals that it names, by
    functools.partial, or as the object that it is a method of.
    """
    found: list[ActorGroup[Any]] = []
    if dataclasses.is_dataclass(op):
        for entry in dataclasses.fields(op):
            _look(getattr(op, entry.name, None), _DEEPEST, found)
    return found


def _look(value: Any, depth: int, found: list[ActorGroup[Any]]) -> None:
    if isinstance(value, ActorGroup):
        if not any(value is known for known in found):
            found.append(value)
    elif depth > 0:
        for inner in _inside(value):
            _look(inner, depth - 1, found)


def _inside(value: Any) -> Iterator[Any]:
    if type(value) in _PLAIN:
        if len(value) <= _WIDEST:
            yield from value.values() if type(value) is dict else value
    elif isinstance(value, types.FunctionType):
        yield from _closed_over(value)
        # Of the globals only groups and containers of them: following other functions would walk whole libraries.
        yield from (entry for entry in _globals_of(value) if isinstance(entry, ActorGroup | list | tuple | dict))
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, types.MethodType):
        yield from (value.__func__, *getattr(value.__self__, "__dict__", {}).values())
    elif not isinstance(value, type | types.BuiltinFunctionType):
        if dataclasses.is_dataclass(value):
            yield from (getattr(value, entry.name, None) for entry in dataclasses.fields(value))
        if callable(value):
            yield from getattr(value, "__dict__", {}).values()


def _closed_over(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # a name that gets its value later
            continue
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()


def _globals_of(function: types.FunctionType) -> Iterator[Any]:
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]
        yield from (function.__globals__[name] for name in code.co_names if name in function.__globals__)
