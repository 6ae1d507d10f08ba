"""What a training run says of itself, an item at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from flowrl.operator import Context, Operator


@dataclass(frozen=True)
class Summary:
    """Where a training run stands.

    iteration: summaries so far. env_steps: real `step` calls. agent_steps: one for each acting agent. trained_steps:
    rows that went through an update, repeats counted. time_s: since the run began. env_steps_per_s: since the summary
    before. episodes: finished so far. episode_return_mean, episode_length_mean: raw, over the newest 100 finished
    training episodes (NaN before the first). learner: by policy, its newest losses. nodes: all recorded, by node.
    """

    iteration: int
    env_steps: int
    agent_steps: int
    trained_steps: int
    time_s: float
    env_steps_per_s: float
    episodes: int
    episode_return_mean: float
    episode_length_mean: float
    learner: Mapping[str, Mapping[str, float]]
    nodes: Mapping[str, Mapping[str, float]]

    def as_dict(self) -> dict[str, Any]:
        """Plain nested dictionaries and numbers, ready for JSON."""
        plain = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        for name in ("learner", "nodes"):
            plain[name] = {key: dict(table) for key, table in plain[name].items()}
        return plain


@dataclass
class ReportMetrics(Operator[Any, Summary]):
    """A Summary an item, read from the whole run's metrics on the driver; no actor is asked, no payload fetched."""

    wants: ClassVar[Literal["value", "reference"]] = "reference"

    def open(self) -> None:
        self._iteration = 0
        self._time_s = 0.0
        self._env_steps = 0

    def process(self, value: Any, ctx: Context) -> Iterable[Summary]:
        report = ctx.report
        table = report.table
        self._iteration += 1
        time_s = report.elapsed_s
        rate = (report.env_steps - self._env_steps) / max(time_s - self._time_s, 1e-9)
        self._time_s, self._env_steps = time_s, report.env_steps
        yield Summary(
            iteration=self._iteration,
            env_steps=report.env_steps,
            agent_steps=report.agent_steps,
            trained_steps=int(table.count("trained_steps")),
            time_s=time_s,
            env_steps_per_s=rate,
            episodes=int(table.count("episodes")),
            episode_return_mean=_mean(table.window("episode_return")),
            episode_length_mean=_mean(table.window("episode_length")),
            learner=table.policies(),
            nodes=table.by_node(),
        )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
