"""Kuhn poker: three cards, one bet; its equilibria are known in closed form (Kuhn, 1950)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flowrl.rl.games.game import CHANCE, OVER, refuse

PASS, BET = 0, 1
_FOLDED = {(BET, PASS): 1.0, (PASS, BET, PASS): -1.0}  # what player 0 then has won
_SHOWN = {(PASS, PASS): 1.0, (BET, BET): 2.0, (PASS, BET, BET): 2.0}  # what the higher card wins


@dataclass(frozen=True)
class KuhnState:
    """cards: of players 0 and 1, of 0 (lowest) to 2; empty before the deal. actions: so far."""

    cards: tuple[int, ...] = ()
    actions: tuple[int, ...] = ()

    @property
    def player(self) -> int:
        """Who moves."""
        if not self.cards:
            return CHANCE
        return OVER if self.actions in _FOLDED or self.actions in _SHOWN else len(self.actions) % 2

    def chances(self) -> Sequence[tuple[float, KuhnState]]:
        """The six deals."""
        return [(1 / 6, KuhnState((a, b))) for a in range(3) for b in range(3) if a != b]

    def legal(self) -> Sequence[int]:
        """Pass (check or fold) and bet (or call)."""
        return (PASS, BET)

    def play(self, action: int) -> KuhnState:
        """The situation after an action."""
        refuse(action, self.legal(), "Kuhn poker")
        return KuhnState(self.cards, (*self.actions, action))

    def infoset(self) -> Hashable:
        """The own card and the actions."""
        return self.cards[self.player], self.actions

    def observation(self) -> npt.NDArray[np.float32]:
        """(7,): the card, one-hot, and the first two actions, one-hot each."""
        obs = np.zeros(Kuhn.obs_size, np.float32)
        obs[self.cards[self.player]] = 1
        for i, action in enumerate(self.actions):
            obs[3 + 2 * i + action] = 1
        return obs

    def gain(self) -> float:
        """What player 0 has won."""
        if self.actions in _FOLDED:
            return _FOLDED[self.actions]
        return _SHOWN[self.actions] * (1.0 if self.cards[0] > self.cards[1] else -1.0)


@dataclass(frozen=True)
class Kuhn:
    """Kuhn poker; an ante and a bet are 1. Its value is −1/18 for player 0."""

    num_actions = 2
    obs_size = 7

    def initial(self) -> KuhnState:
        """Before the deal."""
        return KuhnState()

    def equilibrium(self, alpha: float = 0.0) -> dict[Hashable, npt.NDArray[np.float64]]:
        """One of the Nash equilibria, all of which player 0 has by its choice of α in [0, 1/3] (Kuhn, 1950).

        Player 0 bets the lowest card with probability α, the highest with 3α, never the middle one, and calls with the
        middle one with α + 1/3. Player 1 bets the lowest card with 1/3 and the highest always, never the middle one,
        and calls with the middle one with 1/3.

        Raises:
            ValueError: α out of its range.
        """
        if not 0 <= alpha <= 1 / 3:
            raise ValueError(f"alpha must be from 0 to 1/3, got {alpha}")
        bets: dict[Hashable, float] = {
            (0, ()): alpha, (1, ()): 0.0, (2, ()): 3 * alpha,
            (0, (PASS, BET)): 0.0, (1, (PASS, BET)): alpha + 1 / 3, (2, (PASS, BET)): 1.0,
            (0, (PASS,)): 1 / 3, (1, (PASS,)): 0.0, (2, (PASS,)): 1.0,
            (0, (BET,)): 0.0, (1, (BET,)): 1 / 3, (2, (BET,)): 1.0,
        }  # fmt: skip
        return {infoset: np.array([1 - bet, bet]) for infoset, bet in bets.items()}
