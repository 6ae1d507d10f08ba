"""Where in the user's code something was written."""

from __future__ import annotations

import os
import sys

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_ALGORITHMS = os.path.join(_PACKAGE, "algorithms") + os.sep


def calling_place() -> str:
    """`file:line` of the nearest frame outside the library; the prebuilt algorithms count as outside.

    Of code in IPython it is `cell In[n]:line`, as its tracebacks say; the file's name tells nobody which cell it was.
    """
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        ours = file.startswith(_PACKAGE) and not file.startswith(_ALGORITHMS)
        if not ours and not file.endswith(("dataclasses.py", "functools.py")) and file != "<string>":
            return f"{_cell(file) or file}:{frame.f_lineno}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return "<unknown>:0"


def _cell(file: str) -> str | None:
    ipython = sys.modules.get("IPython")
    compiler = None if ipython is None else getattr(ipython.get_ipython(), "compile", None)
    said = getattr(compiler, "format_code_name", None)
    named = None if said is None else said(file)
    return None if named is None else f"{named[0].lower()} {named[1]}"
