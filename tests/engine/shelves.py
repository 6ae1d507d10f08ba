"""A small replay group: workers that give numbered rows, and shards that keep them all and remember what was asked."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrl import Answer, Batch, EndOfStream, Flow, actors, from_actors
from flowrl.handles import ActorGroup
from flowrl.metrics import Sum
from flowrl.operators import Replay, StoreToReplay, Union
from flowrl.pacing import Pacing


class Worker:
    """Gives batches of `rows` rows, numbered through; the first of shard i is i million."""

    def __init__(self, rows: int = 4, *, limit: int = 10**9, width: int = 0, index: int = 0):
        self.rows, self.limit, self.width = rows, limit, width
        self.next, self.steps = index * 10**6, 0
        self.heard: list[Any] = []

    def sample(self) -> Batch:
        """The next rows."""
        if self.steps == self.limit:
            raise EndOfStream
        self.steps += 1
        self.next += self.rows
        columns = {"x": np.arange(self.next - self.rows, self.next)}
        if self.width:
            columns["wide"] = np.zeros((self.rows, self.width))
        return Batch(columns)

    def hear(self, value: Any) -> None:
        """Takes a message in."""
        self.heard.append(value)


class Shelf:
    """Keeps every row; the mass of a row is `weight`, and what it was asked stands in `asked`."""

    @classmethod
    def pacing(cls, weights: Any = None, **given: Any) -> Pacing:
        """Whatever was described."""
        return Pacing(**given)

    def __init__(self, weights: tuple[float, ...] = (1.0,), *, seed: int | None = None, index: int = 0, **given: Any):
        self.rows: list[int] = []
        self.weight = weights[index % len(weights)]
        self.random = np.random.default_rng(seed)
        self.asked: list[Any] = []
        self.wide = 0

    def store(self, batch: Batch) -> Answer[int]:
        """How many rows it took in."""
        self.rows.extend(batch["x"].tolist())
        self.wide = batch["wide"].shape[1] if "wide" in batch else 0
        self.asked.append(("store", len(batch["x"])))
        return Answer(len(batch["x"]), {**self._figures(), "inserted": Sum(len(batch["x"]))})

    def draw(self, n: int, *, batches: int, beta: float | None) -> Answer[Batch]:
        """Random rows, with the places that they stand at."""
        self.asked.append(("draw", n, batches, beta))
        at = self.random.integers(len(self.rows), size=n * batches)
        columns = {"x": np.array([self.rows[i] for i in at.tolist()]), "slots": at}
        if self.wide:
            columns["wide"] = np.zeros((len(at), self.wide))
        return Answer(Batch(columns), {**self._figures(), "sampled": Sum(len(at))})

    def reprioritize(self, batch: Batch) -> None:
        """Takes new priorities in."""
        self.asked.append(("reprioritize", batch["slots"].tolist(), batch["priorities"].tolist()))

    def history(self) -> list[Any]:
        """What it was asked, in order."""
        return self.asked

    def held(self) -> list[int]:
        """Its rows."""
        return self.rows

    def _figures(self) -> dict[str, float]:
        return {"size": len(self.rows), "mass": self.weight * len(self.rows)}


def shelves(count: int = 1, **pacing: Any) -> ActorGroup[Shelf]:
    """A replay group."""
    return actors(Shelf, count=count, name="replay", **pacing)


def rollouts(mode: str = "async", count: int = 1, **kwargs: Any) -> Flow[Batch]:
    """Batches of workers."""
    source = from_actors(actors(Worker, count=count, name="workers", **kwargs), "sample")
    return source.gather_async() if mode == "async" else source.gather_sync()


def stored_and_drawn(
    replay: ActorGroup[Shelf], source: Flow[Batch], mode: str = "async", *, stores: int = 2, **drawn: Any
) -> Flow[Batch]:
    """What is drawn, while a branch beside it stores."""
    stored = source.for_each(StoreToReplay(replay, in_flight=stores))
    sampled = Replay(replay, **drawn)
    return Union([stored, sampled], mode=mode, emit=[sampled])  # type: ignore[arg-type]
