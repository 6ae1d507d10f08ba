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
from flowrl import Answer, Batch, Context, GraphError, Local, MultiAgentBatch, Restart
from flowrl.engine.stage import Stage
from flowrl.handles import ActorHandle
from flowrl.operators import InitialPriorities, NStep, ParallelRollouts
from flowrl.rl import EnvOptions, RolloutWorker
from flowrl.rl.returns import n_step
from tests.rl.counting_envs import Counting

WORKER = (ActorHandle("workers", 0),)


def stream(steps: int, envs: int, seed: int) -> Batch:
    """Rows of episodes of all kinds, with reset rows that are no transitions; NaN stands in those.

    The next observation is that of the next row, but at an episode's end.
    """
    rng = np.random.default_rng(seed)
    shape = (steps, envs)
    terminated, truncated = rng.random(shape) < 0.15, rng.random(shape) < 0.1
    valid = np.ones(shape, np.bool_)
    valid[1:] = ~((terminated | truncated)[:-1] & (rng.random((steps - 1, envs)) < 0.5))
    rewards = np.where(valid, rng.normal(size=shape), np.nan).astype(np.float32)
    obs = np.arange(steps * envs, dtype=np.float32).reshape(shape)
    next_obs = rng.normal(size=shape).astype(np.float32)
    next_obs[:-1] = np.where((terminated | truncated)[:-1], next_obs[:-1], obs[1:])
    columns = {
        "obs": obs,
        "rewards": rewards,
        "terminated": terminated & valid,
        "truncated": truncated & valid,
        "valid": valid,
        "next_obs/a": rng.normal(size=(*shape, 2)).astype(np.float32),
        "next_values": rng.normal(size=shape).astype(np.float32),
        "next_obs": next_obs,
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


def test_rows_end_where_the_next_fragment_begins_new_episodes() -> None:
    # Two environments; the second goes on, the first begins anew after a fault: its reward of 100 is no return of 3, 4.
    before = Batch(
        {
            "obs": np.array([[1.0, 1.0], [2.0, 2.0]]), "next_obs": np.array([[2.0, 2.0], [3.0, 3.0]]),
            "rewards": np.array([[3.0, 3.0], [4.0, 4.0]]),
            "terminated": np.zeros((2, 2), np.bool_), "truncated": np.zeros((2, 2), np.bool_),
        },
        time_major=True,
    )  # fmt: skip
    after = Batch(
        {**before, "obs": np.array([[9.0, 3.0], [8.0, 4.0]]), "next_obs": np.array([[8.0, 4.0], [7.0, 5.0]]),
         "rewards": np.array([[100.0, 5.0], [100.0, 6.0]])},
        time_major=True,
    )  # fmt: skip
    nothing, (made,), (rest,) = pushed(NStep(3, 0.5), [before, after])
    assert nothing == []
    np.testing.assert_array_equal(
        made["rewards"], [[3 + 0.5 * 4, 3 + 0.5 * 4 + 0.25 * 5], [4.0, 4 + 0.5 * 5 + 0.25 * 6]]
    )
    np.testing.assert_array_equal(made["next_obs"], [[3.0, 4.0], [3.0, 5.0]])
    np.testing.assert_array_equal(made["discounts"], [[0.25, 0.125], [0.5, 0.125]])  # of the steps that there were
    np.testing.assert_array_equal(made["truncated"], [[True, False], [True, False]])
    np.testing.assert_array_equal(rest["rewards"][0], [100 + 0.5 * 100, 5 + 0.5 * 6])
    assert not before["truncated"].any()


class Fails(Counting):
    """Counting with episodes of 40 steps that raises at the 21st of its first."""

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if Fails.left and self.step_number == 20:
            Fails.left -= 1
            raise RuntimeError("the arm is stuck")
        return super().step(action)

    left = 0


def test_no_return_goes_over_a_fault() -> None:
    Fails.left = 1
    workers = flowrl.actors(
        RolloutWorker, lambda: Fails((40,)), steps=8, num_envs=2, next_obs=True, count=1, name="workers",
        env_options=EnvOptions(vector="sync", on_fault=Restart(1, backoff_s=0.0), crash_dir=None),
    )  # fmt: skip
    flow = ParallelRollouts(workers).for_each(NStep(4, 1.0)).gather_sync()
    with flowrl.run(flow, Local(), seed=0) as run:
        rows = joined(run.step(6))
        assert run.stats().metrics["ParallelRollouts"]["env_restarts"] == 1
    # The reward of step k is k: a return over m steps from step s on is s + 1 + ... + s + m.
    first, last = rows["obs"][..., 1], rows["next_obs"][..., 1]
    m = last - first
    assert set(np.unique(m[rows["valid"]])) == {1, 2, 3, 4}
    np.testing.assert_array_equal(rows["rewards"][rows["valid"]], (m * first + m * (m + 1) / 2)[rows["valid"]])


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
        self.step, self.fragments = 0, cut(stream(24, 2, index + 1), list(range(4, 24, 4)))

    def sample(self) -> Answer[Batch]:
        self.step += 1
        batch = self.fragments[self.step - 1]
        return Answer(batch.with_columns(q_taken=np.zeros((4, 2), np.float32)), policy_version=self.step)


def test_in_shards_with_priorities_behind_it() -> None:
    group = flowrl.actors(Source, count=2, name="workers")
    source = flowrl.from_actors(group, "sample").for_each(NStep(3, 0.5)).for_each(InitialPriorities())
    with flowrl.run(source.gather_sync(), Local()) as run:
        items = run.step(6)
    mine = joined(items[::2])
    whole = n_step(stream(24, 2, 1), discount=0.5, n=3)
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
