"""How inserts into a replay group and samples from it keep step; declared on the group, enforced by the run."""

from __future__ import annotations

from dataclasses import dataclass

from flowrl.numbers import check_finite, check_whole


@dataclass(frozen=True)
class Pacing:
    """The bounds of one replay group, all its shards together, as in Reverb's rate limiters (arXiv:2102.04736).

    With diff = inserted · samples_per_insert − sampled, both counted in rows, an insert of r rows may go where

        diff + r · samples_per_insert <= min_size · samples_per_insert + error_buffer

    and a sample of r rows where min_size rows are stored and

        diff − r >= min_size · samples_per_insert − error_buffer

    Attributes:
        min_size: rows that the group must hold before anything is sampled.
        samples_per_insert: rows sampled for each row inserted; None sets no ratio.
        error_buffer: how far the ratio may be off for the moment, in rows sampled; None: the least with which one of
            the two always may go, and all messages that those who store and draw may have in flight may be out.
        max_times_sampled: how often one row may be sampled at most; None sets no limit.
        item_rows: the rows of one sampled item: 1, or the length of a sequence.

    Raises:
        ValueError: a number is out of range; names it.
    """

    min_size: int = 1
    samples_per_insert: float | None = None
    error_buffer: float | None = None
    max_times_sampled: int | None = None
    item_rows: int = 1

    def __post_init__(self) -> None:
        check_whole("min_size", self.min_size)
        check_whole("item_rows", self.item_rows)
        if self.max_times_sampled is not None:
            check_whole("max_times_sampled", self.max_times_sampled)
        for name in ("samples_per_insert", "error_buffer"):
            value = getattr(self, name)
            if value is None:
                continue
            check_finite(name, value)
            if not value > 0:
                raise ValueError(f"{name} must be above 0, got {value!r}; None sets no limit")
        spi, times = self.samples_per_insert, self.max_times_sampled
        if self.error_buffer is not None and spi is None:
            raise ValueError("error_buffer says how far samples_per_insert may be off: set samples_per_insert too")
        if spi is not None and times is not None and spi > times:
            raise ValueError(
                f"samples_per_insert={spi!r} asks for more than max_times_sampled={times!r} of each row; raise that"
            )

    def rows_of(self, items: int) -> int:
        """The rows of so many sampled items."""
        return items * self.item_rows
