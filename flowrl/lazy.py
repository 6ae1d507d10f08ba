"""Public names that load their module when they are first used (PEP 562), so that importing a package stays light."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, Iterable[str]], modules: Iterable[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package.

    `homes` says which module below the package defines which names, `modules` which modules are public
    themselves. A name is looked up once and then stands in the package like any other.
    """
    home_of = {name: home for home, names in homes.items() for name in names}
    public_modules = frozenset(modules)

    def load(name: str) -> Any:
        if name in public_modules:
            return import_module(f"{package}.{name}")  # which also binds it
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{home_of[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home_of, *public_modules})

    return load, names
