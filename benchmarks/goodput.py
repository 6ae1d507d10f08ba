"""Goodput against the mean time between kills of workers: PPO and IMPALA on CartPole-v1, and what a restart costs.

    python benchmarks/goodput.py [--algorithms ppo impala] [--means 60 20 5] [--seconds 90] [--repeats 2] [--seed 0]
                                 [--out goodput.json] [--read goodput.json] [--figure goodput.png] [--write]

Goodput is environment steps that were trained on, a second. One run for each algorithm, default settings on Ray with
`on_worker_failure=Restart(1000)`. Windows with kills alternate with calm ones, and the ratio is taken pair by pair: a
worker, drawn evenly, gets SIGKILL at exponential times of a seed, from some seconds before the window on, so that what
a kill costs behind it stands against what those before it cost. A kill that finds no worker up is left out, so the
number of kills is given. A restart is split: from the kill until the driver knows, until the new process is up with
the newest weights, and until its first fragment. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import flowrl
from benchmarks.chaos import Pids, Storm, Struck
from benchmarks.learn import append_section
from flowrl import Ray, Restart
from flowrl.algorithms import IMPALAConfig, PPOConfig

AGAIN = Restart(1000)
CONFIGS: dict[str, Any] = {"ppo": PPOConfig(on_worker_failure=AGAIN), "impala": IMPALAConfig(on_worker_failure=AGAIN)}
KILL = "worker killed"
CALM_S = 30.0  # a window without kills
WARM_UP_S = 10.0  # before each window; with kills, where it has any


@dataclass(frozen=True)
class Window:
    """One window with kills beside the calm one before it: rates in steps a second, and what each restart took.

    restarts: (known, up, sampled) in seconds after the kill, of those whose first fragment came within the window.
    """

    algorithm: str
    mean_s: float
    repeat: int
    seconds: float
    kills: int
    rate: float
    calm_rate: float
    restarts: tuple[tuple[float, float, float], ...] = ()

    @property
    def ratio(self) -> float:
        """Of the two rates."""
        return self.rate / self.calm_rate

    @staticmethod
    def read(said: dict[str, Any]) -> Window:
        """As JSON has it."""
        return Window(**{**said, "restarts": tuple(tuple(one) for one in said["restarts"])})


@dataclass
class Lifelines:
    """When each worker was known to be dead, was up again, and gave a fragment; by name."""

    known: dict[str, list[float]] = field(default_factory=dict)
    up: dict[str, list[float]] = field(default_factory=dict)
    sampled: dict[str, list[float]] = field(default_factory=dict)

    def follow(self, run: flowrl.Run[Any]) -> None:
        """Notes what happens in a run from now on."""
        lives = run._engine.lives
        gather = next(cursor for cursor in run._engine.cursors if cursor.name.startswith("gather"))
        died, started, came = lives._died, lives._started, gather.came  # type: ignore[attr-defined]

        def noted_death(state: Any, reason: str) -> None:
            self.known.setdefault(state.name, []).append(monotonic())
            died(state, reason)

        def noted_start(call: Any) -> None:
            started(call)
            if call.actor.up:
                self.up.setdefault(call.actor.name, []).append(monotonic())

        def noted_items(feed: Any, new: int) -> None:
            if new:
                self.sampled.setdefault(feed.state.name, []).append(monotonic())
            came(feed, new)

        lives._died, lives._started, gather.came = noted_death, noted_start, noted_items  # type: ignore[attr-defined, method-assign]

    def after(self, kill: Struck) -> tuple[float, float, float] | None:
        """How long after a kill its victim was known to be dead, was up, and sampled; None if that has not come."""
        at, found = kill.at, []
        for times in (self.known, self.up, self.sampled):
            later = [time for time in times.get(kill.whom, ()) if time > at]
            if not later:
                return None
            at = later[0]
            found.append(at - kill.at)
        return found[0], found[1], found[2]


class Loop:
    """A run of which windows are taken."""

    def __init__(self, algorithm: str, seed: int):
        self.algorithm, self._epochs = algorithm, CONFIGS[algorithm].epochs
        self.run = flowrl.run(CONFIGS[algorithm].graph(), Ray(), seed=seed)
        self.lifelines = Lifelines()
        self.lifelines.follow(self.run)
        self._pids, self._trained = Pids(self.run), 0.0
        next(self.run)

    def advance(self, seconds: float, storm: Storm | None = None) -> tuple[float, float]:
        """Moves on for so long; (seconds, steps trained on) from one item to another."""
        began = at = monotonic()
        before = self._trained
        while at < began + seconds:
            self._trained = next(self.run).trained_steps / self._epochs
            at = monotonic()
            self._pids.look()
            if storm is not None:
                storm.pids = self._pids.known
        return at - began, self._trained - before

    def calm(self) -> float:
        """The rate without kills, once all workers are up and sample."""
        states = self.run._engine.states["workers"]
        while not all(state.up for state in states) or len(self._pids.known) <= len(states):
            self.advance(0.2)
        self.advance(WARM_UP_S)
        seconds, steps = self.advance(CALM_S)
        return steps / seconds

    def window(self, mean_s: float, seconds: float, repeat: int, seed: int) -> Window:
        """A calm window, and one with kills."""
        calm = self.calm()
        storm = Storm({KILL: mean_s}, seed, Path(), 0)
        storm.pids = self._pids.known
        storm.start()
        try:
            self.advance(WARM_UP_S, storm)
            began = monotonic()
            took, steps = self.advance(seconds, storm)
        finally:
            storm.end()
        kills = [kill for kill in storm.struck if kill.at >= began]
        self.advance(WARM_UP_S)  # the last of them may be up by then
        restarts = tuple(found for kill in kills if (found := self.lifelines.after(kill)) is not None)
        return Window(self.algorithm, mean_s, repeat, took, len(kills), steps / took, calm, restarts)

    def close(self) -> None:
        """Ends the run."""
        self.run.close()


def measured(options: argparse.Namespace) -> Iterator[Window]:
    """Every setting in turn, again and again."""
    import ray

    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    for algorithm in options.algorithms:
        with closing(Loop(algorithm, options.seed)) as loop:
            for repeat in range(options.repeats):
                for mean_s in options.means:
                    found = loop.window(mean_s, options.seconds, repeat, options.seed + 1000 * repeat + int(mean_s))
                    print(
                        f"{algorithm}, {mean_s:g} s: {found.rate:,.0f} steps/s with {found.kills} kills in "
                        f"{found.seconds:.0f} s, {found.calm_rate:,.0f} without; ratio {found.ratio:.3f}",
                        flush=True,
                    )
                    yield found
    ray.shutdown()


def report(windows: Sequence[Window]) -> str:
    """A section of RESULTS.md."""
    lines = [
        "## Goodput against the mean time between kills of workers (`python benchmarks/goodput.py`)",
        "",
        "Environment steps trained on a second, default settings on CartPole-v1, 2 workers on Ray; one of them gets "
        "SIGKILL at exponential times. Each window stands beside a calm one just before it; medians over the pairs "
        "(least to most).",
        "",
        "| algorithm | s between kills | kills | with kills, steps/s | without | ratio |",
        "|:--|--:|--:|--:|--:|:--|",
    ]
    keys = dict.fromkeys((one.algorithm, one.mean_s) for one in windows)
    for algorithm, mean_s in keys:
        found = [one for one in windows if (one.algorithm, one.mean_s) == (algorithm, mean_s)]
        rate, calm = (statistics.median(getattr(one, name) for one in found) for name in ("rate", "calm_rate"))
        kills, ratios = sum(one.kills for one in found), [one.ratio for one in found]
        spread = f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        lines.append(f"| {algorithm} | {mean_s:g} | {kills} | {rate:,.0f} | {calm:,.0f} | {spread} |")
    lines += ["", "What a restart takes, in seconds after the kill: medians (least to most).", ""]
    lines += ["| algorithm | restarts | known | up, with weights | first fragment |", "|:--|--:|:--|:--|:--|"]
    for algorithm in dict.fromkeys(one.algorithm for one in windows):
        restarts = [each for one in windows if one.algorithm == algorithm for each in one.restarts]
        cells = [f"{statistics.median(at):.2f} ({min(at):.2f} to {max(at):.2f})" for at in zip(*restarts, strict=True)]
        lines.append(f"| {algorithm} | {len(restarts)} | {' | '.join(cells or ['–'] * 3)} |")
    return "\n".join([*lines, ""])


def draw(windows: Sequence[Window], path: Path) -> None:
    """The figure: the share of goodput that is left, against the mean time between kills."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"svg.hashsalt": "goodput", "font.size": 9})
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(5.2, 3.4))
    means = sorted({one.mean_s for one in windows})
    for algorithm in dict.fromkeys(one.algorithm for one in windows):
        mine = [one for one in windows if one.algorithm == algorithm]
        medians = [statistics.median([one.ratio for one in mine if one.mean_s == mean]) for mean in means]
        (line,) = axes.plot([*means, 3 * means[-1]], [*medians, 1.0], marker="o", label=algorithm.upper())
        axes.scatter([one.mean_s for one in mine], [one.ratio for one in mine], s=14, alpha=0.5, color=line.get_color())
    axes.set_xscale("log")
    axes.set_xticks([*means, 3 * means[-1]], [*(f"{mean:g}" for mean in means), "none"])
    axes.minorticks_off()
    axes.set_xlabel("mean seconds between kills of workers")
    axes.set_ylabel("goodput / goodput without kills")
    axes.set_ylim(0, 1.1)
    axes.legend(frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> None:
    """Measures, or reads what was measured, and reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", choices=sorted(CONFIGS), nargs="+", default=["ppo", "impala"])
    parser.add_argument("--means", type=float, nargs="+", default=[60.0, 20.0, 5.0])
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="a file for the windows, as JSON")
    parser.add_argument("--read", type=Path, help="such a file, instead of measuring")
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--write", action="store_true", help="append to RESULTS.md")
    options = parser.parse_args()
    windows: list[Window] = []
    if options.read:
        windows += [Window.read(one) for one in json.loads(options.read.read_text(encoding="utf-8"))]
    for one in () if options.read else measured(options):
        windows.append(one)
        if options.out:
            options.out.write_text(json.dumps([asdict(one) for one in windows], indent=1) + "\n", encoding="utf-8")
    section = report(windows)
    print(section)
    if options.figure:
        draw(windows, options.figure)
    if options.write:
        append_section(section)


if __name__ == "__main__":
    main()
