"""How much workers explore: ε as a function of the run's steps, or one for each of their environments."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from flowrl.functions import label_of
from flowrl.handles import ActorGroup, ActorHandle, check_group
from flowrl.numbers import check_finite
from flowrl.operator import Context, Operator
from flowrl.rl.schedules import Rate, check_is_rate, value_at


@dataclass(repr=False)  # a schedule by name where it is a function
class SetEpsilon(Operator[Any, Any]):
    """Hands each item on, and tells workers the ε of their ε-greedy actions; only what has changed, when it has.

    The workers that the item came from are told, each with its next message (all of them where it came from none, as
    behind Replay); every worker is told before its first pull.

    workers: a group of `flowrl.rl.RolloutWorker`.
    epsilon: the share of uniform actions; a number, or a function of the run's environment steps.
    per_env: spreads ε over the environments of all workers together, as Ape-X does (arXiv:1803.00933, section 4):
        environment i of n has epsilon^(1 + per_env · i / (n - 1)), so the first has ε itself; 7 with an ε of 0.4 there.
    policy: whose actions, where several policies live in a worker; several may be named.

    Raises:
        GraphError: `workers` is no group of workers.
        ValueError: ε outside [0, 1], at once or when a schedule gives it; per_env negative or not finite.
    """

    wants: ClassVar[Literal["value", "reference"]] = "reference"
    hands_on: ClassVar[bool] = True

    workers: ActorGroup[Any]
    epsilon: Rate
    per_env: float | None = None
    policy: str | tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_group("SetEpsilon", "RolloutWorker", self.workers, "set_epsilon")
        check_is_rate("epsilon", self.epsilon)
        self._value(0)
        if self.per_env is not None:
            check_finite("per_env", self.per_env)
            if self.per_env < 0:
                raise ValueError(f"per_env must be at least 0, got {self.per_env!r}")
            _num_envs(self.workers)

    def __repr__(self) -> str:
        rate = label_of(self.epsilon) if hasattr(self.epsilon, "__name__") else repr(self.epsilon)  # type: ignore[arg-type]
        more = [f"{name}={value!r}" for name in ("per_env", "policy") if (value := getattr(self, name)) is not None]
        return f"SetEpsilon({', '.join([self.workers.name, rate, *more])})"

    def open(self) -> None:
        self._told: dict[ActorHandle[Any], tuple[float, int]] = {}  # the value, and over how many it was spread
        self._envs = 0 if self.per_env is None else _num_envs(self.workers)

    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        workers = ctx.actors(self.workers)
        for handle in [worker for worker in workers if worker in ctx.item_id.origins] or workers:
            self._tell(handle, len(workers), ctx.env_steps)
        return (value,)

    def actor_started(self, handle: ActorHandle[Any], ctx: Context) -> None:
        workers = ctx.actors(self.workers)
        if handle in workers:
            self._told.pop(handle, None)
            self._tell(handle, len(workers), ctx.env_steps)

    def _tell(self, handle: ActorHandle[Any], workers: int, env_steps: int) -> None:
        value = self._value(env_steps)
        told = (value, self._envs * workers)
        if self._told.get(handle) != told:
            self._told[handle] = told
            extra = {} if self.policy is None else {"policy": self.policy}
            handle.tell("set_epsilon", self._epsilon_of(handle.index, *told), **extra)

    def _epsilon_of(self, worker: int, value: float, envs: int) -> float | NDArray[np.float64]:
        if self.per_env is None:
            return value
        first, last = worker * self._envs, max(envs - 1, 1)
        return np.array([value ** (1 + self.per_env * env / last) for env in range(first, first + self._envs)])

    def _value(self, env_steps: int) -> float:
        value = float(value_at(self.epsilon, env_steps, "epsilon"))
        if not (math.isfinite(value) and 0 <= value <= 1):
            raise ValueError(f"epsilon must be from 0 to 1, got {value} at env_steps={env_steps}")
        return value


def _num_envs(workers: ActorGroup[Any]) -> int:
    """How many environments each worker has, by its description: the parameter `num_envs`."""
    parameter = inspect.signature(workers.cls).parameters.get("num_envs")
    if parameter is None:
        raise ValueError(f"per_env needs workers with a parameter num_envs, group {workers!r} has none")
    given = inspect.signature(workers.cls).bind_partial(*workers.args, **workers.kwargs).arguments
    return int(given.get("num_envs", parameter.default))
