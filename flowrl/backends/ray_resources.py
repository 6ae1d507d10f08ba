"""What a Ray cluster has: together, less what runs of this process hold, and node by node."""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterable, Mapping

REACH_S = 0.5  # how long a raylet may take to accept a connection


def lacking(need: Mapping[str, float], held: Collection[Mapping[str, float]]) -> dict[str, float]:
    """What is free of those resources that do not suffice, less what is held."""
    import ray

    total = ray.cluster_resources()
    free = {name: total.get(name, 0.0) - sum(one.get(name, 0.0) for one in held) for name in need}
    return {name: free[name] for name, amount in need.items() if amount > free[name] + 1e-9}


def total_by_node() -> dict[str, dict[str, float]]:
    """What each node that lives has, free or not; the driver's node first."""
    import ray

    own = ray.get_runtime_context().get_node_id()
    nodes = {node["NodeID"]: dict(node["Resources"]) for node in ray.nodes() if node["Alive"]}
    return {node: nodes[node] for node in sorted(nodes, key=lambda node: (node != own, node))}


def reachable(nodes: Iterable[str]) -> set[str]:
    """Those of the nodes whose raylet accepts connections; all, if none does: then it is the driver that is apart.

    Ray itself takes a node for living until it has missed some heartbeats, which takes many seconds.
    """
    import ray

    wanted = set(nodes)
    known = {node["NodeID"]: (node["NodeManagerAddress"], node["NodeManagerPort"]) for node in ray.nodes()}
    found = {node for node in wanted if _accepts(known[node])}
    return found or wanted


def _accepts(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, timeout=REACH_S).close()
    except OSError:
        return False
    return True


def free_by_node() -> dict[str, dict[str, float]]:
    """What each node that lives has free, as far as the cluster knows by now; the driver's node first."""
    from ray._private.state import available_resources_per_node

    free = available_resources_per_node()
    return {node: dict(free.get(node, {})) for node in total_by_node()}
