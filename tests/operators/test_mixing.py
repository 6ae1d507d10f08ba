"""MixInReplay: old items among the new, exactly so many, with where they came from."""

from __future__ import annotations

import pytest

import flowrl
from flowrl import Local
from flowrl.operators import MixInReplay
from flowrl.testing import Delayed


def mixed(slots: int, proportion: float, items: int = 20, seed: int = 0) -> list[int]:
    source = flowrl.from_items(range(items), num_shards=1).gather_sync()
    with flowrl.run(source.for_each(MixInReplay(slots, proportion)), Local(), seed=seed) as run:
        return list(run)


@pytest.mark.parametrize(("proportion", "expected"), [(0.0, 20), (0.5, 29), (1.0, 39), (2.5, 67)])
def test_so_many_come_again(proportion: float, expected: int) -> None:
    out = mixed(4, proportion)
    assert len(out) == expected  # each new one but the first has old ones to follow it: 20 + ⌊19 · proportion⌋
    assert sorted(set(out)) == list(range(20))


def test_only_the_newest_are_kept_and_none_comes_again_before_it_came() -> None:
    out = mixed(3, 2.0)
    newest = -1
    for item in out:
        if item == newest + 1:
            newest = item
        else:
            assert newest - 3 <= item < newest


def test_the_choice_is_the_nodes_own_stream() -> None:
    assert mixed(4, 1.0) == mixed(4, 1.0)
    assert mixed(4, 1.0) != mixed(4, 1.0, seed=1)


def test_origins_are_those_of_when_it_was_new() -> None:
    source = flowrl.from_items(range(12), num_shards=3).gather_sync().for_each(MixInReplay(6, 1.0))
    with flowrl.run(source.zip_with_source_actor(), Delayed(1)) as run:
        assert all(item % 3 == handle.index for handle, item in run)


def test_what_it_refuses() -> None:
    with pytest.raises(ValueError, match="slots must be at least 1, got 0"):
        MixInReplay(0, 1.0)
    with pytest.raises(ValueError, match=r"proportion must be at least 0, got -0\.5"):
        MixInReplay(1, -0.5)
