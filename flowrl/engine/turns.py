"""Saving as a Run does it: it takes the turn, so that nobody moves the run meanwhile, and gives it back."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any

from flowrl.checkpoint.storage import Where
from flowrl.engine.resuming import Resumption
from flowrl.engine.saving import RunFailed, Wanted, save
from flowrl.errors import FlowError
from flowrl.given import seconds

if TYPE_CHECKING:
    from flowrl.engine.run import Run

FOREVER_S = 1e9


def save_run(
    run: Run[Any], path: Where, about: Mapping[str, Any], environments: bool, timeout_s: float | None
) -> Path | str:
    """What `Run.save` says."""
    engine = run._engine
    if engine.driver == get_ident():
        raise FlowError("an operator of this run cannot save it: the item at hand is not done; save between two items")
    limit_s = seconds(timeout_s)
    with engine.interrupts:
        engine.interrupts.waiting(run._turn.get)
        try:
            if engine.closed or engine.closing:
                raise FlowError("this run is closed, so there is nothing to save; save before close()")
            own = {"kept": list(run._kept), "evaluations": run._evaluations, "finished": run._finished}
            engine.driver = get_ident()
            try:
                save(engine, path, own, Wanted(environments, FOREVER_S if limit_s is None else limit_s, about))
            except RunFailed as failed:
                error = failed.__cause__
                assert error is not None
                run._stop(error)
                raise error from error.__cause__
            finally:
                engine.driver = None
        finally:
            run._turn.put(None)
    text = os.fspath(path)
    return text if "://" in text else Path(text)


def take_up(run: Run[Any], resumed: Resumption) -> None:
    """The Run itself goes on from a checkpoint."""
    own = resumed.own
    run._kept.extend(own["kept"])
    run._evaluations, run._finished = own["evaluations"], own["finished"]
