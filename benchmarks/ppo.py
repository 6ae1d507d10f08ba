"""PPO on CartPole-v1: flowrl's graph against a hand-written Ray loop over the same worker and learner classes.

    python benchmarks/ppo.py [--minibatch 128 512] [--seconds 3] [--repeats 10]
    python benchmarks/ppo.py --solve --seeds 10

The two alternate in one run; a figure is the median over the repeats, the ratio is taken pair by pair. Setting: batch
4096, 10 epochs, 2×64 tanh (actor and critic apart), 2 workers × 8 environments, Adam 3e-4. --solve trains the default
PPOConfig to a mean return of 475 over 100 episodes, confirmed by 20 greedy ones. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

import flowrl
from flowrl import Batch, Ray
from flowrl.algorithms import PPOConfig
from flowrl.operators import AddAdvantages
from flowrl.rl import Learner, PolicySpec, RolloutWorker
from flowrl.rl.losses import PPOLoss

WORKERS, ENVS, UNROLL, EPOCHS = 2, 8, 256, 10


class HandWorker:
    """A rollout worker and its advantages, as one would write it by hand."""

    def __init__(self, index: int):
        self.worker = RolloutWorker(
            "CartPole-v1", PolicySpec(), steps=UNROLL, num_envs=ENVS, index=index, count=WORKERS, seed=index
        )
        self.advantages = AddAdvantages(0.99, 0.95)

    def spaces(self) -> Any:
        """The environment's spaces."""
        return self.worker.spaces()

    def sample(self, weights: Any, version: int) -> tuple[Batch, int, tuple[float, ...]]:
        """A fragment with advantages, its steps, the returns of the episodes that ended."""
        self.worker.set_weights(weights, version)
        answer = self.worker.sample()
        (batch,) = self.advantages.process(answer.payload, None)  # type: ignore[arg-type]
        return batch, answer.env_steps or 0, answer.metrics["episode_return"].values


class HandLearner:
    """A learner that joins the workers' batches."""

    def __init__(self) -> None:
        self.learner = Learner(PolicySpec(), PPOLoss(), learning_rate=3e-4, max_grad_norm=0.5, seed=0)

    def build(self, spaces: Any) -> Any:
        """The initial weights."""
        return self.learner.build(spaces).published

    def train(self, minibatch: int, *batches: Batch) -> tuple[Any, dict[Any, Any]]:
        """The new weights and the metrics."""
        answer = self.learner.train(Batch.concat(list(batches)), epochs=EPOCHS, minibatch=minibatch)
        return answer.published, dict(answer.metrics)


class HandLoop:
    """PPO as a plain loop: sample, train, send; batches and weights go from actor to actor by reference."""

    def __init__(self, minibatch: int):
        worker_class = ray.remote(num_cpus=1)(HandWorker)
        self.workers = [worker_class.remote(i) for i in range(WORKERS)]
        self.learner = ray.remote(num_cpus=0)(HandLearner).remote()
        self.minibatch, self.version = minibatch, 0
        self.sample = [w.sample.options(num_returns=3) for w in self.workers]
        self.train = self.learner.train.options(num_returns=2)
        self.weights = self.learner.build.remote(self.workers[0].spaces.remote())

    def iterate(self) -> int:
        """One iteration; returns its steps."""
        out = [sample.remote(self.weights, self.version) for sample in self.sample]
        self.weights, metrics = self.train.remote(self.minibatch, *(batch for batch, _, _ in out))
        self.version += 1
        ray.get([returns for _, _, returns in out])
        ray.get(metrics)
        return sum(ray.get([steps for _, steps, _ in out]))

    def close(self) -> None:
        """Ends the actors."""
        for actor in [*self.workers, self.learner]:
            ray.kill(actor)


class GraphLoop:
    """PPO as flowrl's graph."""

    def __init__(self, minibatch: int):
        config = PPOConfig(
            num_workers=WORKERS, envs_per_worker=ENVS, unroll=UNROLL, batch_steps=WORKERS * ENVS * UNROLL * 3 // 4,
            epochs=EPOCHS, minibatch=minibatch, learning_rate=3e-4,
        )  # fmt: skip
        self.run = flowrl.run(config.graph(), Ray(), seed=0)
        self.steps = 0

    def iterate(self) -> int:
        """One iteration; returns its steps."""
        summary = next(self.run)
        before, self.steps = self.steps, summary.env_steps
        return self.steps - before

    def close(self) -> None:
        """Ends the run."""
        self.run.close()


@contextmanager
def loop(kind: type[HandLoop] | type[GraphLoop], minibatch: int) -> Iterator[Any]:
    """A warm loop."""
    made = kind(minibatch)
    try:
        for _ in range(2):
            made.iterate()
        yield made
    finally:
        made.close()


def rate(made: Any, seconds: float) -> float:
    """Environment steps a second."""
    steps, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        steps += made.iterate()
    return steps / (time.perf_counter() - started)


def throughput(minibatch: int, seconds: float, repeats: int) -> None:
    """The two in turn, both warm, in windows of `seconds`."""
    ours: list[float] = []
    hand: list[float] = []
    with loop(GraphLoop, minibatch) as graph, loop(HandLoop, minibatch) as plain:
        for _ in range(repeats):
            hand.append(rate(plain, seconds))
            ours.append(rate(graph, seconds))
    ratio = statistics.median(a / b for a, b in zip(ours, hand, strict=True))
    print(
        f"minibatch {minibatch}: graph {statistics.median(ours):,.0f} steps/s, hand-written loop "
        f"{statistics.median(hand):,.0f} steps/s, ratio {ratio:.3f} (pairs: "
        f"{', '.join(f'{a / b:.3f}' for a, b in zip(ours, hand, strict=True))})",
        flush=True,
    )


def solve(seeds: int) -> None:
    """The default config to 475, confirmed greedily."""
    times: list[float] = []
    steps: list[int] = []
    solved = 0
    for seed in range(seeds):
        result = flowrl.train(PPOConfig(), stop_return=475, total_steps=500_000, backend=Ray(), seed=seed)
        last = result.history[-1]
        solved += bool(result.solved)
        times.append(result.stats.elapsed_s)
        steps.append(last.env_steps)
        print(
            f"seed {seed}: {result.reason} after {last.env_steps:,} steps, {result.stats.elapsed_s:.1f} s "
            f"(mean return {last.episode_return_mean:.0f}, greedy {result.evaluation})",
            flush=True,
        )
    print(
        f"{solved} of {seeds} solved; median {statistics.median(times):.1f} s ({min(times):.1f} to {max(times):.1f}), "
        f"median {statistics.median(steps):,.0f} steps ({min(steps):,} to {max(steps):,})"
    )


def main() -> None:
    """Throughput at each minibatch, or the solve times."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--minibatch", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--solve", action="store_true")
    parser.add_argument("--seeds", type=int, default=10)
    args = parser.parse_args()
    if args.solve:
        solve(args.seeds)
    else:
        ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        for minibatch in args.minibatch:
            throughput(minibatch, args.seconds, args.repeats)
    ray.shutdown()


if __name__ == "__main__":
    main()
