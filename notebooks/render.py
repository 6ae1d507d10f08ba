"""Runs the notebooks and writes each beside its text source: the same cells, and of their outputs the small figures.

    python notebooks/render.py                    all of them
    python notebooks/render.py 01_first_graph     one

The `.py` files (Jupytext's percent format) are the source. What is written are `.ipynb` files that open anywhere, and
show their drawings where nothing can run them.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).resolve().parent
FIGURES = ("image/png", "image/svg+xml")
LARGEST = 80_000  # characters of a figure that is kept
TIMEOUT_S = 300


def sources() -> list[Path]:
    """The text sources, in the order in which they are read."""
    return sorted(FOLDER.glob("[0-9][0-9]_*.py"))


def notebook_of(source: Path) -> NotebookNode:
    """The notebook of a text source, with cells that are called the same each time, and without outputs."""
    notebook = jupytext.read(source)
    for at, cell in enumerate(notebook.cells):
        cell.id = f"{source.stem[:2]}-{at:02d}"
    return notebook


def with_parameters(notebook: NotebookNode, values: Mapping[str, Any]) -> NotebookNode:
    """The notebook with other values of what its cell of parameters sets.

    Raises:
        ValueError: it has no such cell, or that cell does not set one of them.
    """
    [(at, cell)] = [(i, c) for i, c in enumerate(notebook.cells) if "parameters" in c.metadata.get("tags", [])]
    named = {line.split("=")[0].strip() for line in cell.source.splitlines() if "=" in line}
    if values.keys() - named:
        raise ValueError(f"the cell of parameters sets {sorted(named)}, not {sorted(values.keys() - named)}")
    given = nbformat.v4.new_code_cell("\n".join(f"{name} = {value!r}" for name, value in values.items()), id="given")
    notebook.cells.insert(at + 1, given)
    return notebook


def execute(client: NotebookClient, notebook: NotebookNode) -> NotebookNode:
    """The notebook with its outputs, run in the client's kernel as it is.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell raised; the cell and its traceback.
    """
    client.nb = notebook
    client.reset_execution_trackers()
    for at, cell in enumerate(notebook.cells):
        client.execute_cell(cell, at, execution_count=client.code_cells_executed + 1)
    return notebook


def stripped(notebook: NotebookNode) -> NotebookNode:
    """The notebook with the small figures among its outputs, and nothing else that a run leaves."""
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"], "jupytext": notebook.metadata["jupytext"]}
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = [kept for output in cell.outputs if (kept := _figure(output)) is not None]
    return notebook


def _figure(output: NotebookNode) -> NotebookNode | None:
    data = {
        kind: text.replace(f"{FOLDER.parent}/", "")  # drawings say where nodes are defined
        for kind, text in output.get("data", {}).items()
        if kind in FIGURES and len(text) <= LARGEST
    }
    return nbformat.v4.new_output("display_data", data=data) if data else None


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs and writes those that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="without a folder and a suffix")
    names = parser.parse_args(arguments).names or [source.stem for source in sources()]
    for name in names:
        notebook = notebook_of(FOLDER / f"{name}.py")
        client = NotebookClient(notebook, timeout=TIMEOUT_S, kernel_name="python3")
        began = time.monotonic()
        with client.setup_kernel(cwd=str(FOLDER), env=dict(os.environ)):
            execute(client, notebook)
        nbformat.write(stripped(notebook), FOLDER / f"{name}.ipynb")
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
