"""Against whom a league's players play: self-play, fictitious self-play, and AlphaStar's ways."""

from __future__ import annotations

from dataclasses import dataclass

from flowrl.numbers import check_fields

RULES = ("latest", "uniform", "prioritized", "forgotten", "rivals")


@dataclass(frozen=True)
class Matchmaking:
    """The share of a player's games that each rule fills; they are scaled to add up to 1.

    Raises:
        ValueError: a share that is negative or not finite, or none above 0.
    """

    latest: float = 0.0
    """Against itself as it is now; both sides' experience is trained on."""
    uniform: float = 0.0
    """Against any snapshot, each with the same probability: fictitious self-play (Heinrich et al., 2015)."""
    prioritized: float = 0.0
    """Against a snapshot of any player, the likelier the more often it wins: f(x) = (1 − x)^hardness."""
    forgotten: float = 0.0
    """The same among snapshots of main players and exploiters that are beaten in fewer than 70% of games; where there
    are none, against itself."""
    rivals: float = 0.0
    """Against the main players as they are now. One that is beaten in fewer than 20% of games is too strong to learn
    from: its snapshots take its place, f(x) = x (1 − x)."""
    exploiter: bool = False
    """Whether it only looks for others' weaknesses: exploiters have no rivals, and are none."""
    begin_again: float = 0.0
    """With what probability an exploiter begins again with its first weights, once it was frozen."""

    def __post_init__(self) -> None:
        check_fields(self, not_negative=RULES, fraction=("begin_again",))
        if not sum(getattr(self, rule) for rule in RULES) > 0:
            raise ValueError(f"one of {', '.join(RULES)} must be above 0, got {self}")
        if self.begin_again and not self.exploiter:
            raise ValueError(f"begin_again={self.begin_again} is for exploiters: give exploiter=True as well")

    def shares(self) -> dict[str, float]:
        """By rule, of those above 0, its share of the games; together 1."""
        total = sum(getattr(self, rule) for rule in RULES)
        return {rule: getattr(self, rule) / total for rule in RULES if getattr(self, rule) > 0}


MATCHMAKING = {
    "latest": Matchmaking(latest=1.0),
    "uniform": Matchmaking(uniform=1.0),
    "mixed": Matchmaking(latest=0.5, uniform=0.5),
    "prioritized": Matchmaking(prioritized=1.0),
    "main": Matchmaking(latest=0.35, prioritized=0.5, forgotten=0.15),
    "main_exploiter": Matchmaking(rivals=1.0, exploiter=True, begin_again=1.0),
    "league_exploiter": Matchmaking(prioritized=1.0, exploiter=True, begin_again=0.25),
}
"""By name; the last three are those of AlphaStar (Vinyals et al., 2019, methods)."""


def matchmaking_of(given: Matchmaking | str) -> Matchmaking:
    """A matchmaking, by itself or by its name.

    Raises:
        ValueError: no such name.
    """
    if isinstance(given, Matchmaking):
        return given
    if given not in MATCHMAKING:
        raise ValueError(f"matchmaking must be a Matchmaking or one of {', '.join(MATCHMAKING)}, got {given!r}")
    return MATCHMAKING[given]
