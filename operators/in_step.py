"""Several learners that train in step: who is in their group, and which parts of an item each of them gets."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from flowrl.errors import ActorDied, FlowError
from flowrl.handles import ActorHandle, Pending
from flowrl.ref import Info, Ref

T = TypeVar("T")
RESUME = "resume from a checkpoint (train(out=..., checkpoint_every=...) keeps some)"
Handles = tuple[ActorHandle[Any], ...]


class TrainingGroup:
    """Those learners of a group that live, who meet before they train, and again when one has died or come back."""

    def __init__(self, timeout_s: float):
        self._timeout_s = timeout_s
        self._met: Handles = ()
        self._last: tuple[Pending[Any], ...] = ()  # the calls of the round before
        self._greeted = False
        self._learned = False  # whether they had made any update as they met
        self.forgotten = False  # whether all who had have died

    def begin_anew(self) -> None:
        """Before the next call they meet again."""
        self._met = ()

    def greet(self, learner: ActorHandle[Any], version: int) -> None:
        """A learner has started, or was started again; version: what a lone one that nobody else knows had published.

        Raises:
            ActorDied: that is lost with it.
        """
        if self._greeted and version > 0:
            raise ActorDied(
                f"{learner.name} died and was started again, and nobody is left who has what it had learned (version "
                f"{version} of the weights); {RESUME}, or have several that learn in step"
            )
        self._greeted = True
        self.begin_anew()

    def ask(
        self, learners: Handles, value: Ref[Any], options: Mapping[str, Any]
    ) -> tuple[Pending[Any], list[Pending[Any]]]:
        """One call of each learner, the first one's last: its answer is that of all, once the others have theirs.

        Raises:
            PeerLost: they cannot reach each other.
            ActorDied: one died before they had met; or all did who knew what was learned (`forgotten`).
            FlowError: one of them does not answer.
        """
        # One of whom a call was lost with a part of the item has not met the others in it, who gave it up.
        if learners != self._met or any(pending.lost for pending in self._last):
            self._meet(learners)
        others: list[Pending[Any]] = []
        # Where all live in this process the first one does the work of all, so it is asked last.
        for rank, (part, share) in reversed(list(enumerate(dealt(value.parts, learners)))):
            pending = learners[rank].ask("train_in_step", part, share=share, **options)
            others.append(pending)
        self._last = tuple(others)
        return others.pop(), others

    def _meet(self, learners: Handles) -> None:
        from flowrl.rl.peers import CONNECT_S, Meeting, PeerLost

        # Building a policy, which may come before it, takes a busy machine a while and is nobody's absence.
        patience_s = max(self._timeout_s, CONNECT_S)
        asked = [learner.ask("whereabouts") for learner in learners]
        places = tuple(self._met_in_time(pending, patience_s).result() for pending in asked)
        names = tuple(learner.name for learner in learners)
        meeting = Meeting(uuid.uuid4().hex, names, places, None, self._timeout_s)
        if not meeting.in_one_process:
            port = self._met_in_time(learners[0].ask("open_store", CONNECT_S), patience_s + CONNECT_S).result()
            meeting = Meeting(meeting.key, names, places, port, self._timeout_s)
        joins = [learners[rank].ask("join", meeting, rank) for rank in reversed(range(len(learners)))]
        failed: list[Exception] = []
        for pending in joins:  # they wait for one another: to connect, and thrice to agree on whose state they take
            try:
                self._met_in_time(pending, patience_s + CONNECT_S + 3 * self._timeout_s)
            except (ActorDied, PeerLost) as error:  # the others lose one that dies, which may be known later
                failed.append(error)
        if failed:
            raise next((error for error in failed if isinstance(error, ActorDied)), failed[0])
        self._see_what_is_known([pending.result() for pending in joins], names)
        self._met = learners

    def _see_what_is_known(self, updates: Sequence[int | None], names: Sequence[str]) -> None:
        """Nothing, if those who met go on with what was learned; `updates` are those that they agreed on.

        Raises:
            ActorDied: none of those who had learned lives.
        """
        known = max((made for made in updates if made is not None), default=None)
        self.forgotten = self._learned and known == 0
        if self.forgotten:
            raise ActorDied(
                f"nobody is left who has what was learned: all died before one could take over another's state, and "
                f"those that were started again ({', '.join(names)}) know nothing; {RESUME}"
            )
        self._learned = self._learned or bool(known)

    def _met_in_time(self, pending: Pending[Any], timeout_s: float) -> Pending[Any]:
        """The same, answered.

        Raises:
            FlowError: it is not by then.
        """
        try:
            pending.info(timeout_s)
        except TimeoutError:
            raise FlowError(
                f"{pending.call.actor.name} has not answered {pending.call.label!r} within {timeout_s:g} s, so the "
                f"learners cannot meet (peer_timeout_s={self._timeout_s:g}); where building its policy takes that "
                "long, let them wait longer, else see what it or its machine hangs in"
            ) from None
        return pending

    def check(self, info: Info, answer: Pending[Any], others: Sequence[Pending[Any]]) -> bool:
        """Whether the call came to something: no learner was lost in it. The others' answers are taken in too.

        Raises:
            FlowError: they have lost each other and none has died.
            Whatever a learner raised.
        """
        lost = _tells_of_loss(info)
        died = False
        for pending in others:
            try:
                self._answer_of(pending)
            except ActorDied:  # what that means its failure policy says
                died = True
        if not lost:
            self._learned = True
            return True
        self.begin_anew()
        if not died:
            raise FlowError(
                f"the learners lost each other, though none has died: {answer.result()}; where one takes long over its "
                f"rows, or the network does, let them wait longer than peer_timeout_s={self._timeout_s:g}"
            )
        return False

    def look(self, first: Pending[Any], others: Sequence[Pending[Any]]) -> None:
        """Where another has given the group up, the first one has as long again: it may be what they waited for.

        Raises:
            FlowError: it has not answered by then.
        """
        for pending in others:
            if pending.done and pending.call.infos and _tells_of_loss(pending.info()):
                with suppress(ActorDied):  # which its failure policy sees to
                    self._answer_of(first)
                return

    def _answer_of(self, pending: Pending[Any]) -> Info:
        """What a learner says when the others have answered."""
        try:
            return pending.info(self._timeout_s)
        except TimeoutError:
            raise FlowError(
                f"{pending.call.actor.name} does not answer: the other learners are done, or gave it up after "
                f"peer_timeout_s={self._timeout_s:g}, and as long has passed since; where its updates take that long, "
                "let them wait longer, else see what its loss or its machine hangs in"
            ) from None


def _tells_of_loss(info: Info) -> bool:
    return any(name.rpartition("/")[2] == "rounds_lost" for name in info.metrics)


def dealt(
    parts: Sequence[Ref[Any]], learners: Sequence[ActorHandle[Any]]
) -> list[tuple[Ref[Any] | None, tuple[int, int]]]:
    """By learner, its part of an item and the share that it takes of that: 1 of 1, unless there are too few parts.

    A part goes to the learner that holds it, as a worker that learns does; the others go round.
    """
    places = {(learner.group, learner.index): rank for rank, learner in enumerate(learners)}
    ranks = [None if part.holder is None else places.get(part.holder) for part in parts]
    if len(parts) < len(learners) and all(rank is None for rank in ranks):
        return [(Ref.concat(parts), (rank, len(learners))) for rank in range(len(learners))]
    mine: list[list[Ref[Any]]] = [[] for _ in learners]
    for part, rank in zip(parts, ranks, strict=True):
        chosen = min(range(len(learners)), key=lambda at: len(mine[at])) if rank is None else rank
        mine[chosen].append(part)
    return [(Ref.concat(held) if held else None, (0, 1)) for held in mine]
