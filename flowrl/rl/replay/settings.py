"""Which settings of a replay shard go together."""

from __future__ import annotations

from flowrl.numbers import check_finite, check_whole


def check_settings(
    capacity: int,
    alpha: float,
    beta: float,
    sequence: int | None,
    period: int | None,
    episodes: bool,
    fifo: bool,
    prioritized: bool,
    frame_stack: int | None,
) -> None:
    """Nothing, if these settings of a shard are in range and go together.

    Raises:
        ValueError: they do not; names them.
    """
    check_whole("capacity", capacity)
    for name, number in (("alpha", alpha), ("beta", beta)):
        check_finite(name, number)
        if number < 0:
            raise ValueError(f"{name} must be at least 0, got {number!r}")
    for name, whole in (("sequence", sequence), ("period", period), ("frame_stack", frame_stack)):
        if whole is not None:
            check_whole(name, whole)
    if sequence is not None and sequence > capacity:
        raise ValueError(f"a sequence of {sequence} rows does not fit into capacity={capacity}")
    if period is not None and (sequence is None or period > sequence):
        raise ValueError(f"period={period} needs a sequence of at least so many rows, got sequence={sequence}")
    if episodes and sequence is not None:
        raise ValueError(f"an item is an episode or a sequence: set episodes or sequence={sequence}, not both")
    if fifo and prioritized:
        raise ValueError("fifo draws items in their order, priorities would count for nothing: set one of the two")
