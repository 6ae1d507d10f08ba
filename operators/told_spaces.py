"""The spaces of a graph's environments, as its learners are told them when they start and when they start again."""

from __future__ import annotations

from typing import Any

from flowrl.errors import ActorDied, PayloadLost
from flowrl.handles import ActorHandle, Pending
from flowrl.operator import Context


class ToldSpaces:
    """What the environments of a run say of their spaces, kept once it is known: a learner may be started again when
    whoever said it is gone."""

    def __init__(self) -> None:
        self._known: Any = None
        self._told: list[tuple[ActorHandle[Any], Pending[Any]]] = []  # learners, and the answers that they wait for

    def tell(self, learner: ActorHandle[Any], ctx: Context) -> None:
        """A learner that has just started builds its policy for them."""
        self._told = [(other, asked) for other, asked in self._told if other != learner]
        if self._known is not None:
            learner.ask("build", self._known)
            return
        asked = _asked(ctx)
        if asked is not None:
            learner.ask("build", asked)
            self._told.append((learner, asked))

    def note(self, ctx: Context) -> None:
        """Before a learner is asked for more: an environment that died before it answered has told it nothing."""
        if self._told:
            told, self._told = self._told, []
            missed = [learner for learner, asked in told if not self._learnt(asked)]
            while missed and self._known is None:
                again = _asked(ctx)
                if again is None or again.lost:  # nobody is there, which is for a failure policy to say
                    return
                self._learnt(again)
            for learner in missed:
                learner.ask("build", self._known)

    def _learnt(self, asked: Pending[Any]) -> bool:
        """Whether it was answered. It was asked before its actor made anything, so the answer is there or will not
        be."""
        try:
            self._known = asked.result()
        except (ActorDied, PayloadLost):
            return False
        return True


def _asked(ctx: Context) -> Pending[Any] | None:
    """The question for the spaces, put to the first who can be asked."""
    asked = None
    for environment in ctx.having("spaces"):
        asked = environment.ask("spaces")
        if not asked.lost:
            break
    return asked
