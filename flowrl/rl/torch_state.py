"""Torch's process-wide settings, borrowed and put back: the number of threads, the global generator."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import torch


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Torch runs one thread inside, and as many as before afterwards."""
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextlib.contextmanager
def global_generator(seed: np.random.SeedSequence | np.random.Generator) -> Iterator[None]:
    """Torch's global generator is seeded inside, for modules that draw from it, and goes on as before afterwards."""
    if isinstance(seed, np.random.Generator):
        number = int(seed.integers(2**63))
    else:
        number = int(seed.generate_state(1, np.uint64)[0] >> 1)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(number)
        yield


@contextlib.contextmanager
def quiet(draws_from: np.random.Generator | None) -> Iterator[None]:
    """One thread inside, and the global generator seeded from `draws_from`, if any, for modules that draw (dropout)."""
    with one_thread(), contextlib.nullcontext() if draws_from is None else global_generator(draws_from):
        yield
