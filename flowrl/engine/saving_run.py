"""A run that saves itself: `run(flow, checkpoint=Checkpoints(...))`."""

from __future__ import annotations

import logging
from typing import Any, TypeVar

from flowrl.checkpoint import Checkpoints, Series
from flowrl.engine.background import Handle
from flowrl.engine.core import Engine
from flowrl.engine.run import Run

T = TypeVar("T")
_log = logging.getLogger("flowrl")
_NONE: Any = object()  # no item was handed out yet


class SavingRun(Run[T]):
    """A run that saves itself between two items, when it is time: what the user has had is in the checkpoint.

    A save that the system refuses (a full disk, an actor that is late) goes to the log, and the run goes on.
    """

    def __init__(self, engine: Engine, settings: Checkpoints):
        super().__init__(engine)
        self._series = Series(settings, engine.accounts.env_steps)
        self._newest: Any = _NONE

    def advance(self, background: Handle[T] | None = None) -> T:
        """The next item, and before it a checkpoint if one is due."""
        driven = background is not None and background.driving
        if self._newest is not _NONE and not (driven or self.closed or self._engine.closing):
            self._look(self._engine.accounts.env_steps)
        self._newest = item = super().advance(background)
        return item

    def _look(self, env_steps: int) -> None:
        series = self._series
        if not series.due(env_steps):
            return
        try:
            series.save(lambda path, about: self.save(path, about=about), env_steps, series.score(self._newest))
        except OSError as error:
            series.skip(env_steps)
            _log.warning("no checkpoint at %s environment steps: %s; the one before it stays", env_steps, error)
