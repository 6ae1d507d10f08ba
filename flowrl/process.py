"""The process that an actor lives in: whether it is the actor's own, and how code in it ends it and says why."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

ENDED = 70  # its exit code

_last_words: Callable[[str], None] | None = None


def belongs_to_one_actor(last_words: Callable[[str], None]) -> None:
    """Said once by who makes actors in processes; `last_words` keeps a reason for the driver."""
    global _last_words
    _last_words = last_words


def is_an_actors_own() -> bool:
    """Whether this process lives for one actor, so that ending it ends nothing else."""
    return _last_words is not None


def end(reason: str) -> NoReturn:
    """Ends this process at once, from any thread; the driver sees the death of an actor for this reason."""
    assert _last_words is not None, "this process is not an actor's own"
    with suppress(Exception):  # whatever becomes of the words, the process ends
        print(f"flowrl: this process ends: {reason}", file=sys.stderr, flush=True)
        _last_words(reason)
    os._exit(ENDED)
