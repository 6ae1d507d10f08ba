"""Which snapshots are kept: the newest, and those behind it as far as one that outlives its node."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from flowrl.backends.protocol import Copy
from flowrl.engine.snapshots import MOST, Snapshots


class Copying:
    """Copies that come when they are told to."""

    def __init__(self) -> None:
        self.copies: list[Copy] = []

    def copy(self, payload: Any) -> Copy:
        self.copies.append(Copy())
        return self.copies[-1]


def kept(snapshots: Snapshots) -> list[int]:
    return [call.payload for call, _ in snapshots._kept]  # type: ignore[misc]


def test_those_older_than_one_with_a_copy_are_let_go() -> None:
    backend: Any = Copying()
    snapshots = Snapshots(backend)
    assert not snapshots
    for number in range(3):
        snapshots.add(SimpleNamespace(payload=number))  # type: ignore[arg-type]
    assert kept(snapshots) == [2, 1, 0]
    backend.copies[1].there = True
    snapshots.add(SimpleNamespace(payload=3))  # type: ignore[arg-type]
    assert kept(snapshots) == [3, 2, 1]
    snapshots.drop_newest()
    assert snapshots.newest.payload == 2


def test_no_more_than_a_few_wait_for_their_copies() -> None:
    backend: Any = Copying()
    snapshots = Snapshots(backend)
    for number in range(10):
        snapshots.add(SimpleNamespace(payload=number))  # type: ignore[arg-type]
    assert kept(snapshots) == [9, 2, 1, 0]
    assert len(kept(snapshots)) == MOST
    backend.copies[2].there = True
    snapshots.add(SimpleNamespace(payload=10))  # type: ignore[arg-type]
    assert kept(snapshots) == [10, 9, 2]
