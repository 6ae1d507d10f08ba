"""The spaces of a graph's environments, as its learners are told them when they start and when they start again."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from flowrl.errors import PayloadLost
from flowrl.handles import ActorHandle, Pending
from flowrl.operator import Context


class ToldSpaces:
    """What the environments of a run say of their spaces, kept once it is known: a learner may be started again when
    whoever said it is gone."""

    def __init__(self) -> None:
        self._asked: Pending[Any] | None = None
        self._known: Any = None

    def tell(self, learner: ActorHandle[Any], ctx: Context) -> None:
        """A learner that has just started builds its policy for them."""
        self.note()
        if self._known is not None:
            learner.ask("build", self._known)
            return
        for environment in ctx.having("spaces"):
            self._asked = environment.ask("spaces")
            if not self._asked.lost:
                break
        if self._asked is not None:
            learner.ask("build", self._asked)

    def note(self) -> None:
        """Takes in what was asked, if it is answered."""
        asked = self._asked
        if asked is not None and asked.done:
            self._asked = None
            if not asked.lost:
                with suppress(PayloadLost):  # then it is asked again
                    self._known = asked.result()
