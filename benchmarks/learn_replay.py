"""How many steps, samples and seconds the algorithms with replay take to a goal: five seeds each.

    python benchmarks/learn_replay.py dqn      # CartPole-v1 to 475; also rainbow, apex
    python benchmarks/learn_replay.py sac      # Pendulum-v1 to −200; also td3, ddpg
    python benchmarks/learn_replay.py r2d2     # a task of memory to 0.9 of 1; without memory it gives 0
    python benchmarks/learn_replay.py apex --seeds 5 --backend ray [--write]
    python benchmarks/learn_replay.py apex --seed 3 --json apex-3.json     # one seed alone
    python benchmarks/learn_replay.py apex --read apex-*.json [--write]    # the section from such files

Training stops once the mean of the newest 100 training episodes, or an evaluation beside training, has reached the goal
and 20 greedy episodes confirm it (`flowrl.train(stop_return=)`). As stopping at a good moment flatters, 100 further
greedy episodes with the same weights are a seed's score. A seed that takes more steps than the task allows has failed.
Steps and samples are those of the run at that moment, seconds count from when its actors were up, evaluations
included. --write appends to benchmarks/RESULTS.md. The checkout must be installed as CONTRIBUTING.md says.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import flowrl
from benchmarks.learn import append_section, interquartile_mean, interval
from flowrl import Local, Ray
from flowrl.algorithms import ApexConfig, DDPGConfig, DQNConfig, R2D2Config, SACConfig, TD3Config
from flowrl.rl import PolicySpec
from flowrl.training import Progress

MEMORY = "tests.rl.memory_envs:Recall"  # a cue at the first step, asked for at the last of 4 to 8
RAINBOW = PolicySpec(head="q", dueling=True, noisy=True, atoms=51, value_range=(0.0, 100.0), normalize_obs=True)
SCORED_EPISODES = 100
SETTINGS = (
    "num_workers", "envs_per_worker", "unroll", "replay_shards", "capacity", "min_size", "samples_per_step", "batch",
    "batches", "n_step", "discount", "learning_rate", "target_every", "tau", "sequence", "burn_in", "batch_steps",
    "num_async", "in_flight", "epochs", "minibatch", "vtrace_lambda", "gae_lambda", "entropy_cost", "clip",
)  # fmt: skip


@dataclass(frozen=True)
class Task:
    """An algorithm on an environment, the return to reach, and in how many steps at most."""

    title: str
    config: Any
    goal: float
    most_steps: int


TASKS = {
    "dqn": Task("DQN on CartPole-v1", DQNConfig(evaluate_every_env_steps=1000), 475.0, 50_000),
    "rainbow": Task(
        "Rainbow on CartPole-v1",
        DQNConfig(policy=RAINBOW, prioritized=True, evaluate_every_env_steps=1000),
        475.0,
        50_000,
    ),
    "apex": Task("Ape-X on CartPole-v1", ApexConfig(evaluate_every_env_steps=10_000), 475.0, 1_000_000),
    "sac": Task("SAC on Pendulum-v1", SACConfig(evaluate_every_env_steps=1000), -200.0, 50_000),
    "td3": Task("TD3 on Pendulum-v1", TD3Config(evaluate_every_env_steps=1000), -200.0, 50_000),
    "ddpg": Task("DDPG on Pendulum-v1", DDPGConfig(evaluate_every_env_steps=1000), -200.0, 50_000),
    "r2d2": Task("R2D2 on a task of memory", R2D2Config(env=MEMORY, evaluate_every_env_steps=5000), 0.9, 500_000),
}


@dataclass(frozen=True)
class Reached:
    """What one seed came to. returns: of the greedy episodes after it had stopped; seconds: until then."""

    seed: int
    solved: bool
    returns: tuple[float, ...]
    training_return: float
    env_steps: int
    trained_steps: int
    seconds: float
    backend: str

    @property
    def score(self) -> float:
        """The mean greedy return."""
        return float(np.mean(self.returns))

    @staticmethod
    def read(path: Path) -> Reached:
        """From the file that --json has written."""
        found = json.loads(path.read_text(encoding="utf-8"))
        return Reached(**{**found, "returns": tuple(found["returns"])})


def train(task: Task, seed: int, backend: str) -> Reached:
    """Trains one seed to the goal, or until its steps are spent, and evaluates what it has learned."""
    returns: list[float] = []

    def look(now: Progress) -> None:
        reached = now.evaluation is not None and now.evaluation.mean >= task.goal
        if reached or now.summary.env_steps >= task.most_steps:
            returns.extend(now.run.evaluate(SCORED_EPISODES).returns)

    result = flowrl.train(
        task.config,
        stop_return=task.goal,
        total_steps=task.most_steps,
        backend=Ray() if backend == "ray" else Local(),
        seed=seed,
        observe=look,
    )
    last = result.history[-1]
    return Reached(
        seed,
        bool(result.solved),
        tuple(returns),
        last.episode_return_mean,
        last.env_steps,
        last.trained_steps,
        last.time_s,
        backend,
    )


def report(
    name: str, task: Task, found: Sequence[Reached], note: str | None = None, script: str = "learn_replay.py"
) -> str:
    """A section of RESULTS.md; the note stands at its end, and `script` is what made it."""
    solved = [one for one in found if one.solved]
    low, high = interval([one.returns for one in found])
    lines = [
        f"## {task.title} to a mean return of {task.goal:g}",
        "",
        f"{len(solved)} of {len(found)} seeds reached it"
        + (f", in the median after {_medians(solved)}" if solved else "")
        + f". {SCORED_EPISODES} greedy episodes afterwards: interquartile mean "
        f"**{float(interquartile_mean([one.score for one in found])):.4g}** "
        f"(95% bootstrap interval {low:.4g} to {high:.4g}).",
        "",
        f"| seed | reached | {SCORED_EPISODES} greedy episodes | last 100 training episodes | steps | samples trained "
        "| seconds |",
        "|---:|---|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {one.seed} | {'yes' if one.solved else 'no'} | {one.score:.4g} | {one.training_return:.4g} "
        f"| {one.env_steps:,} | {one.trained_steps:,} | {one.seconds:.1f} |"
        for one in found
    ]
    backends = " and ".join(sorted({one.backend for one in found}))
    lines += [
        "",
        f"`python benchmarks/{script} {name}` on {backends}, {os.cpu_count()} cores ({platform.machine()}), "
        f"flowrl {flowrl.__version__}; {_settings(task.config)}." + (f" {note}" if note else ""),
        "",
    ]
    return "\n".join(lines)


def _medians(found: Sequence[Reached]) -> str:
    steps, samples, seconds = (
        statistics.median(getattr(one, name) for one in found) for name in ("env_steps", "trained_steps", "seconds")
    )
    return f"{steps:,.0f} environment steps, {samples:,.0f} samples trained and {seconds:.1f} s"


def _settings(config: Any) -> str:
    named = [(name, getattr(config, name)) for name in SETTINGS if hasattr(config, name)]
    return ", ".join(f"{name} {value}" for name, value in named if value is not None)


def main(tasks: Mapping[str, Task] = TASKS, script: str = "learn_replay.py", text: str | None = __doc__) -> None:
    """Trains the seeds, or reads what they came to; prints the section and, if asked, appends it."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=sorted(tasks))
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seeds", type=int, default=5, help="how many, from 0")
    which.add_argument("--seed", type=int, help="this one alone")
    which.add_argument("--read", type=Path, nargs="+", help="files of seeds that were trained before")
    parser.add_argument("--json", type=Path, help="with --seed: where to write what it came to")
    parser.add_argument("--steps", type=int, help="allowed at most, instead of the task's own")
    parser.add_argument("--backend", choices=["ray", "local"], default="ray")
    parser.add_argument("--note", help="a sentence at the section's end, such as what else ran meanwhile")
    parser.add_argument("--write", action="store_true", help="append to RESULTS.md")
    options = parser.parse_args()
    if options.json is not None and options.seed is None:
        parser.error("--json goes with --seed")
    task = tasks[options.task]
    if options.steps is not None:
        task = replace(task, most_steps=options.steps)
    if options.read:
        found = sorted((Reached.read(path) for path in options.read), key=lambda one: one.seed)
    else:
        found = []
        for seed in range(options.seeds) if options.seed is None else [options.seed]:
            one = train(task, seed, options.backend)
            found.append(one)
            print(
                f"seed {seed}: {'reached' if one.solved else 'not reached'} after {one.env_steps:,} steps, "
                f"{one.trained_steps:,} samples, {one.seconds:.1f} s; {one.score:.4g}",
                flush=True,
            )
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(asdict(found[0])), encoding="utf-8")
    section = report(options.task, task, found, options.note, script)
    print(section)
    if options.write:
        append_section(section)


if __name__ == "__main__":
    main()
