"""Ape-X as a plain Ray loop over flowrl's worker, replay and learner classes: what benchmarks/apex.py compares with."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray

from flowrl import Batch, Context
from flowrl.algorithms import ApexConfig
from flowrl.algorithms.dqn import loss_of
from flowrl.operators import InitialPriorities, NStep
from flowrl.rl import Learner, ReplayShard, RolloutWorker

NUM_ASYNC = 2  # fragments of a worker that are out at once, as in algorithms/apex.py


@dataclass
class Counts:
    """Totals so far; busy_s is the learner's."""

    steps: int = 0
    samples: int = 0
    busy_s: float = 0.0


class HandWorker:
    """A rollout worker with n-step returns and priorities, as one would write it by hand."""

    def __init__(self, cfg: ApexConfig, index: int):
        self.worker = RolloutWorker(
            cfg.env, cfg.policy, steps=cfg.unroll, num_envs=cfg.envs_per_worker, next_obs=True,
            index=index, count=cfg.num_workers, seed=index,
        )  # fmt: skip
        envs, last = cfg.envs_per_worker, cfg.num_workers * cfg.envs_per_worker - 1
        self.worker.set_epsilon(
            np.array([cfg.epsilon ** (1 + 7 * i / last) for i in range(index * envs, (index + 1) * envs)])
        )
        self.n_step, self.priorities, self.ctx = NStep(cfg.n_step, cfg.discount), InitialPriorities(), _Emitted()
        self.n_step.open()

    def spaces(self) -> Any:
        """The environment's spaces."""
        return self.worker.spaces()

    def set_weights(self, weights: Any, version: int) -> None:
        """Newer weights."""
        self.worker.set_weights(weights, version)

    def sample(self) -> tuple[Batch, int]:
        """A fragment of n-step rows with priorities, and its steps."""
        answer = self.worker.sample()
        self.n_step.process(answer.payload, self.ctx)
        (batch,) = self.priorities.process(self.ctx.taken, self.ctx)
        return batch, answer.env_steps or 0


class _Emitted(Context):
    """Where NStep leaves its batch."""

    taken: Any = None

    def emit(self, value: Any, sources: Any = None) -> None:
        self.taken = value


class HandReplay:
    """A replay shard, whose answers say what it holds."""

    def __init__(self, cfg: ApexConfig, index: int):
        self.shard = ReplayShard(
            cfg.capacity, prioritized=True, alpha=cfg.alpha, index=index, count=cfg.replay_shards, seed=index
        )
        self.batch, self.batches, self.beta = cfg.batch, cfg.batches, cfg.beta

    def store(self, batch: Batch) -> tuple[int, float]:
        """Rows held then, and their mass."""
        self.shard.add(batch)
        return len(self.shard), self.shard.mass

    def draw(self) -> tuple[Batch, float]:
        """Minibatches, and the mass."""
        return self.shard.sample(self.batch, batches=self.batches, beta=self.beta), self.shard.mass

    def reprioritize(self, trained: Batch) -> None:
        """New priorities."""
        self.shard.update_priorities(trained["slots"], trained["priorities"])


class HandLearner:
    """A learner that says how long it was busy."""

    def __init__(self, cfg: ApexConfig) -> None:
        self.learner = Learner(
            cfg.policy, loss_of(cfg.policy, double=cfg.double, huber=cfg.huber), learning_rate=cfg.learning_rate,
            max_grad_norm=cfg.max_grad_norm, adam_eps=1e-8, seed=0,
        )  # fmt: skip
        self.learner.set_target_update(every_updates=cfg.target_every, tau=cfg.tau)
        self.minibatch = cfg.batch

    def build(self, spaces: Any) -> Any:
        """The initial weights."""
        return self.learner.build(spaces).published

    def train(self, batch: Batch) -> tuple[Any, Any, tuple[int, float, dict[Any, Any]]]:
        """The new weights, the rows' priorities, and figures."""
        began = time.perf_counter()
        answer = self.learner.train(batch, minibatch=self.minibatch)
        figures = batch.env_steps, time.perf_counter() - began, dict(answer.metrics)
        return answer.published, answer.payload, figures


class HandLoop:
    """Ape-X as a plain loop around ray.wait: batches, priorities and weights go from actor to actor by reference."""

    def __init__(self, cfg: ApexConfig):
        self.cfg, self.counts = cfg, Counts()
        worker, shard, learner = (ray.remote(cls) for cls in (HandWorker, HandReplay, HandLearner))
        self.workers = [worker.options(num_cpus=1).remote(cfg, i) for i in range(cfg.num_workers)]
        self.shards = [shard.options(num_cpus=0).remote(cfg, i) for i in range(cfg.replay_shards)]
        self.learner = learner.options(num_cpus=0).remote(cfg)
        self.sample = [one.sample.options(num_returns=2) for one in self.workers]
        self.draws = [one.draw.options(num_returns=2) for one in self.shards]
        self.train = self.learner.train.options(num_returns=3)
        self.pending: dict[Any, Callable[[Any], None]] = {}
        self.masses, self.held = [0.0] * cfg.replay_shards, [0] * cfg.replay_shards
        self.inserted = self.drawn = self.version = self.out = self.turn = 0
        self.has = [-1] * cfg.num_workers
        # Fragments that wait for their turn, and how far samples may be from their ratio to steps, as flowrl has it.
        # Stores are not counted here; flowrl has two in flight.
        self.waiting: deque[tuple[int, Any, int]] = deque()
        rows = cfg.unroll * cfg.envs_per_worker * (cfg.samples_per_step or 0.0)
        drawn = cfg.batch * cfg.batches
        self.buffer = max(rows, drawn, (cfg.in_flight * drawn + rows) / 2, (2 * rows + drawn) / 2)
        self.random = np.random.default_rng(0)
        self.weights = self.learner.build.remote(self.workers[0].spaces.remote())
        for at in [*range(cfg.num_workers)] * NUM_ASYNC:
            self._ask_worker(at)

    def advance(self, seconds: float) -> None:
        """Moves on for so long."""
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            (ready,), _ = ray.wait(list(self.pending), num_returns=1)
            self.pending.pop(ready)(ray.get(ready))
            self._store()
            self._draw()

    def _ask_worker(self, at: int) -> None:
        if self.has[at] != self.version:
            self.workers[at].set_weights.remote(self.weights, self.version)
            self.has[at] = self.version
        batch, steps = self.sample[at].remote()
        self.pending[steps] = lambda found: self._sampled(at, batch, found)

    def _sampled(self, at: int, batch: Any, steps: int) -> None:
        self.counts.steps += steps
        self.waiting.append((at, batch, steps))

    def _store(self) -> None:
        while self.waiting and self._ahead(self.waiting[0][2]) <= self.buffer:
            at, batch, steps = self.waiting.popleft()
            to, self.turn = self.turn % len(self.shards), self.turn + 1
            self.inserted += steps
            stored = self.shards[to].store.remote(batch)
            self.pending[stored] = lambda found, to=to: self._stored(to, found)
            self._ask_worker(at)

    def _stored(self, to: int, found: tuple[int, float]) -> None:
        self.held[to], self.masses[to] = found

    def _ahead(self, rows: int) -> float:
        """How many samples are due once so many rows more are stored."""
        ratio = self.cfg.samples_per_step
        if ratio is None or sum(self.held) < self.cfg.min_size:
            return 0.0
        return (self.inserted + rows - self.cfg.min_size) * ratio - self.drawn

    def _draw(self) -> None:
        rows = self.cfg.batch * self.cfg.batches
        while self.out < self.cfg.in_flight and sum(self.held) >= self.cfg.min_size:
            if self.cfg.samples_per_step is not None and self._ahead(0) - rows < -self.buffer:
                return
            self.out, self.drawn = self.out + 1, self.drawn + rows
            masses = np.array(self.masses)
            of = int(self.random.choice(len(masses), p=masses / masses.sum()))
            batch, mass = self.draws[of].remote()
            self.pending[mass] = lambda found, of=of, batch=batch: self._drawn(of, batch, found)

    def _drawn(self, of: int, batch: Any, mass: float) -> None:
        self.masses[of] = mass
        weights, priorities, figures = self.train.remote(batch)
        self.pending[figures] = lambda found: self._trained(of, weights, priorities, found)

    def _trained(self, of: int, weights: Any, priorities: Any, figures: tuple[int, float, Any]) -> None:
        self.shards[of].reprioritize.remote(priorities)
        self.weights, self.version, self.out = weights, self.version + 1, self.out - 1
        self.counts.samples += figures[0]
        self.counts.busy_s += figures[1]

    def close(self) -> None:
        """Ends the actors."""
        for one in [*self.workers, *self.shards, self.learner]:
            ray.kill(one)
