"""A soak: PPO, Ape-X and IMPALA for a given time under random faults, while books and memory are watched.

    python benchmarks/soak.py [--minutes 10] [--algorithms ppo apex impala] [--seed 0] [--calm] [--out soak.json]

Each runs so long, with 2 workers × 4 CartPoles on Ray. Environments raise, give NaN, hang past env_timeout_s or end
their process in the middle of a sample; workers, the learner and replay shards are killed by their process's number.
Each kind comes at exponential times of its own, from the seed.

Live, between any two items: counters never go back, and of every node what came is what went on, was dropped and
counted, or is held there. Each second: memory of every process (its own, without the object store's), open files,
references to objects, bytes in the object store. Violations are a slope above its limit for sure (the low end of a 95%
interval, after a warm-up) that came to something, a run that stops, `--stall-s` without an item, and processes or
references left behind. They are said when they are seen, with time, node and numbers; with any the exit code is 1.
Ray's own processes are shown, not judged.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import Any

import flowrl
from benchmarks.chaos import Pids, Storm
from benchmarks.ledger import Books, books_of, wrong
from benchmarks.trend import Holdings, Limit
from benchmarks.watch import Violations, Watch, left_behind, references
from flowrl import Restart
from flowrl.algorithms import ApexConfig, IMPALAConfig, PPOConfig
from flowrl.rl import EnvOptions

ENVS = 4  # of a worker
AGAIN = Restart(20)
# Seconds between two of a kind, on average.
MEANS = {
    "raises": 15.0, "gives NaN": 20.0, "hangs": 75.0, "exits": 60.0,
    "worker killed": 45.0, "learner killed": 60.0, "replay shard killed": 60.0,
}  # fmt: skip
LIMITS = {
    "MiB": Limit(60.0, 10.0), "files": Limit(30.0, 10.0), "references": Limit(60.0, 20.0),
    "MiB in the object store": Limit(60.0, 20.0), "MiB of Ray": Limit(math.inf, math.inf),
}  # fmt: skip
SAYS_EVERY_S = 30.0


def config_of(name: str, folder: Path, env_timeout_s: float) -> Any:
    """An algorithm that outlives every fault."""
    options = EnvOptions(vector="sync", on_fault=AGAIN, env_timeout_s=env_timeout_s, crash_dir=str(folder / "crashes"))
    common: dict[str, Any] = {
        "env": "benchmarks.chaos:chaotic", "env_kwargs": {"folder": str(folder)}, "env_options": options,
        "num_workers": 2, "envs_per_worker": ENVS, "on_worker_failure": AGAIN, "on_learner_failure": AGAIN,
    }  # fmt: skip
    if name == "ppo":
        return PPOConfig(**common, batch_steps=950)
    if name == "impala":
        return IMPALAConfig(**common, max_policy_lag=4)
    small: dict[str, Any] = {"capacity": 20_000, "min_size": 1000, "evaluate_every_env_steps": None}
    return ApexConfig(**common, **small, on_shard_failure=AGAIN)


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"


def said_of(books: Books, run: flowrl.Run[Any], storm: Storm, holdings: Holdings) -> str:
    """A line of progress."""
    totals, stats = books.totals, run.stats()
    deaths = ", ".join(f"{name} {group.deaths}" for name, group in stats.groups.items())
    said = []
    for whose, what, last, _, rise in holdings.rows():
        if whose == "driver" or not whose:
            said.append(f"{whose or what} {last:,.0f} {what if whose else ''}".strip())
            said[-1] += "" if rise is None else f" ({rise.per_hour:+,.0f}/h)"
    return (
        f"{totals['sampled']:,.0f} steps sampled, {totals['trained']:,.0f} trained, {totals['dropped']:,.0f} dropped, "
        f"{totals['held']:,.0f} held; {len(storm.struck)} faults; deaths: {deaths}; {', '.join(said)}"
    )


def soak(
    name: str, seconds: float, seed: int, *, means: Mapping[str, float] = MEANS, env_timeout_s: float = 5.0,
    stall_s: float = 120.0, say: Callable[[str], None] = print,
) -> dict[str, Any]:  # fmt: skip
    """One algorithm for so long, on the Ray that runs; what it came to, as JSON can say it."""
    before = references()
    with tempfile.TemporaryDirectory() as folder:
        run = flowrl.run(config_of(name, Path(folder), env_timeout_s).graph(), flowrl.Ray(), seed=seed)
        violations = Violations(monotonic())
        pids, storm = Pids(run), Storm(means, seed, Path(folder), ENVS)
        watch = Watch(run, violations, Holdings(LIMITS, min(60.0, 0.2 * seconds)), stall_s)
        books: Books | None = None
        spoken = violations.began
        storm.start()
        watch.start()
        try:
            while (now := monotonic()) < violations.began + seconds:
                summary = next(run)
                watch.beaten()
                pids.look()
                storm.pids = watch.pids = pids.known
                last, books = books, books_of(run, summary)
                for whose, said in wrong(last, books):
                    violations.add(whose, said)
                if now - spoken >= SAYS_EVERY_S:
                    spoken = now
                    violations.add_growing(watch.holdings)
                    say(f"{name} {clock(now - violations.began)}: {said_of(books, run, storm, watch.holdings)}")
        except Exception as error:
            traceback.print_exc()
            violations.add("run", f"stopped by {type(error).__name__}: {error}")
        storm.end()
        watch.end()
        stats = run.stats()
        known = pids.known
        run.close()
    violations.add_growing(watch.holdings)
    del run, pids, watch._run, storm.pids
    for whose, said in left_behind(known, before):
        violations.add(whose, said)
    return {
        "algorithm": name,
        "seed": seed,
        "seconds": round(monotonic() - violations.began, 1),
        "totals": None if books is None else books.totals,
        "faults": dict(Counter(one.what for one in storm.struck)),
        "deaths": {group: figures.deaths for group, figures in stats.groups.items()},
        "longest_s": round(watch.longest_s, 1),
        "lost_calls": stats.lost_calls,
        "metrics": {
            f"{node}: {what}": value
            for node, table in stats.metrics.items()
            for what, value in table.items()
            if what.endswith(("_lost", "lost", "restarts", "restored", "discarded", "late"))
        },
        "holdings": [
            {"whose": whose, "what": what, "last": round(last, 1), "most": round(most, 1),
             "per_hour": None if rise is None else [round(x, 1) for x in (rise.per_hour, rise.low, rise.high)]}
            for whose, what, last, most, rise in watch.holdings.rows()
        ],
        "violations": violations.found,
    }  # fmt: skip


def table(outcomes: list[dict[str, Any]]) -> str:
    """The final table."""
    lines = ["| algorithm | s | sampled | trained | dropped | held | faults | deaths | longest s | violations |"]
    lines.append("|:--|--:|--:|--:|--:|--:|:--|:--|--:|--:|")
    for one in outcomes:
        totals = one["totals"] or dict.fromkeys(("sampled", "trained", "dropped", "held"), 0)
        steps = " | ".join(f"{totals[what]:,.0f}" for what in ("sampled", "trained", "dropped", "held"))
        faults, deaths = (", ".join(f"{k} {v}" for k, v in one[what].items()) for what in ("faults", "deaths"))
        lines.append(
            f"| {one['algorithm']} | {one['seconds']:.0f} | {steps} | {faults} | {deaths} | {one['longest_s']:.0f} "
            f"| {len(one['violations'])} |"
        )
    lines += ["", "| algorithm | process | what | at the end | most | an hour (95%) |", "|:--|:--|:--|--:|--:|:--|"]
    for one in outcomes:
        for each in one["holdings"]:
            rise = each["per_hour"]
            told = "–" if rise is None else f"{rise[0]:+,.1f} ({rise[1]:+,.1f} to {rise[2]:+,.1f})"
            cells = (one["algorithm"], each["whose"], each["what"], f"{each['last']:,}", f"{each['most']:,}", told)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Runs what is asked for; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="of each algorithm")
    parser.add_argument("--algorithms", nargs="+", choices=("ppo", "apex", "impala"), default=["ppo", "apex", "impala"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--calm", action="store_true", help="without faults")
    parser.add_argument("--env-timeout-s", type=float, default=5.0)
    parser.add_argument("--stall-s", type=float, default=120.0)
    parser.add_argument("--out", type=Path, help="a file for all figures, as JSON")
    options = parser.parse_args()
    import ray

    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    outcomes = []
    try:
        for name in options.algorithms:
            outcomes.append(
                soak(
                    name, 60 * options.minutes, options.seed, means={} if options.calm else MEANS,
                    env_timeout_s=options.env_timeout_s, stall_s=options.stall_s, say=lambda s: print(s, flush=True),
                )
            )  # fmt: skip
            if options.out:
                options.out.write_text(json.dumps(outcomes, indent=1) + "\n", encoding="utf-8")
    finally:
        ray.shutdown()
    print(table(outcomes))
    return int(any(one["violations"] for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
