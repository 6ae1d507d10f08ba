"""What ties learners and workers to a league: snapshots of the one, opponents and results of the other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from flowrl.errors import ActorDied
from flowrl.handles import ActorGroup, ActorHandle, Pending, check_group
from flowrl.numbers import check_whole
from flowrl.operator import Context, Operator


@dataclass
class SnapshotToLeague(Operator[Any, Any]):
    """Hands each item on, after telling a league the weights that a learner has published, by reference.

    Each new version becomes what others play against as the player now; one in `every_updates` versions is frozen.
    With `exploiter=True` the league says when (`League.judge`), after `every_updates` versions at the latest, and
    whether the learner then begins again with its first weights, which are published: a SendWeights behind this
    operator carries them to the workers before their next fragment.

    league: a `flowrl.rl.League`. learner: the player's, whose `policy_id` is the player's id.

    Raises:
        GraphError: `league` is no group of leagues, or the learner of an exploiter cannot begin again.
        ValueError: every_updates below 1, or a learner whose description gives no policy_id.
    """

    wants: ClassVar[Literal["value", "reference"]] = "reference"
    hands_on: ClassVar[bool] = True

    league: ActorGroup[Any]
    learner: ActorGroup[Any]
    every_updates: int = 10
    exploiter: bool = False

    def __post_init__(self) -> None:
        check_group("SnapshotToLeague", "League", self.league, "judge" if self.exploiter else "freeze")
        if self.exploiter:
            check_group("SnapshotToLeague", "Learner", self.learner, "begin_again")
        check_whole("every_updates", self.every_updates)
        if "policy_id" not in self.learner.kwargs:
            raise ValueError(f"the learner {self.learner.name!r} needs policy_id=, the id of its player in the league")

    def open(self) -> None:
        self._told = self._frozen = 0  # versions

    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        newest = ctx.published(self.learner)
        if newest is not None and newest[0] > self._told:
            self._told, weights = newest
            updates, player = self._told - self._frozen, self.learner.kwargs["policy_id"]
            due = updates >= self.every_updates
            league = ctx.actors(self.league)[0]
            if self.exploiter:
                due = self._judged(league.ask("judge", player, weights, self._told, updates, self.every_updates), ctx)
            else:
                league.tell("freeze" if due else "put_weights", player, weights, self._told)
            if due:
                self._frozen = self._told
        yield value

    def _judged(self, verdict: Pending[Any], ctx: Context) -> bool:
        """Whether an exploiter was frozen; it then has begun again, if the league said so."""
        found = verdict.result()
        if found.begins_again:
            learner = ctx.actors(self.learner)[0]
            learner.ask("begin_again").info()
            newest = ctx.published(learner)
            self._told = self._told if newest is None else newest[0]
        return found.snapshot is not None


@dataclass
class PlayAgainst(Operator[Any, Any]):
    """Hands each item on, and has a league name the next opponents of the workers that it came from.

    The worker's results go to the league, and the league's lineup with the weights that the worker lacks to the worker,
    from actor to actor: the driver sees neither. A lineup rides on the worker's next pull and holds for the episodes
    that begin from then on. One is out a worker at a time: in a deterministic graph it is waited for with the worker's
    next item; in any other an item that comes before it changes nothing. A worker that starts is given one first.

    league: a `flowrl.rl.League`. workers: `flowrl.rl.LeagueWorker`s of one player. opponents: how many are drawn a
    lineup; a worker draws among them for each episode.

    Metrics, by player: rating and win_rate.

    Raises:
        GraphError: not such groups.
        ValueError: opponents below 1.
    """

    wants: ClassVar[Literal["value", "reference"]] = "reference"
    hands_on: ClassVar[bool] = True

    league: ActorGroup[Any]
    workers: ActorGroup[Any]
    opponents: int = 4

    def __post_init__(self) -> None:
        check_group("PlayAgainst", "League", self.league, "lineup")
        check_group("PlayAgainst", "LeagueWorker", self.workers, "set_lineup")
        check_whole("opponents", self.opponents)

    def open(self) -> None:
        self._out: dict[ActorHandle[Any], _Out] = {}

    def process(self, value: Any, ctx: Context) -> Iterable[Any]:
        workers = ctx.actors(self.workers)
        for worker in [one for one in workers if one in ctx.item_id.origins] or workers:
            out = self._out.get(worker)
            if out is None or ctx.deterministic or out.lineup.done:
                if out is not None:
                    out.take()
                self._ask(worker, ctx)
        yield value

    def actor_started(self, handle: ActorHandle[Any], ctx: Context) -> None:
        if handle in ctx.actors(self.workers):
            self._out.pop(handle, None)
            self._ask(next(one for one in ctx.actors(self.workers) if one == handle), ctx)

    def _ask(self, worker: ActorHandle[Any], ctx: Context) -> None:
        report = worker.ask("match_report")
        lineup = ctx.actors(self.league)[0].ask("lineup", report, self.opponents)
        worker.tell("set_lineup", lineup)
        self._out[worker] = _Out(report, lineup)

    def get_state(self) -> dict[str, Any]:
        return {}  # a worker that is resumed is given a lineup first

    def set_state(self, state: dict[str, Any]) -> None:
        self._out = {}


class _Out(NamedTuple):
    """The report of a worker and the lineup that follows from it, under way."""

    report: Pending[Any]
    lineup: Pending[Any]

    def take(self) -> None:
        """Waits for both, so that the run has no calls left of them; raises what went wrong in them."""
        try:
            self.report.info()
            self.lineup.info()
        except ActorDied:  # a policy has said what becomes of that, or says it at the next poll
            if not (self.report.lost or self.lineup.lost):
                raise
