"""What a gather does when the process of a shard dies (an exception of user code is another matter)."""

from __future__ import annotations

from dataclasses import dataclass

from flowrl.numbers import check_seconds, check_whole


@dataclass(frozen=True)
class Restart:
    """Start a dead shard again, up to `times` in a row, waiting backoff_s, 2·backoff_s, 4·backoff_s … before each try.

    The count starts anew when the restarted shard has answered, unless it dies after as many answers every time.
    """

    times: int = 3
    backoff_s: float = 0.1

    def __post_init__(self) -> None:
        try:
            check_whole("Restart: times", self.times)
        except ValueError as error:
            raise ValueError(f"{error}; to give up at once use Raise()") from None
        check_seconds("Restart: backoff_s", self.backoff_s, may_be_0=True)


@dataclass(frozen=True)
class Ignore:
    """Go on without a dead shard; the loss shows in the metrics. When no shard is left, ActorDied is raised."""


@dataclass(frozen=True)
class Raise:
    """Stop the run with ActorDied."""


FailurePolicy = Restart | Ignore | Raise
