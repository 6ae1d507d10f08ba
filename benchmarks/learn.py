"""What PPO learns in a given number of environment steps: three seeds, interquartile mean, bootstrap intervals.

    python benchmarks/learn.py pendulum [--seeds 3] [--backend ray|local] [--steps N] [--write]
    python benchmarks/learn.py lunar_lander    # pip install "gymnasium[box2d]"
    python benchmarks/learn.py half_cheetah    # pip install "gymnasium[mujoco]"
    python benchmarks/learn.py breakout        # pip install minatar

A seed's score is the mean raw return of 20 greedy episodes after training, on environments and seeds of their own;
beside it stands the mean of the last 100 training episodes. The interquartile mean leaves out a quarter of the seeds
at each end, in fractions of a seed where need be; its 95% interval is a bootstrap over seeds and, within each, over
episodes (arXiv:2108.13264). Numbers are the same on both backends, seconds are not. --write appends to
benchmarks/RESULTS.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import flowrl
from flowrl import Local, Ray
from flowrl.algorithms import PPOConfig
from flowrl.rl import PolicySpec
from flowrl.rl.schedules import Linear

RESULTS = Path(__file__).with_name("RESULTS.md")
EPISODES, RESAMPLES = 20, 10_000
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Task:
    """An environment, how long PPO may learn, its settings, and what to compare with."""

    steps: int
    config: PPOConfig
    beside: str


def breakout() -> Any:
    """MinAtar's Breakout: images of 10 × 10 pixels and 4 channels, 3 actions, sticky ones in a tenth of the steps."""
    import gymnasium
    import minatar.gym

    if "MinAtar/Breakout-v1" not in gymnasium.registry:
        minatar.gym.register_envs()
    return gymnasium.make("MinAtar/Breakout-v1")


TASKS = {
    "pendulum": Task(
        100_000,
        PPOConfig(
            env="Pendulum-v1", num_workers=2, envs_per_worker=8, unroll=64, batch_steps=1000, epochs=10, minibatch=64,
            discount=0.9, gae_lambda=0.95, learning_rate=Linear(1e-3, 0.0, 100_000), normalize_rewards=True,
        ),
        "wanted: at least −250; a random policy gets some −1,200",
    ),
    "lunar_lander": Task(
        500_000,
        PPOConfig(
            env="LunarLander-v3", num_workers=2, envs_per_worker=8, unroll=256, batch_steps=4000, epochs=6,
            minibatch=256, discount=0.999, gae_lambda=0.98, learning_rate=Linear(1e-3, 0.0, 500_000),
            entropy_cost=0.01, normalize_rewards=True,
        ),
        "wanted: at least 200, which counts as solved",
    ),
    "half_cheetah": Task(
        300_000,
        PPOConfig(
            env="HalfCheetah-v5", num_workers=2, envs_per_worker=4, unroll=256, batch_steps=2048, epochs=10,
            minibatch=64, discount=0.99, gae_lambda=0.95, learning_rate=Linear(3e-4, 0.0, 300_000),
            policy=PolicySpec(normalize_obs=True), normalize_rewards=True, reward_clip=10.0,
        ),
        "to compare with PPO's curve in figure 3 of arXiv:1707.06347, on an older version of the environment",
    ),
    "breakout": Task(
        500_000,
        PPOConfig(
            env=breakout, num_workers=2, envs_per_worker=16, unroll=64, batch_steps=2000, epochs=4, minibatch=256,
            discount=0.99, gae_lambda=0.95, learning_rate=Linear(1e-3, 0.0, 500_000), entropy_cost=0.01,
        ),
        "to compare with the curves of arXiv:1903.03176, which go to 5 million steps",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Trained:
    """What one seed came to."""

    seed: int
    returns: tuple[float, ...]
    training_return: float
    env_steps: int
    seconds: float

    @property
    def score(self) -> float:
        """The mean greedy return."""
        return float(np.mean(self.returns))


def train(task: Task, seed: int, backend: str) -> Trained:
    """Trains one seed and evaluates it."""
    with flowrl.run(task.config.graph(), Ray() if backend == "ray" else Local(), seed=seed) as run:
        began = time.perf_counter()
        for summary in run:
            if summary.env_steps >= task.steps:
                break
        seconds = time.perf_counter() - began
        found = run.evaluate(EPISODES)
    return Trained(seed, tuple(found.returns), summary.episode_return_mean, summary.env_steps, seconds)


def interquartile_mean(scores: Sequence[float] | Floats) -> Floats:
    """The mean of the middle half of the scores (..., n); a score counts in part where a quarter is no whole number."""
    ordered = np.sort(np.asarray(scores, float), axis=-1)
    n = ordered.shape[-1]
    # Score i stands for the stretch from i to i + 1 of n; what of it lies between n/4 and 3n/4 counts.
    places = np.arange(n)
    weights = np.clip(np.minimum(places + 1, 0.75 * n) - np.maximum(places, 0.25 * n), 0.0, None)
    return np.asarray((ordered * weights).sum(-1) / weights.sum())


def interval(returns: Sequence[Sequence[float]], seed: int = 0) -> tuple[float, float]:
    """The 95% bootstrap interval of the interquartile mean over seeds: seeds are drawn again, and episodes in each."""
    rng = np.random.default_rng(seed)
    episodes = np.asarray(returns, float)
    seeds, count = episodes.shape
    drawn = rng.integers(seeds, size=(RESAMPLES, seeds))
    again = episodes[drawn[..., None], rng.integers(count, size=(RESAMPLES, seeds, count))]
    low, high = np.quantile(interquartile_mean(again.mean(-1)), [0.025, 0.975])
    return float(low), float(high)


def report(name: str, task: Task, found: Sequence[Trained], backend: str) -> str:
    """A section of RESULTS.md."""
    scores = [one.score for one in found]
    low, high = interval([one.returns for one in found])
    cfg, cores = task.config, os.cpu_count()
    env = cfg.env if isinstance(cfg.env, str) else f"MinAtar {cfg.env.__name__}"
    lines = [
        f"## PPO on {env}, {task.steps:,} steps",
        "",
        f"Interquartile mean of {len(found)} seeds **{float(interquartile_mean(scores)):.4g}** "
        f"(95% bootstrap interval {low:.4g} to {high:.4g}); {task.beside}.",
        "",
        f"| seed | {EPISODES} greedy episodes | last 100 training episodes | steps | seconds | steps/s |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {one.seed} | {one.score:.4g} | {one.training_return:.4g} | {one.env_steps:,} | {one.seconds:.0f} "
        f"| {one.env_steps / one.seconds:,.0f} |"
        for one in found
    ]
    lines += [
        "",
        f"`python benchmarks/learn.py {name}` on {backend}, {cores} cores ({platform.machine()}), "
        f"flowrl {flowrl.__version__}; {cfg.num_workers} workers × {cfg.envs_per_worker} environments "
        f"× {cfg.unroll} steps, {cfg.epochs} epochs in minibatches of {cfg.minibatch}, γ {cfg.discount}, "
        f"λ {cfg.gae_lambda}, learning rate {cfg.learning_rate}.",
        "",
    ]
    return "\n".join(lines)


def append_section(section: str) -> None:
    """Adds a section to RESULTS.md."""
    new = not RESULTS.exists()
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write("# Results\n\n" * new + section + "\n")


def main() -> None:
    """Trains the seeds, prints the section and, if asked, appends it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=sorted(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="instead of the task's own; its schedules stay")
    parser.add_argument("--backend", choices=["ray", "local"], default="ray")
    parser.add_argument("--write", action="store_true", help=f"append to {RESULTS.name}")
    options = parser.parse_args()
    task = TASKS[options.task]
    if options.steps is not None:
        task = replace(task, steps=options.steps)
    found = []
    for seed in range(options.seeds):
        found.append(train(task, seed, options.backend))
        print(f"seed {seed}: {found[-1].score:.4g} in {found[-1].seconds:.0f} s", flush=True)
    section = report(options.task, task, found, options.backend)
    print(section)
    if options.write:
        append_section(section)


if __name__ == "__main__":
    main()
