"""Rock, paper, scissors: both choose unseen; who plays anything but a third of each can be exploited."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flowrl.rl.games.game import OVER, refuse


@dataclass(frozen=True)
class RockPaperScissorsState:
    """actions: player 0's choice, which player 1 does not see, and player 1's."""

    actions: tuple[int, ...] = ()

    @property
    def player(self) -> int:
        """Who chooses."""
        return len(self.actions) if len(self.actions) < 2 else OVER

    def chances(self) -> Sequence[tuple[float, RockPaperScissorsState]]:
        """Nothing is left to chance."""
        return ()

    def legal(self) -> Sequence[int]:
        """Rock, paper, scissors."""
        return (0, 1, 2)

    def play(self, action: int) -> RockPaperScissorsState:
        """The situation after a choice."""
        refuse(action, self.legal(), "rock, paper, scissors")
        return RockPaperScissorsState((*self.actions, action))

    def infoset(self) -> Hashable:
        """Whose turn it is."""
        return self.player

    def observation(self) -> npt.NDArray[np.float32]:
        """(2,): whose turn, one-hot."""
        return np.eye(2, dtype=np.float32)[self.player]

    def gain(self) -> float:
        """1, 0 or −1: paper (1) beats rock (0), scissors (2) paper, rock scissors."""
        return (0.0, 1.0, -1.0)[(self.actions[0] - self.actions[1]) % 3]


@dataclass(frozen=True)
class RockPaperScissors:
    """Rock, paper, scissors; value 0."""

    num_actions = 3
    obs_size = 2

    def initial(self) -> RockPaperScissorsState:
        """Before both choose."""
        return RockPaperScissorsState()
