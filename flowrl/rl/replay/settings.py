"""Which settings of a replay shard go together."""

from __future__ import annotations

from flowrl.numbers import check_finite, check_whole

MOST_ALPHA = 40.0  # a priority of 0 has a mass of 1e-6^alpha, which a float must tell from 0


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
    check_finite("beta", beta)
    if beta < 0:
        raise ValueError(f"beta must be at least 0, got {beta!r}")
    check_alpha(alpha)
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


def check_alpha(alpha: float) -> None:
    """Nothing, if priorities may have this exponent.

    Raises:
        ValueError: it is negative, not finite, or so great that items of low priority would never be drawn.
    """
    check_finite("alpha", alpha)
    if alpha < 0:
        raise ValueError(f"alpha must be at least 0, got {alpha!r}")
    if alpha > MOST_ALPHA:
        raise ValueError(f"alpha must be at most {MOST_ALPHA:g}, got {alpha!r}: items of low priority would never come")
