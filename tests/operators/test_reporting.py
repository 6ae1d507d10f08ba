"""ReportMetrics: a Summary from the run's table."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

import flowrl
from flowrl import Answer, Batch, Local
from flowrl.metrics import Listed, Sum
from flowrl.operators import ReportMetrics, SelectPolicies, Summary
from flowrl.testing import check_operator


class Source:
    def __init__(self) -> None:
        self.n = 0

    def sample(self) -> Answer[Batch]:
        self.n += 1
        metrics: dict[Any, Any] = {"trained_steps": Sum(10)}
        if self.n > 1:
            metrics |= {
                "episode_return": Listed((float(self.n),)),
                "episode_length": Listed((4.0,)),
                "episodes": Sum(1),
            }
        return Answer(Batch({"x": np.zeros(5)}), {**metrics, ("ppo", "loss"): self.n})


def test_summaries():
    flow = flowrl.from_actors(flowrl.actor(Source, name="source"), "sample").gather_sync().for_each(ReportMetrics())
    with flowrl.run(flow, Local()) as running:
        first, second, third = running.step(3)
    assert isinstance(first, Summary)
    assert (first.iteration, first.env_steps, first.agent_steps, first.trained_steps, first.episodes) == (
        1,
        5,
        5,
        10,
        0,
    )
    assert math.isnan(first.episode_return_mean)
    assert (third.iteration, third.env_steps, third.episodes) == (3, 15, 2)
    assert third.episode_return_mean == 2.5
    assert third.episode_length_mean == 4.0
    assert third.learner == {"ppo": {"loss": 3.0}}
    assert third.nodes["from_actors"]["episodes"] == 2
    assert 0 < first.time_s < second.time_s < third.time_s
    assert second.env_steps_per_s > 0
    json.dumps(third.as_dict())


def test_two_runs_keep_their_figures_apart():
    flow = flowrl.from_actors(flowrl.actor(Source, name="source"), "sample").gather_sync().for_each(ReportMetrics())
    with flowrl.run(flow, Local()) as a, flowrl.run(flow, Local()) as b:
        a.step(3)
        assert b.step()[0].env_steps == 5
        assert a.step()[0].env_steps == 20


def test_select_policies():
    from flowrl import MultiAgentBatch

    def part(n: int) -> Batch:
        return Batch({"x": np.arange(n)})

    batches = [
        MultiAgentBatch({"a": part(1), "b": part(2), "c": part(3)}, env_steps=3),
        MultiAgentBatch({"c": part(4)}, env_steps=4),
    ]
    flow = flowrl.from_items(batches, num_shards=1).gather_sync().for_each(SelectPolicies(("a", "b")))
    with flowrl.run(flow, Local()) as running:
        (only,) = list(running)
    assert sorted(only) == ["a", "b"]
    assert only.agent_steps == 3
    check_operator(SelectPolicies("a"), batches)
