"""What teams learn on simple_spread: MAPPO and independent PPO beside random play, five seeds.

    pip install "flowrl[multiagent]"
    python benchmarks/learn_agents.py [--seeds 5] [--backend ray|local] [--steps N] [--write]
    python benchmarks/learn_agents.py --algorithm mappo --seed 1 --json mappo-1.json     # one seed alone
    python benchmarks/learn_agents.py --read mappo-*.json ppo-*.json [--write]           # the section from such files

Three agents are to stand on three marks, in 25 steps, without running into each other. A seed's score is the mean over
100 episodes of what all three get together, with actions drawn from the policies; greedy ones, which run to and fro
over a mark, stand beside it. MAPPO: one policy for all, which sees who it is, and a central critic. Independent PPO: a
policy and values of its own for each agent. The interquartile mean and its interval are those of benchmarks/learn.py.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import flowrl
from benchmarks.learn import append_section, interquartile_mean, interval
from flowrl import Local, Ray
from flowrl.algorithms import MultiAgentPPOConfig, PPOConfig
from flowrl.rl.schedules import Linear

ENV, KWARGS = "mpe2.simple_spread_v3", {"N": 3, "local_ratio": 0.5, "max_cycles": 25}
STEPS, EPISODES, MARKS = 100_000, 100, 4
PPO = PPOConfig(
    batch_steps=750, epochs=8, minibatch=512, learning_rate=Linear(1e-3, 2e-4, STEPS), discount=0.95, gae_lambda=0.95,
    entropy_cost=0.01,
)  # fmt: skip


def _config(**more: Any) -> MultiAgentPPOConfig:
    return MultiAgentPPOConfig(
        env=ENV, env_kwargs=KWARGS, num_workers=1, envs_per_worker=16, unroll=50, ppo=PPO, **more
    )  # fmt: skip


CONFIGS = {
    "mappo": _config(policies="shared", critic="central"),
    "ppo": _config(policies="independent", critic="own"),
}
NAMES = {"mappo": "MAPPO", "ppo": "independent PPO"}


@dataclass(frozen=True)
class Learned:
    """What one seed came to: (environment steps, mean return) on the way, and its episodes at the end."""

    algorithm: str
    seed: int
    curve: tuple[tuple[int, float], ...]
    returns: tuple[float, ...]
    greedy: tuple[float, ...]
    env_steps: int
    seconds: float
    backend: str


def learn(algorithm: str, seed: int, steps: int, backend: str) -> Learned:
    """Trains one seed and evaluates it."""
    curve: list[tuple[int, float]] = []
    with flowrl.run(CONFIGS[algorithm].graph(), Ray() if backend == "ray" else Local(), seed=seed) as run:
        for summary in run:
            if summary.env_steps * MARKS >= steps * (len(curve) + 1):
                curve.append((summary.env_steps, summary.episode_return_mean))
            if summary.env_steps >= steps:
                break
        drawn, greedy = (run.evaluate(EPISODES, deterministic=flag).returns for flag in (False, True))
    return Learned(
        algorithm, seed, tuple(curve), tuple(map(float, drawn)), tuple(map(float, greedy)), summary.env_steps,
        summary.time_s, backend,
    )  # fmt: skip


def at_random(episodes: int = EPISODES) -> list[float]:
    """The returns of agents that draw their actions evenly."""
    env = importlib.import_module(ENV).parallel_env(**KWARGS)
    rng = np.random.default_rng(0)
    returns = []
    for episode in range(episodes):
        env.reset(seed=episode)
        returns.append(0.0)
        while env.agents:
            _, rewards, *_ = env.step({agent: int(rng.integers(env.action_space(agent).n)) for agent in env.agents})
            returns[-1] += sum(map(float, rewards.values()))
    return returns


def report(found: Sequence[Learned], random: Sequence[float]) -> str:
    """A section of RESULTS.md."""
    lines = [
        f"## MAPPO and independent PPO on simple_spread, {min(one.env_steps for one in found):,} steps",
        "",
        f"Returns of three agents together, over {len(found[0].returns)} episodes of 25 steps with drawn actions; "
        f"greedy ones beside. Random play: {np.mean(random):.1f}.",
        "",
        "| | seeds | interquartile mean (95% interval) | greedy | training, at "
        + " / ".join(f"{steps:,}" for steps, _ in found[0].curve) + " steps |",
        "|---|---:|---:|---:|---:|",
    ]  # fmt: skip
    for algorithm in dict.fromkeys(one.algorithm for one in found):
        mine = [one for one in found if one.algorithm == algorithm]
        low, high = interval([one.returns for one in mine])
        middle = float(interquartile_mean([np.mean(one.returns) for one in mine]))
        greedy = float(interquartile_mean([np.mean(one.greedy) for one in mine]))
        way = " / ".join(f"{np.mean(values):.1f}" for values in zip(*([v for _, v in one.curve] for one in mine)))  # noqa: B905
        lines.append(
            f"| {NAMES[algorithm]} | {len(mine)} | **{middle:.1f}** ({low:.1f} to {high:.1f}) | {greedy:.1f} | {way} |"
        )
    means = ", ".join(f"{NAMES[one.algorithm]} {one.seed}: {np.mean(one.returns):.1f}" for one in found)
    cfg = CONFIGS["mappo"]
    lines += [
        "",
        f"Seeds: {means}.",
        "",
        f"`python benchmarks/learn_agents.py` on {' and '.join(sorted({one.backend for one in found}))}, "
        f"{os.cpu_count()} cores ({platform.machine()}), flowrl {flowrl.__version__}; env_kwargs {KWARGS}, num_workers "
        f"{cfg.num_workers}, envs_per_worker {cfg.envs_per_worker}, unroll {cfg.unroll}, batch_steps "
        f"{PPO.batch_steps}, epochs {PPO.epochs}, minibatch {PPO.minibatch}, learning_rate {PPO.learning_rate}, "
        f"discount {PPO.discount}, gae_lambda {PPO.gae_lambda}, entropy_cost {PPO.entropy_cost}.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Trains the seeds, or reads them, and prints the section."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", choices=CONFIGS, help="this one alone")
    parser.add_argument("--seeds", type=int, default=5, help="how many, from 0")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--backend", choices=["ray", "local"], default="ray")
    parser.add_argument("--json", type=Path, help="with --algorithm and --seed: where to write what it came to")
    parser.add_argument("--read", type=Path, nargs="+", help="files of seeds that were trained before")
    parser.add_argument("--write", action="store_true", help="append to RESULTS.md")
    options = parser.parse_args()
    if options.read:
        found = [Learned(**json.loads(path.read_text(encoding="utf-8"))) for path in options.read]
    else:
        seeds = range(options.seeds) if options.seed is None else [options.seed]
        names = list(CONFIGS) if options.algorithm is None else [options.algorithm]
        found = [learn(name, seed, options.steps, options.backend) for seed in seeds for name in names]
    if options.json is not None:
        options.json.write_text(json.dumps(asdict(found[0])), encoding="utf-8")
    section = report(sorted(found, key=lambda one: (one.algorithm, one.seed)), at_random())
    print(section)
    if options.write:
        append_section(section)


if __name__ == "__main__":
    main()
