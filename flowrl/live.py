"""A run as notebooks show it: a table of where it stands, drawn anew while it moves on in the background."""

from __future__ import annotations

import threading
from html import escape
from typing import TYPE_CHECKING, Any

from flowrl.console import figures, where_time_goes

if TYPE_CHECKING:
    from flowrl.engine.background import Handle
    from flowrl.engine.run import Run

DRAWN_EVERY_S = 0.5
_CELL = "text-align:left;padding:1px 12px 1px 0"


def table(run: Run[Any], handle: Handle[Any] | None = None) -> str:
    """An HTML table: the state, the newest Summary of a run in the background, and where the time goes."""
    stats = run.stats()
    state = "closed" if run.closed else "open" if handle is None else handle.state
    rows = [("state", f"{state}, {stats.elapsed_s:.1f} s, {stats.env_steps:,} environment steps")]
    if handle is not None:
        rows.append(("items", f"{handle.count:,}"))
        if hasattr(handle.latest, "episode_return_mean"):
            rows += figures(handle.latest)
        elif handle.latest is not None:
            rows.append(("latest", repr(handle.latest)[:200]))
        if handle.error is not None:
            rows.append(("error", str(handle.error)[:500]))
    rows += where_time_goes(stats)
    cells = "".join(
        f'<tr><th style="{_CELL}">{escape(name)}</th><td style="{_CELL}">{escape(value)}</td></tr>'
        for name, value in rows
    )
    return f"<table>{cells}</table>"


def show(handle: Handle[Any], run: Run[Any]) -> threading.Thread | None:
    """Displays a handle in the cell, and draws it anew while it moves; the thread that does so.

    Without IPython, or outside a notebook, its repr is printed.
    """
    try:
        from IPython import get_ipython
        from IPython.display import display
    except ImportError:
        print(repr(handle))
        return None
    if get_ipython() is None:
        print(repr(handle))
        return None
    shown = display(_bundle(handle, run), raw=True, display_id=True)
    thread = threading.Thread(target=_redraw, args=(shown, handle, run), name="flowrl-display", daemon=True)
    thread.start()
    return thread


def _redraw(shown: Any, handle: Handle[Any], run: Run[Any]) -> None:
    pause = threading.Event()
    drawn = ("", -1)
    while True:
        state, count = handle.state, handle.count
        if (state, count) != drawn:
            shown.update(_bundle(handle, run), raw=True)
            drawn = (state, count)
        if handle.done or run.closed:
            return
        handle.changed(count, DRAWN_EVERY_S)
        pause.wait(DRAWN_EVERY_S)


def _bundle(handle: Handle[Any], run: Run[Any]) -> dict[str, str]:
    return {"text/html": table(run, handle), "text/plain": repr(handle)}
