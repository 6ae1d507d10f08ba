"""The metrics of a run on disk: one JSON object a line, and the same figures as CSV."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TextIO

LINES, TABLE, POLICY = "metrics.jsonl", "metrics.csv", "policy"


class Reportable(Protocol):
    """What is recorded: a Summary."""

    def as_dict(self) -> dict[str, Any]:
        """Plain nested dictionaries and numbers, with policies' tables under "learner"."""
        ...


def check_unused(folder: Path) -> None:
    """Nothing, if a run may write its records there.

    Raises:
        FileExistsError: the directory holds another run's records already.
        NotADirectoryError: it is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file; choose a directory for out")
    for name in (LINES, TABLE, POLICY):
        if (folder / name).exists():
            raise FileExistsError(f"{folder} holds {name} of another run; choose another directory for out")


class RecordFiles:
    """`metrics.jsonl` (everything) and `metrics.csv` (the numbers; its columns are those of the first Summary).

    The files are made with the first Summary: a run that cannot start leaves no records, and may be tried again.

    Raises:
        FileExistsError: the directory holds another run's records already.
        NotADirectoryError: it is a file.
    """

    def __init__(self, folder: Path):
        check_unused(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._lines: TextIO | None = None
        self._table_file: TextIO | None = None
        self._table: csv.DictWriter[str] | None = None

    def write(self, summary: Reportable) -> None:
        """Appends one Summary to both."""
        plain = summary.as_dict()
        row = _row(plain)
        if self._lines is None or self._table_file is None or self._table is None:
            self._lines = open(self._folder / LINES, "x", encoding="utf-8")  # noqa: SIM115  (closed in __exit__)
            self._table_file = open(self._folder / TABLE, "x", encoding="utf-8", newline="")  # noqa: SIM115
            self._table = csv.DictWriter(self._table_file, list(row), restval="", extrasaction="ignore")
            self._table.writeheader()
        self._lines.write(json.dumps(_finite(plain), allow_nan=False) + "\n")
        self._lines.flush()
        self._table.writerow(row)
        self._table_file.flush()

    def __enter__(self) -> RecordFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for file in (self._lines, self._table_file):
            if file is not None:
                file.close()


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
