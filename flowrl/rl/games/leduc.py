"""Leduc poker: six cards, two rounds of bets, one public card (Southey et al., 2005, arXiv:1207.1411)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flowrl.rl.games.game import CHANCE, OVER, refuse

FOLD, CALL, RAISE = 0, 1, 2
RANKS, SUITS, MOST_RAISES, BETS = 3, 2, 2, (2, 4)  # a bet of each round
Actions = tuple[int, ...]


@dataclass(frozen=True)
class LeducState:
    """cards: ranks of players 0 and 1. public: the rank of the third card, once it is dealt. rounds: actions of each.

    Cards of one rank differ in nothing, so states know ranks only, and chance how many cards have them.
    """

    cards: tuple[int, ...] = ()
    public: int | None = None
    rounds: tuple[Actions, ...] = ((),)

    @property
    def player(self) -> int:
        """Who moves; player 0 begins each round."""
        if not self.cards or (len(self.rounds) == 2 and self.public is None):
            return CHANCE
        last = self.rounds[-1]
        if FOLD in last or (len(self.rounds) == 2 and _closed(last)):
            return OVER
        return len(last) % 2

    def chances(self) -> Sequence[tuple[float, LeducState]]:
        """The two cards that are dealt, or the public one."""
        if not self.cards:
            deck = RANKS * SUITS
            return [
                (SUITS / deck * (SUITS - (a == b)) / (deck - 1), LeducState((a, b)))
                for a in range(RANKS)
                for b in range(RANKS)
            ]
        left = {rank: SUITS - self.cards.count(rank) for rank in range(RANKS)}
        total = sum(left.values())
        return [(n / total, LeducState(self.cards, rank, self.rounds)) for rank, n in left.items() if n]

    def legal(self) -> Sequence[int]:
        """Fold where there is a bet to call; call (or check); raise (or bet) twice a round at most."""
        last = self.rounds[-1]
        faces = bool(last) and last[-1] == RAISE
        return (*((FOLD,) if faces else ()), CALL, *((RAISE,) if last.count(RAISE) < MOST_RAISES else ()))

    def play(self, action: int) -> LeducState:
        """The situation after an action; a closed first round opens the second."""
        refuse(action, self.legal(), "Leduc poker")
        rounds = (*self.rounds[:-1], (*self.rounds[-1], action))
        if len(rounds) == 1 and action != FOLD and _closed(rounds[-1]):
            rounds = (*rounds, ())
        return LeducState(self.cards, self.public, rounds)

    def infoset(self) -> Hashable:
        """The own card, the public one and the actions."""
        return self.cards[self.player], self.public, self.rounds

    def observation(self) -> npt.NDArray[np.float32]:
        """(28,): whose turn, the own card, the public card and the actions (4 of each round at most), one-hot each."""
        obs = np.zeros(Leduc.obs_size, np.float32)
        player = self.player
        obs[player] = 1
        obs[2 + self.cards[player]] = 1
        if self.public is not None:
            obs[5 + self.public] = 1
        for number, actions in enumerate(self.rounds):
            for i, action in enumerate(actions):
                obs[8 + 10 * number + (2 * i) + (action == RAISE)] = 1
        return obs

    def gain(self) -> float:
        """What player 0 has won: what the loser has paid."""
        paid = self._paid()
        last = self.rounds[-1]
        if FOLD in last:
            loser = (len(last) - 1) % 2
            return float(paid[1]) if loser == 1 else -float(paid[0])
        strength = [(card == self.public, card) for card in self.cards]
        if strength[0] == strength[1]:
            return 0.0
        return float(paid[1]) if strength[0] > strength[1] else -float(paid[0])

    def _paid(self) -> list[int]:
        paid = [1, 1]  # the antes
        for bet, actions in zip(BETS, self.rounds, strict=False):
            for i, action in enumerate(actions):
                if action != FOLD:
                    paid[i % 2] = paid[1 - i % 2] + (bet if action == RAISE else 0)
        return paid


@dataclass(frozen=True)
class Leduc:
    """Leduc poker with antes of 1 and bets of 2 and 4."""

    num_actions = 3
    obs_size = 28

    def initial(self) -> LeducState:
        """Before the deal."""
        return LeducState()


def _closed(actions: Actions) -> bool:
    """Whether both have acted, and the last has called."""
    return len(actions) >= 2 and actions[-1] == CALL
