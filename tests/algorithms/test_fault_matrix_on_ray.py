"""Every algorithm and every fault on Ray: environments in processes of their own, and processes that are killed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import flowrl
from flowrl.errors import ActorDied
from flowrl.rl import EnvOptions
from tests.algorithms.test_fault_matrix import AGAIN, ALGORITHMS, DEATHS, FAULTS, STORING, config_of, pair_of
from tests.rl.test_agents_faults import Pair

DEADLINE_S = 120.0  # for a fault to show, and for the run to have gone on after it
WHATS = {"raises": "raise", "hangs": "hang", "NaN": "nan"}
IN_CI = {("impala", "learner killed", True), ("impala", "raises", False)}
pytestmark = [pytest.mark.timeout(400), pytest.mark.usefixtures("ray_session")]


class MarkedPair(Pair):
    """A pair of agents that goes wrong `most` times, counted by the files of `marks`: over all processes."""

    def __init__(self, what: str = "none", most: int = 0, marks: str = ""):
        super().__init__(what)
        self.most, self.marks = most, marks

    def _obs(self) -> dict[str, Any]:
        there = len(os.listdir(self.marks)) if self.marks else 0
        if self.taken == self.at and there < self.most:
            Path(self.marks, str(there)).touch()
            if self.what == "hang":
                threading.Event().wait(600)
            Pair.mishaps = 1
        return super()._obs()


def config(algorithm: str, fault: str, folder: Path, *, outlived: bool, most: int) -> Any:
    if algorithm != "ppo_and_dqn":
        return config_of(algorithm, fault, folder, outlived=outlived, most=most)
    marks = folder / "marks"
    marks.mkdir(exist_ok=True)
    options: dict[str, Any] = {"crash_dir": str(folder)} | ({"on_fault": AGAIN} if outlived else {})
    if fault == "hangs":
        options["env_timeout_s"] = 1.0
    kwargs = {"what": WHATS.get(fault, "none"), "most": most, "marks": str(marks)}
    return pair_of(
        {"on_learner_failure": AGAIN} if outlived else {}, {"on_shard_failure": AGAIN} if outlived else {},
        f"{__name__}:MarkedPair", env_kwargs=kwargs, env_options=EnvOptions(**options),
    )  # fmt: skip


def until(run: flowrl.Run[Any], what: str, there: Callable[[], bool]) -> None:
    """Steps until something shows. Ray tells of a death some seconds later, and others go on meanwhile."""
    end = monotonic() + DEADLINE_S
    while not there():
        assert monotonic() < end, f"{what} not within {DEADLINE_S} s\n{run.stats()}\n{run.stats().metrics}"
        run.step(1)


def metric(run: flowrl.Run[Any], group: str, name: str) -> float:
    return float(run.stats().metrics.get(group, {}).get(name, 0.0))


def goes_on(run: flowrl.Run[Any]) -> None:
    """More experience is made and trained on, by every learner."""
    learners = [states[0] for group, states in run._engine.states.items() if "learner" in group]
    versions = [state.published[0] if state.published else 0 for state in learners]
    steps = run.stats().env_steps
    until(run, "more experience", lambda: run.stats().env_steps >= steps + 64)
    until(
        run, "more updates",
        lambda: all(s.published and s.published[0] > v for s, v in zip(learners, versions, strict=True)),
    )  # fmt: skip


def process_of(actor: Any) -> int:
    """The id of the process that it lives in."""
    return os.getpid()


def cells(faults: Any) -> list[Any]:
    """Every combination with and without a policy that goes on; those left out of CI are marked slow."""
    found = []
    for algorithm in (*ALGORITHMS, "ppo_and_dqn"):
        for fault in faults:
            if fault == "replay shard killed" and algorithm not in STORING:
                continue  # there is none
            for outlived in (True, False):
                marks = [] if (algorithm, fault, outlived) in IN_CI else [pytest.mark.slow]
                name = f"{algorithm}-{fault}-{'goes on' if outlived else 'default'}"
                found.append(pytest.param(algorithm, fault, outlived, marks=marks, id=name))
    return found


@pytest.mark.parametrize(("algorithm", "fault", "outlived"), cells(FAULTS))
def test_a_fault_of_an_environment(algorithm: str, fault: str, outlived: bool, tmp_path: Path) -> None:
    ends_the_actor = algorithm == "ppo_and_dqn" and fault == "hangs"
    flow = config(algorithm, fault, tmp_path, outlived=outlived, most=2 if outlived or ends_the_actor else 1).graph()
    with flowrl.run(flow, flowrl.Ray(), seed=1) as run:
        if outlived and not ends_the_actor:
            until(run, "a restart of an environment", lambda: metric(run, "ParallelRollouts", "env_restarts") >= 1)
        elif ends_the_actor:  # several agents' environment has no process of its own to be ended
            until(run, "a restart of a worker", lambda: metric(run, "workers", "restarts") >= 1)
        else:
            with pytest.raises(FAULTS[fault]) as caught:
                until(run, "the fault", lambda: False)
            assert any("environment " in note for note in caught.value.__notes__)
            assert list(tmp_path.glob("*.crash"))
            assert run.closed
            return
        goes_on(run)


@pytest.mark.parametrize(("algorithm", "fault", "outlived"), cells(DEATHS))
def test_a_death(algorithm: str, fault: str, outlived: bool, tmp_path: Path) -> None:
    group = DEATHS[fault].partition("[")[0]
    if algorithm == "ppo_and_dqn" and group == "learner":
        group = "ppo_learner"
    flow = config(algorithm, fault, tmp_path, outlived=outlived, most=0).graph()
    with flowrl.run(flow, flowrl.Ray(), seed=1) as run:
        goes_on(run)
        os.kill(run.actors[group][0].ask(process_of).result(DEADLINE_S), signal.SIGKILL)
        if outlived or group == "workers":
            until(run, f"a restart of {group}", lambda: metric(run, group, "restarts") >= 1)
            if "learner" in group:
                until(
                    run, "its snapshot", lambda: any(name.endswith("restored") for name in run.stats().metrics[group])
                )
        elif group == "replay" and algorithm == "apex":  # it has two
            until(run, "the loss of a shard", lambda: metric(run, group, "shards_lost") >= 1)
        else:
            with pytest.raises(ActorDied, match=rf"{group}\[0\]"):
                until(run, "the death", lambda: False)
            assert run.closed
            return
        goes_on(run)
