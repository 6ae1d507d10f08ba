"""What is installed is what was written: wheel and source archive, used outside the checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("flowrl", "operators", "algorithms", "pyproject.toml", "README.md", "LICENSE")


def run(*command: str | Path, cwd: Path) -> str:
    """The output of a command that succeeds, run without the checkout in its environment."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def expected_files() -> set[str]:
    """The files that a distribution must hold, read off the checkout through its links."""
    found = set()
    for folder, _, names in os.walk(ROOT / "flowrl", followlinks=True):
        if Path(folder).name != "__pycache__":
            found |= {
                (Path(folder) / name).relative_to(ROOT).as_posix()
                for name in names
                if name.endswith(".py") or name == "py.typed"
            }
    return found


@dataclass(frozen=True)
class Built:
    """A wheel, the source archive, and the interpreter of an environment that has the wheel."""

    wheel: Path
    sdist: Path
    python: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    place = tmp_path_factory.mktemp("dist")
    checkout = place / "checkout"
    checkout.mkdir()
    for name in SOURCES:  # a copy, because a build writes beside its sources and reads what an older one left there
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, checkout / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, checkout / name)
    build = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    run(sys.executable, "-c", build, place, cwd=checkout)
    [sdist] = place.glob("flowrl-*.tar.gz")

    # The wheel comes from the source archive, so both are tried.
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", place, sdist, cwd=place)
    [wheel] = place.glob("flowrl-*.whl")

    # Clean but for the dependencies, which are those of the tests' own environment: a path file inside a
    # path file is not read, so an editable flowrl there stays unseen.
    environment = place / "environment"
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    run(*pip, "--python", python, "install", "--quiet", "--no-deps", wheel, cwd=place)
    [site_packages] = environment.glob("lib/python*/site-packages")
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return Built(wheel, sdist, python)


def test_wheel_holds_every_module_as_a_real_file_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        names = {name for name in archive.namelist() if not re.match(r"flowrl-[^/]*\.dist-info/", name)}
        links = [info.filename for info in archive.infolist() if (info.external_attr >> 16) & 0o170000 == 0o120000]
    assert names == expected_files()
    assert links == []


def test_sdist_holds_every_module_as_a_real_file(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        members = {member.name.partition("/")[2]: member for member in archive.getmembers()}
    assert expected_files() | {"pyproject.toml", "README.md", "LICENSE"} <= members.keys()
    assert [name for name, member in members.items() if member.issym() or member.islnk()] == []
    assert not any(name.startswith(("operators/", "algorithms/")) for name in members)


def test_every_public_name_comes_from_the_installed_wheel(built: Built, tmp_path: Path) -> None:
    code = """
import importlib, sys
for package in ("flowrl", "flowrl.operators", "flowrl.algorithms"):
    module = importlib.import_module(package)
    assert module.__file__.startswith(sys.prefix), module.__file__
    for name in module.__all__:
        print(package, name, getattr(getattr(module, name), "__module__", ""))
import importlib.metadata, importlib.util, flowrl
assert flowrl.__version__ == importlib.metadata.version("flowrl")
assert importlib.util.find_spec("operators") is None and importlib.util.find_spec("algorithms") is None
"""
    named = run(built.python, "-c", code, cwd=tmp_path).splitlines()
    assert len(named) > 40
    homes = {line.split()[2] for line in named if len(line.split()) == 3}
    assert homes
    assert all(home.split(".")[0] == "flowrl" for home in homes), homes


def test_a_graph_runs_outside_the_checkout(built: Built, tmp_path: Path) -> None:
    code = """
import flowrl
flow = flowrl.from_items([1, 2, 3], num_shards=1).for_each(lambda x: x + 1).gather_sync()
with flowrl.run(flow, flowrl.Local()) as run:
    print(list(run))
"""
    assert run(built.python, "-c", code, cwd=tmp_path).strip() == "[2, 3, 4]"


def test_the_command_is_installed(built: Built, tmp_path: Path) -> None:
    assert "ppo" in run(built.python.parent / "flowrl", "list", cwd=tmp_path)
