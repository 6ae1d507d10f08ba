"""IMPALA and A3C as plain Ray loops over flowrl's classes: what benchmarks/async.py compares with."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import ray

from flowrl import Batch, Context
from flowrl.algorithms import A3CConfig, IMPALAConfig
from flowrl.algorithms.actor_critic import loss_of
from flowrl.operators import AddAdvantages, ComputeGradients
from flowrl.rl import Learner, RolloutWorker
from flowrl.rl.gradient_batch import Gradients
from flowrl.rl.losses import VTraceLoss


@dataclass
class Counts:
    """Totals so far; busy_s is the learner's."""

    steps: int = 0
    samples: int = 0
    updates: int = 0
    busy_s: float = 0.0


class HandWorker:
    """A rollout worker as one would write it by hand."""

    def __init__(self, cfg: IMPALAConfig | A3CConfig, index: int):
        self.worker = RolloutWorker(
            cfg.env, cfg.policy, steps=cfg.unroll, num_envs=cfg.envs_per_worker,
            next_obs=isinstance(cfg, IMPALAConfig), values=isinstance(cfg, A3CConfig),
            index=index, count=cfg.num_workers, seed=index,
        )  # fmt: skip

    def spaces(self) -> Any:
        """The environment's spaces."""
        return self.worker.spaces()

    def set_weights(self, weights: Any, version: int) -> None:
        """Newer weights."""
        self.worker.set_weights(weights, version)

    def sample(self) -> tuple[Batch, tuple[int, tuple[float, ...]]]:
        """A fragment, its steps, and the returns of the episodes that ended."""
        answer = self.worker.sample()
        return answer.payload, (answer.env_steps or 0, answer.metrics["episode_return"].values)


class HandGradients(HandWorker):
    """A rollout worker that answers gradients."""

    def __init__(self, cfg: A3CConfig, index: int):
        super().__init__(cfg, index)
        self.advantages = AddAdvantages(cfg.discount, cfg.gae_lambda)
        self.gradients, self.ctx = ComputeGradients(cfg.policy, loss_of(cfg)), Context(actor=self.worker)
        self.gradients.open()

    def gradient(self) -> tuple[Gradients, tuple[int, tuple[float, ...], list[Any]]]:
        """A gradient, the steps behind it, the returns of the episodes that ended, and the loss's metrics."""
        answer = self.worker.sample()
        (batch,) = self.advantages.process(answer.payload, self.ctx)
        (gradients,) = self.gradients.process(batch, self.ctx)
        said = answer.env_steps or 0, answer.metrics["episode_return"].values, self.ctx.metrics.take()
        return gradients, said


class HandLearner:
    """A learner that says how long it was busy."""

    def __init__(self, cfg: IMPALAConfig | A3CConfig) -> None:
        loss = VTraceLoss(**cfg.vtrace) if isinstance(cfg, IMPALAConfig) else loss_of(cfg)
        self.learner = Learner(
            cfg.policy, loss, learning_rate=cfg.learning_rate, max_grad_norm=cfg.max_grad_norm, seed=0
        )

    def build(self, spaces: Any) -> Any:
        """The initial weights."""
        return self.learner.build(spaces).published

    def train(self, *batches: Batch) -> tuple[Any, tuple[int, float, dict[Any, Any]]]:
        """The new weights, and figures."""
        began = time.perf_counter()
        batch = Batch.concat(batches)
        answer = self.learner.train(batch)
        return answer.published, (batch.env_steps, time.perf_counter() - began, dict(answer.metrics))

    def apply(self, gradients: Gradients) -> tuple[Any, tuple[int, float, dict[Any, Any]]]:
        """The new weights, and figures."""
        began = time.perf_counter()
        answer = self.learner.apply_gradients(gradients)
        return answer.published, (gradients.env_steps, time.perf_counter() - began, dict(answer.metrics))


class HandLoop:
    """What both loops have: actors, and messages that are out."""

    def __init__(self, cfg: Any, worker: type[HandWorker], method: str, update: str):
        self.cfg, self.counts, self.version = cfg, Counts(), 0
        remote = ray.remote(worker)
        self.workers = [remote.options(num_cpus=1).remote(cfg, i) for i in range(cfg.num_workers)]
        self.learner = ray.remote(HandLearner).options(num_cpus=0).remote(cfg)
        self.make = [getattr(one, method).options(num_returns=2) for one in self.workers]
        self.update = getattr(self.learner, update).options(num_returns=2)
        self.weights = self.learner.build.remote(self.workers[0].spaces.remote())
        self.has = [-1] * cfg.num_workers
        self.out: dict[Any, tuple[int, Any]] = {}  # by what says that it is done: the worker and the payload
        for at in [*range(cfg.num_workers)] * cfg.num_async:
            self.ask(at)

    def ask(self, at: int) -> None:
        """One more step of a worker, the newest weights before it."""
        if self.has[at] != self.version:
            self.workers[at].set_weights.remote(self.weights, self.version)
            self.has[at] = self.version
        payload, figures = self.make[at].remote()
        self.out[figures] = at, payload

    def ready(self) -> tuple[int, Any]:
        """The worker and payload of the next step that is done; its figures are counted."""
        (figures,), _ = ray.wait(list(self.out), num_returns=1)
        at, payload = self.out.pop(figures)
        self.counts.steps += ray.get(figures)[0]
        return at, payload

    def updated(self, weights: Any, figures: Any) -> None:
        """Takes in what an update gave."""
        rows, busy_s, _ = ray.get(figures)
        self.weights, self.version = weights, self.version + 1
        self.counts.samples += rows
        self.counts.updates += 1
        self.counts.busy_s += busy_s

    def advance(self, seconds: float) -> None:
        """Moves on for so long."""
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            self.step()

    def step(self) -> None:
        """One item."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends the actors."""
        for one in [*self.workers, self.learner]:
            ray.kill(one)


class HandImpala(HandLoop):
    """IMPALA: fragments side by side to the learner, two batches at most on their way."""

    def __init__(self, cfg: IMPALAConfig):
        super().__init__(cfg, HandWorker, "sample", "train")
        self.held: list[Any] = []
        self.held_steps = 0
        self.training: deque[tuple[Any, Any]] = deque()

    def step(self) -> None:
        """One fragment, and perhaps an update."""
        before = self.counts.steps
        at, batch = self.ready()
        self.ask(at)
        self.held.append(batch)
        self.held_steps += self.counts.steps - before
        if self.held_steps >= self.cfg.batch_steps:
            self.training.append(self.update.remote(*self.held))
            self.held, self.held_steps = [], 0
        while len(self.training) >= self.cfg.in_flight:
            self.updated(*self.training.popleft())


class HandA3C(HandLoop):
    """A3C: a gradient at a time to the learner, and its weights back to the worker."""

    def __init__(self, cfg: A3CConfig):
        super().__init__(cfg, HandGradients, "gradient", "apply")

    def step(self) -> None:
        """One gradient."""
        at, gradients = self.ready()
        self.updated(*self.update.remote(gradients))
        self.ask(at)
