"""A deterministic graph gives the same numbers on every backend, whatever the timing: those of a reference.

The graphs are generated (tests/engine/programs.py). Equal must be the items, in order; whether the run stalls; and what
every actor has come to, which depends on each message that it got and on their order.
"""

from __future__ import annotations

import random
from collections import Counter
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl import FlowStalled, Local, Ray, run
from flowrl.testing import Delayed
from tests.engine.programs import GROUPS, draw_program, flow_of, joined
from tests.engine.reference import run_reference

OPERATORS = {"mix", "filter", "batch", "spread", "running", "stamped", "exact", "pure", "tell", "ask", "take"}
LIMIT = 300  # items of one run that are compared
PROGRAMS = st.randoms(use_true_random=False).map(draw_program)


def outcome(program: list[Any], backend: Any, *, delay_s: float = 0.0) -> tuple[list[Any], bool, dict[str, list[Any]]]:
    """(items, whether it stalled, what the actors have come to), as the reference gives them."""
    with run(flow_of(program, delay_s=delay_s), backend, seed=0) as r:
        items: list[Any] = []
        try:
            items.extend(islice(r, LIMIT))
        except FlowStalled:
            return items, True, {}
        ours = {name: handles for name, handles in r.actors.items() if name in GROUPS}
        for handles in ours.values():
            handles[0].ask("memory").result()  # a wait: tells that were held are delivered
        return items, False, {name: [h.ask("memory").result() for h in handles] for name, handles in ours.items()}


def assert_same(program: list[Any], backend: Any, *, delay_s: float = 0.0) -> None:
    """The program on the backend gives what the reference gives."""
    items, stalled, memory = run_reference(program, LIMIT)
    got_items, got_stalled, got_memory = outcome(program, backend, delay_s=delay_s)
    where = f"{program} on {backend!r}"
    assert got_items == items, where
    assert got_stalled == stalled, where
    assert got_memory == {name: memory[name] for name in got_memory}, where


@settings(max_examples=60)
@given(PROGRAMS)
def test_local_gives_the_numbers_of_the_reference(program: list[Any]) -> None:
    assert_same(program, Local())


@settings(max_examples=60)
@given(PROGRAMS, st.integers(0, 2**16), st.sampled_from((0.1, 0.5, 0.9)), st.booleans())
def test_late_answers_change_nothing(program: list[Any], seed: int, likely: float, in_order: bool) -> None:
    assert_same(program, Delayed(seed, likely=likely, in_order=in_order))


@pytest.mark.parametrize("first", range(0, 100, 20))
def test_fixed_programs_on_local_and_with_late_answers(first: int) -> None:
    for seed in range(first, first + 20):
        program = draw_program(random.Random(seed))
        for backend in (Local(), Delayed(seed), Delayed(seed + 1, likely=0.15, in_order=False)):
            assert_same(program, backend)


@pytest.mark.parametrize("first", range(0, 24, 6))
def test_six_programs_in_one_graph_share_their_actors(first: int) -> None:
    program = joined([draw_program(random.Random(seed), lane=f"{seed}:") for seed in range(first, first + 6)])
    assert_same(program, Local())
    assert_same(program, Delayed(first))


def test_values_handed_on_without_copies_give_the_same_numbers_here() -> None:
    for seed in range(10):
        assert_same(draw_program(random.Random(seed)), Local(isolate=False))


def test_the_family_has_every_kind_of_node_and_mostly_gives_items() -> None:
    programs = [draw_program(random.Random(seed)) for seed in range(100)]
    steps = Counter(step[0] for program in programs for step in program)
    operators = Counter(step[2][0] for program in programs for step in program if step[0] == "apply")
    sources = [part for program in programs for step in program if step[0] == "source" for part in step[1]]
    assert all(steps[kind] >= 20 for kind in ("source", "apply", "duplicate", "union"))
    assert set(operators) == OPERATORS
    assert {part[0] for part in sources} == {"items", "actors"}
    assert any(step[4] == "drop_oldest" for program in programs for step in program if step[0] == "duplicate")
    assert sum(len(run_reference(program, LIMIT)[0]) >= 5 for program in programs) >= 60


@pytest.mark.parametrize(("first", "last", "items"), [(0, 4, True), (4, 20, False), (20, 36, False)])
def test_programs_on_ray_with_actors_of_random_speed(ray_session: None, first: int, last: int, items: bool) -> None:
    """36 graphs, many in one run so that their actors start once; few with lists, whose shards are actors each."""
    seeds = range(first, last)
    program = joined([draw_program(random.Random(seed), lane=f"{seed}:", items=items) for seed in seeds])
    assert_same(program, Ray(), delay_s=0.004)
