"""What a two-player zero-sum game is: immutable states, whose turn it is, and what the player to move knows."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

CHANCE, OVER = -1, -2  # in place of a player


class State(Protocol):
    """One situation of a game; to play makes another."""

    @property
    def player(self) -> int:
        """Who moves, 0 or 1; CHANCE where a card is dealt; OVER at the end."""
        ...

    def chances(self) -> Sequence[tuple[float, State]]:
        """What chance may bring, with its probability."""
        ...

    def legal(self) -> Sequence[int]:
        """The actions of the player to move, in order."""
        ...

    def play(self, action: int) -> State:
        """The situation after an action.

        Raises:
            ValueError: the action is not legal.
        """
        ...

    def infoset(self) -> Hashable:
        """What the player to move knows; equal in situations that it cannot tell apart."""
        ...

    def observation(self) -> npt.NDArray[np.float32]:
        """The same as numbers (obs_size,), for a network."""
        ...

    def gain(self) -> float:
        """What player 0 has won at the end, and player 1 lost."""
        ...


class Game(Protocol):
    """The rules. Equal games are the same game, so a game may be a key."""

    @property
    def num_actions(self) -> int:
        """How many different actions there are, legal or not."""
        ...

    @property
    def obs_size(self) -> int:
        """How many numbers an observation has."""
        ...

    def initial(self) -> State:
        """How it begins."""
        ...

    def __hash__(self) -> int: ...


def refuse(action: int, legal: Sequence[int], game: str) -> None:
    """Nothing, if an action is legal.

    Raises:
        ValueError: it is not.
    """
    if action not in legal:
        raise ValueError(f"action {action!r} is not legal in this situation of {game}; legal are {list(legal)}")
