"""The rows of a saved shard, on their way to another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrl.batch import Batch
from flowrl.rl.replay.pool import Floats
from flowrl.rl.replay.table import Table

ALIKE = ("prioritized", "alpha")
ROWS_ONLY = {"sequence": None, "episodes": False, "max_times_sampled": None}


def rows_of_state(state: Mapping[str, Any], settings: Mapping[str, Any]) -> tuple[Batch, Floats | None] | None:
    """The rows (B,) of a shard's state, the oldest first, and their masses, where it has some; None without rows.

    settings: of the shard that they move to.

    Raises:
        ValueError: the items of one of them are not rows, or have limited draws; or priorities count otherwise.
    """
    were = state["settings"]
    if any(of[name] != plain for of in (were, settings) for name, plain in ROWS_ONLY.items()):
        raise ValueError(
            "sequences, episodes and rows with a limit of draws cannot move to another shard: there must be as many "
            "replay shards as before"
        )
    if any(were[name] != settings[name] for name in ALIKE):
        raise ValueError("the rows of a shard can only move to one with the same prioritized and alpha")
    capacity, head = int(were["capacity"]), int(state["table"]["head"])
    if not head:
        return None
    table = Table(capacity)
    table.set_state(state["table"])
    places = np.arange(max(0, head - capacity), head) % capacity
    masses = state["pool"]["masses"]
    return Batch(table.read(places)), None if masses is None else np.asarray(masses)[places]
