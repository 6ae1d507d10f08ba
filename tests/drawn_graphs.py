"""Graphs that the drawings are tested with, by hand and by hypothesis."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from flowrl import (
    AskOperator,
    Context,
    Flow,
    Ignore,
    Operator,
    Restart,
    actor,
    actors,
    from_actors,
    from_items,
    from_iterable,
)
from flowrl.handles import ActorGroup
from flowrl.operators import (
    ConcatBatches,
    ParallelRollouts,
    Replay,
    SendWeights,
    StoreToReplay,
    TrainOneStep,
    Union,
    UpdatePriorities,
)
from flowrl.pacing import Pacing


class Worker:
    """A source that stamps its items with the newest mark it was told."""

    default_cpus = 1

    def __init__(self, index: int):
        self.index, self.made, self.marked = index, 0, -1

    @classmethod
    def batch_columns(cls, *args: Any, **kwargs: Any) -> frozenset[str]:
        return frozenset({"obs", "rewards"})

    def sample(self, steps: int = 1) -> tuple[int, int]:
        self.made += 1
        return self.made, self.marked

    def mark(self, item: int) -> None:
        self.marked = item

    def set_weights(self, weights: Any, version: int) -> None:
        """Of a policy that it does not have."""


class Keeper:
    """Answers what it was asked."""

    def same(self, value: Any) -> Any:
        return value

    def sample(self, n: int) -> int:
        return n

    def train(self, batch: Any) -> None: ...

    def store(self, batch: Any) -> None: ...

    def draw(self, n: int) -> None: ...

    @classmethod
    def pacing(cls, **given: Any) -> Pacing:
        return Pacing(min_size=100, samples_per_insert=8.0)


@dataclass
class Same(AskOperator[Any, Any]):
    """Each item, by way of an actor."""

    keeper: ActorGroup[Any]
    in_flight: int = 1

    def ask(self, value: Any, ctx: Context) -> Any:
        return ctx.actors(self.keeper)[0].ask("same", value)


@dataclass
class Mark(Operator[Any, Any]):
    """Each item, after telling every worker its number."""

    workers: ActorGroup[Any]

    def open(self) -> None:
        self._seen = 0

    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        for handle in ctx.actors(self.workers):
            handle.tell("mark", self._seen)
        self._seen += 1
        yield value


@dataclass
class Advantages(Operator[Any, Any]):
    """Says what it needs and adds, and holds an array and a function."""

    scale: Any = field(default_factory=lambda: np.zeros((2, 3)))
    shape: Any = field(default_factory=lambda: partial(max, 1))
    hidden: int = field(default=3, repr=False)
    unset: int | None = None

    needs = frozenset({"rewards"})
    adds = frozenset({"advantages"})
    pure = True

    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        yield value


def ppo_like() -> Flow[Any]:
    workers = actors(Worker, count=2, name="workers")
    learner = actor(Keeper, name="learner", gpus=1, resources={"fast": 2})
    return (
        ParallelRollouts(workers)
        .for_each(Advantages())
        .gather_sync()
        .for_each(ConcatBatches(min_steps=400))
        .for_each(TrainOneStep(learner, epochs=4))
        .for_each(SendWeights(learner, to=workers))
    )


def branching() -> Flow[Any]:
    items = from_items(range(9), num_shards=3).gather_sync(on_failure=Ignore())
    left, right = items.duplicate(2, max_lag=4, overflow="drop_oldest")
    return Union([left.batch(2), right.filter(bool)], weights=[1, 2])


def off_policy() -> Flow[Any]:
    workers, replay = actors(Worker, count=2, name="workers"), actors(Keeper, count=2, name="replay")
    learner = actor(Keeper, name="learner")
    stored = from_actors(workers, "sample", 16).gather_async(num_async=3).for_each(Same(replay, in_flight=4))
    trained = from_actors(replay, "sample", 32).gather_async(on_failure=Restart(2, backoff_s=1))
    trained = trained.for_each(TrainOneStep(learner, in_flight=2)).for_each(SendWeights(learner, to=workers))
    return Union([stored, trained], mode="async", emit=[trained])


def replayed() -> Flow[Any]:
    workers, replay = actors(Worker, count=2, name="workers"), actors(Keeper, count=2, name="replay")
    learner = actor(Keeper, name="learner")
    stored = ParallelRollouts(workers).for_each(Advantages()).gather_async().for_each(StoreToReplay(replay))
    trained = Replay(replay, batch=32, batches=4, in_flight=2).for_each(TrainOneStep(learner))
    return Union([stored, trained.for_each(UpdatePriorities())], mode="async")


@st.composite
def flows(draw: st.DrawFn) -> Flow[Any]:
    """Small graphs of every node kind, names of any characters."""
    keeper = actor(Keeper, name="keeper")
    pool: list[Flow[Any]] = []
    names = iter(draw(st.lists(st.text(min_size=1, max_size=6), min_size=12, max_size=12, unique=True)))

    def named() -> str | None:
        text = next(names, "").replace("/", "")
        return text + str(len(pool)) + "!" if text and draw(st.booleans()) else None

    def source() -> Flow[Any]:
        if draw(st.booleans()):
            return Replay(keeper, batch=2) if draw(st.booleans()) else from_iterable(list)
        shards = from_items([1], num_shards=draw(st.integers(1, 3)))
        for _ in range(draw(st.integers(0, 2))):
            shards = draw(st.sampled_from([shards.flatten, partial(shards.batch, 2), partial(shards.for_each, abs)]))()
        if draw(st.booleans()):
            shards = shards.union(from_items([2], num_shards=1).filter(bool))
        return shards.gather_sync() if draw(st.booleans()) else shards.gather_async()

    pool.append(source())
    for _ in range(draw(st.integers(0, 7))):
        flow = pool.pop(draw(st.integers(0, 9)) % len(pool))
        kind = draw(st.sampled_from(["source", "ask", "apply", "take", "duplicate", "union", "prefix"]))
        if kind == "source":
            pool += [flow, source()]
        elif kind == "ask":
            pool.append(flow.for_each(Same(keeper, draw(st.integers(1, 3)))))
        elif kind == "apply":
            pool.append(flow.for_each(abs, name=named() if len(pool) == 0 else None))
        elif kind == "take":
            pool.append(flow.take(2))
        elif kind == "duplicate":
            pool += flow.duplicate(draw(st.integers(1, 3)))
        elif kind == "prefix":
            pool.append(flow.named("q") if not pool else flow)
        elif kind == "union":
            pool = [Union([flow, *pool], mode=draw(st.sampled_from(["async", "round_robin"])), emit=[flow])]
    flow = pool[0] if len(pool) == 1 else Union(pool)
    return flow.named(draw(st.sampled_from(["p", 'é"<']))) if draw(st.booleans()) else flow
