"""What tests/backends/test_clusters.py runs in a process of its own: graphs on three nodes, of which one is lost.

python -m tests.backends.cluster_runs SCENARIO... prints a line of JSON for each.
"""

from __future__ import annotations

import faulthandler
import json
import sys
from collections.abc import Callable
from time import monotonic
from typing import Any

import ray
from ray.cluster_utils import Cluster

import flowrl
from flowrl import Restart
from flowrl.algorithms import ApexConfig, IMPALAConfig, PPOConfig

AGAIN = Restart(3, backoff_s=0.1)
SMALL: dict[str, Any] = {"env": "CartPole-v1", "num_workers": 2, "envs_per_worker": 8, "unroll": 256}
MEMORY = {"object_store_memory": 100 * 2**20}
DEADLINE_S = 90.0  # of a scenario, from the loss of the node on


class Nodes:
    """A head without CPUs, on which the driver lives, and two nodes of four CPUs each."""

    def __init__(self) -> None:
        head = {"num_cpus": 0, "include_dashboard": False, **MEMORY}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.fill()

    def fill(self) -> None:
        """Adds nodes in the place of those that were lost."""
        while len(self.cluster.worker_nodes) < 2:
            self.cluster.add_node(num_cpus=4, resources={"near": 1}, **MEMORY)

    def lose(self, node: str) -> None:
        """Kills every process of a node at once."""
        (found,) = [one for one in self.cluster.worker_nodes if one.node_id == node]
        self.cluster.remove_node(found, allow_graceful=False)


def node_of(actor: Any) -> str:
    """The node that it lives on."""
    return str(ray.get_runtime_context().get_node_id())


def nodes_of(run: flowrl.Run[Any]) -> dict[str, str]:
    """The node of each actor of a run."""
    return {handle.name: handle.ask(node_of).result(60) for group in run.actors.values() for handle in group}


def until(run: flowrl.Run[Any], there: Callable[[], bool]) -> int:
    """Steps until something shows, within the deadline; how many items that were."""
    end, items = monotonic() + DEADLINE_S, 0
    steps = 0
    while not there():
        assert monotonic() < end, run.stats()
        run.step(1)
        items += 1
        assert run.stats().env_steps >= steps, "a counter went back"
        steps = run.stats().env_steps
    return items


def all_up(run: flowrl.Run[Any]) -> bool:
    return all(state.up for states in run._engine.states.values() for state in states)


class Light:
    """A worker that needs little."""

    def sample(self) -> int:
        return 1


def placed(nodes: Nodes) -> dict[str, Any]:
    """Groups spread, packed and side by side; and where they are when a node of theirs was lost."""
    group = {name: flowrl.actors(Light, count=count, cpus=cpus, name=name)
             for name, count, cpus in (("spread", 2, 0.5), ("packed", 2, 0.5), ("beside", 2, 0.5))}  # fmt: skip
    group["special"] = flowrl.actors(Light, count=1, resources={"near": 1}, name="special")
    first, *rest = (flowrl.from_actors(one, "sample") for one in group.values())
    for more in rest:
        first = first.union(more)
    place = {
        "spread": {"strategy": "SPREAD"},
        "packed": {"strategy": "PACK"},
        "beside": {"colocate": "packed"},
        "special": {"cpus": 0.5},
    }
    backend = flowrl.Ray(nodes.cluster.address, place=place)
    flow = first.gather_async(on_failure=AGAIN)
    with flowrl.run(flow, backend) as run:
        before = nodes_of(run)
        nodes.lose(before["packed[0]"])
        until(run, lambda: sum(group.deaths for group in run.stats().groups.values()) >= 4 and all_up(run))
        return {"explain": flow.explain(backend), "before": before, "after": nodes_of(run)}


def crowded(nodes: Nodes) -> dict[str, Any]:
    """What does not fit on any node, and a node lost whose actors have no place elsewhere."""
    told = []
    for place in ({"w": {"cpus": 5, "strategy": "PACK"}}, {"v": {"colocate": "w"}, "w": {"cpus": 3}}):
        flow = flowrl.from_actors(flowrl.actors(Light, count=1, name="w"), "sample").union(
            flowrl.from_actors(flowrl.actors(Light, count=2, cpus=1, name="v"), "sample")
        )
        try:
            flowrl.run(flow.gather_async(), flowrl.Ray(nodes.cluster.address, place=place))
        except flowrl.StartError as error:
            told.append(str(error))
    large = flowrl.actors(Light, count=2, cpus=3, name="large")
    flow = flowrl.from_actors(large, "sample").gather_sync(on_failure=Restart(1, backoff_s=0.1))
    run = flowrl.run(flow, flowrl.Ray(nodes.cluster.address))
    nodes.lose(nodes_of(run)["large[1]"])
    try:
        until(run, lambda: False)
    except flowrl.ActorDied as error:
        told.append(str(error))
    return {"told": told, "closed": run.closed}


ALGORITHMS: dict[str, Any] = {
    "ppo": lambda **more: PPOConfig(**SMALL, batch_steps=4096, epochs=1, **more),
    "impala": lambda **more: IMPALAConfig(**SMALL, batch_steps=4096, **more),
    "apex": lambda **more: ApexConfig(
        **SMALL, min_size=4096, batch=64, batches=2, replay_shards=2, on_shard_failure=AGAIN, **more
    ),
}


def algorithm(nodes: Nodes, name: str, victim: str) -> dict[str, Any]:
    """Trains, and goes on training without the node on which the victim was."""
    place: dict[str, Any] = {"workers": {"strategy": "SPREAD"}, "learner": {"cpus": 0.5, "strategy": "SPREAD"}}
    if name == "apex":
        place["replay"] = {"cpus": 0.1, "strategy": "SPREAD"}
    cfg = ALGORITHMS[name](on_learner_failure=AGAIN, snapshot_every=2)
    with flowrl.run(cfg.graph(), flowrl.Ray(nodes.cluster.address, place=place), seed=1) as run:
        trained = run._engine.states["learner"][0]
        until(run, lambda: trained.published is not None and trained.published[0] >= 5)
        before = nodes_of(run)
        if victim == "workers":  # one without the learner
            lost = next(node for actor, node in before.items() if "workers" in actor and node != before["learner[0]"])
        else:
            lost = before[victim]
        steps, version = run.stats().env_steps, trained.published[0]
        nodes.lose(lost)
        began = monotonic()
        gone = [actor for actor, node in before.items() if node == lost]
        until(run, lambda: sum(group.deaths for group in run.stats().groups.values()) >= len(gone) and all_up(run))
        back_s = monotonic() - began
        until(run, lambda: trained.published[0] >= version + 5 and run.stats().env_steps >= steps + 8192)
        stats = run.stats()
        after = nodes_of(run)
        return {
            "gone": gone,
            "restarts": {group: stats.metrics.get(group, {}).get("restarts", 0) for group in stats.groups},
            "lost": {
                f"{node}.{what}": value for node, row in stats.metrics.items() for what, value in row.items()
                if "lost" in what or "restored" in what
            },
            "lost_calls": stats.lost_calls,
            "elsewhere": all(node != lost for node in after.values()),
            "back_s": round(back_s, 1),
            "warnings": list(stats.warnings),
        }  # fmt: skip


def main(scenarios: list[str]) -> None:
    """Runs them on one cluster, one after the other."""
    nodes = Nodes()
    try:
        for scenario in scenarios:
            faulthandler.dump_traceback_later(2 * DEADLINE_S, exit=True)
            nodes.fill()
            name, _, victim = scenario.partition(":")
            told = algorithm(nodes, name, victim) if victim else {"placed": placed, "crowded": crowded}[name](nodes)
            print(json.dumps({"scenario": scenario, **told}), flush=True)
            faulthandler.cancel_dump_traceback_later()
    finally:
        ray.shutdown()
        nodes.cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1:])
