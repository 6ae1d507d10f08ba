"""The token of a run: one thread has it, and those that wait get it in their order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from flowrl.engine.token import Token

LIMIT_S = 30.0


def waiting(token: Token, count: int) -> None:
    """Returns when so many threads wait."""
    while len(token._waiting) < count:
        threading.Event().wait(0.001)


def test_one_at_a_time() -> None:
    token, inside, most, done = Token(), [0], [0], []

    def work() -> None:
        for _ in range(500):
            token.take()
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            inside[0] -= 1
            token.give()
        done.append(None)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert (len(done), most) == (6, [1])
    assert token.take_at_once()  # exactly one
    assert not token.take_at_once()


def test_those_that_wait_come_in_their_order_and_before_the_one_that_gave_it() -> None:
    token, order = Token(), []
    assert token.take_at_once()

    def wanting(name: int) -> Callable[[], None]:
        def work() -> None:
            token.take()
            order.append(name)
            token.give()

        return work

    threads = []
    for name in range(3):
        threads.append(threading.Thread(target=wanting(name)))
        threads[-1].start()
        waiting(token, name + 1)
    token.give()
    assert token.take(timeout_s=LIMIT_S)
    order.append(3)
    assert order == [0, 1, 2, 3]


def test_it_waits_no_longer_than_it_is_told() -> None:
    token = Token()
    assert token.take(timeout_s=0.0)
    assert not token.take(timeout_s=0.01)
    assert not token._waiting
    token.give()
    assert token.take_at_once()


def test_what_is_raised_while_it_waits_leaves_the_token_to_others() -> None:
    token = Token()

    def interrupted(act: Callable[[], Any]) -> None:
        raise KeyboardInterrupt

    def interrupted_too_late(act: Callable[[], Any]) -> None:
        token.give()  # the other thread, meanwhile: it is handed over
        assert not token.take_at_once()
        raise KeyboardInterrupt

    assert token.take_at_once()
    with pytest.raises(KeyboardInterrupt):
        token.take(interrupted)
    assert not token._waiting
    with pytest.raises(KeyboardInterrupt):
        token.take(interrupted_too_late)
    assert token.take_at_once()
