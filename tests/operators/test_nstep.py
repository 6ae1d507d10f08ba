"""NStep on fragments, however they are cut, equals n_step on the whole; rows wait at most n-1 steps."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowrl
from flowrl import Answer, Batch, Context, GraphError, Local, MultiAgentBatch
from flowrl.engine.stage import Stage
from flowrl.handles import ActorHandle
from flowrl.operators import InitialPriorities, NStep
from flowrl.rl.returns import n_step

WORKER = (ActorHandle("workers", 0),)


def stream(steps: int, envs: int, seed: int) -> Batch:
    """Rows of episodes of all kinds, with reset rows that are no transitions; NaN stands in those."""
    rng = np.random.default_rng(seed)
    shape = (steps, envs)
    terminated, truncated = rng.random(shape) < 0.15, rng.random(shape) < 0.1
    valid = np.ones(shape, np.bool_)
    valid[1:] = ~((terminated | truncated)[:-1] & (rng.random((steps - 1, envs)) < 0.5))
    rewards = np.where(valid, rng.normal(size=shape), np.nan).astype(np.float32)
    columns = {
        "obs": np.arange(steps * envs, dtype=np.float32).reshape(shape),
        "rewards": rewards,
        "terminated": terminated & valid,
        "truncated": truncated & valid,
        "valid": valid,
        "next_obs/a": rng.normal(size=(*shape, 2)).astype(np.float32),
        "next_values": rng.normal(size=shape).astype(np.float32),
        "next_obs": rng.normal(size=shape).astype(np.float32),
    }
    return Batch(columns, time_major=True)


def cut(batch: Batch, at: list[int]) -> list[Batch]:
    """Fragments of a stream."""
    places = [0, *sorted(at), batch.leading[0]]
    return [
        Batch({name: array[start:stop] for name, array in batch.items()}, time_major=True)
        for start, stop in pairwise(places)
        if stop > start
    ]


def joined(batches: list[Batch]) -> Batch:
    """Along time."""
    columns = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    return Batch(columns, time_major=True)


def pushed(op: NStep, items: list[Any], origins: Any = WORKER) -> Iterator[Any]:
    stage = Stage("NStep", op, Context("NStep"))
    stage.open()
    for item in items:
        yield [value for value, _, _ in stage.push(item, origins, 0)]
    yield [value for value, _, _ in stage.finish()]


@given(
    steps=st.integers(1, 30),
    envs=st.integers(1, 3),
    n=st.integers(1, 6),
    seed=st.integers(0, 10**6),
    cuts=st.lists(st.integers(0, 30), max_size=6),
)
@settings(max_examples=60, deadline=None)
def test_however_a_stream_is_cut_the_rows_are_the_same(
    steps: int, envs: int, n: int, seed: int, cuts: list[int]
) -> None:
    whole = stream(steps, envs, seed)
    fragments = cut(whole, [min(at, steps) for at in cuts])
    results = [batch for batches in pushed(NStep(n, 0.9), fragments) for batch in batches]
    assert joined(results) == n_step(whole, discount=0.9, n=n)


def test_a_row_comes_out_with_the_fragment_that_completes_it() -> None:
    fragments = cut(stream(12, 2, 0), [4, 8])
    lengths = [[batch.leading for batch in batches] for batches in pushed(NStep(3), fragments)]
    assert lengths == [[(2, 2)], [(4, 2)], [(4, 2)], [(2, 2)]]
    short = [[batch.leading for batch in batches] for batches in pushed(NStep(6), cut(stream(6, 1, 0), [2, 4]))]
    assert short == [[], [], [(1, 1)], [(5, 1)]]


def test_streams_are_kept_apart_by_origin_and_end_with_their_worker() -> None:
    op = NStep(2, 0.5)
    op.open()
    stage = Stage("NStep", op, Context("NStep"))
    two = (ActorHandle("workers", 1),)
    assert [v.leading for v, _, _ in stage.push(stream(3, 2, 1), WORKER, 5)] == [(2, 2)]
    assert [v.leading for v, _, _ in stage.push(stream(3, 1, 2), two, 6)] == [(2, 1)]
    ((value, origins, version),) = stage.push(stream(3, 2, 3), WORKER, 7)
    assert (value.leading, origins, version) == ((3, 2), WORKER, 5)  # a row of version 5 is among them
    op.actor_started(two[0], stage.ctx)
    ((value, origins, version),) = stage.push(stream(3, 1, 4), two, 8)
    assert (value.leading, version) == ((2, 1), 8)  # nothing carried over from the life before
    rest = stage.finish()
    assert [(v.leading, o, version) for v, o, version in rest] == [((1, 2), WORKER, 7), ((1, 1), two, 8)]


def test_policies_are_streams_of_their_own() -> None:
    def parts(seed: int, policies: str) -> MultiAgentBatch:
        return MultiAgentBatch({name: stream(3, 1, seed + ord(name)) for name in policies}, env_steps=3)

    first, second, end = pushed(NStep(3, 0.9), [parts(0, "ab"), parts(5, "b")])
    assert [(sorted(item), item.env_steps) for item in first] == [(["a", "b"], 3)]
    whole = joined([parts(0, "b")["b"], parts(5, "b")["b"]])
    assert joined([item["b"] for item in (*first, *second, *end) if "b" in item]) == n_step(whole, discount=0.9, n=3)
    assert [(sorted(item), item.env_steps) for item in end] == [(["a"], 0), (["b"], 0)]


class Source:
    """Fragments of a worker with values of actions."""

    @classmethod
    def batch_columns(cls, *, q: bool = True) -> frozenset[str]:
        columns = {"obs", "rewards", "terminated", "truncated", "next_obs", "next_values"}
        return frozenset(columns | {"q_taken"} if q else columns)

    def __init__(self, *, q: bool = True, index: int = 0):
        self.step, self.index = 0, index

    def sample(self) -> Answer[Batch]:
        self.step += 1
        batch = stream(4, 2, self.step + 100 * self.index)
        return Answer(batch.with_columns(q_taken=np.zeros((4, 2), np.float32)), policy_version=self.step)


def test_in_shards_with_priorities_behind_it() -> None:
    group = flowrl.actors(Source, count=2, name="workers")
    source = flowrl.from_actors(group, "sample").for_each(NStep(3, 0.5)).for_each(InitialPriorities())
    with flowrl.run(source.gather_sync(), Local()) as run:
        items = run.step(6)
    mine = joined(items[::2])
    whole = n_step(joined([stream(4, 2, step) for step in (1, 2, 3)]), discount=0.5, n=3)
    expected = np.abs(whole["rewards"] + whole["discounts"] * np.where(whole["terminated"], 0, whole["next_values"]))
    kept = whole.valid[:10]
    np.testing.assert_allclose(mine["priorities"][kept], expected[:10][kept], rtol=1e-6)
    assert (mine["priorities"][~kept] == 0).all()
    assert mine["priorities"].dtype == np.float32
    text = source.gather_sync().explain()
    assert "discounts" in text
    assert "priorities" in text


def test_columns_are_checked_when_the_graph_is_built() -> None:
    without = flowrl.actors(Source, q=False, count=1, name="workers")
    flow = flowrl.from_actors(without, "sample").for_each(NStep(3)).for_each(InitialPriorities()).gather_sync()
    with pytest.raises(GraphError, match=r"'InitialPriorities' .*needs the columns q_taken"):
        flowrl.run(flow, Local())


def test_what_it_refuses() -> None:
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        NStep(0)
    with pytest.raises(ValueError, match="discount must be a number between 0 and 1, got None"):
        NStep(2, None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"discount must be between 0 and 1, got 1\.5"):
        NStep(2, 1.5)
    with pytest.raises(ValueError, match="NStep needs a time-major batch"):
        refused(Batch({"rewards": np.zeros(3)}))
    with pytest.raises(ValueError, match=r"carries rows of 1 environments, but the next fragment .* has 2"):
        refused(stream(3, 1, 0), stream(3, 2, 0))


def refused(*items: Any) -> None:
    with flowrl.run(flowrl.from_items(items, num_shards=1).for_each(NStep(2)).gather_sync(), Local()) as run:
        list(run)
