"""What a long run holds of the machine, process by process, and whether that grows: slopes with their intervals."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import psutil

MIB = 2**20
HOUR_S = 3600.0
FEW = 10  # readings that make a slope
SIGMAS = 1.96


@dataclass(frozen=True)
class Limit:
    """A growth that is none yet: `an_hour`, or as long as it has not come to more than `at_all`."""

    an_hour: float
    at_all: float


@dataclass(frozen=True)
class Slope:
    """A growth an hour, with its 95% interval; of so many readings over so many seconds together."""

    per_hour: float
    low: float
    high: float
    readings: int
    seconds: float

    def beyond(self, limit: Limit) -> bool:
        """Whether it is above the limit for sure, and came to something."""
        return self.low > limit.an_hour and self.low * self.seconds / HOUR_S > limit.at_all

    def __str__(self) -> str:
        return f"{self.per_hour:+,.1f} an hour ({self.low:+,.1f} to {self.high:+,.1f}, {self.readings} readings)"


def slope(pieces: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Slope | None:
    """The common slope, by least squares, of pieces (seconds, values) that each begin where they like.

    Readings that follow each other have errors alike; the interval is wider for it by √((1 + ρ) / (1 − ρ)), with ρ the
    residuals' correlation from one to the next. None of fewer than FEW readings.
    """
    used = [(np.asarray(t, float) / HOUR_S, np.asarray(v, float)) for t, v in pieces if len(t) >= 3]
    count = sum(len(t) for t, _ in used)
    if count < FEW:
        return None
    centered = [(t - t.mean(), v - v.mean()) for t, v in used]
    spread = sum(float(t @ t) for t, _ in centered)
    if spread <= 0:
        return None
    rise = sum(float(t @ v) for t, v in centered) / spread
    residuals = [v - rise * t for t, v in centered]
    squares = sum(float(r @ r) for r in residuals)
    alike = 0.0 if squares <= 0 else sum(float(r[:-1] @ r[1:]) for r in residuals) / squares
    alike = min(max(alike, 0.0), 0.99)
    error = math.sqrt(squares / max(count - len(used) - 1, 1) / spread * (1 + alike) / (1 - alike))
    seconds = sum(float(t[-1] - t[0]) for t, _ in used) * HOUR_S
    return Slope(rise, rise - SIGMAS * error, rise + SIGMAS * error, count, seconds)


@dataclass
class Series:
    """Readings of one thing: of each piece (a process and its successors have one each) seconds and values."""

    pieces: dict[object, tuple[list[float], list[float]]] = field(default_factory=dict)

    def add(self, at_s: float, value: float, piece: object = None) -> None:
        """One more reading."""
        times, values = self.pieces.setdefault(piece, ([], []))
        times.append(at_s)
        values.append(value)

    def slope(self, warm_up_s: float) -> Slope | None:
        """Its growth, without the first `warm_up_s` of each piece."""
        warm = []
        for times, values in self.pieces.values():
            first = next((i for i, at in enumerate(times) if at >= times[0] + warm_up_s), len(times))
            warm.append((times[first:], values[first:]))
        return slope(warm)

    @property
    def last(self) -> float:
        """The newest reading."""
        return max(self.pieces.values(), key=lambda piece: piece[0][-1])[1][-1]

    @property
    def most(self) -> float:
        """The largest reading."""
        return max(max(values) for _, values in self.pieces.values())


@dataclass
class Holdings:
    """What a run holds, by (what, whose): "MiB" of memory of its own and "files" of each process, and counts of others.

    limits: by what. warm_up_s: of each process, what its readings do not count.
    """

    limits: Mapping[str, Limit]
    warm_up_s: float
    series: dict[tuple[str, str], Series] = field(default_factory=dict)

    def read(self, at_s: float, pids: Mapping[str, int], counts: Mapping[str, float]) -> None:
        """One reading of everything; processes that have ended meanwhile are left out."""
        for name, pid in pids.items():
            try:
                memory = psutil.Process(pid).memory_info()
                if not memory.rss:  # it has ended, and nobody has looked yet
                    continue
                files = len(os.listdir(f"/proc/{pid}/fd"))
            except (psutil.Error, OSError):
                continue
            # Pages of the object store are mapped by who reads them, and are counted there.
            self._at("MiB", name).add(at_s, (memory.rss - memory.shared) / MIB, pid)
            self._at("files", name).add(at_s, files, pid)
        for what, count in counts.items():
            self._at(what, "").add(at_s, count)

    def _at(self, what: str, whose: str) -> Series:
        return self.series.setdefault((what, whose), Series())

    def growing(self) -> list[tuple[str, str]]:
        """Who grows for sure, beyond the limit: (whose, what of it)."""
        found = []
        for (what, whose), series in self.series.items():
            rise = series.slope(self.warm_up_s)
            limit = self.limits[what]
            if rise is not None and rise.beyond(limit):
                found.append((whose or what, f"{what}: {rise}, at {series.last:,.1f} now; limit {limit.an_hour:g}"))
        return found

    def rows(self) -> list[tuple[str, str, float, float, Slope | None]]:
        """(whose, what, last, most, slope) of everything, in order."""
        every = sorted(self.series.items())
        return [(whose, what, s.last, s.most, s.slope(self.warm_up_s)) for (what, whose), s in every]
