"""Several flows as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from flowrl import graph
from flowrl.errors import GraphError
from flowrl.flow import Flow, ParallelFlow
from flowrl.given import whole
from flowrl.places import calling_place


def Union(  # noqa: N802  (reads as an operator)
    flows: Sequence[Flow[Any]],
    *,
    mode: Literal["round_robin", "async"] = "round_robin",
    weights: Sequence[int] | None = None,
    emit: Sequence[Flow[Any]] | None = None,
) -> Flow[Any]:
    """The items of several flows: in turns (round_robin), or as they are ready (async).

    weights: how many items of each flow a turn takes. emit: the flows, among `flows`, whose items come out; the others
    still run, for what they do on the way. The union ends when every flow in `emit` has ended. In round_robin a flow
    that waits for an answer keeps its turn; one that a bound blocks, or that has ended, passes it.
    """
    flows = _listed("flows", flows)
    if not flows:
        raise GraphError("Union needs at least one flow, got none")
    for flow in flows:
        if isinstance(flow, ParallelFlow):
            raise GraphError("Union joins gathered flows; gather the ParallelFlow first, or join shards by a.union(b)")
        if not isinstance(flow, Flow):
            raise GraphError(f"Union joins flows, got {type(flow).__name__}")
    if len({id(flow.node) for flow in flows}) != len(flows):
        raise GraphError("Union got one flow twice; its items cannot go both ways: use flow.duplicate(2)")
    if mode not in ("round_robin", "async"):
        raise GraphError(f"mode must be 'round_robin' or 'async', got {mode!r}")
    shares = [1] * len(flows) if weights is None else [whole(weight) or 0 for weight in weights]
    if len(shares) != len(flows) or min(shares) < 1:
        raise GraphError(f"weights must be {len(flows)} whole numbers of at least 1, one a flow, got {weights!r}")
    return Flow(
        graph.Unite(
            upstream=tuple(flow.node for flow in flows),
            label="Union",
            where=calling_place(),
            mode=mode,
            weights=tuple(shares),
            emit=_emitting(flows, emit),
        )
    )


def _listed(name: str, flows: Sequence[Flow[Any]]) -> list[Flow[Any]]:
    """The flows; one by itself is refused before it is iterated, for that would run it."""
    if isinstance(flows, Flow | ParallelFlow):
        raise GraphError(f"{name} must be a list of flows, got one {type(flows).__name__}: write [flow], or [a, b]")
    return list(flows)


def _emitting(flows: Sequence[Flow[Any]], emit: Sequence[Flow[Any]] | None) -> tuple[bool, ...]:
    if emit is None:
        return (True,) * len(flows)
    wanted = {id(flow.node) for flow in _listed("emit", emit)}
    if not wanted:
        raise GraphError("emit must name at least one of the flows, got none")
    if not wanted <= {id(flow.node) for flow in flows}:
        raise GraphError("emit names a flow that is not among the flows of this Union")
    return tuple(id(flow.node) in wanted for flow in flows)
