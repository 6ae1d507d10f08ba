"""Items from lists and iterators: which shard gets what, and that it gets nothing else."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl import Local
from flowrl.backends.protocol import Sent
from flowrl.errors import StartError
from flowrl.handles import Apart


class Counted(Local):
    """As a backend with processes: what actors are started with goes as bytes, and is counted."""

    in_process = False

    def __init__(self) -> None:
        super().__init__()
        self.started: list[int] = []

    def send(self, actor: Any, message: bytes, payloads: Sequence[Any], *, start: bool = False) -> Sent:
        if start:
            self.started.append(len(message))
        return super().send(actor, message, payloads, start=start)


@pytest.mark.parametrize("backend", [Local, Counted])
@pytest.mark.parametrize("shards", [1, 2, 3, 7])
def test_item_i_is_in_shard_i_modulo_the_shards(backend: type[Local], shards: int) -> None:
    flow = flowrl.from_items(range(5), num_shards=shards).gather_sync()
    with flowrl.run(flow.zip_with_source_actor(), backend()) as run:
        came = [(handle.index, item) for handle, item in run]
    assert came == [(i % shards, i) for i in range(5)]


def test_a_shard_is_sent_its_own_items_only() -> None:
    backend, size = Counted(), 100_000
    items = [np.full(size, i, np.uint8) for i in range(12)]
    with flowrl.run(flowrl.from_items(items, num_shards=4).gather_sync(), backend) as run:
        assert [int(item[0]) for item in run] == list(range(12))
    assert len(backend.started) == 4
    assert all(3 * size < sent < 3 * size + 5_000 for sent in backend.started)


def test_an_iterator_is_sent_to_its_own_shard_only() -> None:
    backend = Counted()
    made = [lambda i=i, held=bytes(100_000): [i, len(held)] for i in range(3)]
    with flowrl.run(flowrl.from_iterators(made).gather_sync(), backend) as run:
        assert list(run) == [0, 1, 2, 100_000, 100_000, 100_000]
    assert all(sent < 110_000 for sent in backend.started)


def test_an_item_that_cannot_be_pickled_is_named() -> None:
    flow = flowrl.from_items([1, 2, threading.Lock()], num_shards=2).gather_sync()
    with pytest.raises(StartError, match=r"group 'from_items-shards' .*\.items\[1\] is a lock"):
        flowrl.run(flow, Counted())


def test_what_is_given_apart() -> None:
    assert Apart.given((1, Apart((2, 3)), Apart((4, 5))), 1) == (1, 3, 5)
    assert Apart.given((), 0) == ()
