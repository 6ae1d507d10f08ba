"""Tells that are held for an actor: what one is, and how several travel in one message."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flowrl.engine.transport import Packed, pack_by_value, pack_call

if TYPE_CHECKING:
    from flowrl.engine.call import ActorState


WEIGHTS = "set_weights"  # the one method whose tells replace each other


class Tell:
    """A held tell. Of two with the same `collapse` key, and only such between them, the newest alone is delivered."""

    __slots__ = ("collapse", "label", "method", "node", "packed", "payloads")

    def __init__(self, node: str, method: Any, args: Sequence[Any], kwargs: dict[str, Any], to: ActorState):
        self.node, self.label = node, method_label(method)
        self.method = wire_method(method, to.actor_class)
        self.packed, self.payloads = pack_call(args, kwargs, f"{to.name}, tell {self.label!r}")
        self.collapse = _weights_of(to.actor_class, args, kwargs) if self.label == WEIGHTS else None


def collapse_into(mail: list[Tell], tell: Tell) -> None:
    """Adds a tell; weights take the place of older ones of the same policy, unless anything else was told since."""
    for at in range(len(mail) - 1, -1, -1):
        if tell.collapse is None or mail[at].collapse is None:
            break
        if mail[at].collapse == tell.collapse:
            del mail[at]
            break
    mail.append(tell)


def _weights_of(actor_class: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str | None] | None:
    """Whose weights a tell brings, as a key; None where that cannot be told."""
    method = getattr(actor_class, WEIGHTS, None)
    if method is None:
        return None
    try:
        known, default = _place_of_policy(method, len(args), tuple(kwargs))
    except (TypeError, ValueError):
        return None
    policy = kwargs.get("policy", default) if known is None else args[known]
    return (policy,) if policy is None or isinstance(policy, str) else None


@functools.lru_cache(64)
def _place_of_policy(method: Any, positional: int, named: tuple[str, ...]) -> tuple[int | None, Any]:
    """Which of so many positional arguments is the policy, if one is, and else what it is unless named.

    Raises:
        TypeError: a call with such arguments would fail, or one of several may be the policy.
    """
    signature = inspect.signature(method)
    given = signature.bind(None, *range(positional), **dict.fromkeys(named))
    if any(signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL for name in given.arguments):
        raise TypeError("one of several may be the policy")
    at = given.arguments.get("policy") if "policy" not in named else None
    parameter = signature.parameters.get("policy")
    default = None if parameter is None or parameter.default is inspect.Parameter.empty else parameter.default
    return at, default


def method_label(method: Any) -> str:
    """The method's name, for errors and statistics."""
    return method if isinstance(method, str) else getattr(method, "__name__", repr(method))


def wire_method(method: Any, actor_class: Any) -> str | Packed:
    """A method by its name where the actor's class has it (so that overriding works), else the function itself.

    Raises:
        TypeError: it is neither a name nor a function.
        AttributeError: the class has no such public method; names the nearest that it has.
    """
    if isinstance(method, str):
        _check_named(method, actor_class)
        return method
    if not callable(method):
        raise TypeError(f"a method of an actor is named by a string or given as a function, got {method!r}")
    name = getattr(method, "__name__", "")
    if any(vars(kind).get(name) is method for kind in getattr(actor_class, "__mro__", ())):
        return name
    return pack_by_value(method)


def _check_named(method: str, actor_class: Any) -> None:
    """Refuses a name that the class lacks; of a factory, and of a class with __getattr__, nothing is known."""
    if not isinstance(actor_class, type):
        return
    if method.startswith("_"):
        what = "a private name"
    elif callable(getattr(actor_class, method, None)):
        return
    elif inspect.getattr_static(actor_class, method, None) is not None:
        what = "no method, but a value,"
    elif hasattr(actor_class, "__getattr__"):
        return
    else:
        what = "no method"
    named = [name for name in dir(actor_class) if name[0] != "_" and callable(getattr(actor_class, name, None))]
    near = difflib.get_close_matches(method.lstrip("_"), named, n=3) or named[:8]
    raise AttributeError(
        f"{actor_class.__name__} has {what} {method!r}; it can be asked and told {', '.join(near) or 'nothing by name'}"
    )


def together(mail: Sequence[Tell], payloads: list[Any]) -> tuple[tuple[Any, ...], list[Any]]:
    """The tells of one message. Each keeps its own payload list; their places are shifted behind those before."""
    tells = []
    for tell in mail:
        tells.append((tell.node, tell.label, tell.method, tell.packed, len(payloads), len(tell.payloads)))
        payloads = [*payloads, *tell.payloads]
    return tuple(tells), payloads
