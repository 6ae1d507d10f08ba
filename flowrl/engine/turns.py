"""What a Run does between two items: it takes the turn, so that nobody moves it meanwhile, and gives it back."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any

from flowrl.checkpoint.storage import Where
from flowrl.engine.resizing import Newcomers, Resized, check_resize, grow, shrink
from flowrl.engine.resuming import Resumption
from flowrl.engine.saving import RunFailed, Wanted, save
from flowrl.errors import FlowError
from flowrl.given import seconds

if TYPE_CHECKING:
    from flowrl.engine.run import Run

FOREVER_S = 1e9


@contextmanager
def between_items(run: Run[Any], what: str) -> Iterator[None]:
    """Inside, this thread has the run's turn. what: "save it", for errors.

    Raises:
        FlowError: the run is closed.
    """
    engine = run._engine
    with engine.interrupts:
        run._turn.take(engine.interrupts.waiting)
        try:
            if engine.closed or engine.closing:
                raise FlowError(f"this run is closed, so there is nothing to {what}; {what} before close()")
            engine.driver = get_ident()
            try:
                yield
            finally:
                engine.driver = None
        finally:
            run._turn.give()


def save_run(
    run: Run[Any], path: Where, about: Mapping[str, Any], environments: bool, timeout_s: float | None
) -> Path | str:
    """What `Run.save` says."""
    engine = run._engine
    if engine.driver == get_ident():
        raise FlowError("an operator of this run cannot save it: the item at hand is not done; save between two items")
    limit_s = seconds(timeout_s)
    with between_items(run, "save"):
        own = {"kept": list(run._kept), "evaluations": run._evaluations, "finished": run._finished}
        try:
            save(engine, path, own, Wanted(environments, FOREVER_S if limit_s is None else limit_s, about))
        except RunFailed as failed:
            error = failed.__cause__
            assert error is not None
            run._stop(error)
            raise error from error.__cause__
        except KeyboardInterrupt as interrupt:  # a second one ends the run, and not only this
            run._stop(interrupt)
            raise
    text = os.fspath(path)
    return text if "://" in text else Path(text)


def resize_run(run: Run[Any], group: str, count: int, timeout_s: float | None) -> Resized:
    """What `Run.resize` says."""
    engine = run._engine
    if engine.driver == get_ident():
        raise FlowError(
            "an operator of this run cannot resize a group: the item at hand is not done; resize between two items, in "
            "the loop that takes them or from another thread"
        )
    given_s = seconds(timeout_s)
    limit_s = FOREVER_S if given_s is None else given_s
    with engine.resizing:  # one at a time
        if run.closed:
            raise FlowError("this run is closed, so there is nothing to resize; resize before close()")
        if run._finished:
            raise FlowError("this run's flow has ended, so no actor of it has anything left to do")
        check_resize(engine, group, count)
        # Those that are new come up while the run goes on; only to take them in it stands still.
        with Newcomers(engine, group, count, limit_s) as new, between_items(run, "resize"):
            try:
                return grow(engine, new) if new.states else shrink(engine, group, count, limit_s)
            except BaseException as error:
                run._stop(error)
                raise


def take_up(run: Run[Any], resumed: Resumption) -> None:
    """The Run itself goes on from a checkpoint."""
    own = resumed.own
    run._kept.extend(own["kept"])
    run._evaluations, run._finished = own["evaluations"], own["finished"]
