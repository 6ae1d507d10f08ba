"""What algorithms with replay have in common: shards of a capacity, and how fast experience is drawn from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flowrl import ActorGroup, actors, rl
from flowrl.algorithms.collecting import CollectingConfig, check_policies
from flowrl.failures import Ignore, Raise, Restart
from flowrl.numbers import check_fields
from flowrl.rl.replay.settings import check_alpha
from flowrl.rl.schedules import Rate, check_rate


@dataclass(frozen=True)
class ReplayingConfig(CollectingConfig):
    """The settings that all algorithms with replay share."""

    num_workers: int = 1
    """Rollout workers: the shards of the graph."""
    replay_shards: int = 1
    """Replay shards, each an actor of `capacity` rows."""
    capacity: int = 50_000
    """Rows that a shard keeps."""
    alpha: float = 0.6
    """How much priorities count in drawing."""
    beta: Rate = 0.4
    """How far importance weights make up for that; a number or a schedule, often rising to 1."""
    min_size: int = 1000
    """Rows that are stored before training begins."""
    samples_per_step: float | None = 8.0
    """Rows trained on for each environment step; None: both sides run as fast as they can."""
    batch: int = 64
    """Rows of an update."""
    batches: int = 16
    """Updates a message: so many minibatches are drawn and trained on at once."""
    in_flight: int = 2
    """Messages to the replay shards, and to the learner, that are out at once."""
    learning_rate: Rate = 1e-3
    """Adam's step size: a number, or a schedule over environment steps."""
    discount: float = 0.99
    """γ, of future rewards."""
    n_step: int = 1
    """Rewards of so many steps are summed before the value of what follows."""
    on_shard_failure: Ignore | Restart | Raise = Ignore()  # noqa: RUF009  (frozen)
    """What the death of a replay shard's process means: the others go on, it is started again, empty, or the run
    stops."""

    def __post_init__(self) -> None:
        super().__post_init__()
        counts = ("replay_shards", "capacity", "min_size", "batch", "batches", "in_flight", "n_step")
        paced = () if self.samples_per_step is None else ("samples_per_step",)
        check_fields(self, whole=counts, positive=paced, fraction=("discount",))
        check_rate("learning_rate", self.learning_rate, above_0=True)
        check_rate("beta", self.beta, above_0=False)
        check_alpha(self.alpha)
        check_policies(self, on_shard_failure=(Restart, Ignore, Raise))
        if self.min_size > self.capacity * self.replay_shards:
            shards = "1 shard" if self.replay_shards == 1 else f"{self.replay_shards} shards"
            raise ValueError(
                f"min_size={self.min_size} rows can never be stored in {shards} of capacity={self.capacity}: lower "
                "min_size or raise capacity"
            )


def replay_of(cfg: ReplayingConfig, *, prioritized: bool, **more: Any) -> ActorGroup[rl.ReplayShard]:
    """The replay shards of a config; `more` are further arguments of theirs."""
    return actors(
        rl.ReplayShard, cfg.capacity, prioritized=prioritized, alpha=cfg.alpha, min_size=cfg.min_size,
        samples_per_insert=cfg.samples_per_step, count=cfg.replay_shards, name="replay", **more,
    )  # fmt: skip
