"""Runs an algorithm to a goal: solved, out of steps, or the flow's end."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, Protocol
from urllib.parse import quote

import flowrl
from flowrl.backends.protocol import Backend
from flowrl.checkpoint import Checkpoints
from flowrl.console import Audience
from flowrl.continuing import INTERRUPTED_S, Saving, Start, Terminable, checkpoints_of, recipe, start_of
from flowrl.engine.run import Run, run
from flowrl.engine.stats import Stats
from flowrl.errors import text_of
from flowrl.flow import Flow
from flowrl.goals import confirmed, goal_of
from flowrl.records import POLICIES, POLICY, RecordFiles, folder_of

if TYPE_CHECKING:
    from flowrl.operators.reporting import Summary


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
    final confirmation. checkpoint: the newest one, or else the directory with the saved policy, where `out` was given
    (`load_policy` takes either); of several policies it holds a directory each. stats: where the time went. policies:
    the newest policy of each policy id ("default", unless it has another). Of a training that was resumed, history and
    stats are what came since.
    """

    policy: Any
    history: list[Summary]
    solved: bool | None
    reason: Literal["solved", "total_steps", "end"]
    evaluation: Any
    checkpoint: Path | str | None
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
    what: Config | str | Flow[Summary] | None = None,
    *,
    total_steps: int | None = None,
    stop_return: float | None = None,
    out: str | os.PathLike[str] | None = None,
    backend: Backend | None = None,
    seed: int | None = None,
    observe: Callable[[Progress], None] | None = None,
    progress: bool | None = None,
    checkpoint_every: int | str | Checkpoints | None = None,
    resume: str | os.PathLike[str] | None = None,
    trust_pickles: bool = False,
    trust_names: bool = False,
) -> TrainResult:
    """Trains until solved, or until total_steps environment steps were taken.

    what: a config (`PPOConfig(env=...)`), an algorithm's name with its defaults ("ppo"), or a flow of Summaries. None
        with `resume`: what the checkpoint says.
    stop_return: solved when the mean raw return of the newest 100 training episodes has reached it, or that of an
        evaluation beside training, and 20 greedy episodes, each environment with its quota set in advance, confirm it.
    out: a directory for metrics (JSON lines, CSV), the settings with the seed (run.json) and the policy. Ctrl-C saves
        the policy so far, and a note of the KeyboardInterrupt says where; a second one leaves at once. SIGTERM does the
        same, and ends the program with 143.
    observe: called after each Summary.
    progress: whether to show figures as they come: one live table on a terminal (stderr) or below a notebook's cell,
        lines anywhere else. None shows them on a terminal and in a notebook only.
    checkpoint_every: save all that the run is, below `out`, after so many environment steps or a time ("10min"), at the
        end and at Ctrl-C. The last three and the best are kept; `Checkpoints(...)` says otherwise.
    resume: a checkpoint, or the `out` of a training, whose newest one counts: it goes on there, with its seed, and
        unless said otherwise in its `out`, to its goal and with its checkpoints. `what` may have other settings.
    trust_pickles, trust_names: whether environments of the checkpoint are unpickled, so that episodes go on in the
        middle; whether what its settings name is imported. Both run code that the checkpoint chooses.

    Raises:
        ValueError: neither total_steps nor stop_return for an algorithm that would never end; one that is no number; or
            an unknown name; or nowhere to save.
        TypeError: the flow's items are not Summaries; `out` is no path.
        OSError: `out` is a file, cannot be written, or holds another run's records; before anything starts.
        CheckpointError: that to resume is damaged, or of another graph; before anything starts.
    """
    start = None if resume is None else start_of(resume)
    config = _config_of(what, start, trust_names)
    flow = _flow_of(config)
    goal = goal_of(config, start, total_steps, stop_return)
    folder = folder_of(out) if out is not None else None if start is None else start.out
    wanted = checkpoints_of(checkpoint_every, folder, start)
    if folder is not None and start is not None and folder.absolute() == start.out:
        folder = start.out
    after = start.iteration if start is not None and folder == start.out else None
    records = nullcontext() if folder is None else RecordFiles(folder, after=after)
    saving = Saving(wanted, config, goal, start)
    more: dict[str, Any] = {} if start is None else {"resume": start.path, "trust_pickles": trust_pickles}
    with (
        Terminable() as terminable,
        records as files,
        Audience(observe, progress) as audience,
        run(flow, backend, seed=seed, **more) as running,
    ):
        terminable.take_over()
        if files is not None:
            files.settings = _settings(config, running.seed, goal)
        return _trained(running, goal, files, audience, saving, folder)


def _trained(
    running: Run[Summary],
    goal: Mapping[str, Any],
    files: RecordFiles | None,
    audience: Audience,
    saving: Saving,
    folder: Path | None,
) -> TrainResult:
    """Moves the run to its goal."""
    history: list[Summary] = []
    reason: Literal["solved", "total_steps", "end"] = "end"
    evaluation: Any = None
    total_steps, stop_return = goal["total_steps"], goal["stop_return"]
    try:
        for summary in running:
            _keep(summary, history, files)
            evaluation = confirmed(running, history, stop_return)
            audience.show(Progress(running, summary, evaluation, history))
            if evaluation is not None and stop_return is not None and evaluation.mean >= stop_return:
                reason = "solved"
                break
            if total_steps is not None and summary.env_steps >= total_steps:
                reason = "total_steps"
                break
            saving.look(running, summary)
        if reason != "end":
            saving.save(running, history[-1])
    except KeyboardInterrupt as interrupt:
        seen = len(history)
        _save_before_leaving(running, history, files, folder, saving, interrupt)
        for summary in history[seen:]:
            audience.show(Progress(running, summary, None, history))
        raise
    return _result(running, history, reason, evaluation, stop_return, folder, saving)


def _config_of(what: Any, start: Start | None, trust_names: bool) -> Any:
    if what is None and start is not None:
        return start.rebuilt(trust_names=trust_names)
    return config_of(what)() if isinstance(what, str) else what


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
    saving: Saving,
    interrupt: KeyboardInterrupt,
) -> None:
    """What came before an interrupt is recorded, and the policy and the run that it led to are saved; notes say so.

    An actor that hangs must not keep the user: all of it takes no longer than INTERRUPTED_S.
    """
    until = monotonic() + INTERRUPTED_S
    try:
        for _ in range(running.kept):
            _keep(next(running), history, files)
        if folder is None or not history:
            pass
        elif running.closed:
            interrupt.add_note("the policy is not saved: a second interrupt closed the run")
        elif (saved := _saved(running, folder, INTERRUPTED_S)) is not None:
            interrupt.add_note(f"policy: {saved}")
    except Exception as error:
        interrupt.add_note(f"the policy is not saved: {type(error).__name__}: {text_of(error)}")
    if running.closed or not history:
        return
    try:
        path = saving.save(running, history[-1], max(until - monotonic(), 0.0))
        if path is not None:
            interrupt.add_note(f"checkpoint: {path}")
    except Exception as error:
        before = "" if saving.newest is None else f"; the newest is {saving.newest}"
        interrupt.add_note(f"no checkpoint: {type(error).__name__}: {text_of(error)}{before}")


def _saved(running: Run[Summary], folder: Path, timeout_s: float | None = None) -> Path | None:
    states = running.policy_states(timeout_s=timeout_s)
    if not states:
        return None
    from flowrl.rl.saved import save_policy

    if len(states) == 1:
        return save_policy(folder / POLICY, next(iter(states.values())))
    for name, state in states.items():
        save_policy(folder / POLICIES / quote(name, safe=" "), state)
    return folder / POLICIES


def _settings(what: Any, seed: int, goal: Mapping[str, Any]) -> dict[str, Any]:
    """All that it takes to train again: versions, seed, goal, the algorithm with its settings or else the graph."""
    start = {"flowrl": flowrl.__version__, "seed": seed, **goal}
    if isinstance(what, Flow):
        return {**start, "graph": what.explain().splitlines()}
    name = f"{type(what).__module__}:{type(what).__qualname__}"
    return {**start, "algorithm": name, "config": what, "recipe": recipe(what)}


def _result(
    running: Run[Summary],
    history: list[Summary],
    reason: Literal["solved", "total_steps", "end"],
    evaluation: Any,
    stop_return: float | None,
    folder: Path | None,
    saving: Saving,
) -> TrainResult:
    stats = running.stats()
    policies = running.policies()
    policy = next(iter(policies.values())) if len(policies) == 1 else None
    checkpoint: Path | str | None = None if folder is None else _saved(running, folder)
    if saving.newest is not None:
        checkpoint = saving.newest if "://" in saving.newest else Path(saving.newest)
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


def algorithm_of(config: Any) -> str | None:
    """The name of the prebuilt algorithm that a config is of; None for one of somebody's own."""
    from flowrl import algorithms

    cls = type(config)
    return next(
        (
            name
            for name, of in algorithms.CONFIGS.items()
            if (cls.__module__, cls.__qualname__) == (f"flowrl.algorithms.{name}", of)
        ),
        None,
    )


def _check_item(summary: Any) -> None:
    if not hasattr(summary, "episode_return_mean"):
        raise TypeError(
            f"train needs a flow of Summaries, this one gives {type(summary).__name__}; end it with "
            ".for_each(ReportMetrics())"
        )
