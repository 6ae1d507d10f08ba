"""A run on disk: its settings, its metrics as one JSON object a line, and the same figures as CSV."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import os
import tempfile
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, TextIO

LINES, TABLE, RUN, POLICY, POLICIES = "metrics.jsonl", "metrics.csv", "run.json", "policy", "policies"


class Reportable(Protocol):
    """What is recorded: a Summary."""

    def as_dict(self) -> dict[str, Any]:
        """Plain nested dictionaries and numbers, with policies' tables under "learner"."""
        ...


def folder_of(out: str | os.PathLike[str]) -> Path:
    """The directory that `out` names.

    Raises:
        TypeError: it is no path.
        ValueError: it is empty, which would be the directory that one happens to be in.
    """
    if not isinstance(out, str | os.PathLike):
        raise TypeError(f"out must be the path of a directory, got {out!r}")
    if str(out) == "" or "\0" in str(out):
        raise ValueError(f"out must be the path of a directory, got {str(out)!r}")
    return Path(out)


def check_unused(folder: Path) -> None:
    """Nothing, if a run may write its records there.

    Raises:
        FileExistsError: the directory holds another run's records already.
        NotADirectoryError: it is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file; choose a directory for out")
    for name in (LINES, TABLE, RUN, POLICY, POLICIES):
        if os.path.lexists(folder / name):  # a link to nowhere, too
            begun = folder / "checkpoints"
            remedy = f", or go on with that run: flowrl resume {folder}" if begun.is_dir() else ""
            raise FileExistsError(f"{folder} holds {name} of another run; choose another directory for out{remedy}")


def claim(folder: Path, *, going_on: bool = False) -> None:
    """Makes the directory, if a run may write its records there. going_on: those that there are are its own.

    Raises:
        OSError: it holds another run's records already, is a file, or cannot be written.
    """
    try:
        if not going_on:
            check_unused(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()  # access rights alone do not tell, of /proc for one
    except OSError as error:
        if error.strerror is None:  # that of check_unused
            raise
        raise type(error)(f"{folder} cannot be written ({error.strerror}); choose another directory for out") from error


class RecordFiles:
    """`metrics.jsonl` (everything) and `metrics.csv` (the numbers; its columns are those of the first Summary).

    `run.json` holds the settings (`settings`, which may be set until the first Summary comes).

    The files are made with the first Summary: a run that cannot start leaves no records, and may be tried again.

    after: the iteration of the checkpoint from which a run goes on: the records there are its own, and what they say of
        later iterations is taken back, for it comes again.

    Raises:
        OSError: as claim.
    """

    def __init__(self, folder: Path, *, after: int | None = None):
        claim(folder, going_on=after is not None)
        self._after = after
        self.settings: Mapping[str, Any] = {}
        self._folder = folder
        self._lines: TextIO | None = None
        self._table_file: TextIO | None = None
        self._table: csv.DictWriter[str] | None = None

    def write(self, summary: Reportable) -> None:
        """Appends one Summary to both."""
        plain = summary.as_dict()
        row = _row(plain)
        if self._lines is None or self._table_file is None or self._table is None:
            self._lines, self._table_file, self._table = self._opened(list(row))
        self._lines.write(json.dumps(_finite(plain), allow_nan=False) + "\n")
        self._lines.flush()
        self._table.writerow(row)
        self._table_file.flush()

    def _opened(self, columns: list[str]) -> tuple[TextIO, TextIO, csv.DictWriter[str]]:
        lines, table = self._folder / LINES, self._folder / TABLE
        mode: Literal["x", "a"] = "x" if self._after is None else "a"
        if self._after is not None:
            _cut_lines(lines, self._after)
            columns = _cut_table(table, self._after) or columns
        if mode == "x" or not (self._folder / RUN).exists():
            (self._folder / RUN).write_text(json.dumps(as_json(self.settings), indent=1) + "\n", encoding="utf-8")
        lines_file: TextIO = open(lines, mode, encoding="utf-8")  # noqa: SIM115  (closed in __exit__)
        table_file: TextIO = open(table, mode, encoding="utf-8", newline="")  # noqa: SIM115
        writer = csv.DictWriter(table_file, columns, restval="", extrasaction="ignore")
        if table_file.tell() == 0:
            writer.writeheader()
        return lines_file, table_file, writer

    def __enter__(self) -> RecordFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for file in (self._lines, self._table_file):
            if file is not None:
                file.close()


def _cut_lines(path: Path, after: int) -> None:
    """Only the iterations up to `after` stay; a line that was only half written goes, too."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            if json.loads(line)["iteration"] > after:
                break
        except (KeyError, TypeError, ValueError):
            break
        kept.append(line + "\n")
    _replace(path, "".join(kept))


def _cut_table(path: Path, after: int) -> list[str]:
    """The columns of the table, of which only the rows up to `after` stay; none where there is no table."""
    if not path.exists():
        return []
    with open(path, encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        columns = list(reader.fieldnames or ())
        rows = [row for row in reader if (row.get("iteration") or "").isdigit() and int(row["iteration"]) <= after]
    text = io.StringIO()
    if columns:
        writer = csv.DictWriter(text, columns)
        writer.writeheader()
        writer.writerows(rows)
    _replace(path, text.getvalue())
    return columns


def _replace(path: Path, text: str) -> None:
    aside = path.with_name(f".{path.name}.new")
    with open(aside, "w", encoding="utf-8", newline="") as file:
        file.write(text)
    aside.replace(path)


def as_json(value: Any) -> Any:
    """Settings as JSON takes them: functions and classes as "module:name", what JSON has no word for as its repr."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {entry.name: as_json(getattr(value, entry.name)) for entry in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): as_json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(entry) for entry in value]
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):  # numpy's too
        return int(value)
    if isinstance(value, Real) and math.isfinite(value):
        return float(value)
    name = getattr(value, "__qualname__", None)
    return repr(value) if name is None else f"{getattr(value, '__module__', '?')}:{name}"


def _finite(value: Any) -> Any:
    """JSON knows no NaN: null stands for it."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _row(plain: dict[str, Any]) -> dict[str, Any]:
    row = {key: value for key, value in plain.items() if not isinstance(value, dict)}
    for policy, table in plain["learner"].items():
        row.update({f"learner/{policy}/{name}": value for name, value in table.items()})
    return row
