"""Connect four on 7 columns and 6 rows, on bit boards; and a search two moves deep to measure players by."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from flowrl.rl.games.game import OVER, refuse

COLUMNS, ROWS = 7, 6
_HEIGHT = ROWS + 1  # bits of a column: an empty one on top keeps lines from running over
_TOPS = tuple(1 << (column * _HEIGHT + ROWS - 1) for column in range(COLUMNS))
_CELLS = np.array([[column * _HEIGHT + row for column in range(COLUMNS)] for row in range(ROWS)], np.int64)
_COLUMNS = np.array([[column * _HEIGHT + row for row in range(ROWS)] for column in range(COLUMNS)], np.int64)
_BOTTOMS = sum(1 << (column * _HEIGHT) for column in range(COLUMNS))
_BOARD = _BOTTOMS * ((1 << ROWS) - 1)
STONES = 2 * COLUMNS * ROWS
TACTICS = STONES + 4 * COLUMNS


@dataclass(frozen=True)
class ConnectFourState:
    """Stones of the player to move and of the other, a bit a cell; moves so far; whether the last one won.

    tactics: whether observations say what the next two moves can bring.
    """

    mine: int = 0
    theirs: int = 0
    moves: int = 0
    won: bool = False
    tactics: bool = False

    @property
    def player(self) -> int:
        """Who moves."""
        return OVER if self.won or self.moves == COLUMNS * ROWS else self.moves % 2

    def chances(self) -> Sequence[tuple[float, ConnectFourState]]:
        """Nothing is left to chance."""
        return ()

    def legal(self) -> Sequence[int]:
        """The columns that are not full."""
        taken = self.mine | self.theirs
        return [column for column in range(COLUMNS) if not taken & _TOPS[column]]

    def play(self, action: int) -> ConnectFourState:
        """A stone into a column."""
        taken = self.mine | self.theirs
        if not 0 <= action < COLUMNS or taken & _TOPS[action]:
            refuse(action, self.legal(), "connect four")
        cell = (taken + (1 << (action * _HEIGHT))) & (((1 << ROWS) - 1) << (action * _HEIGHT))
        mine = self.mine | (cell & ~taken)
        return ConnectFourState(self.theirs, mine, self.moves + 1, has_four(mine), self.tactics)

    def infoset(self) -> Hashable:
        """Both players see everything."""
        return self.mine, self.theirs

    def observation(self) -> npt.NDArray[np.float32]:
        """(84,): the own stones, then the other's, row by row from below.

        With tactics (196,). Behind the stones, in the same order: the empty cells where a stone of one's own would make
        four, and those where the other's would. Then four times by column: whether a stone there wins; whether the
        other's would; whether one there lets the other win right above it; whether the cell right above it is one where
        the own stone would win.
        """
        stones = _bits(self.mine, self.theirs)[:, _CELLS]
        if not self.tactics:
            return stones.reshape(-1).astype(np.float32)
        taken = self.mine | self.theirs
        free = (taken + _BOTTOMS) & _BOARD  # where a stone would come to lie
        above = (free << 1) & _BOARD
        ours, others = (completing(side) & ~taken for side in (self.mine, self.theirs))
        cells = _bits(ours, others)[:, _CELLS]
        columns = _bits(ours & free, others & free, others & above, ours & above)[:, _COLUMNS].any(-1)
        return np.concatenate([part.reshape(-1) for part in (stones, cells, columns)]).astype(np.float32)

    def gain(self) -> float:
        """1 or −1 for a line of four, 0 for a full board."""
        if not self.won:
            return 0.0
        return 1.0 if self.moves % 2 == 1 else -1.0  # the last stone was player 0's


@dataclass(frozen=True)
class ConnectFour:
    """Connect four; too large to be solved here.

    tactics: observations say beside the stones what the next two moves can bring (`ConnectFourState.observation`), as
    the first networks for Go were told of captures and ladders: a perceptron learns that slowly from stones alone.
    """

    tactics: bool = False
    num_actions: ClassVar[int] = COLUMNS

    @property
    def obs_size(self) -> int:
        """84, with tactics 196."""
        return STONES + TACTICS * self.tactics

    def initial(self) -> ConnectFourState:
        """The empty board."""
        return ConnectFourState(tactics=self.tactics)


def _bits(*boards: int) -> npt.NDArray[np.uint8]:
    """(boards, 64)."""
    words = b"".join(board.to_bytes(8, "little") for board in boards)
    return np.unpackbits(np.frombuffer(words, np.uint8).reshape(-1, 8), axis=1, bitorder="little")


def completing(stones: int) -> int:
    """The cells, also taken ones, where one more of these stones would stand in a line of four."""
    found = (stones << 1) & (stones << 2) & (stones << 3)  # upright
    for step in (_HEIGHT, _HEIGHT - 1, _HEIGHT + 1):
        behind, before = (stones << step) & (stones << 2 * step), (stones >> step) & (stones >> 2 * step)
        found |= behind & ((stones << 3 * step) | (stones >> step))
        found |= before & ((stones >> 3 * step) | (stones << step))
    return found & _BOARD


def has_four(stones: int) -> bool:
    """Whether four of these stones stand in a line."""
    for step in (1, _HEIGHT, _HEIGHT - 1, _HEIGHT + 1):
        pairs = stones & (stones >> step)
        if pairs & (pairs >> (2 * step)):
            return True
    return False


def state_of(obs: npt.NDArray[Any]) -> ConnectFourState:
    """The situation of an observation, of either kind."""
    obs = np.asarray(obs).reshape(-1)
    boards = [sum(1 << int(bit) for bit in _CELLS.reshape(-1)[half > 0.5]) for half in np.split(obs[:STONES], 2)]
    mine, theirs = boards
    return ConnectFourState(mine, theirs, mine.bit_count() + theirs.bit_count(), tactics=len(obs) > STONES)


def two_ply(obs: npt.NDArray[Any], action_space: Any, rng: np.random.Generator) -> int:
    """A column by a search of two moves: one that wins, else one after which the other cannot win at once, else any.

    Equally good ones are drawn. To be used as `Scripted(two_ply)`.
    """
    state = state_of(obs)
    best: list[int] = []
    most = -2
    for column in state.legal():
        after = state.play(column)
        loses = not after.won and any(after.play(reply).won for reply in after.legal())
        value = int(after.won) - int(loses)
        if value > most:
            best, most = [], value
        if value == most:
            best.append(column)
    return int(best[rng.integers(len(best))])
