"""A run as notebooks show it: a table of where it stands, drawn anew while it moves on."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from html import escape
from time import monotonic
from typing import TYPE_CHECKING, Any

from flowrl.console import figures, where_time_goes

if TYPE_CHECKING:
    from flowrl.engine.background import Handle
    from flowrl.engine.run import Run
    from flowrl.training import Progress

DRAWN_EVERY_S = 0.5
_CELL = "text-align:left;padding:1px 12px 1px 0"


def in_notebook() -> bool:
    """Whether this program is a notebook's kernel, whose cells show HTML; IPython on a terminal is none."""
    ipython = sys.modules.get("IPython")  # a kernel has imported it
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


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
    return _html([*rows, *where_time_goes(stats)])


def _html(rows: Iterable[tuple[str, str]]) -> str:
    cells = "".join(
        f'<tr><th style="{_CELL}">{escape(name)}</th><td style="{_CELL}">{escape(value)}</td></tr>'
        for name, value in rows
    )
    return f"<table>{cells}</table>"


def show(handle: Handle[Any], run: Run[Any]) -> threading.Thread | None:
    """Displays a handle in the cell, and draws it anew while it moves; the thread that does so.

    Outside a notebook its repr is printed.
    """
    if not in_notebook():
        print(repr(handle))
        return None
    from IPython.display import display

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


class CellTable:
    """Training in a cell: one table below it, which is drawn anew twice a second at most."""

    def __init__(self) -> None:
        self._shown: Any = None
        self._drawn_s = float("-inf")
        self._waiting: Any = None

    def show(self, progress: Progress) -> None:
        """Draws the table, if it was last drawn half a second ago."""
        self._waiting = (progress.summary, progress.run.stats())
        if monotonic() - self._drawn_s >= DRAWN_EVERY_S:
            self._draw()

    def close(self) -> None:
        """Draws the last figures, which stay below the cell."""
        if self._waiting is not None:
            self._draw()

    def _draw(self) -> None:
        from IPython.display import display

        (summary, stats), self._waiting = self._waiting, None
        rows = [("time", f"{summary.time_s:.1f} s"), *figures(summary), *where_time_goes(stats)]
        text = "  ".join(f"{name} {value}" for name, value in figures(summary))
        bundle = {"text/html": _html(rows), "text/plain": text}
        if self._shown is None:
            self._shown = display(bundle, raw=True, display_id=True)
        else:
            self._shown.update(bundle, raw=True)
        self._drawn_s = monotonic()
