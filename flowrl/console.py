"""Training as it is watched: a live table on a terminal, plain lines anywhere else, and how it ended."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from flowrl.engine.stats import Stats
from flowrl.records import POLICY

if TYPE_CHECKING:
    from flowrl.training import Progress, TrainResult

LINE_EVERY_S, TABLE_EVERY_S = 1.0, 0.1
LEARNING = ("loss", "policy_loss", "value_loss", "kl", "entropy")  # of what learners tell, what is shown, in this order


class Watcher(Protocol):
    """Shows training as it goes."""

    def show(self, progress: Progress) -> None:
        """Takes in one more Summary; shows it if it is time."""
        ...

    def close(self) -> None:
        """Shows the last Summary if it was not shown, and ends."""
        ...


def watcher(stream: TextIO) -> Watcher:
    """A live table where the stream is a terminal, plain lines otherwise."""
    return LiveTable(stream) if is_terminal(stream) else Lines(stream)


def is_terminal(stream: TextIO) -> bool:
    """Whether it is one; what stands in a stream's place may have nothing but `write`."""
    isatty = getattr(stream, "isatty", None)
    return isatty is not None and bool(isatty())


def _cell() -> Watcher | None:
    """A live table below the cell, in a notebook."""
    from flowrl.live import CellTable, in_notebook

    return CellTable() if in_notebook() else None


class Audience(AbstractContextManager["Audience"]):
    """Those who are shown each Summary: the terminal or the cell, where there is one, and then the observer."""

    def __init__(self, observe: Callable[[Progress], None] | None, progress: bool | None):
        self._observe = observe
        self._screen: Watcher | None = None
        if progress is not False and (cell := _cell()) is not None:
            self._screen = cell
            return
        if progress is False or sys.stderr is None or getattr(sys.stderr, "closed", False):  # a service may have none
            return
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


class Lines:
    """A line of figures a second at most, and always the first and the last."""

    def __init__(self, stream: TextIO):
        self._stream = stream
        self._shown_s = float("-inf")
        self._waiting: Any = None

    def show(self, progress: Progress) -> None:
        """One line, if the last one was a second ago."""
        self._waiting = progress.summary
        if monotonic() - self._shown_s >= LINE_EVERY_S:
            self._print()

    def close(self) -> None:
        """The last line, if it was held back."""
        if self._waiting is not None:
            self._print()

    def _print(self) -> None:
        print("  ".join(f"{name} {value}" for name, value in figures(self._waiting)), file=self._stream, flush=True)
        self._shown_s, self._waiting = monotonic(), None


class LiveTable:
    """One table that is drawn anew in its place, ten times a second at most."""

    def __init__(self, stream: TextIO):
        from rich.console import Console
        from rich.live import Live

        # No thread that redraws: between two summaries nothing changes. What is printed meanwhile moves above the
        # table, unless it goes elsewhere (`python train.py > log`).
        printed_here = sys.stdout is not None and sys.stdout.isatty()
        self._live = Live(console=Console(file=stream), auto_refresh=False, redirect_stdout=printed_here)
        self._live.start()
        self._drawn_s = float("-inf")
        self._waiting: Any = None

    def show(self, progress: Progress) -> None:
        """Draws the table, if it was last drawn a tenth of a second ago."""
        self._waiting = (progress.summary, progress.run.stats())
        if monotonic() - self._drawn_s >= TABLE_EVERY_S:
            self._draw()

    def close(self) -> None:
        """Draws the last figures, which stay on the screen."""
        if self._waiting is not None:
            self._live.update(_table(*self._waiting))
        self._waiting = None
        self._live.stop()  # draws what it was given last

    def _draw(self) -> None:
        self._live.update(_table(*self._waiting), refresh=True)
        self._drawn_s, self._waiting = monotonic(), None


def figures(summary: Any) -> list[tuple[str, str]]:
    """What a Summary says, as names and formatted numbers; a learner's policy is named where there are several."""
    found = [
        ("steps", f"{summary.env_steps:,}"),
        ("steps/s", f"{summary.env_steps_per_s:,.0f}"),
        ("return", f"{summary.episode_return_mean:.1f}"),
        ("length", f"{summary.episode_length_mean:.1f}"),
    ]
    for policy, table in summary.learner.items():
        prefix = f"{policy}/" if len(summary.learner) > 1 else ""
        found += [(prefix + name, f"{table[name]:.3g}") for name in LEARNING if name in table]
    return found


def where_time_goes(stats: Stats) -> list[tuple[str, str]]:
    """The share of the time that each actor group, and the driver, was busy; then the verdict."""
    rows = [
        (f"{name} ({group.count})" if group.count > 1 else name, f"busy {stats.utilization(name):.0%}")
        for name, group in stats.groups.items()
    ]
    rows.append(("driver", f"busy {stats.driver_busy_s / stats.elapsed_s:.0%}"))
    return [*rows, ("verdict", stats.verdict)]


def _table(summary: Any, stats: Stats) -> Any:
    from rich.table import Table

    table = Table(show_header=False, pad_edge=False, title=f"{summary.time_s:.1f} s", title_justify="left")
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, value in figures(summary):
        table.add_row(name, value)
    table.add_section()
    for name, value in where_time_goes(stats):
        table.add_row(name, value)
    return table


def print_end(result: TrainResult, stop_return: float | None, stream: TextIO | None = None) -> None:
    """The final table, where the time went, and how training stopped."""
    stream = stream or sys.stdout
    print(f"\n{result.stats}\n", file=stream)
    if result.checkpoint is not None:
        what = "policy" if str(result.checkpoint).endswith(POLICY) else "checkpoint"
        print(f"{what}: {result.checkpoint}", file=stream)
    print(how_it_stopped(result, stop_return), file=stream, flush=True)


def returned(summary: Any) -> str:
    """The mean return of training's last episodes, in words; a league's player has none against itself."""
    if math.isnan(summary.episode_return_mean):
        return f"{summary.episodes} episodes" + ", of which none has a return" * (summary.episodes > 0)
    return f"mean return {summary.episode_return_mean:.1f} over the last {min(summary.episodes, 100)} episodes"


def how_it_stopped(result: TrainResult, stop_return: float | None) -> str:
    """One sentence: solved, finished or not solved and why, with steps, seconds and steps/s."""
    if not result.history:
        return "finished: the flow gave no summary"
    summary, judged = result.history[-1], result.evaluation
    cost = reached(summary)
    training = returned(summary)
    if result.reason == "solved":
        return f"solved: {training}, confirmed by {judged.episodes} greedy episodes: {judged.mean:.1f}; {cost}"
    if stop_return is None:
        return f"finished: {training}; {cost}"
    if judged is not None:
        return f"not solved: {training}, but {judged.episodes} greedy episodes gave {judged.mean:.1f}; {cost}"
    return f"not solved: {training}, {stop_return:g} was to be reached; {cost}"


def reached(summary: Any) -> str:
    """Steps, seconds and steps/s so far."""
    rate = summary.env_steps / max(summary.time_s, 1e-9)
    return f"{summary.env_steps:,} steps in {summary.time_s:.1f} s ({rate:,.0f} steps/s)"
