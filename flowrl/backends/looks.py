"""When to look, after a wait for one answer, which others are there."""

from __future__ import annotations

WORTH, EVERY = 0.4, 6  # answers that make a look worth it; else one wait in so many has one


class Looks:
    """Whether a look at what else is answered pays: it costs as much as a wait, and saves one for each that it finds.

    Where the last looks have found little, only one in several is taken.
    """

    def __init__(self) -> None:
        self._usual = 1.0  # how many answers a look has found of late
        self._passed = 0

    def due(self) -> bool:
        """Whether to look now."""
        self._passed += 1
        return self._usual >= WORTH or self._passed >= EVERY

    def found(self, more: int) -> None:
        """What a look came to."""
        self._passed = 0
        self._usual += (more - self._usual) / 4
