"""A league: the coordinator that keeps frozen snapshots, knows who beats whom, and says who plays whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from flowrl.numbers import check_finite, check_whole
from flowrl.ref import Answer
from flowrl.rl.matchmaking import Matchmaking, matchmaking_of
from flowrl.rl.standings import Standings

Floats = npt.NDArray[np.float32]
WEAK, STRONG = 0.2, 0.7  # AlphaStar's: below the one a rival is too strong, above the other an opponent is beaten
ENOUGH = 20  # games before an exploiter is said to beat somebody


@dataclass(frozen=True)
class Report:
    """What a worker tells a league.

    results: (member, games, scores added up, returns added up) of the player's games since the last report.
    has: the members whose weights the worker has, with their versions.
    """

    player: str
    results: tuple[tuple[str, int, float, float], ...] = ()
    has: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Lineup:
    """Whom a worker's player plays next: `members`, drawn with repetition, each with the same probability.

    weights: version and flat weights of those that the worker lacks.
    """

    members: tuple[str, ...]
    weights: Mapping[str, tuple[int, Floats]] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """What becomes of an exploiter: the snapshot that was taken of it, if one was, and whether it begins again."""

    snapshot: str | None = None
    begins_again: bool = False


class League:
    """The coordinator of self-play; an actor. Members are players, as they are now, and their frozen snapshots.

    A snapshot is called after its player and its number, "main:3". Workers tell results and are told opponents by
    `lineup`; learners' weights come by `put_weights` and `freeze`.

    Args:
        players: by id, a Matchmaking or the name of one: "latest", "uniform", "mixed", "prioritized", "main",
            "main_exploiter", "league_exploiter".
        hardness: p of prioritized fictitious self-play's (1 − x)^p, with x how often the player wins.
        decay: how much older games count, a game (see `Standings`).
        rating_step: Elo's factor K.
        max_snapshots: of each player; with one more the oldest is forgotten. None keeps all.
        seed: of the draws; the engine gives one.

    Raises:
        ValueError: no player, a name with ":", or a number out of range.
    """

    default_cpus: ClassVar[int] = 0

    def __init__(
        self,
        players: Mapping[str, Matchmaking | str],
        *,
        hardness: float = 2.0,
        decay: float = 0.99,
        rating_step: float = 16.0,
        max_snapshots: int | None = None,
        seed: int | np.random.SeedSequence | None = None,
    ):
        if not isinstance(players, Mapping):
            raise ValueError(
                f"players must be a mapping of ids to matchmakings, such as {{'main': 'mixed'}}, got {players!r}"
            )
        if not players or any(not name or ":" in name for name in players):
            raise ValueError(f"a league needs players, whose names are without ':'; got {list(players)}")
        for name, value in (("hardness", hardness), ("rating_step", rating_step)):
            check_finite(name, value)
            if not value > 0:
                raise ValueError(f"{name} must be above 0, got {value!r}")
        check_finite("decay", decay)
        if not 0 < decay <= 1:
            raise ValueError(f"decay must be above 0 and at most 1, got {decay!r}")
        if max_snapshots is not None:
            check_whole("max_snapshots", max_snapshots)
        self.players = {name: matchmaking_of(given) for name, given in players.items()}
        self._hardness, self._max_snapshots = hardness, max_snapshots
        self._rng = np.random.default_rng(seed)
        self._weights: dict[str, tuple[int, Floats]] = {}  # by member, its version and its flat weights
        self._frozen: dict[str, str] = {}  # by snapshot, its player; in order
        self._numbers = dict.fromkeys(self.players, 0)
        self._standings = Standings(decay=decay, step=rating_step)
        for name in self.players:
            self._standings.enter(name)

    # who is in it
    def put_weights(self, player: str, flat: Floats, version: int) -> None:
        """A player's newest weights, for those who play against it as it is now."""
        self._weights[self._known(player)] = (int(version), np.array(flat, np.float32))

    def freeze(self, player: str, flat: Floats, version: int) -> Answer[str]:
        """A snapshot of a player; its id."""
        self.put_weights(player, flat, version)
        self._numbers[player] += 1
        snapshot = f"{player}:{self._numbers[player]}"
        self._weights[snapshot], self._frozen[snapshot] = self._weights[player], player
        self._standings.enter(snapshot, like=player)
        mine = [name for name, owner in self._frozen.items() if owner == player]
        if self._max_snapshots is not None and len(mine) > self._max_snapshots:
            del self._frozen[mine[0]], self._weights[mine[0]]
            self._standings.leave(mine[0])
        return Answer(snapshot, {(player, "snapshots"): self._numbers[player]})

    def judge(self, player: str, flat: Floats, version: int, updates: int, at_most: int) -> Answer[Verdict]:
        """Takes an exploiter's newest weights, and says whether it is frozen now, and whether it then begins again.

        It is frozen after `at_most` updates, and from half of them on once it wins more than 70% of its games against
        all whom it looks for (AlphaStar's rule); it begins again with the probability of its matchmaking, and what it
        has won is then forgotten. updates: since it was frozen last.

        Raises:
            ValueError: the league has no such player.
        """
        self.put_weights(player, flat, version)
        if updates < at_most and (2 * updates < at_most or not self._beats_all(player)):
            return Answer(Verdict())
        frozen, chance = self.freeze(player, flat, version), self.players[player].begin_again
        again = chance > 0 and (chance >= 1 or float(self._rng.random()) < chance)
        if again:
            self._standings.forget(player)
        return Answer(Verdict(frozen.payload, again), frozen.metrics)

    def _beats_all(self, player: str) -> bool:
        kind = self.players[player]
        looks_for = self._present(player) if kind.rivals > 0 else []
        if kind.uniform + kind.prioritized + kind.forgotten > 0:
            looks_for += list(self._frozen)
        return bool(looks_for) and all(
            self._standings.games(player, name) >= ENOUGH and self._standings.win_rate(player, name) > STRONG
            for name in looks_for
        )

    def snapshots(self, player: str | None = None) -> dict[str, Floats]:
        """The flat weights of a player's snapshots, or of all, oldest first."""
        if player is not None:
            self._known(player)
        return {
            name: self._weights[name][1].copy()
            for name, owner in self._frozen.items()
            if player is None or owner == player
        }

    def _known(self, player: str) -> str:
        if player not in self.players:
            raise ValueError(f"no player {player!r} in this league; it has {', '.join(map(repr, self.players))}")
        return player

    # who plays whom
    def lineup(self, report: Report, count: int = 4) -> Answer[Lineup]:
        """Takes in a worker's results, and draws its next opponents.

        Metrics, by player: rating, and win_rate over its snapshots and those of the others.

        Raises:
            ValueError: the league has no such player.
        """
        player = self._known(report.player)
        for member, games, score, gain in report.results:
            if member in self._standings.ratings:  # else it was forgotten meanwhile
                self._standings.record(player, member, games, score, gain)
        chances = self.chances(player)
        names = list(chances)
        drawn = self._rng.choice(len(names), size=count, p=list(chances.values()))
        members = tuple(names[i] for i in drawn)
        lacking = {
            name: self._weights[name]
            for name in sorted(set(members) - {player})
            if report.has.get(name) != self._weights[name][0]
        }
        metrics = {(player, "rating"): self._standings.ratings[player]}
        rates = [self._standings.win_rate(player, name) for name in self._frozen]
        if rates:
            metrics[player, "win_rate"] = float(np.mean(rates))
        return Answer(Lineup(members, lacking), metrics)

    def chances(self, player: str) -> dict[str, float]:
        """With what probability a player meets each member, by its matchmaking; itself where a rule finds nobody."""
        total: dict[str, float] = {}
        for rule, share in self.players[self._known(player)].shares().items():
            for name, chance in self._by_rule(player, rule).items():
                total[name] = total.get(name, 0.0) + share * chance
        return total

    def _by_rule(self, player: str, rule: str) -> dict[str, float]:
        everybody = list(self._frozen)
        if rule == "uniform":
            found = dict.fromkeys(everybody, 1.0)
        elif rule == "prioritized":
            found = self._hard(player, everybody)
        elif rule == "forgotten":
            found = self._hard(player, self._forgotten(player))
        elif rule == "rivals":
            found = self._rivals(player)
        else:
            found = {}
        whole = sum(found.values())
        return {name: weight / whole for name, weight in found.items()} if whole > 0 else {player: 1.0}

    def _hard(self, player: str, names: Sequence[str]) -> dict[str, float]:
        weights = {name: (1 - self._standings.win_rate(player, name)) ** self._hardness for name in names}
        return weights if sum(weights.values()) > 0 else dict.fromkeys(names, 1.0)

    def _forgotten(self, player: str) -> list[str]:
        feared = [
            name
            for name, owner in self._frozen.items()
            if not self.players[owner].exploiter or self.players[owner].rivals > 0
        ]
        return [name for name in feared if self._standings.win_rate(player, name) < STRONG]

    def _rivals(self, player: str) -> dict[str, float]:
        found: dict[str, float] = {}
        for rival in self._present(player):
            past = [name for name, owner in self._frozen.items() if owner == rival]
            even = {name: (x := self._standings.win_rate(player, name)) * (1 - x) for name in past}
            if self._standings.win_rate(player, rival) >= WEAK or not sum(even.values()) > 0:
                found[rival] = found.get(rival, 0.0) + 1.0
            else:
                whole = sum(even.values())
                found |= {name: weight / whole for name, weight in even.items()}
        return found

    def _present(self, player: str) -> list[str]:
        """The other main players that have told their weights."""
        main = [name for name, kind in self.players.items() if not kind.exploiter and name != player]
        return [name for name in main if name in self._weights]

    # what is known
    def ratings(self) -> dict[str, float]:
        """Elo ratings by member."""
        return dict(self._standings.ratings)

    def payoffs(self) -> list[dict[str, Any]]:
        """A row for each pair that has met: player, member, games, win_rate and return (of the player, on average)."""
        return [
            {
                "player": player,
                "member": member,
                "games": one.games,
                "win_rate": one.score / one.weight,
                "return": one.gain / one.weight,
            }
            for (player, member), one in self._standings.payoffs.items()
        ]

    # state
    def get_state(self) -> dict[str, Any]:
        """Arrays, numbers and strings, enough to go on from here."""
        return {
            "weights": {name: flat.copy() for name, (_, flat) in self._weights.items()},
            "versions": {name: version for name, (version, _) in self._weights.items()},
            "frozen": dict(self._frozen),
            "numbers": dict(self._numbers),
            "standings": self._standings.get_state(),
            "rng": self._rng.bit_generator.state,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state.

        Raises:
            ValueError: it has a player that this league lacks.
        """
        for player in state["numbers"]:
            self._known(player)
        self._weights = {
            name: (int(state["versions"][name]), np.array(flat, np.float32)) for name, flat in state["weights"].items()
        }
        self._frozen = dict(state["frozen"])
        self._numbers = {**dict.fromkeys(self.players, 0), **state["numbers"]}
        self._standings.set_state(state["standings"])
        for name in self.players:
            self._standings.enter(name)
        self._rng.bit_generator.state = state["rng"]
