"""Groups of actors as they are described, handles of actors as they live, and calls that are out."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from flowrl.errors import ActorDied, GraphError
from flowrl.failures import FailurePolicy, Ignore, Restart
from flowrl.numbers import check_whole
from flowrl.places import calling_place
from flowrl.ref import Info, Ref

A = TypeVar("A")
T = TypeVar("T")
U = TypeVar("U")
P = ParamSpec("P")

GIVEN = (
    "index",
    "count",
    "seed",
    "incarnation",
)  # constructor parameters that the engine fills in where they are left open
SNAPSHOT_EVERY = 10  # messages, where nothing else is said


@dataclass(frozen=True, eq=False)
class ActorGroup(Generic[A]):
    """A described group of actors; nothing is started. Its name identifies it."""

    cls: Callable[..., A]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    count: int
    name: str
    cpus: float
    gpus: float
    resources: Mapping[str, float]
    where: str
    auto_named: bool = False
    on_failure: FailurePolicy | None = None
    snapshot_every: int | None = None

    @property
    def actor_class(self) -> Any:
        """The class (or factory) itself, without the partial around it."""
        made: Any = self.cls
        while isinstance(made, functools.partial):
            made = made.func
        return made

    def open_parameters(self) -> tuple[str, ...]:
        """Which of index, count, seed and incarnation the constructor takes and the description leaves open."""
        try:
            signature = inspect.signature(self.cls)
        except (TypeError, ValueError):
            return ()
        try:
            bound = signature.bind_partial(*self.args, **self.kwargs).arguments
        except TypeError:
            return ()
        preset = self.cls.keywords if isinstance(self.cls, functools.partial) else {}
        return tuple(n for n in GIVEN if n in signature.parameters and n not in bound and n not in preset)

    def __repr__(self) -> str:
        label = getattr(self.actor_class, "__name__", repr(self.actor_class))
        return f"{self.name}: {self.count} × {label}"


@dataclass(frozen=True)
class Apart:
    """A constructor argument of which actor i gets `values[i]` and nothing of the others'."""

    values: tuple[Any, ...]

    @staticmethod
    def given(args: tuple[Any, ...], index: int) -> tuple[Any, ...]:
        """The arguments that the actor of this index gets."""
        return tuple(arg.values[index] if isinstance(arg, Apart) else arg for arg in args)


def actors(
    cls: Callable[..., A],
    *args: Any,
    count: int,
    name: str,
    cpus: float | None = None,
    gpus: float = 0,
    resources: Mapping[str, float] | None = None,
    on_failure: FailurePolicy | None = None,
    snapshot_every: int | None = None,
    **kwargs: Any,
) -> ActorGroup[A]:
    """A described group of `count` actors of one class; they start when a run of a graph that holds the group starts.

    Constructor parameters called `index`, `count` or `seed` that are left open are given by the engine. Where a
    parameter of the class clashes with one of this function, wrap the class: `functools.partial(cls, count=3)`.
    `cpus` defaults to the class attribute `default_cpus`, else 0.

    on_failure: what the death of an actor means, for a group that operators message beside the items; a gather, a
        learner, a replay group or evaluators have that said by their own operator. Restart(n) starts it again, up to n
        times in a row, and gives it its last state before anybody else asks it (`get_state()`, `set_state(state)`; of a
        class without them it begins anew, and the run warns of it). An operator that waits for its answer asks again,
        and one that asks meanwhile waits until it is up. Ignore() leaves it out (`ctx.living(group)`). None, and
        Raise(): the run stops.
    snapshot_every: its state is kept in the object store after so many messages (None: 10), with Restart(n).

    Raises:
        GraphError: a count below 1, an empty name, arguments that the constructor does not take; a failure policy that
            is none, or that does not suit the group.
    """
    return _describe(cls, args, kwargs, count, name, cpus, gpus, resources, (on_failure, snapshot_every))


def actor(
    cls: Callable[..., A],
    *args: Any,
    name: str,
    cpus: float | None = None,
    gpus: float = 0,
    resources: Mapping[str, float] | None = None,
    on_failure: FailurePolicy | None = None,
    snapshot_every: int | None = None,
    **kwargs: Any,
) -> ActorGroup[A]:
    """A described group of one actor. See `actors`."""
    return _describe(cls, args, kwargs, 1, name, cpus, gpus, resources, (on_failure, snapshot_every))


def _describe(
    cls: Callable[..., A],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    count: int,
    name: str,
    cpus: float | None,
    gpus: float,
    resources: Mapping[str, float] | None,
    deaths: tuple[FailurePolicy | None, int | None] = (None, None),
    *,
    auto_named: bool = False,
) -> ActorGroup[A]:
    if not callable(cls):
        raise GraphError(f"actors are made from a class, got {cls!r}")
    if not isinstance(name, str) or not name or "/" in name:
        raise GraphError(f"a group's name must be a non-empty string without '/', got {name!r}")
    try:
        check_whole("count", count)
    except ValueError as error:
        raise GraphError(f"group {name!r} needs count >= 1, got {count!r}") from error
    shown = getattr(cls, "default_cpus", 0) if cpus is None else cpus
    for what, amount in (("cpus", shown), ("gpus", gpus), *(resources or {}).items()):
        if isinstance(amount, bool) or not isinstance(amount, int | float) or not amount >= 0:
            raise GraphError(f"group {name!r}: {what} must be a number of at least 0, got {amount!r}")
    where = calling_place()
    group = ActorGroup(
        cls, args, kwargs, int(count), name, shown, gpus, dict(resources or {}), where, auto_named, *deaths
    )
    _check_arguments(group)
    _check_deaths(group)
    return group


def keeps_state(cls: Any) -> bool:
    """Whether a class, or an object, has a state that can be taken and given."""
    return callable(getattr(cls, "get_state", None)) and callable(getattr(cls, "set_state", None))


def _check_deaths(group: ActorGroup[Any]) -> None:
    policy, every = group.on_failure, group.snapshot_every
    if policy is not None and not isinstance(policy, FailurePolicy):
        raise GraphError(
            f"group {group.name!r}: on_failure must be Restart(...), Ignore() or Raise(), got {policy!r}; where the "
            "class has a parameter of this name, wrap it: functools.partial(cls, on_failure=...)"
        )
    if group.count == 1 and isinstance(policy, Ignore):
        raise GraphError(f"group {group.name!r}: on_failure=Ignore() has nobody to go on with, it is one actor")
    if every is None:
        return
    try:
        check_whole("snapshot_every", every)
    except ValueError as error:
        raise GraphError(f"group {group.name!r}: {error}") from None
    if not isinstance(policy, Restart):
        raise GraphError(
            f"group {group.name!r}: snapshot_every={every} is for on_failure=Restart(n), got on_failure={policy!r}"
        )
    if isinstance(group.actor_class, type) and not keeps_state(group.actor_class):
        raise GraphError(
            f"group {group.name!r}: snapshot_every={every}, but {group.actor_class.__name__} keeps no state: it needs "
            "get_state() and set_state(state)"
        )


def _check_arguments(group: ActorGroup[Any]) -> None:
    try:
        signature = inspect.signature(group.cls)
    except (TypeError, ValueError):
        return
    given = {name: None for name in group.open_parameters()}
    try:
        signature.bind(*group.args, **group.kwargs, **given)
    except TypeError as error:
        label = getattr(group.actor_class, "__name__", repr(group.actor_class))
        raise GraphError(
            f"group {group.name!r}: {label}{signature} cannot be called with the arguments given: {error}"
        ) from None


class Link(Protocol):
    """What ties a handle to a run; `flowrl.engine.calls` has it."""

    def ask(
        self, handle: ActorHandle[Any], method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Pending[Any]: ...

    def tell(self, handle: ActorHandle[Any], method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None: ...


@dataclass(frozen=True, eq=False)
class ActorHandle(Generic[A]):
    """One live actor of a run: `group` is the name of its group, `index` its place in it.

    Two handles are equal if they name the same actor. A pickled handle names its actor and can no longer message it.
    """

    group: str
    index: int
    _link: Link | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """`workers[0]`."""
        return f"{self.group}[{self.index}]"

    @overload
    def ask(self, method: str, /, *args: Any, **kwargs: Any) -> Pending[Any]: ...
    @overload
    def ask(self, method: Callable[Concatenate[Any, P], T], /, *args: P.args, **kwargs: P.kwargs) -> Pending[T]: ...
    def ask(self, method: Any, /, *args: Any, **kwargs: Any) -> Pending[Any]:
        """A call of a method (by name, or any function of the actor's object) whose answer can be awaited.

        Pendings and Refs among the arguments arrive as values and do not pass through the driver.
        """
        return self._live().ask(self, method, args, kwargs)

    @overload
    def tell(self, method: str, /, *args: Any, **kwargs: Any) -> None: ...
    @overload
    def tell(self, method: Callable[Concatenate[Any, P], Any], /, *args: P.args, **kwargs: P.kwargs) -> None: ...
    def tell(self, method: Any, /, *args: Any, **kwargs: Any) -> None:
        """A call without an answer; if it fails the run raises at its next step, under the method's own name."""
        self._live().tell(self, method, args, kwargs)

    def _live(self) -> Link:
        if self._link is None:
            raise RuntimeError(
                f"{self.name} is a name without a run (it was pickled, or made by hand); live handles come from "
                "run.actors, ctx.origins and ctx.actors(group)"
            )
        return self._link

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActorHandle) and (self.group, self.index) == (other.group, other.index)

    def __hash__(self) -> int:
        return hash((self.group, self.index))

    def __reduce__(self) -> tuple[Any, ...]:
        return (ActorHandle, (self.group, self.index))


class Pending(Generic[T]):
    """A call that is out."""

    __slots__ = ("_make", "again", "beside", "call", "look", "run")

    def __init__(
        self,
        call: Any,
        run: Any,
        make: Callable[[Info], Any] | None = None,
        again: Callable[[float | None], Pending[Any]] | None = None,
    ):
        self.call, self.run, self._make = call, run, make
        self.again = again  # asks once more, where whoever was asked outlives its death
        self.beside: Sequence[Pending[Any]] = ()
        self.look: Callable[[], None] | None = None

    def watched(self, beside: Sequence[Pending[Any]], look: Callable[[], None]) -> Pending[T]:
        """The same call; until it is answered `look()` is called whenever one of those `beside` it may have been.

        What `look` raises ends the run: that an answer will not come may be seen from what others answer.
        """
        self.beside, self.look = beside, look
        return self

    def result(self, timeout_s: float | None = None) -> T:
        """The answer's value, awaited.

        Raises:
            TimeoutError: nothing came within timeout_s; the call stays out.
        """
        if self._make is not None:
            return self._make(self.info(timeout_s))
        self._await(timeout_s)
        return self.run.fetch(self.ref)

    def info(self, timeout_s: float | None = None) -> Info:
        """What the host says of the answer, without its payload."""
        self._await(timeout_s)
        return self.call.infos[0]

    def _await(self, timeout_s: float | None) -> None:
        began, left = (0.0 if self.again is None else self.run.backend.now()), timeout_s
        while True:
            try:
                self.run.await_call(self.call, left)
            except ActorDied:
                if self.again is None or not self.lost or self.undelivered or not self.run.moves_here:
                    raise
                if timeout_s is not None:
                    left = max(0.0, began + timeout_s - self.run.backend.now())
                self.call = self.again(left).call  # of the actor that has taken its place, or it raises
                if self.lost:
                    raise
            else:
                return

    @property
    def done(self) -> bool:
        """Whether the driver knows the answer, or that there will be none."""
        return bool(self.call.done)

    @property
    def lost(self) -> bool:
        """Whether there will be no answer: it died with its actor, or nobody was there to be asked."""
        return bool(self.call.lost)

    @property
    def undelivered(self) -> bool:
        """Whether it is lost because what it was asked with was, with a node; the actor itself may be up."""
        return bool(self.call.undelivered)

    @property
    def ref(self) -> Ref[T]:
        """A reference to the answer, also while it is still out; other actors may be sent it."""
        return self.run.ref_to(self.call)

    def made_from_info(self, make: Callable[[Info], U]) -> Pending[U]:
        """The same call, its value made on the driver from the Info alone; the payload stays where it is."""
        return Pending(self.call, self.run, make, self.again)

    @property
    def make(self) -> Callable[[Info], Any] | None:
        """How the value is made from the Info, if it is."""
        return self._make

    def __repr__(self) -> str:
        return f"Pending({self.call.label}, {'answered' if self.call.done else 'out'})"


def check_group(node: str, kind: str, group: Any, method: str) -> None:
    """Nothing, if this is a group of actors that have a method, where its class is known. kind: what they usually are.

    Raises:
        GraphError: it is none, or they lack the method; names the node.
    """
    if not isinstance(group, ActorGroup):
        raise GraphError(f"{node} needs a group made by flowrl.actors({kind}, ...), got {group!r}")
    cls = group.actor_class
    if isinstance(cls, type) and not callable(getattr(cls, method, None)):
        raise GraphError(f"{node}: {cls.__name__} (group {group.name!r}) has no method {method}()")
