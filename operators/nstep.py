"""NStep: rewards summed over n steps, with the rows that wait for theirs carried from fragment to fragment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from flowrl.batch import Batch, MultiAgentBatch
from flowrl.columns import Array, Columns, check_joinable
from flowrl.handles import ActorHandle
from flowrl.numbers import check_whole
from flowrl.operator import Context, ItemId, Operator
from flowrl.rl.returns import check_fractions, n_step_columns

Stream = tuple[tuple[ActorHandle[Any], ...], str | None]  # whose rows follow each other: origins, policy


@dataclass
class NStep(Operator[Any, Any]):
    """Batches of n-step rows by `flowrl.rl.returns.n_step`: summed rewards, `discounts` (γ^k over the k steps that
    there were, 0 after a termination), and what followed the last of them (`next_obs` and all other `next_…` columns).

    Takes time-major fragments that go on where those before from the same origin ended. A row comes out once its n
    steps are there, so the last n-1 of a fragment come with the next one, or at the end with the steps that there are;
    the first batch is that much shorter. Put it before the gather, where the fragments of one worker stay in order
    and the data need not pass the driver.

    A fragment need not go on where the one before ended: after a fault of an environment that is outlived, episodes
    begin anew. Rows whose `next_obs` are not what follows end there as truncated ones, with the steps that there are.

    n: 1 adds only `discounts`. discount: γ, of one step. policy: of a MultiAgentBatch, whose batch gets them; the
    others go on as they are. None means every policy's.

    Raises:
        ValueError: n below 1, discount outside [0, 1], a batch that is not time-major or of other environments.
    """

    n: int
    discount: float = 0.99
    policy: str | None = None

    needs: ClassVar[frozenset[str]] = frozenset({"rewards", "terminated", "truncated", "next_obs"})
    adds: ClassVar[frozenset[str]] = frozenset({"discounts"})

    def __post_init__(self) -> None:
        check_whole("n", self.n)
        check_fractions(discount=self.discount)

    def open(self) -> None:
        self._held: dict[Stream, tuple[Columns, ItemId]] = {}

    def process(self, value: Batch | MultiAgentBatch, ctx: Context) -> Iterable[Any]:
        origins = ctx.item_id.origins
        parts: dict[str | None, Batch] = {None: value} if isinstance(value, Batch) else dict(value.items())
        made = {
            policy: self._next((origins, policy), part, ctx.item_id)
            if self.policy in (None, policy)
            else (part, [ctx.item_id])
            for policy, part in parts.items()
        }
        ready = {policy: found for policy, found in made.items() if found is not None}
        if ready:
            sources = [source for _, sources in ready.values() for source in sources]
            if isinstance(value, Batch):
                ctx.emit(ready[None][0], sources)
            else:
                batches = {str(policy): batch for policy, (batch, _) in ready.items()}
                ctx.emit(MultiAgentBatch(batches, env_steps=value.env_steps), sources)
        return ()

    def finish(self, ctx: Context) -> Iterable[Any]:
        held, self._held = self._held, {}
        for (_, policy), (rows, source) in held.items():
            batch = Batch(n_step_columns(rows, discount=self.discount, n=self.n), time_major=True)
            # The steps of a MultiAgentBatch were counted when the fragment came.
            ctx.emit(batch if policy is None else MultiAgentBatch({policy: batch}, env_steps=0), [source])
        return ()

    def actor_started(self, handle: ActorHandle[Any], ctx: Context) -> None:
        """A worker that starts anew begins new episodes: nothing follows the rows that wait."""
        self._held = {stream: rows for stream, rows in self._held.items() if handle not in stream[0]}

    def _next(self, stream: Stream, batch: Batch, item: ItemId) -> tuple[Batch, list[ItemId]] | None:
        """The rows whose n steps are there, with the items that they were made of."""
        if not batch.time_major:
            raise ValueError(f"NStep needs a time-major batch (T, N), got {batch!r}; put it before flat()")
        columns, sources = dict(batch), [item]
        waiting = self._held.pop(stream, None)
        if waiting is not None:
            columns = _joined(_ended(waiting[0], columns), columns, grows=stream[1] is not None)
            sources = [waiting[1], item]
        steps = len(columns["rewards"])
        whole = max(steps - self.n + 1, 0)
        if whole < steps:
            # Copied, not to keep the whole fragment alive for a few of its rows.
            kept = {name: array[whole:].copy() for name, array in columns.items()}
            self._held[stream] = kept, item if whole else sources[0]
        if not whole:
            return None
        made = n_step_columns(columns, discount=self.discount, n=self.n)
        return Batch({name: array[:whole] for name, array in made.items()}, time_major=True), sources


def _ended(before: Columns, after: Columns) -> Columns:
    """The rows that wait, truncated at their end in environments whose next row does not follow on them."""
    count = min(before["rewards"].shape[1], after["rewards"].shape[1])
    breaks_N = ~(before["terminated"][-1, :count] | before["truncated"][-1, :count])
    for columns, at in ((before, -1), (after, 0)):
        if "valid" in columns:
            breaks_N &= columns["valid"][at, :count]
    follows_N = np.ones(count, np.bool_)
    for name in before:
        shown = after.get(name.removeprefix("next_")) if name.startswith("next_obs") else None
        if shown is not None and shown.shape[2:] == before[name].shape[2:]:
            alike = before[name][-1, :count] == shown[0, :count]
            follows_N &= alike.reshape(count, -1).all(-1)
    breaks_N &= ~follows_N
    if not breaks_N.any():
        return before
    truncated = before["truncated"].copy()
    truncated[-1, :count] |= breaks_N
    return {**before, "truncated": truncated}


def _joined(before: Columns, after: Columns, *, grows: bool) -> dict[str, Array]:
    """Two fragments in a row, along time; grows: agents that joined have further columns in the second."""
    envs = before["rewards"].shape[1], after["rewards"].shape[1]
    if grows and envs[0] < envs[1] and "valid" in before:
        more = ((0, 0), (0, envs[1] - envs[0]))
        before = {name: np.pad(array, (*more, *((0, 0),) * (array.ndim - 2))) for name, array in before.items()}
        envs = envs[1], envs[1]
    if envs[0] != envs[1]:
        raise ValueError(
            f"NStep carries rows of {envs[0]} environments, but the next fragment of the same origin has {envs[1]}; "
            "fragments must come one by one, before any are joined"
        )
    if before.keys() != after.keys():
        check_joinable(before, after, 1, depth=2, join_axis=0)
    return {name: np.concatenate((array, after[name])) for name, array in before.items()}
