"""The README and the operators' page show only what runs: their Python blocks are run here, in one namespace."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from flowrl import Batch
from flowrl.testing import check_operator

ROOT = Path(__file__).parent.parent


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


@pytest.mark.timeout(180)
def test_the_readme_runs(capsys):
    namespace: dict[str, object] = {"__name__": "readme"}  # so that the block that trains at length is only defined
    for code in blocks("README.md"):
        exec(compile(code, "README.md", "exec", dont_inherit=True), namespace)
    printed = capsys.readouterr().out
    assert "[1, 3, 5, 7, 9]" in printed
    assert "flowrl: in node 'careful'; defined at README.md:" in printed
    assert "item 1; shard from_items-shards[1]" in printed
    assert "deterministic" in printed


def test_the_operator_in_twenty_lines_keeps_the_contract():
    namespace: dict[str, object] = {"__name__": "operators_readme"}
    for code in blocks("operators/README.md"):
        exec(compile(code, "operators/README.md", "exec", dont_inherit=True), namespace)
    make = namespace["DropWorse"]
    batches = [Batch({"rewards": np.full((2, 3), x, np.float32)}, time_major=True) for x in (1, 3, 2, 5, 0, 4)]
    check_operator(make(window=3), batches)  # type: ignore[operator]
