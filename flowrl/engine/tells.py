"""Tells that are held for an actor: what one is, and how several travel in one message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flowrl.engine.transport import Packed, pack_by_value, pack_call

if TYPE_CHECKING:
    from flowrl.engine.calls import ActorState


class Tell:
    """A held tell. Of two with the same `collapse` key only the newest is delivered."""

    __slots__ = ("collapse", "label", "method", "node", "packed", "payloads")

    def __init__(self, node: str, method: Any, args: Sequence[Any], kwargs: dict[str, Any], to: ActorState):
        self.node, self.label = node, method_label(method)
        self.method = wire_method(method, to.actor_class)
        self.packed, self.payloads = pack_call(args, kwargs, f"{to.name}, tell {self.label!r}")
        self.collapse = (self.label, kwargs.get("policy")) if self.label == "set_weights" else None


def method_label(method: Any) -> str:
    """The method's name, for errors and statistics."""
    return method if isinstance(method, str) else getattr(method, "__name__", repr(method))


def wire_method(method: Any, actor_class: Any) -> str | Packed:
    """A method by its name where the actor's class has it (so that overriding works), else the function itself."""
    if isinstance(method, str):
        return method
    name = getattr(method, "__name__", "")
    if any(vars(kind).get(name) is method for kind in getattr(actor_class, "__mro__", ())):
        return name
    return pack_by_value(method)


def together(mail: Sequence[Tell], payloads: list[Any]) -> tuple[tuple[Any, ...], list[Any]]:
    """The tells of one message. Each keeps its own payload list; their places are shifted behind those before."""
    tells = []
    for tell in mail:
        tells.append((tell.node, tell.label, tell.method, tell.packed, len(payloads), len(tell.payloads)))
        payloads = [*payloads, *tell.payloads]
    return tuple(tells), payloads
