"""The README and the pages beside it show only what runs: their Python blocks are run here, a namespace a page."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from flowrl import Batch
from flowrl.algorithms import CONFIGS
from flowrl.cli import main
from flowrl.flags import EvalOptions, GraphOptions, ResumeOptions, TrainOptions, parse, parse_options
from flowrl.testing import check_operator
from flowrl.training import config_of

ROOT = Path(__file__).parent.parent
DOCS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md"))
PAGES = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "operators/README.md", *DOCS]


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def run_blocks(page: str) -> dict[str, object]:
    """What the page's Python blocks define; each line keeps its number, for errors and drawings."""
    # Not "__main__", so that the block that trains at length is only defined.
    namespace: dict[str, object] = {"__name__": "readme"}
    text = text_of(page)
    for found in re.finditer(r"```python\n(.*?)```", text, re.DOTALL):
        lines = text[: found.start(1)].count("\n")
        exec(compile("\n" * lines + found[1], page, "exec", dont_inherit=True), namespace)
    return namespace


@pytest.mark.timeout(180)
def test_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    run_blocks("README.md")
    printed = capsys.readouterr().out
    assert "[1, 3, 5, 7, 9]" in printed
    assert "flowrl: in node 'careful'; defined at README.md:" in printed
    assert "item 1; shard from_items-shards[1]" in printed
    assert "deterministic" in printed


@pytest.mark.parametrize("page", DOCS)
def test_a_page_runs(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_blocks(page)
    assert capsys.readouterr().out


def test_the_operator_in_twenty_lines_keeps_the_contract() -> None:
    make = run_blocks("operators/README.md")["DropWorse"]
    batches = [Batch({"rewards": np.full((2, 3), x, np.float32)}, time_major=True) for x in (1, 3, 2, 5, 0, 4)]
    check_operator(make(window=3), batches)  # type: ignore[operator]


def commands() -> list[str]:
    return [line for page in PAGES for line in re.findall(r"^\$ (flowrl .*?)(?:  #.*)?$", text_of(page), re.MULTILINE)]


@pytest.mark.parametrize("command", commands())
def test_a_command_is_one(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its flags are; what takes long is not begun."""
    _, what, *rest = shlex.split(command)
    if what == "list":
        assert main([what, *rest]) == 0
        return
    name, *flags = rest
    if what in ("resume", "eval"):
        assert parse_options(ResumeOptions if what == "resume" else EvalOptions, flags, "flowrl", "")
        return
    assert name in CONFIGS
    config, options = parse(config_of(name), TrainOptions if what == "train" else GraphOptions, flags, "flowrl", "")
    assert config.graph().explain()
    if isinstance(options, TrainOptions):
        assert options.total_steps or options.stop_return


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    for link in re.findall(r"\]\((?!https?://)([^)#]+)", text_of(page)):
        assert (ROOT / page).parent.joinpath(link).exists(), link
