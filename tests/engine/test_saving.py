"""A run saved after any item goes on as if nothing had been, and one resumed from there gives the same rest."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl import FlowStalled, Local, Run, run
from flowrl.testing import Delayed
from tests.engine.programs import GROUPS, draw_program, flow_of
from tests.engine.reference import run_reference

LIMIT = 60
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # where a disk need not be waited for
PROGRAMS = st.randoms(use_true_random=False).map(draw_program)


def rest_of(r: Run[Any], limit: int) -> tuple[list[Any], bool, dict[str, Any]]:
    """(the next items, whether it stalls, what the actors have come to)."""
    items: list[Any] = []
    try:
        items.extend(islice(r, limit))
    except FlowStalled:
        return items, True, {}
    ours = {name: handles for name, handles in r.actors.items() if name in GROUPS}
    for handles in ours.values():
        handles[0].ask("memory").result()  # a wait: tells that were held are delivered
    return items, False, {name: [handle.ask("memory").result() for handle in handles] for name, handles in ours.items()}


def assert_resumes(program: list[Any], at: list[int], save_on: Any, resume_on: Any) -> None:
    """Saved after so many items, it goes on as the reference; resumed from each checkpoint, too."""
    items, stalls, memory = run_reference(program, LIMIT)
    where = f"{program} saved after {at} on {save_on!r}, resumed on {resume_on!r}"
    with TemporaryDirectory(dir=MEMORY) as folder:
        saved: list[int] = []
        with run(flow_of(program), save_on, seed=0) as r:
            got: list[Any] = []
            for count in at:
                if count > len(items):
                    break
                got += r.step(count - len(got))
                r.save(Path(folder) / str(count))
                saved.append(count)
            rest, stalled, reached = rest_of(r, LIMIT - len(got))
            assert (got + rest, stalled) == (items, stalls), where
            assert reached == {name: memory[name] for name in reached}, where
        for count in saved:
            with run(flow_of(program), resume_on, resume=Path(folder) / str(count)) as r:
                assert r.seed == 0
                rest, stalled, reached = rest_of(r, LIMIT - count)
            assert (rest, stalled) == (items[count:], stalls), f"{where}: resumed at {count}"
            assert reached == {name: memory[name] for name in reached}, f"{where}: resumed at {count}"


@settings(max_examples=12)
@given(PROGRAMS, st.integers(0, 8), st.integers(1, 20))
def test_a_generated_graph_resumed_after_any_item(program: list[Any], first: int, then: int) -> None:
    assert_resumes(program, [first, first + then], Local(), Local())


@settings(max_examples=8)
@given(PROGRAMS, st.integers(0, 8), st.integers(0, 2**16))
def test_a_generated_graph_whose_answers_come_late(program: list[Any], after: int, seed: int) -> None:
    assert_resumes(program, [after], Delayed(seed, likely=0.3), Delayed(seed + 1))


@pytest.mark.parametrize("first", range(0, 20, 5))
def test_fixed_graphs_saved_after_every_third_item(first: int) -> None:
    for seed in range(first, first + 5):
        assert_resumes(draw_program(random.Random(seed)), list(range(0, 12, 3)), Local(), Local())
