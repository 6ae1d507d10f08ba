"""What is known before a run: columns along the edges."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import flowrl
from flowrl import Batch, Context, Flow, Local, Operator, ParallelFlow, rl
from flowrl.errors import GraphError
from flowrl.operators import ParallelRollouts, SelectPolicies, Union


class Rows:
    """Gives batches of the columns that it was told."""

    opened = 0

    def __init__(self, *columns: str):
        type(self).opened += 1
        self.columns = columns

    @staticmethod
    def batch_columns(*columns: str) -> tuple[str, ...]:
        return columns

    def sample(self) -> Batch:
        return Batch({name: np.zeros((4, 2), np.float32) for name in self.columns})


@dataclass
class Adds(Operator[Batch, Batch]):
    """Adds advantages from values."""

    needs: ClassVar[frozenset[str]] = frozenset({"values"})
    adds: ClassVar[frozenset[str]] = frozenset({"advantages"})

    def process(self, value: Batch, ctx: Context) -> Iterable[Batch]:
        yield value.with_columns(advantages=value["values"])


@dataclass
class Needs(Operator[Batch, Batch]):
    """Needs advantages."""

    needs: ClassVar[frozenset[str]] = frozenset({"advantages", "obs"})

    def process(self, value: Batch, ctx: Context) -> Iterable[Batch]:
        yield value


def rows(*columns: str, name: str = "rows", count: int = 3) -> ParallelFlow[Batch]:
    return flowrl.from_actors(flowrl.actors(Rows, *columns, count=count, name=name), "sample")


def wrong(flow: Flow[Any]) -> str:
    with pytest.raises(GraphError) as caught:
        flowrl.run(flow, Local())
    return str(caught.value)


def test_a_column_that_nobody_adds_is_named_with_who_needs_it() -> None:
    opened = Rows.opened
    told = wrong(rows("obs", "rewards").gather_sync().for_each(Needs()))
    assert told.startswith(f"node 'Needs' (defined at {__file__}:")
    assert "needs the columns advantages, which nobody on its path adds: from_actors → gather_sync → Needs" in told
    assert "'from_actors' gives obs, rewards. Put an operator that adds them before it" in told
    assert Rows.opened == opened  # nothing was started


def test_it_is_found_in_shards_and_behind_filters_too() -> None:
    assert "node 'Adds'" in wrong(rows("obs").filter(bool).for_each(Adds()).gather_sync())
    assert "node 'Needs'" in wrong(rows("obs", "values").gather_async().tap(print).filter(bool).for_each(Needs()))


def test_a_branch_and_a_join() -> None:
    """Through a union go the columns that all of its emitted branches have."""
    both = rows("obs", "values").for_each(Adds()).union(rows("obs", "values", name="others"))
    assert "needs the columns advantages" in wrong(both.gather_sync().for_each(Needs()))
    one, other = rows("obs", "values").for_each(Adds()).gather_sync().duplicate(2)
    with flowrl.run(one.for_each(Needs()), Local()) as run:
        assert run.seed >= 0
    assert other is not one


def test_what_is_added_is_there() -> None:
    for flow in (
        rows("obs", "values").for_each(Adds()).for_each(Needs()).gather_sync(),
        rows("obs", "values").gather_sync().for_each(Adds()).filter(bool).for_each(Needs()),
    ):
        flowrl.run(flow, Local()).close()


def test_what_cannot_be_known_is_no_error() -> None:
    """A plain callable may make anything of a batch; a source may not say what it gives."""
    flowrl.run(rows("obs").gather_sync().for_each(lambda batch: batch).for_each(Needs()), Local()).close()
    flowrl.run(flowrl.from_items([1], num_shards=1).gather_sync().for_each(Needs()), Local()).close()


def test_a_policy_that_nobody_plays_is_not_taken_out() -> None:
    """Else its branch would get nothing, in silence."""
    spec = rl.PolicySpec()
    workers = flowrl.actors(
        rl.MultiAgentWorker, "flowrl.rl.games:kuhn_poker", {"ppo": spec, "dqn": spec}, count=1, name="workers",
        policy_of=lambda agent, episode: "ppo" if agent == "player_0" else "dqn",
    )  # fmt: skip
    gathered = ParallelRollouts(workers).gather_sync()
    said = r"node 'by_policy-2' \(defined at .*\) takes what policy 'dqm' did, .*; they play 'ppo', 'dqn'"
    with pytest.raises(GraphError, match=said):
        flowrl.run(Union(gathered.by_policy("ppo", "dqm")), flowrl.Local())
    with pytest.raises(GraphError, match="takes what policy 'x' did"):
        flowrl.run(gathered.for_each(SelectPolicies(("ppo", "x"))), flowrl.Local())
    with flowrl.run(Union(gathered.by_policy("ppo", "dqn")), flowrl.Local(), seed=0) as run:
        assert len(run.step(2)) == 2
