"""Torch's process-wide settings, borrowed and put back: the number of threads, the global generator.

Classes, not generators with `contextlib.contextmanager`: that assigns the traceback to whatever passes, which a frozen
exception of the user's refuses, so that it would come out as another one.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import TracebackType

import numpy as np
import torch

Raised = type[BaseException] | None


class one_thread(AbstractContextManager[None]):  # noqa: N801  (used like a function, as those below)
    """Torch runs one thread inside, and as many as before afterwards."""

    def __enter__(self) -> None:
        self._threads = torch.get_num_threads()
        if self._threads != 1:
            torch.set_num_threads(1)

    def __exit__(self, kind: Raised, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._threads != 1:
            torch.set_num_threads(self._threads)


class global_generator(AbstractContextManager[None]):  # noqa: N801
    """Torch's global generator is seeded inside, for modules that draw from it, and goes on as before afterwards."""

    def __init__(self, seed: np.random.SeedSequence | np.random.Generator):
        if isinstance(seed, np.random.Generator):
            self._seed = int(seed.integers(2**63))
        else:
            self._seed = int(seed.generate_state(1, np.uint64)[0] >> 1)

    def __enter__(self) -> None:
        self._before = torch.random.get_rng_state()
        torch.default_generator.manual_seed(self._seed)

    def __exit__(self, kind: Raised, error: BaseException | None, traceback: TracebackType | None) -> None:
        torch.random.set_rng_state(self._before)


class quiet(AbstractContextManager[None]):  # noqa: N801
    """One thread inside, and the global generator seeded from `draws_from`, if any, for modules that draw (dropout)."""

    def __init__(self, draws_from: np.random.Generator | None):
        self._thread = one_thread()
        self._drawn: AbstractContextManager[None] = (
            nullcontext() if draws_from is None else global_generator(draws_from)
        )

    def __enter__(self) -> None:
        self._thread.__enter__()
        self._drawn.__enter__()

    def __exit__(self, kind: Raised, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._drawn.__exit__(kind, error, traceback)
        self._thread.__exit__(kind, error, traceback)
