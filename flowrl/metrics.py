"""Metrics as deltas: an actor records them, they ride in its answer, the driver merges each exactly once.

A delta is `(node, policy, name, rule, value, weight)`; the rules are

| rule | merge | reads as |
|---|---|---|
| sum | adds | the total |
| mean | adds value·weight and weight | the weighted mean over the run |
| last | replaces | the newest |
| list | appends, keeps the newest `WINDOW` | the mean of the window; the total count beside it |
| moments | joins count, mean and M2 exactly | the mean; `Table.moments` has all three |
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flowrl.given import short

WINDOW = 100
Delta = tuple[str, str | None, str, str, Any, float]


@dataclass(frozen=True)
class Sum:
    """A count that adds up over answers."""

    value: float


@dataclass(frozen=True)
class Mean:
    """A value that is averaged over answers, by `weight`."""

    value: float
    weight: float = 1.0


@dataclass(frozen=True)
class Last:
    """A value of which only the newest matters."""

    value: float


@dataclass(frozen=True)
class Listed:
    """Values that are all kept, up to the newest 100 (episode returns)."""

    values: tuple[float, ...]


@dataclass(frozen=True)
class Moments:
    """Count, mean and M2 (the sum of squared deviations from the mean) of values, joined as if seen at once."""

    count: float
    mean: float
    m2: float

    def join(self, other: Moments) -> Moments:
        """The moments of both (Chan, Golub and LeVeque, 1979)."""
        if self.count == 0 or other.count == 0:
            return other if self.count == 0 else self
        count, apart = self.count + other.count, other.mean - self.mean
        mean = self.mean + apart * (other.count / count)
        return Moments(count, mean, self.m2 + other.m2 + apart * apart * (self.count * other.count / count))


def deltas_of(node: str, metrics: Mapping[Any, Any]) -> list[Delta]:
    """The deltas of an Answer's metrics; a plain number is a Last, a key may be (policy, name).

    Raises:
        TypeError: a key or a value is something else; names it.
    """
    found: list[Delta] = []
    for key, entry in metrics.items():
        policy, name = key if isinstance(key, tuple) and len(key) == 2 else (None, key)
        if isinstance(entry, Sum):
            found.append(_delta(node, policy, name, "sum", entry.value))
        elif isinstance(entry, Mean):
            found.append(_delta(node, policy, name, "mean", entry.value, entry.weight))
        elif isinstance(entry, Listed):
            found.append(_delta(node, policy, name, "list", entry.values))
        elif isinstance(entry, Moments):
            found.append((node, policy, name, "moments", (entry.count, entry.mean, entry.m2), 1.0))
        else:
            found.append(_delta(node, policy, name, "last", entry.value if isinstance(entry, Last) else entry))
    return found


def _delta(node: str, policy: Any, name: Any, rule: str, value: Any, weight: Any = 1.0) -> Delta:
    """A delta, checked where the user's code made it and not where it is merged."""
    if not isinstance(name, str):
        raise TypeError(f"a metric's name must be a string, or (policy, name) as the key of an Answer's; got {name!r}")
    if policy is not None and not isinstance(policy, str):
        raise TypeError(f"the policy of metric {name!r} must be a string or None, got {policy!r}")
    if rule == "list":
        numbers: Any = () if isinstance(value, str) else value
        return node, policy, name, rule, tuple(_number(name, entry) for entry in numbers), 1.0
    return node, policy, name, rule, _number(name, value), _number(name, weight)


def _number(name: str, value: Any) -> float:
    try:
        if not isinstance(value, str):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise TypeError(
        f"metric {name!r} must be a number, or a rule of flowrl.metrics (Sum, Mean, Last, Listed), got {short(value)}"
    )


class Recorder:
    """`ctx.metrics`: records deltas under a node's name until they are taken."""

    __slots__ = ("_deltas", "_node")

    def __init__(self, node: str = ""):
        self._node = node
        self._deltas: list[Delta] = []

    def take(self) -> list[Delta]:
        """What was recorded since the last take."""
        if not self._deltas:
            return []
        taken, self._deltas = self._deltas, []
        return taken

    def add(self, name: str, n: float = 1.0, *, policy: str | None = None) -> None:
        """Adds n to a total."""
        self._deltas.append(_delta(self._node, policy, name, "sum", n))

    def mean(self, name: str, value: float, *, weight: float = 1.0, policy: str | None = None) -> None:
        """Averages a value over the run, by weight."""
        self._deltas.append(_delta(self._node, policy, name, "mean", value, weight))

    def last(self, name: str, value: float, *, policy: str | None = None) -> None:
        """Keeps the newest value."""
        self._deltas.append(_delta(self._node, policy, name, "last", value))

    def list(self, name: str, values: Iterable[float], *, policy: str | None = None) -> None:
        """Appends values; the newest 100 are kept."""
        self._deltas.append(_delta(self._node, policy, name, "list", values))


class _Cell:
    __slots__ = ("moments", "rule", "total", "weight", "window")

    def __init__(self, rule: str):
        self.rule = rule
        self.moments = Moments(0.0, 0.0, 0.0)
        self.total: float = 0.0
        self.weight: float = 0.0
        self.window: deque[float] | None = deque(maxlen=WINDOW) if rule == "list" else None

    def merge(self, value: Any, weight: float) -> None:
        if self.rule == "sum":
            self.total += value
        elif self.rule == "mean":
            self.total += value * weight
            self.weight += weight
        elif self.rule == "last":
            self.total = value
        elif self.rule == "moments":
            self.moments = self.moments.join(Moments(*value))
            self.total = self.moments.mean
        else:
            assert self.window is not None
            self.window.extend(value)
            self.total += len(value)

    def state(self) -> list[Any]:
        moments, window = self.moments, None if self.window is None else list(self.window)
        return [self.total, self.weight, [moments.count, moments.mean, moments.m2], window]

    def set_state(self, state: list[Any]) -> None:
        self.total, self.weight, moments, window = state
        self.moments = Moments(*moments)
        if self.window is not None:
            self.window.extend(window)

    def read(self) -> float:
        if self.rule == "mean":
            return self.total / self.weight if self.weight else float("nan")
        if self.window is not None:
            return sum(self.window) / len(self.window) if self.window else float("nan")
        return self.total


class Table:
    """The metrics of one run: every delta merged once, read by node, policy and name."""

    def __init__(self) -> None:
        self._cells: dict[tuple[str, str | None, str], _Cell] = {}

    def merge(self, deltas: Iterable[Delta]) -> None:
        """Merges deltas; a name that changes its rule is an error."""
        for node, policy, name, rule, value, weight in deltas:
            cell = self._cells.get((node, policy, name))
            if cell is None:
                cell = self._cells[(node, policy, name)] = _Cell(rule)
            elif cell.rule != rule:
                raise ValueError(
                    f"metric {name!r} of node {node!r} was recorded as {cell.rule} and now as {rule}; use two names"
                )
            cell.merge(value, weight)

    def get_state(self) -> list[Any]:
        """Every metric as plain values."""
        return [[*key, cell.rule, *cell.state()] for key, cell in self._cells.items()]

    def set_state(self, state: Iterable[Any]) -> None:
        """Goes on from a state."""
        self._cells = {}
        for node, policy, name, rule, *rest in state:
            cell = self._cells[(node, policy, name)] = _Cell(rule)
            cell.set_state(rest)

    def read(self, node: str, name: str, policy: str | None = None) -> float | None:
        """The merged value, or None where nothing was recorded."""
        cell = self._cells.get((node, policy, name))
        return None if cell is None else cell.read()

    def window(self, name: str) -> list[float]:
        """The newest values of a list metric, over all nodes that recorded it.

        Where some are of no policy (an episode's, of all its agents together), those of single policies are no part.
        """
        found = [(policy, cell.window) for (_, policy, n), cell in self._cells.items() if n == name]
        of_all = [values for policy, values in found if policy is None and values is not None]
        return [v for values in of_all or [values for _, values in found if values is not None] for v in values]

    def count(self, name: str) -> float:
        """How many values a list metric, or what total a sum metric, got over all nodes."""
        return sum(cell.total for (_, _, n), cell in self._cells.items() if n == name and cell.rule in ("list", "sum"))

    def moments(self, name: str) -> Moments:
        """The joined moments of that name, over all nodes and policies; of count 0 before the first."""
        joined = Moments(0.0, 0.0, 0.0)
        for (_, _, n), cell in self._cells.items():
            if n == name:
                joined = joined.join(cell.moments)
        return joined

    def by_node(self) -> dict[str, dict[str, float]]:
        """{node: {name or policy/name: value}}."""
        tables: dict[str, dict[str, float]] = {}
        for (node, policy, name), cell in self._cells.items():
            tables.setdefault(node, {})[name if policy is None else f"{policy}/{name}"] = cell.read()
        return tables

    def policies(self) -> dict[str, dict[str, float]]:
        """{policy: {name: value}} over all nodes, for what was recorded under a policy."""
        tables: dict[str, dict[str, float]] = {}
        for (_, policy, name), cell in self._cells.items():
            if policy is not None:
                tables.setdefault(policy, {})[name] = cell.read()
        return tables
