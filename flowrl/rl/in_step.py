"""Learners that train in step: each on rows of its own, all with the same gradient and so the same weights."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from flowrl.batch import Batch
from flowrl.rl.gradients import gradient_of
from flowrl.rl.loss import LossFunction, LossOut
from flowrl.rl.normalize import RunningMoments
from flowrl.rl.peers import Peers
from flowrl.rl.policy import Policy
from flowrl.rl.rows import Priorities
from flowrl.rl.sequences import SequenceBatch
from flowrl.rl.spec import Progress
from flowrl.rl.tally import Tally
from flowrl.rl.tensors import TensorBatch

if TYPE_CHECKING:
    from flowrl.rl.learner import Learner

NO_ROWS = TensorBatch({})


@dataclass(frozen=True)
class Plan:
    """What all members know of a call before its first update.

    rows: of all members. sizes: of each update of an epoch, by rank, how many rows (or sequences) of the member's it
    takes. centre: the mean of each standardized column.
    """

    rows: int
    sizes: tuple[tuple[int, ...], ...]
    centre: dict[str, float]


class InStep:
    """One call of `train` in a group: the same updates at every member, each over all members' rows of a minibatch.

    A member's rows are divided into as many parts as there are updates an epoch; a part may be empty.
    """

    def __init__(self, learner: Learner, peers: Peers, mine: TensorBatch | None, given: Batch | None):
        self.learner, self.peers, self.mine, self.given = learner, peers, mine, given
        if isinstance(mine, SequenceBatch):  # each has a valid row from here on
            self.mine = next(mine.chosen(mine.valid_TN.any(0).nonzero().reshape(-1)), None)
        self.tally, self.found = Tally(), Priorities()
        self.trained_rows = 0
        self._columns = sorted(getattr(learner.loss, "standardizes", ()))

    def plan(self, minibatch: int | None) -> Plan:
        """How many updates an epoch has; observations' statistics take in the rows of all."""
        size, rows = (self.mine.size, self.mine.rows) if self.mine is not None else (0, 0)
        sums = {name: float(self.mine[name].double().sum()) for name in self._columns} if self.mine is not None else {}
        statistics = self.learner.policy.statistics
        seen = None if statistics is None or self.given is None else statistics.moments_of(self.given)
        told: list[tuple[int, int, dict[str, float], RunningMoments | None]] = self.peers.gather(
            (size, rows, sums, seen)
        )
        if statistics is not None:
            for *_, moments in told:
                if moments is not None:
                    statistics.merge(moments)
        total, all_rows = sum(one[0] for one in told), sum(one[1] for one in told)
        centre = {name: sum(one[2].get(name, 0.0) for one in told) / max(all_rows, 1) for name in self._columns}
        updates = 1 if minibatch is None else max(-(-total // minibatch), 1)
        return Plan(all_rows, _sizes([one[0] for one in told], updates), centre)

    def epoch(self, plan: Plan, rng: np.random.Generator | None) -> None:
        """One pass over all rows; the members' orders differ."""
        self.found.begin()
        parts = list(_parts(self.mine, [sizes[self.peers.rank] for sizes in plan.sizes], rng))
        for part, scales in zip(parts, self._scales(parts, plan), strict=True):
            if not self.learner._update_part(part, self.tally, self.found, scales):
                break
            self.trained_rows += part.rows

    def _scales(self, parts: list[TensorBatch], plan: Plan) -> list[dict[str, tuple[float, float]]]:
        """By update, the mean and deviation of each standardized column over the parts of all members."""
        if not self._columns:
            return [{} for _ in parts]
        sums = torch.zeros(len(parts), len(self._columns), 3, dtype=torch.float64)
        for at, part in enumerate(parts):
            for column, name in enumerate(self._columns if part.rows else ()):
                # From the mean of all rows, so that little is lost where the squares are taken from each other.
                x_B = part[name].double() - plan.centre[name]
                sums[at, column] = torch.stack((x_B.new_tensor(len(x_B)), x_B.sum(), x_B.square().sum()))
        sums = self.peers.sum(sums.reshape(-1)).reshape(sums.shape)
        return [{name: _scale(sums[at, c], plan.centre[name]) for c, name in enumerate(self._columns)}
                for at in range(len(parts))]  # fmt: skip

    def finish(self) -> tuple[dict[str, float], int, Batch | None]:
        """The means of all members' metrics over their rows, the rows trained on, and all rows' new priorities."""
        told = self.peers.gather((self.tally.sums(), self.trained_rows, self.found.answer()))
        merged: dict[str, tuple[float, float]] = {}
        for sums, _, _ in told:
            for name, (value, weight) in sums.items():
                before = merged.get(name, (0.0, 0.0))
                merged[name] = (before[0] + value, before[1] + weight)
        priorities = [one for _, _, one in told if one is not None]
        means = {name: value / weight for name, (value, weight) in merged.items()}
        return means, sum(rows for _, rows, _ in told), Batch.concat(priorities) if priorities else None


def averaged(
    peers: Peers,
    policy: Policy,
    loss: LossFunction,
    batch: TensorBatch,
    now: Progress,
    *,
    microbatch: int | None,
    where: str,
    group: str,
) -> tuple[LossOut, Tensor]:
    """As `gradient_of`: what the loss gives of this member's rows, and the gradient of the mean over all members' rows.

    Of the loss's metrics `kl` is over all rows: what is decided by it is decided alike by all.

    Raises:
        PeerLost: a member is gone.
    """
    size = policy.span(group).stop - policy.span(group).start
    told = torch.zeros(size + 3)
    out = LossOut(torch.zeros(()))
    if batch.rows:
        out, gradient = gradient_of(policy, loss, batch, now, microbatch=microbatch, where=where, group=group)
        torch.mul(gradient, batch.rows, out=told[:size])
        told[size] = batch.rows
        if "kl" in out.metrics:
            told[size + 1], told[size + 2] = float(out.metrics["kl"]) * batch.rows, batch.rows
    total = peers.sum(told)
    kl, kl_rows = float(total[size + 1]), float(total[size + 2])
    metrics = {**out.metrics, "kl": kl / kl_rows} if kl_rows else out.metrics
    return LossOut(out.loss, metrics, out.per_row), total[:size] / total[size]


def _sizes(sizes: list[int], updates: int) -> tuple[tuple[int, ...], ...]:
    """By update and rank: nearly equal parts of what each member has; an update without any row is none."""
    ends = [[size * number // updates for size in sizes] for number in range(updates + 1)]
    taken = [tuple(b - a for a, b in zip(start, end, strict=True)) for start, end in itertools.pairwise(ends)]
    return tuple(one for one in taken if any(one))


def _parts(mine: TensorBatch | None, sizes: list[int], rng: np.random.Generator | None) -> Iterator[TensorBatch]:
    if mine is None:
        yield from [NO_ROWS] * len(sizes)
        return
    order = None if rng is None or len(sizes) == 1 else torch.from_numpy(rng.permutation(mine.size))
    if isinstance(mine, SequenceBatch):
        for chosen in (torch.arange(mine.size) if order is None else order).split(sizes):
            yield next(mine.chosen(chosen), NO_ROWS)
    else:
        yield from mine.minibatches(sizes, order)


def _scale(sums: Tensor, centre: float) -> tuple[float, float]:
    """Mean and deviation (n − 1) from the count, and the sums of x − centre and its square; a single row stays."""
    count, total, squares = sums.tolist()
    if count < 2:
        return 0.0, 1.0
    return centre + total / count, float(np.sqrt(max(squares - total * total / count, 0.0) / (count - 1)))


def share_of(batch: Batch, share: int, of: int) -> Batch | None:
    """One of `of` nearly equal shares of a batch: of its columns N if it is time-major, else of its rows."""
    size = batch.leading[1] if batch.time_major else batch.rows
    mine = slice(size * share // of, size * (share + 1) // of)
    if mine.start == mine.stop:
        return None
    if not batch.time_major:
        return batch.rows_at(mine)
    return Batch({name: batch[name][:, mine] for name in batch}, time_major=True)
