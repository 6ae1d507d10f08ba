"""PPO beside DQN on four cart-poles: steps a second at the original's sizes, what the mix costs, and what it learns.

    python benchmarks/mix.py [--seconds 4] [--repeats 5]      # steps/s, and busy seconds by resource
    python benchmarks/mix.py --learn [--seeds 3] [--write]    # both policies to 450, defaults of PPOAndDQNConfig
    python benchmarks/mix.py --learn --seed 1 --json mix-1.json      # one seed alone
    python benchmarks/mix.py --learn --read mix-*.json [--write]     # the section from such files

The original's mix (RLlib 1.9's two-trainer workflow on its own MultiAgentCartPole) trains PPO on batches of at least
200 environment steps, 10 epochs of minibatches of 128, and DQN on 64 rows for each fragment of 50 environment steps,
which is 1.28 rows a step. On two cores it makes 133 environment steps/s in one process and 170 with two workers.
Steps/s here are at the same sizes and at least as many rows of DQN a step; stated together.

Costs are seconds that each group was busy for 1,000 environment steps (`run.stats()`), on poles that are set up again
at once when they fall, so that every agent acts at every step: four agents in the mix, two in PPO alone and in DQN
alone. They are taken in one process, where no group waits for a core that another has. The mix's bottleneck, the group
that is busy the most of its actors' time, is held against the two alone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import flowrl
from benchmarks.apex import cluster
from benchmarks.learn import append_section
from flowrl import Local, Ray
from flowrl.algorithms import DQNConfig, PPOAndDQNConfig, PPOConfig
from flowrl.rl.cartpoles import Dicts, MultiAgentCartPole

ORIGINAL = {"one process": 133.0, "two workers": 170.0}
WARM_UP_STEPS = 4_000
MOST_STEPS, LOOK_EVERY, GOAL, EPISODES = 120_000, 8_000, 450.0, 100
POLICIES = ("ppo", "dqn")


class Standing(MultiAgentCartPole):
    """Cart-poles that are set up again when they fall: every agent acts at every step, for 500 of them."""

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """As the cart-poles do."""
        self._steps = 0
        return super().reset(seed, options)

    def step(self, actions: dict[str, Any]) -> Dicts:
        """One step of all poles."""
        self._steps += 1
        obs, rewards, terminated, truncated, infos = super().step(actions)
        for agent in self.possible_agents:
            if terminated[agent] or truncated[agent]:
                obs[agent], infos[agent] = self.poles[agent].reset()
        self.agents = list(self.possible_agents)
        never = dict.fromkeys(self.agents, False)
        return obs, rewards, never, {**never, "__all__": self._steps == 500}, infos


def as_the_original(workers: int, envs: int, **more: Any) -> PPOAndDQNConfig:
    """The mix at the original's sizes: batches, minibatches, epochs, fragments; rows of DQN a step at least as many."""
    return PPOAndDQNConfig(
        num_workers=workers,
        envs_per_worker=envs,
        unroll=50,
        ppo=PPOConfig(batch_steps=200, epochs=10, minibatch=128, learning_rate=5e-5, clip=0.3),
        # Two agents play DQN, and wait at times for others to fall: 0.64 of two would be the original's 1.28 a step.
        dqn=DQNConfig(
            min_size=1000, capacity=50_000, samples_per_step=1.0, batch=64, batches=4, n_step=1, learning_rate=5e-4,
            target_every=500, tau=None,
        ),
        **more,
    )  # fmt: skip


@dataclass(frozen=True)
class Window:
    """What a window came to: environment steps/s, rows trained on an environment step, busy seconds by resource."""

    steps: float
    ppo_rows: float
    dqn_rows: float
    busy: dict[str, float]  # of all actors of a group, for 1,000 environment steps
    counts: dict[str, int]


def window(cfg: PPOAndDQNConfig, backend: Any, seconds: float) -> Window:
    """A warm window of a new run."""
    with flowrl.run(cfg.graph(), backend, seed=0) as run:
        trains = {"ppo": len(cfg.dqn_agents) < cfg.env_kwargs["agents"], "dqn": bool(cfg.dqn_agents)}
        summary = next(run)
        while summary.env_steps < WARM_UP_STEPS or not _trained(summary, trains):
            summary = next(run)
        before, began, first = _figures(run, summary), time.perf_counter(), summary.env_steps
        while time.perf_counter() - began < seconds:
            summary = next(run)
        took, after = time.perf_counter() - began, _figures(run, summary)
        counts = {name: group.count for name, group in run.stats().groups.items()}
    steps = summary.env_steps - first
    spent = {name: after[name] - before[name] for name in after}
    rows = {policy: spent.pop(policy) / steps for policy in POLICIES}
    busy = {name: 1000 * spent_s / steps for name, spent_s in spent.items()}
    return Window(steps / took, rows["ppo"], rows["dqn"], busy, {**counts, "driver": 1})


def _trained(summary: Any, trains: dict[str, bool]) -> bool:
    return all(summary.learner.get(policy, {}).get("updates", 0) > 0 for policy in POLICIES if trains[policy])


def _figures(run: Any, summary: Any) -> dict[str, float]:
    """Busy seconds by group and of the driver, and rows trained on by policy, since the run began."""
    stats = run.stats()
    rows = {policy: float(summary.learner.get(policy, {}).get("trained_steps", 0.0)) for policy in POLICIES}
    return {**{name: group.busy_s for name, group in stats.groups.items()}, "driver": stats.driver_busy_s, **rows}


def speed(seconds: float, repeats: int) -> None:
    """Steps a second in one process and with two workers."""
    for name, cfg, backend in (
        ("one process", as_the_original(1, 4, env_kwargs={"agents": 4}), Local(isolate=False)),
        ("two workers", as_the_original(2, 4, env_kwargs={"agents": 4}), Ray()),
    ):
        found = [window(cfg, backend, seconds) for _ in range(repeats)]
        steps, ppo, dqn = (
            statistics.median(getattr(w, what) for w in found) for what in ("steps", "ppo_rows", "dqn_rows")
        )
        print(
            f"{name}: {steps:,.0f} environment steps/s, {steps / ORIGINAL[name]:.1f} times the original's "
            f"{ORIGINAL[name]:.0f}; rows trained on a step: PPO {ppo:.1f}, DQN {dqn:.2f}",
            flush=True,
        )


def costs(seconds: float, repeats: int) -> None:
    """Busy seconds for 1,000 environment steps: the mix, each algorithm alone, the mix's bottleneck against both."""
    two, four = ({"agents": n} for n in (2, 4))
    runs = {
        "mix": as_the_original(2, 4, env=Standing, env_kwargs=four),
        "PPO alone": as_the_original(2, 4, env=Standing, env_kwargs=two, dqn_agents=()),
        "DQN alone": as_the_original(2, 4, env=Standing, env_kwargs=two, dqn_agents=("agent_0", "agent_1")),
    }
    found: dict[str, list[Window]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, cfg in runs.items():  # in turn, so that all meet the same machine
            found[name].append(window(cfg, Local(), seconds))
    names = list(found["mix"][0].busy)
    table = {run: {n: statistics.median(w.busy[n] for w in windows) for n in names} for run, windows in found.items()}
    print(f"{'busy s for 1,000 steps':24}" + "".join(f"{name:>14}" for name in names) + f"{'steps/s':>10}")
    for run, row in table.items():
        rate = statistics.median(w.steps for w in found[run])
        print(f"{run:24}" + "".join(f"{row[name]:14.3f}" for name in names) + f"{rate:10,.0f}", flush=True)
    counts = found["mix"][0].counts
    most = max(names, key=lambda name: table["mix"][name] / counts[name])
    alone = table["PPO alone"][most] + table["DQN alone"][most]
    print(f"the mix's bottleneck is {most}: {table['mix'][most]:.3f} s, the two alone {alone:.3f} s together, "
          f"{table['mix'][most] / alone - 1:+.1%}")  # fmt: skip


@dataclass(frozen=True)
class Learned:
    """What a seed came to: when both policies' greedy looks reached the goal, and greedy episodes at the end."""

    seed: int
    reached_steps: int | None
    reached_s: float | None
    env_steps: int
    seconds: float
    returns: dict[str, list[float]]
    backend: str


def learn(seed: int, backend: str) -> Learned:
    """Trains one seed until two greedy looks in a row show both policies at the goal, or its steps are spent."""
    cfg, looked, reached, before = PPOAndDQNConfig(), 0, None, False
    with flowrl.run(cfg.graph(), Ray() if backend == "ray" else Local(), seed=seed) as run:
        for summary in run:
            if summary.env_steps < looked + LOOK_EVERY and summary.env_steps < MOST_STEPS:
                continue
            looked = summary.env_steps
            found = run.evaluate(10).policies
            now = all(found[name].mean >= GOAL for name in POLICIES)
            reached = (looked, summary.time_s) if now and not before else reached if now else None
            if (now and before) or looked >= MOST_STEPS:
                break
            before = now
        last = run.evaluate(EPISODES).policies
    steps, seconds = reached if reached is not None else (None, None)
    returns = {name: [float(value) for value in last[name].returns] for name in POLICIES}
    return Learned(seed, steps, seconds, summary.env_steps, summary.time_s, returns, backend)


def report(found: Sequence[Learned]) -> str:
    """A section of RESULTS.md."""
    means = [{name: float(np.mean(one.returns[name])) for name in POLICIES} for one in found]
    both = sum(min(mean.values()) >= GOAL for mean in means)
    lines = [
        "## PPO beside DQN on four cart-poles",
        "",
        f"Both policies at {GOAL:g} or more in {both} of {len(found)} seeds (means of {EPISODES} greedy episodes, two "
        f"agents each). Training stops when both are there at two looks in a row, every {LOOK_EVERY:,} environment "
        "steps, at 10 greedy episodes; those 100 are played afterwards.",
        "",
        "| seed | PPO | DQN | reached at steps | seconds | steps in all | seconds in all |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for one, mean in zip(found, means, strict=True):
        steps = "–" if one.reached_steps is None else f"{one.reached_steps:,}"
        seconds = "–" if one.reached_s is None else f"{one.reached_s:.0f}"
        lines.append(
            f"| {one.seed} | {mean['ppo']:.4g} | {mean['dqn']:.4g} | {steps} | {seconds} | {one.env_steps:,} "
            f"| {one.seconds:.0f} |"
        )
    backends = " and ".join(sorted({one.backend for one in found}))
    lines += [
        "",
        f"`python benchmarks/mix.py --learn` on {backends}, {os.cpu_count()} cores ({platform.machine()}), "
        f"flowrl {flowrl.__version__}; the defaults of PPOAndDQNConfig. The original's mix stands at PPO 98 and DQN 18 "
        "after a minute.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Speed and costs, or learning."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--learn", action="store_true")
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--json", type=Path, help="with --seed: where to write what it came to")
    parser.add_argument("--read", type=Path, nargs="+", help="files of seeds that were trained before")
    parser.add_argument("--backend", choices=["ray", "local"], default="ray")
    parser.add_argument("--write", action="store_true", help="append to RESULTS.md")
    options = parser.parse_args()
    if not options.learn:
        with cluster():
            speed(options.seconds, options.repeats)
            costs(options.seconds, options.repeats)
        return
    if options.read:
        found = [Learned(**json.loads(path.read_text(encoding="utf-8"))) for path in options.read]
    else:
        seeds = range(options.seeds) if options.seed is None else [options.seed]
        found = [learn(seed, options.backend) for seed in seeds]
    if options.json is not None:
        options.json.write_text(json.dumps(asdict(found[0])), encoding="utf-8")
    section = report(sorted(found, key=lambda one: one.seed))
    print(section)
    if options.write:
        append_section(section)


if __name__ == "__main__":
    main()
