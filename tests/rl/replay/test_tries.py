"""Tries made in advance: one stream however it is taken, anew once size or bound have changed, and it goes on."""

from __future__ import annotations

import pickle

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.rl.replay.tries import MOST, Tries


def test_what_is_given_back_comes_again() -> None:
    rng, tries = np.random.default_rng(0), Tries()
    tries.next(rng, 300, 10, 2.0)
    places, levels = (each.copy() for each in tries.next(rng, 200, 10, 2.0))
    tries.give_back(150)
    again, their_levels = tries.next(rng, 150, 10, 2.0)
    np.testing.assert_array_equal(again, places[50:])
    np.testing.assert_array_equal(their_levels, levels[50:])
    further, _ = tries.next(rng, 150, 10, 2.0)
    assert not np.array_equal(further, again)


def test_lots_grow_while_nothing_changes_and_are_thrown_away_once_something_does() -> None:
    rng, tries = np.random.default_rng(0), Tries()
    made = []
    for _ in range(60):
        tries.next(rng, 100, 10, 2.0)
        made.append(tries.get_state()["made"])
    assert made[:8] == [100, 200, 200, 400, 400, 400, 400, 800]
    assert max(made) == MOST
    for size, bound in ((11, 2.0), (11, 0.5)):
        places, levels = tries.next(rng, 100, size, bound)
        assert tries.get_state()["made"] == 100
        assert levels.max() < bound
        assert places.max() < size
    assert tries.next(rng, 5000, 11, 0.5)[0].shape == (5000,)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 1000), size=st.integers(1, 2**40), counts=st.lists(st.integers(0, 300), max_size=12))
def test_goes_on_from_a_state(seed: int, size: int, counts: list[int]) -> None:
    rng, tries = np.random.default_rng(seed), Tries()
    for count in counts:
        tries.next(rng, count, size, 0.25)
        tries.give_back(count // 3)
    again, its_rng = Tries(), pickle.loads(pickle.dumps(rng))
    again.set_state(pickle.loads(pickle.dumps(tries.get_state())))
    for count in (7, 500, 1, 3000, 40):
        for mine, theirs in zip(
            tries.next(rng, count, size, 0.25), again.next(its_rng, count, size, 0.25), strict=True
        ):
            np.testing.assert_array_equal(mine, theirs)
            assert (mine >= 0).all()
