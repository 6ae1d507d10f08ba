"""Which rows make a sequence or an episode: cut from what each environment did, one row after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flowrl.batch import Batch
from flowrl.rl.replay.rows import check_same

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
STATE = "state/"


@dataclass
class Cut:
    """New items: the numbers of their rows (all (n_i,)), and the state before the first of each."""

    rows: list[Ints]
    states: dict[str, list[Array]]

    def only(self, chosen: list[int]) -> Cut:
        """Those of these indices."""
        return Cut([self.rows[i] for i in chosen], {n: [each[i] for i in chosen] for n, each in self.states.items()})


@dataclass
class _Open:
    """What an environment of a stream did since its last item: row numbers, and the state before each."""

    rows: Ints
    states: dict[str, Array]


class Cutter:
    """Cuts each environment's valid rows into sequences of `length` rows, a new one every `period` rows.

    length None: into episodes. Rows that are no transitions are left out, so that a sequence may go over an episode's
    end into the next (the column `starts` says where).

    A batch of a `stream` goes on where the last one of that stream ended. One of no stream stands alone: its last
    sequence ends with its last row, even if it then overlaps the one before by more, or is shorter than `length`;
    episodes begin with it, and one that does not end in it is left out. An item of more than `most` rows is, too.
    """

    def __init__(self, length: int | None, period: int, most: int):
        self.length, self.period, self.most = length, period, most
        self.kinds: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] | None = None  # of the states
        self._open: dict[str, _Open] = {}

    def check(self, batch: Batch) -> None:
        """Nothing, if a batch can be cut as those before it.

        Raises:
            ValueError: episodes are wanted, and no column says where they end; or its states are others than before.
        """
        if self.length is None and "terminated" not in batch and "truncated" not in batch:
            raise ValueError(f"episodes need the columns terminated and truncated, which say where they end: {batch!r}")
        depth = len(batch.leading)
        states = {name: array for name, array in batch.items() if name.startswith(STATE)}
        if self.kinds is None:
            self.kinds = {name: (array.dtype, array.shape[depth:]) for name, array in states.items()}
        check_same(states, depth, self.kinds)

    def check_spans(self, made: Cut, capacity: int) -> None:
        """Nothing, if sequences of rows like these can be whole in a shard of so many rows.

        Raises:
            ValueError: the rows of other environments between theirs are too many.
        """
        span = min((int(rows[-1] - rows[0]) + 1 for rows in made.rows), default=0)
        if self.length is not None and span > capacity:
            raise ValueError(
                f"a sequence of {self.length} rows of one environment goes over {span} rows of all, and capacity="
                f"{capacity} keeps fewer, so none could ever be drawn: raise the capacity"
            )

    def cut(self, batch: Batch, first: int, stream: int | str | None) -> Cut:
        """The items that a batch completes, whose valid rows have the numbers from `first` on."""
        grid = batch.leading if batch.time_major else (batch.rows, 1)
        valid_TN = batch.valid.reshape(grid)
        number_TN = np.cumsum(valid_TN.reshape(-1)).reshape(grid) + (first - 1)
        states = {n: a.reshape(*grid, *a.shape[len(batch.leading) :]) for n, a in batch.items() if n.startswith(STATE)}
        done = batch.get("terminated", np.zeros(grid, np.bool_)) | batch.get("truncated", np.zeros(grid, np.bool_))
        done_TN = np.asarray(done).reshape(grid)
        made = Cut([], {name: [] for name in states})
        for n in range(grid[1]):
            at = np.flatnonzero(valid_TN[:, n])
            mine = _Open(number_TN[at, n], {name: state[at, n] for name, state in states.items()})
            ends = done_TN[at, n]
            before = self._open.pop(f"{stream}/{n}", None)
            known = len(before.rows) if before is not None else 0
            if before is not None:
                mine = _joined(before, mine)
                ends = np.concatenate([np.zeros(known, np.bool_), ends])
            rest = self._episodes(mine, ends, made) if self.length is None else self._sequences(mine, made, stream)
            if stream is not None:
                rest = max(rest, len(mine.rows) - self.most - 1)  # too long already, however it ends
                self._open[f"{stream}/{n}"] = _part(mine, slice(rest, None))
        return made

    def _sequences(self, mine: _Open, made: Cut, stream: int | str | None) -> int:
        assert self.length is not None
        start, count = 0, len(mine.rows)
        while start + self.length <= count:
            _append(made, _part(mine, slice(start, start + self.length)))
            start += self.period
        covered = start - self.period + self.length if start else 0
        if stream is None and covered < count:
            _append(made, _part(mine, slice(max(0, count - self.length), count)))
        return start

    def _episodes(self, mine: _Open, ends: npt.NDArray[np.bool_], made: Cut) -> int:
        start = 0
        for end in np.flatnonzero(ends).tolist():
            if end - start < self.most:
                _append(made, _part(mine, slice(start, end + 1)))
            start = end + 1
        return start

    def get_state(self) -> dict[str, Any]:
        """What streams have open."""
        return {key: {"rows": each.rows, "states": dict(each.states)} for key, each in self._open.items()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state."""
        self._open = {
            key: _Open(np.asarray(each["rows"]), {name: np.asarray(a) for name, a in each["states"].items()})
            for key, each in state.items()
        }


def _append(made: Cut, part: _Open) -> None:
    made.rows.append(part.rows)
    for name, states in part.states.items():
        made.states[name].append(states[0])


def _part(mine: _Open, rows: slice) -> _Open:
    return _Open(mine.rows[rows].copy(), {name: states[rows].copy() for name, states in mine.states.items()})


def _joined(a: _Open, b: _Open) -> _Open:
    states = {name: np.concatenate([a.states[name], b.states[name]]) for name in a.states}
    return _Open(np.concatenate([a.rows, b.rows]), states)


class Items:
    """The rows of each item of a pool by its place, and the state before the first."""

    def __init__(self, cutter: Cutter):
        self.cutter = cutter
        self._rows: dict[int, Ints] = {}
        self._states: dict[int, dict[str, Array]] = {}

    def put(self, places: Ints, made: Cut) -> None:
        """New items at these places."""
        for i, place in enumerate(places.tolist()):
            self._rows[place] = made.rows[i]
            self._states[place] = {name: states[i] for name, states in made.states.items()}

    def outdated(self, oldest: int) -> Ints:
        """The places of items that have lost a row: the row of number `oldest` is the first that is there."""
        gone = [place for place, rows in self._rows.items() if rows[0] < oldest]
        for place in gone:
            del self._rows[place], self._states[place]
        return np.array(gone, np.int64)

    def rows_at(self, places: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """The numbers of the rows of items, time-major (L, n), and which count: short ones repeat their last."""
        each = [self._rows[place] for place in places.tolist()]
        lengths = np.array([len(rows) for rows in each])
        longest = int(lengths.max()) if self.cutter.length is None else self.cutter.length
        at = np.minimum(np.arange(longest)[:, None], lengths - 1)
        offsets = np.cumsum(lengths) - lengths
        valid: npt.NDArray[np.bool_] = np.arange(longest)[:, None] < lengths
        return np.concatenate(each)[at + offsets], valid

    def states_at(self, places: Ints, steps: int) -> dict[str, Array]:
        """The state before each item (n, ...), by column, as seen (steps, n, ...) at every step."""
        each = [self._states[place] for place in places.tolist()]
        stacked = {name: np.stack([states[name] for states in each]) for name in each[0]}
        return {name: np.broadcast_to(states, (steps, *states.shape)) for name, states in stacked.items()}

    def get_state(self) -> dict[str, Any]:
        """The items, and what streams have open."""
        places = list(self._rows)
        rows = [self._rows[place] for place in places]
        names = self._states[places[0]] if places else {}
        return {
            "places": np.array(places, np.int64),
            "lengths": np.array([len(each) for each in rows], np.int64),
            "rows": np.concatenate(rows) if rows else np.zeros(0, np.int64),
            "states": {name: np.stack([self._states[place][name] for place in places]) for name in names},
            "open": self.cutter.get_state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state."""
        places = np.asarray(state["places"]).tolist()
        parts = np.split(np.asarray(state["rows"]), np.cumsum(np.asarray(state["lengths"]))[:-1]) if places else []
        self._rows = dict(zip(places, parts, strict=True))
        names = {name: np.asarray(each) for name, each in state["states"].items()}
        self._states = {place: {name: each[i] for name, each in names.items()} for i, place in enumerate(places)}
        self.cutter.kinds = {name: (each.dtype, each.shape[1:]) for name, each in names.items()} if places else None
        self.cutter.set_state(state["open"])
