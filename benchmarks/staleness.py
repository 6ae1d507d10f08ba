"""Return against wall-clock against policy lag: IMPALA and APPO under learners slowed down, with and without a bound.

    python benchmarks/staleness.py [--algorithms impala appo] [--slowdowns 1 2 4 8] [--bounds none 4]
                                   [--seeds 0 1 2] [--seconds 20] [--num-async 8] --json curves.jsonl
    python benchmarks/staleness.py --read curves.jsonl [--figure docs/staleness.svg] [--write]

Each run trains CartPole-v1 on Ray for so many seconds. A learner slowed k times sleeps k − 1 times the processor time
that a training took it. The workers run `num-async` fragments ahead, so that there is something to be old. Policy lag
is how many versions of the weights lay between acting and training; a bound (`max_policy_lag`) drops what is older.
The first command appends a line a run to the file, the second makes the table, the figure (which needs matplotlib) and,
if asked, a section of RESULTS.md. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import flowrl
from benchmarks.learn import append_section
from flowrl import Answer, Batch, Flow, MultiAgentBatch, Ray, actor, rl
from flowrl.algorithms import APPOConfig, IMPALAConfig, appo, impala
from flowrl.algorithms.asynchronous import fragments_of
from flowrl.operators import ReportMetrics, Summary
from flowrl.rl.loss import Loss

SOLVED = 475.0
POINTS_A_SECOND = 4
CONFIGS: dict[str, Any] = {"impala": IMPALAConfig(), "appo": APPOConfig()}


class SlowLearner(rl.Learner):
    """A learner whose `train` takes `slowdown` times its processor time longer than it need."""

    def __init__(
        self,
        slowdown: float,
        policy: rl.PolicySpec,
        loss: Loss,
        *,
        learning_rate: Any,
        max_grad_norm: float,
        seed: int | np.random.SeedSequence | None = None,
    ):
        super().__init__(policy, loss, learning_rate=learning_rate, max_grad_norm=max_grad_norm, seed=seed)
        self._slowdown = slowdown

    def train(self, batch: Batch | MultiAgentBatch, **kwargs: Any) -> Answer[Batch | None]:
        """As `Learner.train`, later."""
        started = time.process_time()
        answer = super().train(batch, **kwargs)
        time.sleep((self._slowdown - 1) * (time.process_time() - started))
        return answer


@dataclass(frozen=True)
class Curve:
    """One run: seconds, steps, mean return of the newest 100 episodes, policy lag (p50, p95), steps dropped so far."""

    algorithm: str
    slowdown: float
    bound: int | None
    seed: int
    num_async: int
    points: tuple[tuple[float, ...], ...]
    updates: int

    @property
    def key(self) -> tuple[str, float, int | None]:
        """What it has in common with the runs of other seeds."""
        return self.algorithm, self.slowdown, self.bound

    def column(self, name: str) -> np.ndarray:
        """One of seconds, steps, returns, p50, p95, dropped."""
        at = ("seconds", "steps", "returns", "p50", "p95", "dropped").index(name)
        return np.array([point[at] for point in self.points])


def graph(algorithm: str, slowdown: float, bound: int | None, num_async: int) -> Flow[Summary]:
    """The algorithm's graph over a slow learner."""
    cfg = replace(CONFIGS[algorithm], max_policy_lag=bound, num_async=num_async)
    loss = (
        rl.losses.APPOLoss(**cfg.vtrace, clip=cfg.clip) if algorithm == "appo" else rl.losses.VTraceLoss(**cfg.vtrace)
    )
    learner = actor(
        SlowLearner,
        slowdown,
        cfg.policy,
        loss,
        learning_rate=cfg.learning_rate,
        max_grad_norm=cfg.max_grad_norm,
        name="learner",
    )
    learn = {"appo": appo, "impala": impala}[algorithm].learn
    return fragments_of(cfg).through(learn(cfg, learner)).for_each(ReportMetrics())


def train(algorithm: str, slowdown: float, bound: int | None, seed: int, args: argparse.Namespace) -> Curve:
    """Trains for so many seconds."""
    points: list[tuple[float, ...]] = []
    updates = 0
    with flowrl.run(graph(algorithm, slowdown, bound, args.num_async), Ray(), seed=seed) as run:
        for summary in run:
            updates = summary.iteration
            if not points or summary.time_s >= points[-1][0] + 1 / POINTS_A_SECOND:
                points.append(_point(summary))
            if summary.time_s >= args.seconds:
                break
    return Curve(algorithm, slowdown, bound, seed, args.num_async, tuple(points), updates)


def _point(summary: Summary) -> tuple[float, ...]:
    node: Mapping[str, float] = summary.nodes["TrainOneStep"]
    nan = float("nan")
    return (
        summary.time_s,
        summary.env_steps,
        summary.episode_return_mean,
        node.get("policy_age_p50", nan),
        node.get("policy_age_p95", nan),
        node.get("dropped_steps", 0.0),
    )


def read(path: Path) -> list[Curve]:
    """The runs of a file that --json has written."""
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [Curve(**{**one, "points": tuple(tuple(point) for point in one["points"])}) for one in found]


def grouped(curves: Sequence[Curve]) -> Iterator[tuple[tuple[str, float, int | None], list[Curve]]]:
    """The runs of all seeds, by setting; without a bound first."""

    def order(curve: Curve) -> tuple[bool, str, float, float]:
        return curve.algorithm != "impala", curve.algorithm, curve.slowdown, -1 if curve.bound is None else curve.bound

    for key, found in itertools.groupby(sorted(curves, key=order), key=lambda curve: curve.key):
        yield key, list(found)


def reached_s(curve: Curve, goal: float = SOLVED) -> float:
    """After how many seconds the newest 100 episodes had this mean; infinite if never."""
    there = np.flatnonzero(curve.column("returns") >= goal)
    return float(curve.column("seconds")[there[0]]) if len(there) else float("inf")


def mean_return(curve: Curve) -> float:
    """The mean return over the time of the run: the area under its curve by its length."""
    seconds, returns = curve.column("seconds"), np.nan_to_num(curve.column("returns"))
    return float(np.trapezoid(returns, seconds) / (seconds[-1] - seconds[0]))


def report(curves: Sequence[Curve]) -> str:
    """A section of RESULTS.md."""
    seeds, seconds = len({curve.seed for curve in curves}), max(curve.points[-1][0] for curve in curves)
    depths = " and ".join(str(depth) for depth in sorted({curve.num_async for curve in curves}))
    lines = [
        "## Return against wall-clock against policy lag (`python benchmarks/staleness.py`)",
        "",
        f"CartPole-v1, default settings, {seeds} seed{'s' * (seeds > 1)} of {seconds:.0f} s, {depths} fragments of a "
        f"worker under way at once, on Ray, {os.cpu_count()} cores ({platform.machine()}). The learner is slowed down "
        "so many times; lag is in versions of the weights, over the newest 100 trainings at the end; dropped: "
        "environment steps that the bound kept from the learner. Returns are of the newest 100 training episodes: at "
        f"the end, and on average over the run; then the seconds to a return of {SOLVED:g}, and how many seeds came "
        "there. Medians over the seeds (least to most).",
        "",
        "| algorithm | slowed | bound | steps/s | updates/s | lag p50 | lag p95 | dropped | return at the end "
        f"| on average | s to {SOLVED:g} |",
        "|:--|--:|--:|--:|--:|--:|--:|--:|:--|:--|:--|",
    ]
    for (algorithm, slowdown, bound), found in grouped(curves):
        ends = [dict(zip(("s", "steps", "return", "p50", "p95", "dropped"), c.points[-1], strict=True)) for c in found]
        times = [reached_s(curve) for curve in found]
        solved = [seconds for seconds in times if np.isfinite(seconds)]
        lines.append(
            f"| {algorithm} | {slowdown:g} | {'none' if bound is None else bound} "
            f"| {np.median([end['steps'] / end['s'] for end in ends]):,.0f} "
            f"| {np.median([c.updates / c.points[-1][0] for c in found]):.1f} "
            f"| {np.median([end['p50'] for end in ends]):g} | {np.median([end['p95'] for end in ends]):g} "
            f"| {np.median([end['dropped'] / end['steps'] for end in ends]):.0%} "
            f"| {_spread([end['return'] for end in ends])} | {_spread([mean_return(c) for c in found])} "
            f"| {f'{np.median(solved):.1f}' if solved else '–'} ({len(solved)} of {len(times)}) |"
        )
    return "\n".join([*lines, ""])


def _spread(values: Sequence[float]) -> str:
    return f"{np.median(values):.0f} ({min(values):.0f} to {max(values):.0f})"


def draw(curves: Sequence[Curve], path: Path) -> None:
    """The figure: a column for each algorithm with and without the bound; returns above, policy lag below."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"svg.hashsalt": "staleness", "font.size": 8})
    import matplotlib.pyplot as plt

    bounds = sorted({curve.bound for curve in curves}, key=lambda bound: -1 if bound is None else bound)
    columns = [(name, bound) for name in CONFIGS for bound in bounds if any(c.algorithm == name for c in curves)]
    shades = {k: plt.get_cmap("viridis")(at) for k, at in zip((1, 2, 4, 8), np.linspace(0, 0.85, 4), strict=True)}
    figure, axes = plt.subplots(2, len(columns), sharex=True, sharey="row", squeeze=False, figsize=(11, 4.6))
    for (name, bound), (above, below) in zip(columns, axes.T, strict=True):
        above.set_title(f"{name.upper()}, {'no bound' if bound is None else f'lag ≤ {bound}'}")
        below.set_xlabel("seconds")
        for (_, slowdown, _), found in grouped([c for c in curves if (c.algorithm, c.bound) == (name, bound)]):
            grid = np.linspace(0, min(c.points[-1][0] for c in found), 120)
            for axis, column in ((above, "returns"), (below, "p95")):
                lines = [np.interp(grid, c.column("seconds"), np.nan_to_num(c.column(column))) for c in found]
                axis.plot(grid, np.median(lines, 0), color=shades.get(slowdown, "gray"), label=f"slowed {slowdown:g}×")
                axis.fill_between(
                    grid, np.min(lines, 0), np.max(lines, 0), color=shades.get(slowdown), alpha=0.15, lw=0
                )
    axes[0][0].set_ylabel("return of 100 episodes")
    axes[1][0].set_ylabel("policy lag, p95, versions")
    axes[1][-1].legend(frameon=False, loc="upper right")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _bound(text: str) -> int | None:
    return None if text == "none" else int(text)


def main() -> None:
    """Trains every setting in turn, or reads the runs and reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", choices=sorted(CONFIGS), nargs="+", default=["impala", "appo"])
    parser.add_argument("--slowdowns", type=float, nargs="+", default=[1.0, 2.0, 4.0, 8.0])
    parser.add_argument("--bounds", type=_bound, nargs="+", default=[None, 4])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--num-async", type=int, default=8)
    parser.add_argument("--json", type=Path, help="file of the runs; those that it has are not made again")
    parser.add_argument("--read", type=Path)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--write", action="store_true", help="append to RESULTS.md")
    args = parser.parse_args()
    curves = read(args.read) if args.read else list(trained(args))
    section = report(curves)
    print(section)
    if args.figure:
        draw(curves, args.figure)
    if args.write:
        append_section(section)


def trained(args: argparse.Namespace) -> Iterator[Curve]:
    """Every setting, seed by seed, so that whatever else happens on the machine meets all settings alike."""
    import ray

    made = read(args.json) if args.json and args.json.exists() else []
    yield from made
    known = {(*curve.key, curve.seed) for curve in made}
    ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    for seed, algorithm, slowdown, bound in itertools.product(args.seeds, args.algorithms, args.slowdowns, args.bounds):
        if (algorithm, slowdown, bound, seed) in known:
            continue
        curve = train(algorithm, slowdown, bound, seed, args)
        if args.json:
            with args.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(curve)) + "\n")
        seconds, steps, returned, p50, p95, dropped = curve.points[-1]
        print(
            f"{algorithm} slowed {slowdown:g}, bound {bound}, seed {seed}: {returned:.0f} after {seconds:.0f} s, "
            f"{steps:,.0f} steps, {curve.updates} updates, lag {p50:g}/{p95:g}, dropped {dropped:,.0f}",
            flush=True,
        )
        yield curve
    ray.shutdown()


if __name__ == "__main__":
    main()
