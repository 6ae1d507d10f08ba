"""The pacing of one replay group: how many rows went in and came out, what each shard holds, and who must wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flowrl.errors import ActorDied
from flowrl.failures import Raise, Restart

if TYPE_CHECKING:
    from flowrl.engine.call import ActorState
    from flowrl.engine.cursors import Cursor
    from flowrl.pacing import Pacing


class Stock:
    """What the driver knows of one shard, from the answers that were taken in."""

    __slots__ = ("drawn", "inserted", "mass", "restarts", "size", "state")

    def __init__(self, state: ActorState):
        self.state = state
        self.size, self.mass = 0, 0.0
        self.inserted = self.drawn = 0  # rows, ever
        self.restarts = 0  # in a row


class Limiter:
    """Counts rows in and out of one replay group; says whether more may go, and what the death of a shard means.

    With diff = inserted · samples_per_insert - sampled (Reverb's SampleToInsertRatio, arXiv:2102.04736), rows on their
    way included, and c = min_size · samples_per_insert,

        an insert of n rows may go where   diff + n · samples_per_insert <= c + error_buffer, or min_size is not
                                           reached, or no shard has the rows of a sample (max_times_sampled)
        a sample of n rows may go where    diff - n >= c - error_buffer, and min_size rows are stored

    Without an error_buffer it is the least with which one of the two always may go and no window is in vain: where
    inserts are ahead as far as they may be, all samples that may be in flight can go, and the other way round. With the
    largest insert so far (times samples_per_insert) I, i of them in flight, the largest sample S, and samples of D rows
    in flight, that is the largest of I, S, (D + I) / 2 and (i · I + S) / 2.
    """

    def __init__(self, run: Any, name: str, pacing: Pacing, states: Sequence[ActorState]):
        self.run, self.name, self.pacing = run, name, pacing
        self.stocks = {state: Stock(state) for state in states}
        self.living = list(self.stocks.values())
        self.on_failure: Any = None
        self.stores: list[Cursor] = []
        self._inserts_in_flight = 0  # of all who store
        self._samples_in_flight = 0  # of all who draw, in rows
        self.inserted = self.sampled = 0  # rows over all shards, ever; those that a sample will bring are counted
        self.coming = 0  # rows on their way into a shard
        self.closed = False  # it watches to the end
        self._largest_insert = self._largest_sample = 0
        self._total = 0
        for state in states:
            run.watch(state, self)

    # ---------------------------------------------------------------- more shards, and fewer

    def join(self, states: Sequence[ActorState]) -> None:
        """Shards are new, and empty; they are up and have been greeted."""
        for state in states:
            stock = self.stocks[state] = Stock(state)
            self.living.append(stock)
            self.run.watch(state, self)
        self.run.moved += 1

    def leave(self, states: Sequence[ActorState]) -> int:
        """Shards have left: how many rows went with them."""
        going = [self.stocks.pop(state) for state in states]
        rows = sum(stock.size for stock in going if stock in self.living)
        self.living = [stock for stock in self.living if stock not in going]
        self._sum()
        counted = (("shards_removed", float(len(going))), ("rows_lost", float(rows)))
        self.run.accounts.merge([(self.name, None, what, "sum", count, 1.0) for what, count in counted])
        return rows

    # ---------------------------------------------------------------- what may go

    @property
    def size(self) -> int:
        """Rows stored in the living shards."""
        return self._total

    @property
    def needed(self) -> int:
        """How many rows must be stored before the first is drawn: min_size, in proportion to the shards that live."""
        return max(1, -(-self.pacing.min_size * len(self.living) // len(self.stocks)))

    @property
    def buffer(self) -> float:
        """How far samples and inserts may be apart from their ratio, in samples."""
        if self.pacing.error_buffer is not None:
            return self.pacing.error_buffer
        insert, sample = self._largest_insert * (self.pacing.samples_per_insert or 0.0), self._largest_sample
        inserts, samples = insert * self._inserts_in_flight, self._samples_in_flight
        return max(insert, sample, (samples + insert) / 2, (inserts + sample) / 2)

    def stored_by(self, store: Cursor, in_flight: int) -> None:
        """One more stores, with so many inserts out at once."""
        self.stores.append(store)
        self._inserts_in_flight += in_flight

    def drawn_by(self, rows: int, in_flight: int) -> None:
        """One more draws samples of so many rows, of which so many are out at once."""
        self._largest_sample = max(self._largest_sample, rows)
        self._samples_in_flight += rows * in_flight

    def may_insert(self, rows: int) -> bool:
        """Whether an item of so many rows may be sent to a shard now."""
        self._largest_insert = max(self._largest_insert, rows)
        if not self.living:  # all are being started again
            return False
        ratio = self.pacing.samples_per_insert
        if ratio is None or self._total + self.coming < self.needed or not self._any_lasts(self._largest_sample):
            return True
        ahead = (self.inserted + self.coming + rows - self.pacing.min_size) * ratio - self.sampled
        return ahead <= self.buffer

    def may_sample(self, rows: int) -> bool:
        """Whether so many rows may be drawn now."""
        if not self.living or self._total < self.needed:
            return False
        if not self._any_lasts(rows):
            return False
        ratio = self.pacing.samples_per_insert
        if ratio is None:
            return True
        ahead = (self.inserted + self.coming - self.pacing.min_size) * ratio - self.sampled
        return ahead - rows >= -self.buffer

    def choose(self, rows: int, draw: Callable[[], float]) -> Stock:
        """A shard for a sample that may go, in proportion to its mass. draw: gives a random number in [0, 1)."""
        able = self.living
        if self.pacing.max_times_sampled is not None:
            able = [stock for stock in able if self._lasts(stock, rows)]
        masses = [stock.mass for stock in able]
        if len(able) == 1 or sum(masses) <= 0:
            return next((stock for stock in able if stock.size), able[0])
        left = draw() * sum(masses)
        for stock, mass in zip(able, masses, strict=True):
            left -= mass
            if left < 0:
                return stock
        return next(stock for stock in reversed(able) if stock.mass > 0)  # rounding

    def _any_lasts(self, rows: int) -> bool:
        return self.pacing.max_times_sampled is None or any(self._lasts(stock, rows) for stock in self.living)

    def _lasts(self, stock: Stock, rows: int) -> bool:
        times = self.pacing.max_times_sampled
        return times is None or stock.inserted * times - stock.drawn >= rows

    # ---------------------------------------------------------------- what went

    def sent(self, rows: int) -> None:
        """An item is on its way to a shard."""
        self.coming += rows

    def stored(self, state: ActorState, rows: int, said: Mapping[str, float]) -> int:
        """A shard has acknowledged an item sent with so many rows; returns how many it has stored.

        The metrics `rows` and `samples_per_insert` of the group say what that came to, all shards together.
        """
        stored = int(said.get("inserted", rows))
        self.coming -= rows
        self.inserted += stored
        stock = self.stocks.get(state)
        if stock is None:  # the shard has left since
            self.run.accounts.merge([(self.name, None, "rows_lost", "sum", float(stored), 1.0)])
            return stored
        stock.restarts = 0
        stock.inserted += stored
        stock.drawn += int(said.get("forgone", 0))  # overwritten before it was drawn as often as it might
        if stock in self.living:
            self._note(stock, said, stock.size + stored)
        ratio = self.sampled / max(self.inserted - self.pacing.min_size, 1)
        told = (("rows", float(self._total)), ("samples_per_insert", ratio if self.sampled else 0.0))
        self.run.accounts.merge([(self.name, None, what, "last", value, 1.0) for what, value in told])
        return stored

    def lost(self, rows: int) -> None:
        """An item that was on its way died with its shard."""
        self.coming -= rows

    def drawn(self, stock: Stock, rows: int) -> None:
        """A sample was asked for."""
        self.sampled += rows
        stock.drawn += rows

    def answered(self, stock: Stock, rows: int, said: Mapping[str, float]) -> None:
        """A shard has given a sample that was asked for with so many rows."""
        more = int(said.get("sampled", rows)) - rows
        self.sampled += more
        stock.drawn += more
        if stock in self.living:
            self._note(stock, said, stock.size)

    def undrawn(self, stock: Stock, rows: int) -> None:
        """A sample that was asked for died with its shard."""
        self.sampled -= rows
        stock.drawn -= rows

    def _note(self, stock: Stock, said: Mapping[str, float], size: int) -> None:
        stock.size = int(said.get("size", size))
        stock.mass = float(said.get("mass", stock.size))
        self._sum()

    def _sum(self) -> None:
        self._total = sum(stock.size for stock in self.living)

    # ---------------------------------------------------------------- deaths

    def died(self, state: ActorState, reason: str) -> None:
        """A shard's process has ended: its rows are lost and counted; the others go on, and it may be started again.

        Raises:
            ActorDied: it was the last or has died too often, or the policy is Raise().
        """
        stock = self.stocks[state]
        if stock in self.living:  # else it died again before it was up
            self.living.remove(stock)
            self._sum()
            counted = (("shards_lost", 1.0), ("rows_lost", float(stock.size)))
            self.run.accounts.merge([(self.name, None, what, "sum", count, 1.0) for what, count in counted])
        policy = self.on_failure
        if isinstance(policy, Restart) and stock.restarts < policy.times:
            stock.restarts += 1
            self.run.restart(state, policy.backoff_s * 2 ** (stock.restarts - 1))
            return
        if isinstance(policy, Raise | Restart):
            tried = f" after {stock.restarts} restarts" if stock.restarts else ""
            raise ActorDied(
                f"{state.name} died{tried} with {stock.size} rows: {reason}; its group has on_failure={policy!r} "
                "(Ignore() goes on with the other shards, Restart(n) starts it again, empty)"
            )
        if not self.living:
            raise ActorDied(f"every shard of {self.name} has died; the last was {state.name}: {reason}")

    def restarted(self, state: ActorState) -> None:
        """A shard was started again, empty."""
        stock = self.stocks[state]
        stock.size, stock.mass = 0, 0.0
        if stock not in self.living:
            self.living.append(stock)
            self.living.sort(key=lambda one: one.state.index)
            self.run.moved += 1  # who waited for it may go on

    # ---------------------------------------------------------------- why somebody waits

    @property
    def fed(self) -> bool:
        """Whether somebody may store more."""
        return any(not store.closed for store in self.stores)

    @property
    def knob_of_samples(self) -> str:
        """What to turn where samples wait."""
        if self.pacing.samples_per_insert is not None:
            return f"samples wait for rows: store more (more workers), or raise samples_per_insert of {self.name}"
        what = "min_size" if self.pacing.max_times_sampled is None else "min_size, or raise max_times_sampled,"
        return f"samples wait for rows: store more (more workers), or lower {what} of {self.name}"

    @property
    def knob_of_inserts(self) -> str:
        """What to turn where inserts wait."""
        return f"inserts wait for samples: train faster, or lower samples_per_insert of {self.name}"

    def why_no_sample(self, rows: int) -> str:
        """Why so many rows may not be drawn, and what would help."""
        if self._total < self.needed:
            return (
                f"{self.name} holds {self._total} of the {self.needed} rows that must be stored before any is drawn"
                + ("" if self.fed else ", and nobody will store more: lower its min_size, or store more")
            )
        if not self._any_lasts(rows):
            return (
                f"no shard of {self.name} has {rows} samples left, and nobody will store more: raise "
                f"max_times_sampled={self.pacing.max_times_sampled}, or draw fewer at a time"
            )
        return (
            f"{self.sampled} rows were drawn for {self.inserted} stored ones, {rows} more are too many for "
            f"{self._ratio()}: raise error_buffer, or leave it at None"
        )

    def why_no_insert(self, rows: int) -> str:
        """Why so many rows may not be stored, and what would help."""
        if not self.living:
            return f"every shard of {self.name} is being started again"
        return (
            f"{self.inserted} rows were stored for {self.sampled} drawn ones, {rows} more are too many for "
            f"{self._ratio()}: raise error_buffer, or leave it at None, and see that somebody draws"
        )

    def _ratio(self) -> str:
        pacing = self.pacing
        return (
            f"samples_per_insert={pacing.samples_per_insert:g} of {self.name} "
            f"(min_size={pacing.min_size}, error_buffer={self.buffer:g})"
        )
