"""Looks at what else is answered: while they find something, and now and then."""

from __future__ import annotations

from flowrl.backends.looks import EVERY, Looks


def due(looks: Looks, found: int) -> bool:
    if not looks.due():
        return False
    looks.found(found)
    return True


def test_a_look_is_taken_while_it_finds_some() -> None:
    looks = Looks()
    assert all(due(looks, found) for found in (3, 2, 4))
    for _ in range(20):  # nothing, again and again
        due(looks, 0)
    assert [due(looks, 0) for _ in range(3 * EVERY)].count(True) == 3
    while not due(looks, 5):
        pass
    assert due(looks, 5)
