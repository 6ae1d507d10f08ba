"""What a league learns, measured exactly: NashConv of its average strategy; and connect four against a search.

    python benchmarks/learn_league.py kuhn [--seeds 3] [--backend ray|local] [--steps N] [--write]
    python benchmarks/learn_league.py leduc
    python benchmarks/learn_league.py rock_paper_scissors
    python benchmarks/learn_league.py connect_four
    python benchmarks/learn_league.py kuhn --seed 1 --json kuhn-1.json        # one seed alone
    python benchmarks/learn_league.py kuhn --read kuhn-*.json [--write]       # the section from such files

NashConv is the sum of what both players' best responses win (`flowrl.rl.games.nash_conv`), 0 in an equilibrium. The
average strategy is that of a player who draws a snapshot before each game, the k-th with weight k². Connect four:
200 games of the newest policy, greedy, half of them begun by it, against a search two moves deep that draws among
equal moves. --write appends to benchmarks/RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete

import flowrl
from flowrl import Local, Ray
from flowrl.algorithms import LeaguePlayConfig, PPOConfig
from flowrl.rl import PolicySpec
from flowrl.rl.games import (
    OVER,
    ConnectFour,
    Game,
    Kuhn,
    Leduc,
    RockPaperScissors,
    average_strategy,
    nash_conv,
    policy_strategies,
    uniform_strategy,
)
from flowrl.rl.games.connect_four import two_ply
from flowrl.rl.schedules import Linear

RESULTS = Path(__file__).with_name("RESULTS.md")
GAMES, MARKS = 200, 10


@dataclass(frozen=True)
class Task:
    """A game, how long a league plays it, and its settings."""

    game: Game
    steps: int
    config: LeaguePlayConfig
    wanted: str


def _league(name: str, ppo: PPOConfig, **more: Any) -> LeaguePlayConfig:
    return LeaguePlayConfig(env=f"flowrl.rl.games:{name}", ppo=ppo, **more)


PLAIN = LeaguePlayConfig().ppo
TASKS = {
    "kuhn": Task(Kuhn(), 300_000, _league("kuhn_poker", PLAIN), "wanted: below 0.1; uniform play has 0.917"),
    "leduc": Task(
        Leduc(),
        600_000,
        _league(
            "leduc_poker",
            replace(PLAIN, learning_rate=Linear(2e-3, 1e-4, 600_000), entropy_cost=Linear(0.5, 0.13, 400_000)),
        ),
        "wanted: falling; uniform play has 4.747",
    ),
    "rock_paper_scissors": Task(
        RockPaperScissors(),
        100_000,
        _league("rock_paper_scissors", replace(PLAIN, entropy_cost=0.3, learning_rate=Linear(1e-3, 0.0, 100_000))),
        "wanted: near 0, which is a third of each",
    ),
    "connect_four": Task(
        ConnectFour(tactics=True),
        2_500_000,
        _league(
            "connect_four",
            PPOConfig(
                policy=PolicySpec(hidden=(128, 128), activation="relu"), batch_steps=10_000, epochs=4, minibatch=1024,
                learning_rate=Linear(3e-3, 1e-4, 2_500_000), discount=1.0, gae_lambda=0.8,
                entropy_cost=Linear(0.05, 0.005, 2_500_000),
            ),
            env_kwargs={"tactics": True}, snapshot_every_updates=8, envs_per_worker=256, unroll=40,
        ),
        "wanted: 90% of 200 games against the search; observations are told what the next two moves can bring",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Mark:
    """Where a league stood: snapshots, and what was measured, by name."""

    env_steps: int
    seconds: float
    snapshots: int
    measures: dict[str, float]


def train(task: Task, seed: int, steps: int, backend: str) -> Iterator[Mark]:
    """Trains one seed, and measures ten times on the way."""
    measure = against_search if isinstance(task.game, ConnectFour) else exactly
    with flowrl.run(task.config.graph(), Ray() if backend == "ray" else Local(), seed=seed) as run:
        spent, began, marks = 0.0, time.perf_counter(), 0
        for summary in run:
            if summary.env_steps * MARKS < (marks + 1) * steps:
                continue
            spent, marks = spent + time.perf_counter() - began, marks + 1
            snapshots = run.actors["league"][0].ask("snapshots", "main").result()
            yield Mark(summary.env_steps, spent, len(snapshots), measure(task, run, snapshots))
            if marks == MARKS:
                return
            began = time.perf_counter()


def exactly(task: Task, run: Any, snapshots: dict[str, Any]) -> dict[str, float]:
    """NashConv of the average strategy, of that with even weights, and of the newest snapshot."""
    found = policy_strategies(task.game, task.config.ppo.policy, snapshots.values())
    return {
        "average": nash_conv(task.game, average_strategy(task.game, found, np.arange(1, len(found) + 1) ** 2.0)),
        "even weights": nash_conv(task.game, average_strategy(task.game, found)),
        "newest": nash_conv(task.game, found[-1]),
    }


def against_search(task: Task, run: Any, snapshots: dict[str, Any]) -> dict[str, float]:
    """The share of games that the newest policy wins, and of draws."""
    policy = run.policy("main")
    rng = np.random.default_rng(0)

    def mine(state: Any) -> int:
        mask = np.zeros(7, np.bool_)
        mask[state.legal()] = True
        return int(policy.act(state.observation(), deterministic=True, action_mask=mask))

    def search(state: Any) -> int:
        return two_ply(state.observation(), Discrete(7), rng)

    gains = [played(task.game, mine, search, i % 2) for i in range(GAMES)]
    return {"won": float(np.mean(np.array(gains) > 0)), "drawn": float(np.mean(np.array(gains) == 0))}


def played(game: Game, mine: Callable[[Any], int], theirs: Callable[[Any], int], seat: int) -> float:
    """What the player in this seat wins in a game."""
    state = game.initial()
    while state.player != OVER:
        state = state.play((mine if state.player == seat else theirs)(state))
    return state.gain() if seat == 0 else -state.gain()


def report(name: str, task: Task, found: list[list[Mark]], backend: str) -> str:
    """A section of RESULTS.md."""
    head = list(found[0][0].measures)
    cfg, cores = task.config, os.cpu_count()
    lines = [
        f"## League: {name}",
        "",
        f"{len(found)} seed(s), {task.wanted}. Each cell: the mean over seeds, and in brackets the worst."
        + ("" if name == "connect_four" else " Average: of the league's snapshots, the k-th with weight k²."),
        "",
        f"| env steps | snapshots | {' | '.join(head)} |",
        "|---:|---:|" + "---:|" * len(head),
    ]
    worst = min if name == "connect_four" else max
    for marks in zip(*found, strict=True):
        cells = []
        for key in head:
            values = [mark.measures[key] for mark in marks]
            cells.append(f"{np.mean(values):.3f} ({worst(values):.3f})")
        lines.append(f"| {marks[0].env_steps:,} | {marks[0].snapshots} | {' | '.join(cells)} |")
    if not isinstance(task.game, ConnectFour):
        lines += ["", f"Uniform play: {nash_conv(task.game, uniform_strategy(task.game)):.3f}."]
    seconds = np.mean([marks[-1].seconds for marks in found])
    return "\n".join([
        *lines, "",
        f"`python benchmarks/learn_league.py {name}` on {backend}, {cores} cores ({platform.machine()}), flowrl "
        f"{flowrl.__version__}; players {dict(cfg.players)}, snapshot_every_updates {cfg.snapshot_every_updates}, "
        f"opponents {cfg.opponents}, "
        f"num_workers {cfg.num_workers}, envs_per_worker {cfg.envs_per_worker}, unroll {cfg.unroll}, hidden "
        f"{cfg.ppo.policy.hidden}, batch_steps {cfg.ppo.batch_steps}, epochs {cfg.ppo.epochs}, minibatch "
        f"{cfg.ppo.minibatch}, learning_rate {cfg.ppo.learning_rate}, gae_lambda {cfg.ppo.gae_lambda}, "
        f"entropy_cost {cfg.ppo.entropy_cost}; {seconds:.0f} s a seed, without the measures.", "",
    ])  # fmt: skip


def main() -> None:
    """Trains the seeds of one task and prints what they came to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--json", type=Path, help="with --seed: where to write its marks, as they come")
    parser.add_argument("--read", type=Path, nargs="+", help="files of seeds that were trained before")
    parser.add_argument("--backend", choices=("ray", "local"), default="local")
    parser.add_argument("--steps", type=int, help="environment steps, in place of the task's own number")
    parser.add_argument("--write", action="store_true", help="append the section to benchmarks/RESULTS.md")
    args = parser.parse_args()
    task = TASKS[args.task]
    found = [[Mark(**mark) for mark in json.loads(path.read_text(encoding="utf-8"))] for path in args.read or ()]
    for seed in () if args.read else range(args.seeds) if args.seed is None else [args.seed]:
        found.append([])
        for mark in train(task, seed, args.steps or task.steps, args.backend):
            found[-1].append(mark)
            if args.json is not None:
                args.json.write_text(json.dumps([asdict(one) for one in found[-1]]), encoding="utf-8")
            told = "  ".join(f"{key} {value:.3f}" for key, value in mark.measures.items())
            print(f"seed {seed}: {mark.env_steps:,} steps, {mark.seconds:.0f} s, {mark.snapshots} snapshots: {told}",
                  flush=True)  # fmt: skip
    text = report(args.task, task, found, args.backend)
    print("\n" + text)
    if args.write:
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write("\n" + text)


if __name__ == "__main__":
    main()
