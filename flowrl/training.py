"""Runs an algorithm to a goal: solved, out of steps, or the flow's end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from flowrl.backends.protocol import Backend
from flowrl.engine.run import Run, run
from flowrl.engine.stats import Stats
from flowrl.flow import Flow
from flowrl.records import POLICY, RecordFiles

if TYPE_CHECKING:
    from flowrl.operators.reporting import Summary

CONFIRMING_EPISODES = 20
RETURN_WINDOW = 100  # training episodes whose mean return is held against stop_return


class Config(Protocol):
    """What an algorithm's frozen config dataclass offers."""

    def graph(self) -> Flow[Any]:
        """The whole algorithm as a flow of summaries."""
        ...


@dataclass
class TrainResult:
    """What training came to.

    policy: the newest policy (`policy.act(obs)`). history: every Summary. solved: whether stop_return was reached and
    confirmed (None without stop_return). reason: why it stopped. evaluation: of the final confirmation. checkpoint: the
    directory with the saved policy, where `out` was given. stats: where the time went.
    """

    policy: Any
    history: list[Summary]
    solved: bool | None
    reason: Literal["solved", "total_steps", "end"]
    evaluation: Any
    checkpoint: Path | None
    stats: Stats
    seed: int = 0


@dataclass
class Progress:
    """What an observer of training is shown after each Summary."""

    run: Run[Summary]
    summary: Summary
    evaluation: Any = None
    history: list[Summary] = field(default_factory=list)


def train(
    what: Config | str | Flow[Summary],
    *,
    total_steps: int | None = None,
    stop_return: float | None = None,
    out: str | os.PathLike[str] | None = None,
    backend: Backend | None = None,
    seed: int | None = None,
    observe: Callable[[Progress], None] | None = None,
) -> TrainResult:
    """Trains until solved, or until total_steps environment steps were taken.

    what: a config (`PPOConfig(env=...)`), an algorithm's name with its defaults ("ppo"), or a flow of Summaries.
    stop_return: solved when the mean raw return of the newest 100 training episodes has reached it and 20 greedy
        episodes, each environment with its quota set in advance, confirm it.
    out: a directory for metrics (JSON lines, CSV) and the policy.
    observe: called after each Summary.

    Raises:
        ValueError: neither total_steps nor stop_return for an algorithm that would never end; or an unknown name.
        TypeError: the flow's items are not Summaries.
    """
    flow = _flow_of(what)
    if total_steps is None and stop_return is None and not isinstance(what, Flow):
        raise ValueError("train needs total_steps or stop_return, or it would never end")
    if total_steps is not None and total_steps < 1:
        raise ValueError(f"total_steps must be at least 1, got {total_steps}")
    history: list[Summary] = []
    reason: Literal["solved", "total_steps", "end"] = "end"
    evaluation: Any = None
    with _records(out) as record, run(flow, backend, seed=seed) as running:
        for summary in running:
            _check_item(summary)
            history.append(summary)
            record(summary)
            evaluation = _confirmed(running, summary, stop_return)
            if observe is not None:
                observe(Progress(running, summary, evaluation, history))
            if evaluation is not None and stop_return is not None and evaluation.mean >= stop_return:
                reason = "solved"
                break
            if total_steps is not None and summary.env_steps >= total_steps:
                reason = "total_steps"
                break
        return _result(running, history, reason, evaluation, stop_return, out)


def _result(
    running: Run[Summary],
    history: list[Summary],
    reason: Literal["solved", "total_steps", "end"],
    evaluation: Any,
    stop_return: float | None,
    out: str | os.PathLike[str] | None,
) -> TrainResult:
    stats = running.stats()
    policy = running.policy() if running.has_policy else None
    checkpoint = None
    if out is not None and running.has_policy:
        from flowrl.rl.saved import save_policy

        checkpoint = save_policy(Path(out) / POLICY, running.policy_state())
    solved = None if stop_return is None else reason == "solved"
    return TrainResult(policy, history, solved, reason, evaluation, checkpoint, stats, running.seed)


def _flow_of(what: Config | str | Flow[Summary]) -> Flow[Summary]:
    if isinstance(what, Flow):
        return what
    if isinstance(what, str):
        return config_of(what)().graph()
    graph = getattr(what, "graph", None)
    if isinstance(what, type) or not callable(graph):
        raise TypeError(f"train needs a config (PPOConfig(...)), an algorithm's name or a Flow, got {what!r}")
    flow = graph()
    if not isinstance(flow, Flow):
        raise TypeError(f"{type(what).__name__}.graph() must return a Flow, it returned {type(flow).__name__}")
    return flow


def config_of(name: str) -> Any:
    """The config class of a prebuilt algorithm.

    Raises:
        ValueError: there is none of that name; suggests the nearest.
    """
    from flowrl import algorithms

    if name not in algorithms.CONFIGS:
        from difflib import get_close_matches

        near = get_close_matches(name, algorithms.CONFIGS, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"unknown algorithm {name!r}; {hint}there are: {', '.join(algorithms.CONFIGS)}")
    return getattr(algorithms, algorithms.CONFIGS[name])


def _check_item(summary: Any) -> None:
    if not hasattr(summary, "episode_return_mean"):
        raise TypeError(
            f"train needs a flow of Summaries, this one gives {type(summary).__name__}; end it with "
            ".for_each(ReportMetrics())"
        )


def _confirmed(running: Run[Summary], summary: Summary, stop_return: float | None) -> Any:
    if stop_return is None or summary.episodes < RETURN_WINDOW or not summary.episode_return_mean >= stop_return:
        return None
    return running.evaluate(CONFIRMING_EPISODES)


@contextmanager
def _records(out: str | os.PathLike[str] | None) -> Iterator[Callable[[Summary], None]]:
    if out is None:
        yield lambda summary: None
        return
    with RecordFiles(Path(out)) as files:
        yield files.write
