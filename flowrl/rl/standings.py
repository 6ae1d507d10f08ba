"""What members of a league have won against each other: payoffs by pair, and Elo ratings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FIRST_RATING, SCALE = 1200.0, 400.0


@dataclass
class Payoff:
    """One player's games against one member.

    games: all. weight: games, of which older ones count less (see `Standings`). score, gain: over that weight, the sums
    of 1 for a win and ½ for a draw, and of returns.
    """

    games: int = 0
    weight: float = 0.0
    score: float = 0.0
    gain: float = 0.0


class Standings:
    """Payoffs and ratings, told by `record`.

    Of a payoff each further game makes what was before count `decay` times as much, since a player that learns is soon
    another (AlphaStar's is 0.99). Ratings are Elo's: both begin at 1200, a snapshot at its player's. After a game with
    score s (1, ½ or 0) of a against b

        E = 1 / (1 + 10^((R_b − R_a) / 400)),  R_a ← R_a + step (s − E),  R_b ← R_b − step (s − E).

    A record of n games counts as n games one after another, each with their mean score.
    """

    def __init__(self, *, decay: float, step: float):
        self.decay, self.step = decay, step
        self.payoffs: dict[tuple[str, str], Payoff] = {}
        self.ratings: dict[str, float] = {}

    def enter(self, member: str, like: str | None = None) -> None:
        """A new member, rated like another one."""
        self.ratings.setdefault(member, self.ratings.get(like, FIRST_RATING) if like is not None else FIRST_RATING)

    def leave(self, member: str) -> None:
        """Forgets a member."""
        self.ratings.pop(member, None)
        self.payoffs = {pair: payoff for pair, payoff in self.payoffs.items() if member not in pair}

    def forget(self, player: str) -> None:
        """A player that has become another: its games are forgotten, its rating is the first again."""
        self.leave(player)
        self.enter(player)

    def record(self, player: str, member: str, games: int, score: float, gain: float) -> None:
        """Games of a player against a member: how many, and the sums of scores and of the player's returns."""
        if games < 1:
            return
        payoff = self.payoffs.setdefault((player, member), Payoff())
        kept = self.decay**games
        fresh = float(games) if self.decay == 1 else (1 - kept) / (1 - self.decay)
        payoff.games += games
        payoff.weight = payoff.weight * kept + fresh
        payoff.score = payoff.score * kept + fresh * score / games
        payoff.gain = payoff.gain * kept + fresh * gain / games
        self._rate(player, member, games, score / games)

    def _rate(self, player: str, member: str, games: int, mean: float) -> None:
        mine, theirs = self.ratings[player], self.ratings[member]
        for _ in range(games):
            change = self.step * (mean - 1 / (1 + 10 ** ((theirs - mine) / SCALE)))
            mine, theirs = mine + change, theirs - change
        self.ratings[player], self.ratings[member] = mine, theirs

    def win_rate(self, player: str, member: str) -> float:
        """The mean score of a player against a member; ½ where they have not met."""
        met = self.payoffs.get((player, member))
        if met is not None:
            return met.score / met.weight
        other = self.payoffs.get((member, player))
        return 0.5 if other is None else 1 - other.score / other.weight

    def games(self, player: str, member: str) -> int:
        """How many games of a player against a member were told."""
        met = self.payoffs.get((player, member))
        return 0 if met is None else met.games

    def get_state(self) -> dict[str, Any]:
        """Numbers and strings."""
        return {
            "payoffs": [[*pair, one.games, one.weight, one.score, one.gain] for pair, one in self.payoffs.items()],
            "ratings": dict(self.ratings),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state."""
        rows: Sequence[Sequence[Any]] = state["payoffs"]
        self.payoffs = {
            (str(player), str(member)): Payoff(int(games), float(weight), float(score), float(gain))
            for player, member, games, weight, score, gain in rows
        }
        self.ratings = {str(member): float(rating) for member, rating in state["ratings"].items()}
