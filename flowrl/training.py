"""Runs an algorithm to a goal: solved, out of steps, or the flow's end."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol
from urllib.parse import quote

import flowrl
from flowrl.backends.protocol import Backend
from flowrl.engine.run import Run, run
from flowrl.engine.stats import Stats
from flowrl.errors import text_of
from flowrl.flow import Flow
from flowrl.numbers import check_finite, check_whole
from flowrl.records import POLICIES, POLICY, RecordFiles, folder_of

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

    policy: the newest policy (`policy.act(obs)`); None where several are learned. history: every Summary. solved:
    whether stop_return was reached and confirmed (None without stop_return). reason: why it stopped. evaluation: of the
    final confirmation. checkpoint: the directory with the saved policy, where `out` was given; of several it holds a
    directory each. stats: where the time went. policies: the newest policy of each policy id ("default", unless it has
    another).
    """

    policy: Any
    history: list[Summary]
    solved: bool | None
    reason: Literal["solved", "total_steps", "end"]
    evaluation: Any
    checkpoint: Path | None
    stats: Stats
    seed: int = 0
    policies: dict[str, Any] = field(default_factory=dict)


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
    progress: bool | None = None,
) -> TrainResult:
    """Trains until solved, or until total_steps environment steps were taken.

    what: a config (`PPOConfig(env=...)`), an algorithm's name with its defaults ("ppo"), or a flow of Summaries.
    stop_return: solved when the mean raw return of the newest 100 training episodes has reached it, or that of an
        evaluation beside training, and 20 greedy episodes, each environment with its quota set in advance, confirm it.
    out: a directory for metrics (JSON lines, CSV), the settings with the seed (run.json) and the policy. Ctrl-C saves
        the policy so far, and a note of the KeyboardInterrupt says where; a second one leaves at once.
    observe: called after each Summary.
    progress: whether to show figures as they come, on stderr: one live table on a terminal, lines anywhere else. None
        shows them on a terminal only.

    Raises:
        ValueError: neither total_steps nor stop_return for an algorithm that would never end; one that is no number; or
            an unknown name.
        TypeError: the flow's items are not Summaries; `out` is no path.
        OSError: `out` is a file, cannot be written, or holds another run's records; before anything starts.
    """
    config = config_of(what)() if isinstance(what, str) else what
    flow = _flow_of(config)
    if total_steps is None and stop_return is None and not isinstance(what, Flow):
        raise ValueError("train needs total_steps or stop_return, or it would never end")
    if total_steps is not None:
        check_whole("total_steps", total_steps)
    if stop_return is not None:
        check_finite("stop_return", stop_return)
    folder = None if out is None else folder_of(out)
    history: list[Summary] = []
    reason: Literal["solved", "total_steps", "end"] = "end"
    evaluation: Any = None
    records = nullcontext() if folder is None else RecordFiles(folder)
    with records as files, _Audience(observe, progress) as audience, run(flow, backend, seed=seed) as running:
        if files is not None:
            files.settings = _settings(config, running.seed, total_steps=total_steps, stop_return=stop_return)
        try:
            for summary in running:
                _keep(summary, history, files)
                evaluation = _confirmed(running, history, stop_return)
                audience.show(Progress(running, summary, evaluation, history))
                if evaluation is not None and stop_return is not None and evaluation.mean >= stop_return:
                    reason = "solved"
                    break
                if total_steps is not None and summary.env_steps >= total_steps:
                    reason = "total_steps"
                    break
        except KeyboardInterrupt as interrupt:
            seen = len(history)
            _save_before_leaving(running, history, files, folder, interrupt)
            for summary in history[seen:]:
                audience.show(Progress(running, summary, None, history))
            raise
        return _result(running, history, reason, evaluation, stop_return, folder)


class _Audience(AbstractContextManager["_Audience"]):
    """Those who are shown each Summary: the terminal, where there is one to be shown to, and then the observer."""

    def __init__(self, observe: Callable[[Progress], None] | None, progress: bool | None):
        self._observe, self._screen = observe, None
        if progress is False or sys.stderr is None or getattr(sys.stderr, "closed", False):  # a service may have none
            return
        from flowrl.console import is_terminal, watcher

        if progress or is_terminal(sys.stderr):
            self._screen = watcher(sys.stderr)

    def show(self, progress: Progress) -> None:
        """Shows one Summary."""
        if self._screen is not None:
            self._screen.show(progress)
        if self._observe is not None:
            self._observe(progress)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._screen is not None:
            self._screen.close()


def _keep(summary: Any, history: list[Summary], files: RecordFiles | None) -> None:
    _check_item(summary)
    history.append(summary)
    if files is not None:
        files.write(summary)


def _save_before_leaving(
    running: Run[Summary],
    history: list[Summary],
    files: RecordFiles | None,
    folder: Path | None,
    interrupt: KeyboardInterrupt,
) -> None:
    """What came before an interrupt is recorded, and the policy that it led to is saved; a note says so."""
    try:
        for _ in range(running.kept):
            _keep(next(running), history, files)
        if folder is None or not history:
            return
        if running.closed:
            interrupt.add_note("the policy is not saved: a second interrupt closed the run")
        elif (saved := _saved(running, folder)) is not None:
            interrupt.add_note(f"policy: {saved}")
    except Exception as error:
        interrupt.add_note(f"the policy is not saved: {type(error).__name__}: {text_of(error)}")


def _saved(running: Run[Summary], folder: Path) -> Path | None:
    states = running.policy_states()
    if not states:
        return None
    from flowrl.rl.saved import save_policy

    if len(states) == 1:
        return save_policy(folder / POLICY, next(iter(states.values())))
    for name, state in states.items():
        save_policy(folder / POLICIES / quote(name, safe=" "), state)
    return folder / POLICIES


def _settings(what: Any, seed: int, **goal: float | None) -> dict[str, Any]:
    """All that it takes to train again: versions, seed, goal, the algorithm with its settings or else the graph."""
    start = {"flowrl": flowrl.__version__, "seed": seed, **goal}
    if isinstance(what, Flow):
        return {**start, "graph": what.explain().splitlines()}
    return {**start, "algorithm": f"{type(what).__module__}:{type(what).__qualname__}", "config": what}


def _result(
    running: Run[Summary],
    history: list[Summary],
    reason: Literal["solved", "total_steps", "end"],
    evaluation: Any,
    stop_return: float | None,
    folder: Path | None,
) -> TrainResult:
    stats = running.stats()
    policies = running.policies()
    policy = next(iter(policies.values())) if len(policies) == 1 else None
    checkpoint = None if folder is None else _saved(running, folder)
    solved = None if stop_return is None else reason == "solved"
    return TrainResult(policy, history, solved, reason, evaluation, checkpoint, stats, running.seed, policies)


def _flow_of(what: Any) -> Flow[Summary]:
    if isinstance(what, Flow):
        return what
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


def _confirmed(running: Run[Summary], history: list[Summary], stop_return: float | None) -> Any:
    if stop_return is None:
        return None
    summary = history[-1]
    trained = summary.episodes >= RETURN_WINDOW and summary.episode_return_mean >= stop_return
    if not trained and not any(found >= stop_return for found in _new_evaluations(history)):
        return None
    return running.evaluate(CONFIRMING_EPISODES)


def _new_evaluations(history: list[Summary]) -> list[float]:
    """The mean returns of evaluations beside training (EvaluateEvery) that the newest Summary is the first to tell of.

    Workers that explore for ever, as Ape-X has them, never reach in training what their policy can.
    """
    before = history[-2].nodes if len(history) > 1 else {}
    return [
        table["return_mean"]
        for name, table in history[-1].nodes.items()
        if "return_mean" in table and table.get("evaluations") != before.get(name, {}).get("evaluations")
    ]
