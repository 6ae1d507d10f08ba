"""References to payloads that stay where they are, and the small Info that the driver gets of each."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from flowrl.errors import add_note

if TYPE_CHECKING:
    from flowrl.metrics import Delta
    from flowrl.operator import Operator

T = TypeVar("T")


_NOTHING: Mapping[str, Any] = {}


class Info(NamedTuple):
    """What the driver knows of an item without fetching it.

    `env_steps` and `agent_steps` count valid transitions in the item, `policy_version` is the oldest
    version of the weights that made it (None where no policy did), `nbytes` its size, `metrics` what
    the actor said of this answer, `policies` agent steps by policy id (multi-agent items only).
    """

    env_steps: int = 0
    agent_steps: int = 0
    policy_version: int | None = None
    nbytes: int = 0
    metrics: Mapping[str, float] = _NOTHING
    policies: Mapping[str, int] = _NOTHING

    @staticmethod
    def of(value: object) -> Info:
        """The Info of a value: flowrl's batches say their own, anything else counts nothing but its `nbytes`."""
        own = getattr(type(value), "__flowrl_info__", None)  # by no name that an item of the user's may have
        if own is not None:
            info: Info = own(value)
            return info
        try:
            nbytes = getattr(value, "nbytes", 0)
        except Exception:  # a property of the user's, of which nobody asked
            nbytes = 0
        return Info(nbytes=nbytes) if isinstance(nbytes, int) and nbytes > 0 else _NO_FIGURES

    @staticmethod
    def total(infos: Iterable[Info]) -> Info:
        """The sum of several items: steps and bytes add up, the oldest version stands."""
        env_steps = agent_steps = nbytes = 0
        version: int | None = None
        policies: dict[str, int] = {}
        for info in infos:
            env_steps += info.env_steps
            agent_steps += info.agent_steps
            nbytes += info.nbytes
            version = oldest(version, info.policy_version)
            for policy, steps in info.policies.items():
                policies[policy] = policies.get(policy, 0) + steps
        return Info(env_steps, agent_steps, version, nbytes, {}, policies)


_NO_FIGURES = Info()


def oldest(a: int | None, b: int | None) -> int | None:
    """The smaller of two versions; None says nothing."""
    if a is None:
        return b
    if b is None:
        return a
    return min(a, b)


@dataclass(frozen=True)
class Answer(Generic[T]):
    """What an actor's method returns when it has more to say than its payload.

    `metrics` maps a name to a number (the newest stands) or to a rule of `flowrl.metrics`
    (`Sum(n)`, `Mean(value, weight)`, `Listed(values)`); they merge once on the driver. A key may be
    `(policy, name)`. `published` are flat weights that other actors may want, with `policy_version`
    their version.
    """

    payload: T
    metrics: Mapping[Any, Any] = field(default_factory=dict)
    policy_version: int | None = None
    published: Any = None
    env_steps: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.payload, Answer):
            raise TypeError("Answer(payload=...) got an Answer; give its payload, and say all the rest in one Answer")
        if not isinstance(self.metrics, Mapping):
            raise TypeError(f"Answer(metrics=...) must map names to numbers, got {self.metrics!r}")
        for name in ("policy_version", "env_steps"):
            value = getattr(self, name)
            if value is not None and type(value) is not int:
                object.__setattr__(self, name, _whole(name, value))
        if self.env_steps is not None and self.env_steps < 0:
            raise ValueError(f"Answer(env_steps=...) must be at least 0, got {self.env_steps}")


def _whole(name: str, value: Any) -> int:
    """A whole number of any kind (NumPy's too) as an int."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise TypeError(f"Answer({name}=...) must be a whole number or None, got {value!r}") from None


@dataclass(frozen=True)
class Query(Generic[T]):
    """What the method of a served source returns in place of an item: a question to the group that serves it.

    The driver has the server answer it, many of them at a time, and hands the answer on (`graph.Shards.takes`).
    """

    payload: T


class Leaf:
    """One stored payload, or a value that the driver itself holds.

    `slot` is the index into the answer's items, or "published" for the weights beside them.
    """

    __slots__ = ("payload", "slot", "value")

    def __init__(self, payload: Any = None, slot: int | str = 0, value: Any = None):
        self.payload, self.slot, self.value = payload, slot, value


class Ref(Generic[T]):
    """A payload in the object store: its parts, plus pure operators still to be applied where it arrives.

    A Ref is immutable. `get()` brings the value to the driver; sending the Ref to an actor
    (`handle.ask(method, ref)`) does not.
    """

    __slots__ = ("_fetch", "_tree", "info")

    def __init__(self, tree: Any, info: Info, fetch: Callable[[Ref[Any]], Any] | None = None):
        self._tree, self.info, self._fetch = tree, info, fetch

    @staticmethod
    def of(value: T, info: Info | None = None) -> Ref[T]:
        """A reference to a value that the driver holds."""
        return Ref(Leaf(value=value), Info.of(value) if info is None else info)

    def then(self, op: Operator[T, Any], *, name: str | None = None, where: str | None = None) -> Ref[Any]:
        """This item with a pure one-to-one operator applied where it arrives."""
        return Ref(Then(self._tree, op, name or type(op).__name__, where), self.info, self._fetch)

    @staticmethod
    def concat(refs: Sequence[Ref[T]]) -> Ref[T]:
        """One item out of several, joined where it arrives (`type(item).concat`)."""
        if not refs:
            raise ValueError("Ref.concat needs at least one reference, got none")
        if len(refs) == 1:
            return refs[0]
        fetch = next((ref._fetch for ref in refs if ref._fetch is not None), None)
        infos = tuple([ref.info for ref in refs])
        return Ref(Joined(tuple([ref._tree for ref in refs]), infos), Info.total(infos), fetch)

    @property
    def part_infos(self) -> tuple[Info, ...]:
        """What is known of each item that this one was joined of; of one that was not, its own Info alone."""
        return tuple(_parts(self._tree, self.info))

    def only(self, keep: Callable[[Info], bool]) -> Ref[T] | None:
        """This item without those parts that `keep` refuses; None where it refuses all. Deferred operators stay."""
        kept = _only(self._tree, self.info, keep)
        return None if kept is None else self if kept[0] is self._tree else Ref(*kept, self._fetch)

    @property
    def parts(self) -> tuple[Ref[T], ...]:
        """The references that it was joined from, in order; itself alone where it was not."""
        if not isinstance(self._tree, Joined):
            return (self,)
        trees = zip(self._tree.trees, self._tree.infos, strict=True)
        joined: list[Ref[T]] = [Ref(tree, info, self._fetch) for tree, info in trees]
        return tuple(part for ref in joined for part in ref.parts)

    @property
    def holder(self) -> tuple[str, int] | None:
        """Group and index of the actor whose answer the payload is; None where it is the driver's, or joined."""
        tree = self._tree
        while isinstance(tree, Then):
            tree = tree.tree
        actor = getattr(tree.payload, "actor", None) if isinstance(tree, Leaf) else None
        return None if actor is None else (actor.group, actor.index)

    def with_info(self, **changes: Any) -> Ref[T]:
        """The same payload with other figures beside it."""
        return Ref(self._tree, self.info._replace(**changes), self._fetch)

    def get(self) -> T:
        """The value, fetched to the driver; deferred operators are applied now."""
        if self._fetch is not None:
            return self._fetch(self)
        return resolve(self._tree, _held_value)

    def __repr__(self) -> str:
        return f"Ref({self.info.env_steps} env steps, {self.info.nbytes:,} bytes)"


class Then:
    """A deferred operator over a tree; `name` and `where` say which node, for errors."""

    __slots__ = ("name", "op", "tree", "where")

    def __init__(self, tree: Any, op: Any, name: str, where: str | None):
        self.tree, self.op, self.name, self.where = tree, op, name, where


class Joined:
    """Several trees joined into one item; `infos` says what is known of each."""

    __slots__ = ("infos", "trees")

    def __init__(self, trees: tuple[Any, ...], infos: tuple[Info, ...]):
        self.trees, self.infos = trees, infos


def _parts(tree: Any, info: Info) -> Iterator[Info]:
    while isinstance(tree, Then):
        tree = tree.tree
    if not isinstance(tree, Joined):
        yield info
        return
    for part, known in zip(tree.trees, tree.infos, strict=True):
        yield from _parts(part, known)


def _only(tree: Any, info: Info, keep: Callable[[Info], bool]) -> tuple[Any, Info] | None:
    """The tree and its Info without the parts that are refused."""
    if isinstance(tree, Then):
        kept = _only(tree.tree, info, keep)
        if kept is None or kept[0] is tree.tree:
            return None if kept is None else (tree, info)
        return Then(kept[0], tree.op, tree.name, tree.where), kept[1]
    if not isinstance(tree, Joined):
        return (tree, info) if keep(info) else None
    found = [_only(part, known, keep) for part, known in zip(tree.trees, tree.infos, strict=True)]
    rest = [part for part in found if part is not None]
    if not rest:
        return None
    if len(rest) == len(tree.trees) and all(new is old for (new, _), old in zip(rest, tree.trees, strict=True)):
        return tree, info
    if len(rest) == 1:
        return rest[0]
    trees, infos = zip(*rest, strict=True)
    return Joined(trees, infos), Info.total(infos)


def resolve(tree: Any, load: Callable[[Leaf], Any], deltas: list[Delta] | None = None) -> Any:
    """The value of a tree: leaves by `load`, then joined and deferred operators applied, their metrics to `deltas`."""
    if isinstance(tree, Leaf):
        return load(tree)
    if isinstance(tree, Joined):
        return join([resolve(part, load, deltas) for part in tree.trees])
    return apply_deferred(tree, resolve(tree.tree, load, deltas), deltas)


def apply_deferred(then: Then, value: Any, deltas: list[Delta] | None = None) -> Any:
    """One result of a pure operator; an error of it names the deferred node."""
    from flowrl.operator import Context, results_of

    ctx = Context(then.name)
    try:
        results = list(results_of(then.op, value, ctx))
    except BaseException as error:
        add_note(error, f"in the deferred node {then.name!r}" + (f", defined at {then.where}" if then.where else ""))
        raise
    if deltas is not None:
        deltas.extend(ctx.metrics.take())
    if len(results) != 1:
        raise ValueError(
            f"the deferred node {then.name!r} is marked pure, so it must give exactly one result an item; "
            f"it gave {len(results)}"
        )
    return results[0]


def join(values: Sequence[Any]) -> Any:
    """Several items as one, by the `concat` of their type."""
    concat = getattr(type(values[0]), "concat", None)
    if concat is None:
        raise TypeError(
            f"cannot join items of type {type(values[0]).__name__}: "
            "give the type a static method concat(items), as Batch has"
        )
    return concat(list(values))


def _held_value(leaf: Leaf) -> Any:
    if leaf.payload is not None:
        raise RuntimeError("this reference belongs to a run; only the run can fetch it")
    return leaf.value
