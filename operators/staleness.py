"""How old the experience is that a learner trains on, and how often it is used."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, TypeVar

from flowrl.operator import Context
from flowrl.ref import Info

T = TypeVar("T")
WINDOW = 100  # trainings over which the run's figures are taken


@dataclass(frozen=True)
class Age:
    """Of the rows of one training, or of several: how many versions of the weights lay between acting and training.

    p50, p95: the age that half of the rows, and 95 of 100, do not exceed (the smallest such age). oldest: the greatest.
    """

    p50: int
    p95: int
    oldest: int

    @staticmethod
    def of(rows_by_age: Mapping[int, int]) -> Age | None:
        """From how many rows there are of each age; None where there are none."""
        total = sum(rows_by_age.values())
        if total == 0:
            return None
        ages = sorted(rows_by_age)
        up_to = list(accumulate(rows_by_age[age] for age in ages))
        p50, p95 = (next(a for a, n in zip(ages, up_to, strict=True) if 100 * n >= share * total) for share in (50, 95))
        return Age(p50, p95, ages[-1])


def rows_by_age(parts: Sequence[Info], version: int) -> Counter[int]:
    """How many rows there are of each age among the parts of a batch, where training begins at `version`.

    Parts whose version is not known (those of a replay shard) do not count.
    """
    found: Counter[int] = Counter()
    for part in parts:
        if part.policy_version is not None:
            found[max(version - part.policy_version, 0)] += part.agent_steps
    return found


class Told:
    """`make` of a learner's answer, with age and reuse: what `made_from_info` is given, and can be told of.

    state: enough to make `make` anew.
    """

    def __init__(
        self, staleness: Staleness, make: Callable[[Info], Any], parts: Sequence[Info], ctx: Context, state: Any
    ):
        self._staleness, self._make, self.parts, self._ctx, self.state = staleness, make, tuple(parts), ctx, state

    def __call__(self, info: Info) -> Any:
        return self._staleness.told(self._make, self.parts, self._ctx, info)


class Staleness:
    """The ages and the reuse of the newest `WINDOW` trainings (OpenAI Five, arXiv:1912.06680, section 4.1)."""

    def __init__(self) -> None:
        self._ages: Counter[int] = Counter()
        self._trainings: deque[Counter[int]] = deque()
        self._counts: deque[tuple[float, int]] = deque([(0.0, 0)])  # rows trained on and rows made so far, after each

    def trained(self, ages: Counter[int], rows: float, made: int) -> None:
        """Takes in one training: its rows by age, how many rows went through an update, how many the run has made."""
        self._ages.update(ages)
        self._trainings.append(ages)
        self._counts.append((self._counts[-1][0] + rows, made))
        if len(self._trainings) > WINDOW:
            self._ages.subtract(self._trainings.popleft())
            self._ages = +self._ages
            self._counts.popleft()

    def told(self, make: Callable[[Info], T], parts: Sequence[Info], ctx: Context, info: Info) -> T:
        """`make` of a learner's answer, with `age` and `sample_reuse` of the training; recorded as ctx.metrics.

        parts: what is known of each item that the training was on. What the answer publishes is one version on from
        what the training began with; an answer that says 0 trained_steps has no training to tell of.
        """
        trained = [n for name, n in info.metrics.items() if name.rpartition("/")[2] == "trained_steps"]
        if info.policy_version is None or trained == [0]:
            return make(info)
        ages = rows_by_age(parts, info.policy_version - 1)
        self.trained(ages, sum(trained), ctx.report.agent_steps)
        age, reuse = self.age, self.reuse
        if age is not None:
            ctx.metrics.last("policy_age_p50", age.p50)
            ctx.metrics.last("policy_age_p95", age.p95)
        if reuse is not None:
            ctx.metrics.last("sample_reuse", reuse)
        made: Any = make(info)
        told: T = replace(made, age=Age.of(ages), sample_reuse=reuse)
        return told

    @property
    def age(self) -> Age | None:
        """Over all rows of the newest trainings."""
        return Age.of(self._ages)

    @property
    def reuse(self) -> float | None:
        """Rows trained on for each row that the run made meanwhile; None where it made none."""
        (rows_before, made_before), (rows, made) = self._counts[0], self._counts[-1]
        return (rows - rows_before) / (made - made_before) if made > made_before else None

    def get_state(self) -> dict[str, Any]:
        """Plain containers and numbers."""
        return {"trainings": [dict(ages) for ages in self._trainings], "counts": [list(at) for at in self._counts]}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state."""
        self._trainings = deque(Counter({int(age): rows for age, rows in a.items()}) for a in state["trainings"])
        self._counts = deque((float(rows), int(made)) for rows, made in state["counts"])
        self._ages = sum(self._trainings, Counter())
