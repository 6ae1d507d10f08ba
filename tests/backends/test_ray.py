"""Ray: joining, starting, placing, and what is missing said at once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import flowrl
from flowrl import Ray
from flowrl.backends.placement import Placement
from flowrl.backends.protocol import GroupPlan
from flowrl.errors import StartError

ROOT = Path(__file__).resolve().parents[2]


class Worker:
    """Where it is."""

    def sample(self) -> int:
        return os.getpid()


def workers(count: int = 1, name: str = "workers", **kwargs: Any) -> flowrl.Flow[int]:
    return flowrl.from_actors(flowrl.actors(Worker, count=count, name=name, **kwargs), "sample").gather_sync()


def script(code: str, **env: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**{k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}, "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---------------------------------------------------------------- wishes, without Ray


def test_wishes_come_before_what_the_group_says() -> None:
    place = Placement({"g": {"cpus": 4, "gpus": 0.5, "resources": {"fast": 2}, "strategy": "SPREAD"}})
    plan = GroupPlan("g", 3, 1, 0, {"fast": 1, "near": 1})
    assert place.asked(plan) == (4, 0.5, {"fast": 2, "near": 1})
    assert place.needed([plan, GroupPlan("h", 2, 1, 0)]) == {"CPU": 14, "GPU": 1.5, "fast": 6, "near": 3}
    assert place.describe(plan) == "cpus=4, gpus=0.5, fast=2, near=1, spread"
    assert place.strategy("g") == "SPREAD"
    assert place.strategy("h") is None
    colocated = Ray(place={"g": {"colocate": "h"}})
    assert colocated.placement(plan) == "Ray actor, cpus=1, fast=1, near=1, on the node of h"


@pytest.mark.parametrize(
    ("wish", "told"),
    [
        ({"cpu": 1}, r"place\['g'\] has unknown keys cpu; known are cpus, gpus, resources, strategy, colocate"),
        ({"strategy": "SPRED"}, r"place\['g'\]: strategy must be one of SPREAD, PACK, got 'SPRED'"),
    ],
)
def test_a_wish_that_is_none(wish: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Ray(place={"g": wish})


def test_wishes_for_groups_that_there_are_not() -> None:
    plans = [GroupPlan("g", 1, 1, 0), GroupPlan("h", 1, 1, 0)]
    with pytest.raises(StartError, match="place names group 'x'; this graph has g, h"):
        Placement({"x": {}}).check(plans)
    with pytest.raises(StartError, match="place names group 'y'; this graph has g, h"):
        Placement({"g": {"colocate": "y"}}).check(plans)
    with pytest.raises(StartError, match="colocates in a circle: g → h → g"):
        Placement({"g": {"colocate": "h"}, "h": {"colocate": "g"}}).check(plans)
    Placement({"g": {"colocate": "h"}}).check(plans)


# ---------------------------------------------------------------- on the Ray that all tests share


@pytest.mark.ray
def test_a_wrong_address_is_said_quickly() -> None:
    code = """
import time, flowrl
flow = flowrl.from_items([1], num_shards=1).gather_sync()
for address in ("127.0.0.1:1", "ray://127.0.0.1:1", "nonsense", None):
    began = time.monotonic()
    try:
        flowrl.run(flow, flowrl.Ray(address))
    except flowrl.StartError as error:
        print(str(error).startswith(f"no Ray answers at {address or '127.0.0.1:2'!r}"), time.monotonic() - began < 8)
"""
    assert script(code, RAY_ADDRESS="127.0.0.1:2").splitlines() == ["True True"] * 4


@pytest.mark.parametrize(
    ("wish", "told"),
    [
        ({"gpus": 1}, r"the cluster lacks resources \(GPU: 1 needed, 0 free\)"),
        ({"resources": {"fast": 2}}, r"fast: 2 needed, 0 free"),
        ({"cpus": 99}, r"CPU: 99 needed, 4 free"),
    ],
)
def test_missing_resources_are_said_at_once(ray_session: None, wish: dict[str, Any], told: str) -> None:
    began = monotonic()
    with pytest.raises(StartError, match=told):
        flowrl.run(workers(**wish), Ray())
    with pytest.raises(StartError, match=told):
        flowrl.run(workers(), Ray(place={"workers": wish}))
    assert monotonic() - began < 5


def test_waiting_for_resources(ray_session: None) -> None:
    """What another run of this process holds comes free when it closes."""
    first = flowrl.run(workers(cpus=3), Ray())
    with pytest.raises(StartError, match="CPU: 2 needed, 1 free"):
        flowrl.run(workers(cpus=2), Ray(wait_for_resources_s=0.2))
    timer = threading.Timer(0.3, first.close)
    timer.start()
    with flowrl.run(workers(cpus=2), Ray(wait_for_resources_s=60)) as run:
        assert run.step(1)
    timer.join()


def test_placed_side_by_side_and_spread(ray_session: None) -> None:
    """A source colocated with a group that only an operator holds, which comes after it."""
    learner = flowrl.actor(Worker, name="learner")

    def nodes(x: int, ctx: flowrl.Context) -> list[str]:
        return [h.ask(node_of).result() for h in (*ctx.groups["workers"], *ctx.actors(learner))]

    backend = Ray(place={"workers": {"colocate": "learner"}, "learner": {"strategy": "SPREAD"}})
    with flowrl.run(workers(2).for_each(nodes), backend) as run:
        assert len(set(next(run))) == 1


def node_of(actor: Any) -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())


@pytest.mark.ray
def test_a_ray_that_was_shut_down_is_not_started_again_by_closing() -> None:
    code = """
import ray, flowrl, logging
from flowrl import Ray
logging.basicConfig()
class W:
    def sample(self): return 1
flow = flowrl.from_actors(flowrl.actor(W, name="w"), "sample").gather_sync()
run = flowrl.run(flow, Ray("local"))
print(next(run), ray.cluster_resources()["CPU"] >= 1)
ray.shutdown()
try:
    next(run)
except flowrl.errors.FlowError as error:
    print(error)
run.close()
print(ray.is_initialized())
with flowrl.run(flow, Ray("local")) as again:
    print(next(again), ray.is_initialized())
print(ray.is_initialized())
"""
    lines = script("import flowrl.errors\n" + code).splitlines()
    assert lines[0] == "1 True"
    assert "was shut down" in lines[1]
    assert lines[2:] == ["False", "1 True", "True"]


@pytest.mark.ray
def test_a_ray_of_our_own() -> None:
    """Quiet, without dashboard, with as many CPUs as are asked for; the warning stands in the stats."""
    code = """
import os, ray, flowrl
class W:
    default_cpus = 1
    def sample(self): return 1
cores = os.cpu_count()
flow = flowrl.from_actors(flowrl.actors(W, count=cores + 1, name="w"), "sample").gather_sync()
with flowrl.run(flow, flowrl.Ray("local")) as run:
    warning = f"oversubscribed: the runs ask for {cores + 1} CPUs and this machine has {cores}"
    print(next(run), run.stats().warnings == (warning,))
    print(ray.cluster_resources()["CPU"] == cores + 1, "oversubscribed" in str(run.stats()))
    flow2 = flowrl.from_actors(flowrl.actors(W, count=cores + 1, name="v"), "sample").gather_sync()
    with flowrl.run(flow2, flowrl.Ray("local")) as second:  # more than there is: placed all the same
        print(next(second), len(second.stats().warnings))
gpu = flowrl.from_actors(flowrl.actors(W, count=1, name="g", gpus=64), "sample").gather_sync()
try:
    flowrl.run(gpu, flowrl.Ray("local"))
except flowrl.StartError as error:
    print("GPU: 64 needed" in str(error))
fast = flowrl.from_actors(flowrl.actors(W, count=1, name="f", resources={"fast": 1}), "sample").gather_sync()
with flowrl.run(fast, flowrl.Ray("local")) as run:  # our own Ray, which nobody uses, is started anew with it
    print(next(run))
"""
    assert script(code).splitlines() == ["1 True", "True True", "1 1", "True", "1"]
