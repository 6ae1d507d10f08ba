"""What flows of both kinds share: composing nodes, names, and looking at a graph before it runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from flowrl import functions, graph
from flowrl.errors import GraphError
from flowrl.given import whole
from flowrl.operator import Operator
from flowrl.places import calling_place
from flowrl.wiring import check_names

if TYPE_CHECKING:
    from flowrl.backends.protocol import Backend
    from flowrl.trial import Report

T = TypeVar("T")
ABREAST = 8  # nodes that a cell shows side by side in letters that can be read


class Chained(Generic[T]):
    """A stream that is described, not run: the base of Flow and ParallelFlow."""

    __slots__ = ("_node",)

    def __init__(self, node: graph.Node):
        self._node = node
        check_names(node)

    @property
    def node(self) -> graph.Node:
        """The description behind this flow."""
        return self._node

    def filter(self, keep: Callable[..., Any], *, name: str | None = None) -> Self:
        """The items for which keep(item) is true."""
        return type(self)(self._applied(functions.Filter(called(keep, "filter")), name, "filter"))

    def named(self, prefix: str) -> Self:
        """The same graph with `prefix/` before the names of its nodes and groups, so that two graphs can be joined."""
        if not isinstance(prefix, str) or not prefix or "/" in prefix:
            raise GraphError(f"a prefix must be a non-empty string without '/', got {prefix!r}")
        return type(self)(self._node.under(prefix))

    def explain(self, backend: Backend | None = None) -> str:
        """What will run, as a tree: names, operators, shards, bounds, worst lag, deterministic or not and why.

        With a backend also where it will place each group of actors.
        """
        from flowrl.draw import explain

        return explain(self._node, backend)

    def to_mermaid(self) -> str:
        """The graph as a Mermaid flowchart."""
        from flowrl.draw import to_mermaid

        return to_mermaid(self._node)

    def to_svg(self) -> str:
        """The graph as a self-contained SVG picture."""
        from flowrl.svg import to_svg

        return to_svg(self._node)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """How a notebook shows it: a Mermaid drawing, a picture, or `explain()`, whichever it can show.

        Notebooks shrink a Mermaid drawing to the cell's width, so a long graph goes downwards.
        """
        from flowrl.draw import longest_path, to_mermaid

        mermaid = to_mermaid(self._node, "LR" if longest_path(self._node) <= ABREAST else "TB")
        return {"text/vnd.mermaid": mermaid, "image/svg+xml": self.to_svg(), "text/plain": self.explain()}

    def check(self) -> Report:
        """One item through the whole graph in this process: the shape at each edge, or the error that a run would meet.

        Starts one actor of each group on the Local backend and closes them again. Of a flow that is not gathered yet
        the item is the first of one shard.
        """
        from flowrl.trial import check

        return check(self._node)

    def _applied(self, op: Operator[Any, Any], name: str | None, label: str | None = None) -> graph.Node:
        if name is not None and (not isinstance(name, str) or not name or "/" in name):
            raise GraphError(f"a node's name must be a non-empty string without '/', got {name!r}")
        if label is None:
            label = functions.label_of(op.function) if isinstance(op, functions.Function) else type(op).__name__
        return graph.Apply(upstream=(self._node,), label=label, explicit=name, where=calling_place(), op=op)

    def __repr__(self) -> str:
        names = graph.names_of(self._node)
        return f"{type(self).__name__}({graph.path_to(self._node, names)})"


def as_operator(op: Any) -> Operator[Any, Any]:
    """The operator that for_each was given; a callable becomes one.

    Raises:
        GraphError: neither, a class instead of an operator, or one with fields that is no dataclass.
    """
    if isinstance(op, type):
        if issubclass(op, Operator):
            raise GraphError(f"for_each needs an operator, got the class {op.__name__}: write {op.__name__}(...)")
        return functions.Function(op)
    if isinstance(op, Operator):
        kind = type(op)
        declared = [n for n in getattr(kind, "__annotations__", {}) if not n.startswith("_")]
        if "__dataclass_fields__" not in vars(kind) and declared and not dataclasses.fields(op):
            raise GraphError(
                f"operator {kind.__name__} has fields ({', '.join(declared)}): decorate it with @dataclass"
            )
        return op
    return functions.Function(called(op, "for_each"))


def called(function: Any, where: str) -> Callable[..., Any]:
    """The function, if it can be called; GraphError otherwise."""
    if not callable(function):
        raise GraphError(f"{where} needs an operator or a callable, got {function!r}")
    return function


def at_least_one(where: str, what: str, n: Any) -> int:
    """A whole number from 1 on; GraphError otherwise, naming the method and its parameter."""
    count = whole(n)
    if count is None or count < 1:
        raise GraphError(f"{where} needs {what} >= 1, got {n!r}")
    return count
