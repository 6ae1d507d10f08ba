"""Kuhn poker as a table of its 64 pure strategies a player, written down without the library's tree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import permutations, product
from typing import Any

SHOWN = {"pp": 1, "bb": 2, "pbb": 2}
FOLDED = {"bp": 1, "pbp": -1}
Bets = Callable[[int, str], float]  # card and actions so far, the probability of a bet


def gain(bets: tuple[Bets, Bets]) -> float:
    """What player 0 wins on average."""

    def value(cards: tuple[int, ...], actions: str) -> float:
        if actions in FOLDED:
            return FOLDED[actions]
        if actions in SHOWN:
            return SHOWN[actions] if cards[0] > cards[1] else -SHOWN[actions]
        player = len(actions) % 2
        bet = bets[player](cards[player], actions)
        return (1 - bet) * value(cards, actions + "p") + bet * value(cards, actions + "b")

    deals = list(permutations(range(3), 2))
    return sum(value(cards, "") for cards in deals) / len(deals)


def enumerated_best_response(game: Any, strategy: Mapping[Any, Any], player: int) -> float:
    """The most that any pure strategy of a player wins."""
    told = {"p": 0, "b": 1}

    def other(card: int, actions: str) -> float:
        return float(strategy[card, tuple(told[a] for a in actions)][1])

    situations = [(card, actions) for card in range(3) for actions in (("", "pb") if player == 0 else ("p", "b"))]
    values = []
    for choice in product((0.0, 1.0), repeat=len(situations)):
        table = dict(zip(situations, choice, strict=True))

        def mine(card: int, actions: str, table: dict[Any, float] = table) -> float:
            return table[card, actions]

        values.append(gain((mine, other)) if player == 0 else -gain((other, mine)))
    return max(values)
