"""Torch's process-wide settings, borrowed: put back, and transparent to whatever passes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from flowrl.rl.torch_state import global_generator, one_thread, quiet


@dataclass(frozen=True)
class FrozenError(Exception):
    """Refuses attributes, a traceback among them."""

    code: int


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def made() -> list[AbstractContextManager[Any]]:
    return [
        one_thread(),
        global_generator(np.random.SeedSequence(1)),
        global_generator(np.random.default_rng(1)),
        quiet(None),
        quiet(np.random.default_rng(1)),
    ]


def draw_and_fail() -> None:
    torch.rand(3)
    raise FrozenError(4)


@pytest.mark.parametrize("which", range(5))
def test_what_is_raised_inside_comes_out_as_itself_and_all_is_put_back(which: int) -> None:
    before = torch.get_rng_state()
    with pytest.raises(FrozenError) as caught, made()[which]:
        draw_and_fail()
    assert caught.value.code == 4
    assert torch.get_num_threads() == 2
    assert torch.equal(torch.get_rng_state(), before) == (which not in (0, 3))


@pytest.mark.parametrize("which", [0, 3, 4])
def test_one_thread_inside(which: int) -> None:
    with made()[which]:
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


def test_the_generator_is_seeded_by_the_stream() -> None:
    def drawn(manager: AbstractContextManager[Any]) -> float:
        with manager:
            return float(torch.rand(()))

    stream = np.random.default_rng(3)
    first = drawn(quiet(stream))
    assert first == drawn(global_generator(np.random.default_rng(3)))
    assert first != drawn(quiet(stream))  # the stream has moved on
    seeds = np.random.SeedSequence(9)
    assert drawn(global_generator(seeds)) == drawn(global_generator(seeds))
    expected = torch.Generator().manual_seed(int(np.random.default_rng(3).integers(2**63)))
    assert first == float(torch.rand((), generator=expected))
