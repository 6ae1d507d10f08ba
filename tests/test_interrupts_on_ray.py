"""Signals to a training on Ray, while it samples, learns and saves: it ends in time and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import flowrl
from flowrl import Flow, Ray
from flowrl.checkpoint import checkpoint_at, read_manifest
from flowrl.continuing import start_of
from flowrl.engine import saving
from flowrl.engine.interrupts import Interrupts
from flowrl.operators import AddAdvantages, ParallelRollouts, ReportMetrics, SendWeights, TrainOneStep
from flowrl.rl import Learner, PolicySpec, RolloutWorker
from flowrl.rl.losses import PPOLoss
from flowrl.training import train
from tests.rl.counting_envs import Counting

LIMIT_S = 5.0
HANG_S = 600.0
SLICE_S = 0.1


def hang(told: str) -> None:
    """Says in a pipe that it is under way, and hangs."""
    with open(told, "w", encoding="ascii") as pipe:
        pipe.write(".")
    threading.Event().wait(HANG_S)


class HangingEnv(Counting):
    """Hangs in its step number `at`."""

    def __init__(self, told: str, at: int):
        super().__init__((10**6,))  # one episode
        self.told, self.at, self.steps = told, at, 0

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps == self.at:
            hang(self.told)
        return super().step(action)


class HangingLearner(Learner):
    """Hangs in its batch number `at`."""

    def __init__(self, policy: PolicySpec, loss: PPOLoss, told: str, at: int, *, seed: int):
        super().__init__(policy, loss, seed=seed)
        self.told, self.at, self.batches = told, at, 0

    def train(self, batch: Any, **options: Any) -> Any:
        self.batches += 1
        if self.batches == self.at:
            hang(self.told)
        return super().train(batch, **options)


def graph(told: str, *, env_hangs_at: int = 0, learner_hangs_at: int = 0) -> Flow[Any]:
    """PPO of one worker and 8 steps an iteration; something in it hangs."""
    env = {"told": told, "at": env_hangs_at}
    workers = flowrl.actors(
        RolloutWorker, HangingEnv, PolicySpec(), steps=8, num_envs=1, env_kwargs=env, count=1, name="workers"
    )
    learner = flowrl.actor(HangingLearner, PolicySpec(), PPOLoss(), told, learner_hangs_at, name="learner")
    return (
        ParallelRollouts(workers)
        .for_each(AddAdvantages(0.99, 0.95))
        .gather_sync()
        .for_each(TrainOneStep(learner))
        .for_each(SendWeights(learner, to=workers))
        .for_each(ReportMetrics())
    )


class Signaller(threading.Thread):
    """Waits for the word that something is under way, and sends the process a signal; the next when `second` is set."""

    def __init__(self, told: str, numbers: list[int], second: threading.Event | None = None):
        super().__init__(daemon=True)
        self.told, self.numbers, self.second = told, numbers, second
        self.at = 0.0

    def run(self) -> None:
        with open(self.told, encoding="ascii") as pipe:
            pipe.read(1)
        self.at = monotonic()
        for number in self.numbers:
            os.kill(os.getpid(), number)
            if self.second is not None:
                self.second.wait(HANG_S)


def ours() -> list[dict[str, Any]]:
    """Actors of Ray that have not ended."""
    import ray

    return [actor for actor in ray._private.state.actors().values() if actor["State"] != "DEAD"]


def ends(tmp_path: Path, flow: Any, signaller: Signaller, kind: Any) -> Any:
    """Trains until the signals come; the exception that they led to, in time."""
    signaller.start()
    with pytest.raises(kind) as caught:
        train(flow, total_steps=10**6, out=tmp_path, backend=Ray(), seed=1, checkpoint_every=16)
    took = monotonic() - signaller.at
    assert took < LIMIT_S, took
    gone_by = monotonic() + LIMIT_S  # Ray ends them beside the program, and says so a little later
    while ours() and monotonic() < gone_by:
        threading.Event().wait(0.05)
    assert not ours()
    return caught.value


def whole(tmp_path: Path) -> None:
    """Every checkpoint that is there is whole, and there is no part of another."""
    for name in os.listdir(tmp_path / "checkpoints"):
        assert not name.startswith("."), name
        if name.startswith("step-"):
            read_manifest(tmp_path / "checkpoints" / name)


@pytest.fixture
def told(tmp_path: Path) -> str:
    path = tmp_path / "told"
    os.mkfifo(path)
    return str(path)


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("where", "number", "kind"),
    [("sampling", signal.SIGINT, KeyboardInterrupt), ("learning", signal.SIGTERM, SystemExit)],
)
def test_a_training_whose_actors_hang_ends_in_time(
    ray_session: None, tmp_path: Path, told: str, where: str, number: int, kind: Any
) -> None:
    # The fourth iteration hangs, so the newest checkpoint is that of 16 steps.
    flow = graph(told, env_hangs_at=28) if where == "sampling" else graph(told, learner_hangs_at=4)
    error = ends(tmp_path, flow, Signaller(told, [number]), kind)
    policy, checkpoint = error.__notes__
    hanging = "workers[0]" if where == "sampling" else "learner[0]"
    if where == "sampling":
        assert policy == f"policy: {tmp_path / 'policy'}"
    else:
        assert policy.startswith("the policy is not saved: TimeoutError: learner[0] has not answered 'policy_state'")
    assert checkpoint.startswith(f"no checkpoint: TimeoutError: not saved: {hanging}")
    assert checkpoint.endswith(f"; the newest is {checkpoint_at(tmp_path)}")
    assert start_of(tmp_path).env_steps == 16
    whole(tmp_path)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("times", [1, 2])
def test_a_signal_while_it_saves(
    ray_session: None, tmp_path: Path, told: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, written = saving.write_state, []

    def slow(directory: Any, name: str, state: Any) -> Any:
        entry = write(directory, name, state)
        written.append(name)
        if len(written) == 1:
            with open(told, "w", encoding="ascii") as pipe:
                pipe.write(".")
            while not came.wait(SLICE_S):  # the signal comes in the middle of it
                pass
            if times == 2:
                second.set()
                # In slices: Python misses a signal that comes between its last look for one and the wait of a lock.
                for _ in range(int(HANG_S / SLICE_S)):
                    threading.Event().wait(SLICE_S)
        return entry

    monkeypatch.setattr(saving, "write_state", slow)
    came, second = threading.Event(), threading.Event()
    note = Interrupts._note

    def noting(self: Any) -> None:
        came.set()
        note(self)

    monkeypatch.setattr(Interrupts, "_note", noting)
    error = ends(tmp_path, graph(told), Signaller(told, [signal.SIGINT] * times, second), KeyboardInterrupt)
    whole(tmp_path)
    if times == 1:
        assert error.__notes__ == [f"policy: {tmp_path / 'policy'}", f"checkpoint: {checkpoint_at(tmp_path)}"]
        assert start_of(tmp_path).env_steps >= 16
    else:
        assert error.__notes__[0] == "the policy is not saved: a second interrupt closed the run"
