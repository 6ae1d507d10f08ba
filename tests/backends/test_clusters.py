"""Three Ray nodes on this machine, of which one is lost: placed as wished, trained on, and what was lost is counted."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


def told(*scenarios: str) -> list[dict[str, Any]]:
    """What each scenario says, on one cluster; nothing of this machine's other Rays is touched."""
    folder = tempfile.mkdtemp(prefix="rc")  # short: names of sockets are bounded
    env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | {
        "PYTHONPATH": str(ROOT),
        "RAY_TMPDIR": folder,
        # That a node is lost is known after some 3 s instead of some 15.
        "RAY_health_check_initial_delay_ms": "1000",
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_timeout_ms": "2000",
        "RAY_health_check_failure_threshold": "3",
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tests.backends.cluster_runs", *scenarios],
            cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=280,
        )  # fmt: skip
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert done.returncode == 0, done.stderr[-8000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"scenario"')]


def on(found: dict[str, str], group: str) -> list[str]:
    return [node for actor, node in found.items() if actor.startswith(f"{group}[")]


def check_placed(said: dict[str, Any]) -> None:
    before, after = said["before"], said["after"]
    assert len(set(on(before, "spread"))) == 2
    assert len(set(on(before, "packed") + on(before, "beside"))) == 1
    lost = before["packed[0]"]
    assert lost not in after.values()
    assert len(set(after.values())) == 1  # the head has no CPUs
    text = " ".join(said["explain"].split())
    for wish in ("cpus=0.5, spread", "cpus=0.5, pack", "cpus=0.5, on the node of packed", "cpus=0.5, near=1"):
        assert f"Ray actor, {wish}" in text


def check_trained(said: dict[str, Any], *gone: str) -> None:
    """Everybody whose node was lost is up again on another, from snapshots where it has one."""
    assert sorted(said["gone"]) == sorted(gone)
    for actor in gone:
        assert said["restarts"][actor.partition("[")[0]] >= 1
    assert said["elsewhere"]
    assert said["lost_calls"] >= len(gone)
    if "learner[0]" in gone:
        assert said["lost"]["learner.default/restored"] >= 1
        assert said["lost"]["learner.default/updates_lost"] <= 8
        assert any("goes on from its last snapshot" in warning for warning in said["warnings"])


def test_groups_are_placed_as_wished_and_ppo_outlives_the_node_of_its_learner() -> None:
    placed, trained = told("placed", "ppo:learner[0]")
    check_placed(placed)
    (worker,) = [actor for actor in trained["gone"] if actor.startswith("workers")]
    check_trained(trained, worker, "learner[0]")


@pytest.mark.slow
def test_what_has_no_place_is_said() -> None:
    (said,) = told("crowded")
    too_large, too_many, without_place = said["told"]
    assert "no node has room for w[0] (CPU: 5 needed; free on the nodes: " in too_large
    assert "no node has room for w[0], v[0], v[1], which share a node, (CPU: 5 needed" in too_many
    assert "large[1] died after 1 restarts: no node has room for large[1] (CPU: 3 needed; free on" in without_place
    assert said["closed"]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "impala", "apex"])
def test_an_algorithm_outlives_a_node(algorithm: str) -> None:
    """First one with a worker (and a shard), then that of the learner."""
    without_learner, with_learner = told(f"{algorithm}:workers", f"{algorithm}:learner[0]")
    assert "learner[0]" not in without_learner["gone"]
    for said in (without_learner, with_learner):
        check_trained(said, *said["gone"])
        assert sum(actor.startswith("workers") for actor in said["gone"]) == 1
        assert sum(actor.startswith("replay") for actor in said["gone"]) == (algorithm == "apex")
    assert "learner[0]" in with_learner["gone"]
