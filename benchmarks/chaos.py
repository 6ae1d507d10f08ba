"""Faults by a seed, for runs that are to outlive them: environments fail when told to, processes are killed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import gymnasium
import numpy as np
import psutil

from flowrl import Run
from flowrl.errors import ActorDied
from flowrl.handles import Pending
from flowrl.rl import EnvContext

OF_ENVIRONMENTS = ("raises", "gives NaN", "hangs", "exits")
KILLS = {"worker killed": "workers", "learner killed": "learner", "replay shard killed": "replay"}
LOOK_EVERY = 16  # steps between two looks whether something is ordered
ASKED_S = 0.002  # how long is waited for a process's number, which comes with a later look otherwise


class OrderedFault(RuntimeError):  # noqa: N818
    """What an environment raises that was told to."""


class Chaotic(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that does, once, what stands in the file `order`: raise, give NaN, hang, or end its process."""

    def __init__(self, env: gymnasium.Env[Any, Any], order: str):
        super().__init__(env)
        self._order, self._steps = order, 0

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """That of the environment, or what was ordered."""
        self._steps += 1
        if self._steps % LOOK_EVERY == 0 and os.path.exists(self._order):
            with open(self._order, encoding="utf-8") as file:
                what = file.read()
            os.unlink(self._order)
            if what == "raises":
                raise OrderedFault("this environment was told to raise")
            if what == "hangs":
                threading.Event().wait(600)
            if what == "exits":
                os._exit(7)
            obs, *rest = self.env.step(action)
            return (np.full_like(obs, np.nan), *rest)
        return self.env.step(action)


def chaotic(folder: str, ctx: EnvContext, env: str = "CartPole-v1") -> gymnasium.Env[Any, Any]:
    """One copy, whose orders come as files of `folder`."""
    return Chaotic(gymnasium.make(env), order_of(folder, ctx.worker_index, ctx.env_index))


def order_of(folder: str | os.PathLike[str], worker: int, env: int) -> str:
    """The file in which an order to one copy stands."""
    return os.path.join(folder, f"{worker}-{env}")


def pid_of(actor: Any) -> int:
    """The number of the process that an actor lives in; to be asked of it."""
    return os.getpid()


@dataclass(frozen=True)
class Struck:
    """What was done at a time (of `monotonic`): to whom, and in which process."""

    at: float
    what: str
    whom: str
    pid: int | None = None


class Pids:
    """The processes of a run's actors, asked for anew when an actor was started again. For the driver's thread."""

    def __init__(self, run: Run[Any]):
        self._run = run
        self._asked: dict[str, tuple[int, Pending[int]]] = {}
        self._known: dict[str, tuple[int, int]] = {}  # incarnation, pid

    @property
    def known(self) -> dict[str, int]:
        """By actor, of those that are up as far as the driver knows."""
        return {name: pid for name, (_, pid) in self._known.items()}

    def look(self) -> None:
        """Asks those whose process is not known, and takes in answers; never waits long."""
        engine = self._run._engine
        for group, states in engine.states.items():
            for state in states:
                name = state.name
                if self._known.get(name, (-1, 0))[0] != state.incarnation:
                    self._known.pop(name, None)
                if name in self._known or not state.up:
                    continue
                incarnation, pending = self._asked.get(name, (-1, None))
                if pending is None or incarnation != state.incarnation:
                    pending = self._run.actors[group][state.index].ask(pid_of)
                    self._asked[name] = state.incarnation, pending
                with contextlib.suppress(TimeoutError, ActorDied):
                    self._known[name] = state.incarnation, pending.result(ASKED_S)


class Storm(threading.Thread):
    """Does what its seed says to a run: each kind at exponential times of its own mean, to a victim drawn evenly.

    mean_s: by kind, of OF_ENVIRONMENTS and KILLS; what a run has no actors for is left out. `struck` is what was done;
    an order to an environment is carried out some steps later, or by its worker's next process.
    """

    def __init__(self, mean_s: Mapping[str, float], seed: int, folder: Path, envs: int):
        super().__init__(name="storm", daemon=True)
        for kind, mean in mean_s.items():
            if kind not in (*OF_ENVIRONMENTS, *KILLS) or not mean > 0:
                raise ValueError(
                    f"no fault {kind!r} with a mean of {mean!r} s between two: know {OF_ENVIRONMENTS, KILLS}"
                )
        self.struck: list[Struck] = []
        self.pids: Mapping[str, int] = {}  # of the living, kept up by who moves the run
        self._folder, self._envs, self._mean_s = folder, envs, dict(mean_s)
        self._random = {
            kind: random.Random(f"{seed} {kind}") for kind in mean_s
        }  # one stream each: kinds can be left out
        self._over = threading.Event()

    def times(self, kind: str) -> Any:
        """When it comes, in seconds since the beginning: an endless iterator."""
        draw, at = random.Random(f"times {self._random[kind].random()}"), 0.0
        while True:
            at += draw.expovariate(1.0 / self._mean_s[kind])
            yield at

    def run(self) -> None:
        """Until `end`."""
        began = monotonic()
        times = {kind: self.times(kind) for kind in self._mean_s}
        due = {kind: next(each) for kind, each in times.items()}
        while due:
            kind = min(due, key=lambda one: due[one])
            if self._over.wait(max(0.0, began + due[kind] - monotonic())):
                return
            self.strike(kind)
            due[kind] = next(times[kind])

    def strike(self, kind: str) -> Struck | None:
        """Does it now; what it came to, or None where there was nobody."""
        group, draw = KILLS.get(kind, "workers"), self._random[kind]
        there = sorted((name, pid) for name, pid in dict(self.pids).items() if name.startswith(f"{group}["))
        if not there:
            return None
        name, pid = draw.choice(there)
        if kind in OF_ENVIRONMENTS:
            index, env = int(name[len(group) + 1 : -1]), draw.randrange(self._envs)
            path = order_of(self._folder, index, env)
            with open(f"{path}.new", "w", encoding="utf-8") as file:
                file.write(kind)
            os.replace(f"{path}.new", path)
            done = Struck(monotonic(), kind, f"{name}, environment {env}", pid)
        elif not killed(pid):
            return None  # it has died of something else, which the driver does not know yet
        else:
            done = Struck(monotonic(), kind, name, pid)
        self.struck.append(done)
        return done

    def end(self) -> None:
        """Nothing more is done."""
        self._over.set()
        if self.is_alive():
            self.join()


def killed(pid: int) -> bool:
    """Sends SIGKILL to an actor's process; False where there is none of this number (any more)."""
    try:
        if not psutil.Process(pid).cmdline()[0].startswith("ray::"):
            return False
        os.kill(pid, signal.SIGKILL)
    except (psutil.Error, ProcessLookupError, IndexError):
        return False
    return True
