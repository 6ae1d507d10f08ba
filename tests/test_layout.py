"""Who imports whom, what an import loads, and that the folders are the packages they say they are."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("flowrl", "flowrl.operators", "flowrl.algorithms")
LINKED = ("operators", "algorithms")
NUMERIC = ("torch", "gymnasium")


def run_python(code: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter that finds the checkout first."""
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def modules() -> dict[str, Path]:
    """Every module of flowrl by its import name, the linked folders under flowrl."""
    found = {}
    for folder, prefix in (("flowrl", ()), ("operators", ("flowrl",)), ("algorithms", ("flowrl",))):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = (*prefix, *path.relative_to(ROOT).with_suffix("").parts)
            if parts[:2] in {("flowrl", link) for link in LINKED} and not prefix:
                continue  # an rglob that follows links would see these twice
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


def imports(source: str, module: str, is_package: bool = False) -> Iterator[tuple[int, str]]:
    """(line, imported dotted name) of every import, also in functions, under TYPE_CHECKING and by a literal name."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{origin}.{alias.name}"
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def inside(name: str, *packages: str) -> bool:
    """Whether a dotted name is one of these packages or below it."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def forbidden(module: str) -> tuple[str, ...]:
    """What a module may not import, anywhere in it."""
    bare = LINKED  # the guarded names
    no_ray = () if module == "flowrl.backends.ray" or module.startswith("flowrl.backends.ray_") else ("ray",)
    parts = ("flowrl.operators", "flowrl.algorithms")
    hidden = ("flowrl.engine", "flowrl.backends", "flowrl.cli")
    if inside(module, "flowrl.algorithms"):
        return (*bare, *no_ray, *hidden)
    if inside(module, "flowrl.operators"):
        return (*bare, *no_ray, *hidden, "flowrl.algorithms")
    if inside(module, "flowrl.rl"):
        return (*bare, *no_ray, *hidden, *parts)
    if module in ("flowrl", "flowrl.__main__", "flowrl.cli", "flowrl.training"):
        return (*bare, *no_ray, *NUMERIC)
    return (*bare, *no_ray, *NUMERIC, *parts, "flowrl.cli")


def violations(source: str, module: str, is_package: bool = False) -> list[str]:
    """The imports of a module that the rule forbids, as `module:line imports name`."""
    return [
        f"{module}:{line} imports {name}"
        for line, name in imports(source, module, is_package)
        if inside(name, *forbidden(module))
    ]


def test_nobody_imports_what_the_layout_forbids() -> None:
    found = modules()
    assert {"flowrl", "flowrl.operators", "flowrl.algorithms", "flowrl.errors"} <= found.keys()
    wrong = [
        violation
        for module, path in found.items()
        for violation in violations(path.read_text(), module, path.name == "__init__.py")
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("module", "source", "name"),
    [
        ("flowrl.engine.run", "def wait():\n    import ray", "ray"),
        ("flowrl.engine.run", "import torch.nn as nn", "torch.nn"),
        ("flowrl.engine.run", "from ..operators import Union", "flowrl.operators.Union"),
        ("flowrl.engine.run", "import importlib\nimportlib.import_module('gymnasium')", "gymnasium"),
        ("flowrl.flow", "from flowrl.algorithms.ppo import graph", "flowrl.algorithms.ppo.graph"),
        ("flowrl.flow", "from flowrl import operators", "flowrl.operators"),
        ("flowrl.rl.learner", "from flowrl.operators.union import Union", "flowrl.operators.union.Union"),
        ("flowrl.rl.learner", "import ray", "ray"),
        ("flowrl.operators.weights", "from flowrl.engine.run import Run", "flowrl.engine.run.Run"),
        ("flowrl.operators.weights", "from flowrl import backends", "flowrl.backends"),
        ("flowrl.operators.weights", "from flowrl.algorithms import ppo", "flowrl.algorithms.ppo"),
        ("flowrl.operators.weights", "from . import algorithms\nfrom .. import algorithms", "flowrl.algorithms"),
        ("flowrl.algorithms.ppo", "from operators import Union", "operators.Union"),
        ("flowrl.backends.local", "from ray import ObjectRef", "ray.ObjectRef"),
    ],
)
def test_the_rule_finds_what_it_forbids(module: str, source: str, name: str) -> None:
    found = violations(source, module)
    assert len(found) == 1
    assert found[0].endswith(f" imports {name}")


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("flowrl.backends.ray", "def start():\n    import ray"),
        ("flowrl.backends.ray_connection", "def start():\n    import ray"),
        ("flowrl.engine.run", "from flowrl.backends.protocol import Backend\nfrom flowrl.operator import Operator"),
        ("flowrl.rl.policy", "import torch\nimport gymnasium as gym"),
        ("flowrl.operators.weights", "from flowrl.handles import actor\nfrom flowrl.rl import Learner\nimport torch"),
        ("flowrl.algorithms.ppo", "from flowrl.operators import Union\nfrom flowrl import Flow, run"),
        ("flowrl.training", "def train():\n    from flowrl.algorithms import ppo"),
        ("flowrl.flow", "import rayon, torchish, gymnasium_like"),
    ],
)
def test_the_rule_allows_the_rest(module: str, source: str) -> None:
    assert violations(source, module) == []


def test_importing_flowrl_loads_nothing_heavy() -> None:
    done = run_python(
        "import sys, flowrl, flowrl.operators, flowrl.algorithms\n"
        "from flowrl import Flow, Operator, Batch, actors, run, Local, Restart, from_items, EndOfStream\n"
        "print(sorted({'torch', 'ray', 'gymnasium'} & sys.modules.keys()))"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_a_graph_without_learning_runs_without_anything_heavy() -> None:
    done = run_python(
        "import sys, flowrl\n"
        "flow = flowrl.from_items([1, 2, 3], num_shards=1).for_each(lambda x: x + 1).gather_sync()\n"
        "with flowrl.run(flow, flowrl.Local()) as run: print(list(run))\n"
        "print(sorted({'torch', 'ray', 'gymnasium'} & sys.modules.keys()))"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["[2, 3, 4]", "[]"]


@pytest.mark.parametrize("bare", LINKED)
@pytest.mark.parametrize("below", ["", ".union"])
def test_a_bare_import_is_refused_and_names_the_right_one(bare: str, below: str) -> None:
    done = run_python(f"import {bare}{below}")
    assert done.returncode == 1
    assert f"ImportError: '{bare}' is not a package of its own: use `import flowrl.{bare}`" in done.stderr


@pytest.mark.parametrize("name", LINKED)
def test_the_links_are_relative(name: str) -> None:
    link = ROOT / "flowrl" / name
    assert link.is_symlink(), f"{link} must be a symbolic link; on a file system without them git writes a text file"
    assert os.readlink(link) == f"../{name}"
    assert link.resolve() == ROOT / name
    assert (link / "__init__.py").is_file()


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_says_its_names_the_same_everywhere(package: str) -> None:
    """`__all__`, the names that load lazily and the imports that type checkers read are one list."""
    tree = ast.parse(modules()[package].read_text())
    [switch] = [n for n in tree.body if isinstance(n, ast.If) and getattr(n.test, "id", "") == "TYPE_CHECKING"]
    seen_by_checkers = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in switch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    [listed] = [n for n in tree.body if isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == "__all__"]
    exported = ast.literal_eval(listed.value)

    [call] = [n for n in ast.walk(switch) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "lazy_names"]
    homes = ast.literal_eval(call.args[1])
    loaded_lazily = {name: f"{package}.{home}.{name}" for home, names in homes.items() for name in names}
    for keyword in call.keywords:
        loaded_lazily |= {name: f"{package}.{name}" for name in ast.literal_eval(keyword.value)}

    assert loaded_lazily == seen_by_checkers
    assert sorted({*exported} - {"__version__"}) == sorted(loaded_lazily)
    assert len(exported) == len(set(exported))


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    import flowrl

    with pytest.raises(AttributeError, match="module 'flowrl' has no attribute 'Flwo'"):
        _ = flowrl.Flwo  # type: ignore[attr-defined]
    assert {*flowrl.__all__} <= {*dir(flowrl)}


def test_the_version_is_that_of_the_distribution() -> None:
    import tomllib

    import flowrl

    assert flowrl.__version__ == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
