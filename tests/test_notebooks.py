"""The notebooks run, twice in one kernel, with a Ray of the user's or without; an interrupted cell pauses a run.

All of them share one kernel, for to start one and to import torch takes longer than what most of them do.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("[0-9][0-9]_*.py"))
SMALL: dict[str, dict[str, Any]] = {  # a user waits a minute, CI a few seconds
    "01_first_graph": {"ROUNDS": 2},
    "02_ppo_and_dqn_mix": {"SUMMARIES": 6},
    "03_league_self_play": {"ROUNDS": 4},
    "04_your_own_operator_and_loss": {"ROUNDS": 3},
    "05_debugging_a_graph": {"ITEMS": 4},
}
LONG_S = 60
ITEMS = re.compile(r">items</th><td[^>]*>(\d+)</td>.*>verdict<")  # in the table of a run in the background


def rendering() -> Any:
    """The module `notebooks/render.py`, which is no part of a package."""
    spec = importlib.util.spec_from_file_location("render", FOLDER / "render.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


render = rendering()


@pytest.fixture(scope="module")
def kernel() -> Iterator[NotebookClient]:
    """A client with a kernel, of this interpreter and this checkout."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    env["RAY_ADDRESS"] = "local"  # the Ray of other tests is none of the user's
    # pytest has a timeout of its own; what a cell prints may come long after its reply, on a busy machine.
    client = NotebookClient(nbformat.v4.new_notebook(), timeout=None, iopub_timeout=LONG_S, kernel_name="python3")
    with client.setup_kernel(cwd=str(FOLDER), env=env):
        yield client


def executed(kernel: NotebookClient, source: str) -> NotebookNode:
    """A cell with its outputs."""
    [cell] = render.execute(kernel, nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])).cells
    return cell


def text_of(cells: NotebookNode | list[NotebookNode]) -> str:
    """What was printed, without colours."""
    cells = cells if isinstance(cells, list) else [cells]
    printed = "".join(output.text for cell in cells for output in cell.get("outputs", []) if "text" in output)
    return re.sub(r"\x1b\[[0-9;]*m", "", printed)


def shown(notebook: NotebookNode) -> list[dict[str, str]]:
    """What was displayed, by MIME type."""
    return [output.data for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]


def small(name: str) -> NotebookNode:
    return render.with_parameters(render.notebook_of(FOLDER / f"{name}.py"), SMALL[name])


def without_ray(notebook: NotebookNode) -> NotebookNode:
    notebook.cells = [cell for cell in notebook.cells if "ray" not in cell.metadata.get("tags", [])]
    return notebook


def test_there_are_the_five() -> None:
    assert list(SMALL) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_twice_in_one_kernel(name: str, kernel: NotebookClient) -> None:
    executed(kernel, "%reset -f")  # what the ones before defined
    for _ in range(2):
        notebook = render.execute(kernel, without_ray(small(name)))
        outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
        assert not [output for output in outputs if output.output_type == "error"]
        # Where it is new, matplotlib says that it looks for fonts.
        assert not [o for o in outputs if o.get("name") == "stderr" and "font cache" not in o.text]
    bundles = shown(notebook)
    if name != "05_debugging_a_graph":
        drawings = [bundle for bundle in bundles if "text/vnd.mermaid" in bundle]
        assert drawings
        for bundle in drawings:
            assert bundle["text/vnd.mermaid"].startswith("flowchart ")
            assert "<svg" in bundle["image/svg+xml"]
            assert "●" in bundle["text/plain"]  # explain()
        assert any("image/png" in bundle for bundle in bundles)
    if name[:2] in ("01", "02", "03"):
        live, *_ = [found for bundle in bundles if (found := ITEMS.search(bundle.get("text/html", "")))]
        assert int(live[1]) > 0  # it began with none, and was drawn anew
    CHECKS[name](text_of(notebook.cells))


def first_graph(text: str) -> None:
    assert text.count("[[0, 1], [4, 9], [16, 25]]") == 2
    assert "deterministic: only sync gathers" in text
    assert "paused after" in text
    assert "total_steps after" in text


def mix(text: str) -> None:
    assert "poles made longer: [4, 4, 4, 4]" in text
    assert "their lengths on the first worker: [0.5, 0.5, 0.5, 0.5]" in text
    assert "swapped 0, later" in text
    assert "['dqn', 'ppo']" in text


def league(text: str) -> None:
    assert "coins: 0.917, equilibrium: 0.000" in text
    assert "2 snapshots, from main:1 to main:2" in text
    assert "NashConv of the average: " in text
    assert "['exploiter', 'main']" in text


def own(text: str) -> None:
    assert "keeps the contract" in text
    assert "TypeError · Returns.process returned a Batch; write `yield value`" in text
    assert "node 'WantsDepth'" in text
    assert "gradient: [-0.1925  0.3849 -0.1925]  expected: [-0.1925  0.3849 -0.1925]" in text
    assert "'cells': " in text


def debugging(text: str) -> None:
    assert "mean_tilt         float" in text
    assert "halved()" in text  # where the debugger stood
    assert "(7, 3)" in text
    assert "in node 'reciprocal'; defined at cell In[" in text
    assert "item 1; shard from_items-shards[0]" in text
    assert "index 24 is out of bounds" in text or "index -25 is out of bounds" in text
    assert "the same error came in the same place" in text
    assert "nothing failed" in text
    assert "4 whole fragments; {'env_restarts': " in text
    assert "limited by workers" in text


CHECKS = dict(zip(SMALL, (first_graph, mix, league, own, debugging), strict=True))


@pytest.mark.ray
def test_its_ray_cells_run_before_and_after_the_user_has_started_ray(kernel: NotebookClient) -> None:
    """Started by us, it says nothing; the user's is joined and left running."""
    executed(kernel, "%reset -f")
    cells = small("01_first_graph").cells
    with_ray = [cell for cell in cells if "ray" in cell.metadata.get("tags", [])]
    graphs = [cell for cell in cells if "squares = " in cell.source or "ppo = (" in cell.source]
    assert with_ray
    first = render.execute(kernel, nbformat.v4.new_notebook(cells=[*graphs, *with_ray]))
    assert text_of(first.cells) == "the same, bit for bit: True\n"
    executed(
        kernel, "import ray; ray.shutdown(); ray.init('local', num_cpus=3, include_dashboard=False); ppo = squares"
    )
    executed(kernel, "def items_in(backend):\n    with flowrl.run(squares, backend) as run:\n        return list(run)")
    again = executed(kernel, "print(items_in(Local()) == items_in(Ray()), ray.cluster_resources()['CPU'])")
    assert text_of(again) == "True 3.0\n"  # it is still the user's
    executed(kernel, "ray.shutdown()")


COUNTING = """
import itertools, threading
import flowrl
go = threading.Event()
def look(x):
    if x == 3:
        print("at three", flush=True)
        go.wait()  # until the interrupt has come; it is noted, for an item is under way
run = flowrl.run(flowrl.from_iterable(itertools.count).tap(look), flowrl.Local())
"""


def interrupted(kernel: NotebookClient, source: str, printed: str) -> str:
    """The name of the exception of a cell that is interrupted once it has printed this; all its messages are read."""
    client, loop_run = kernel.kc, kernel_call
    asked = client.execute(source)
    while True:
        message = loop_run(client.get_iopub_msg(timeout=LONG_S))
        if printed in message["content"].get("text", ""):
            break
    loop_run(kernel.km.interrupt_kernel())
    while True:
        reply = loop_run(client.get_shell_msg(timeout=LONG_S))
        if reply["parent_header"]["msg_id"] == asked:
            break
    idle = False
    while not idle:
        message = loop_run(client.get_iopub_msg(timeout=LONG_S))
        idle = message["parent_header"].get("msg_id") == asked and message["content"].get("execution_state") == "idle"
    return str(reply["content"].get("ename", reply["content"]["status"]))


def kernel_call(result: Any) -> Any:
    from jupyter_core.utils import ensure_async, run_sync

    return run_sync(ensure_async)(result)


def test_an_interrupted_cell_pauses_a_run_that_goes_on(kernel: NotebookClient) -> None:
    executed(kernel, COUNTING)
    executed(kernel, "threading.Timer(0.3, go.set).start()")
    assert interrupted(kernel, "run.step(10**9)", "at three") == "KeyboardInterrupt"
    # On a busy machine what the very next cell prints was once missing, so one that prints nothing comes between.
    executed(kernel, "found = run.closed, run.kept, run.step(6)")
    cell = executed(kernel, "print(*found)")
    assert text_of(cell) == "False 4 [0, 1, 2, 3, 4, 5]\n"  # nothing is lost
    cell = executed(
        kernel, "handle = run.background(); print('begins', flush=True); handle.wait(5); print(handle.latest >= 10)"
    )
    assert text_of(cell) == "begins\nTrue\n"
    assert interrupted(kernel, "print('waits', flush=True); handle.join()", "waits") == "KeyboardInterrupt"
    executed(kernel, "last = handle.pause(); found = handle.state, run.step(1) == [last + 1]; run.close()")
    cell = executed(kernel, "print(*found)")
    assert text_of(cell) == "paused True\n"


@pytest.mark.parametrize("name", NAMES)
def test_text_and_notebook_agree(name: str) -> None:
    """Cell for cell; `python notebooks/render.py` writes the notebook anew. Of outputs it keeps small figures only."""
    text, notebook = render.notebook_of(FOLDER / f"{name}.py"), nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert [(c.id, c.cell_type, c.source) for c in notebook.cells] == [
        (c.id, c.cell_type, c.source) for c in text.cells
    ]
    for link in re.findall(r"\]\((?!https?://)([^)#]+)", (FOLDER / f"{name}.py").read_text()):
        assert (FOLDER / link).exists(), link
    for cell in notebook.cells:
        assert cell.get("execution_count") is None
        for output in cell.get("outputs", []):
            assert output.output_type == "display_data"
            assert set(output.data) <= set(render.FIGURES)
            assert all(len(figure) <= render.LARGEST for figure in output.data.values())


def test_a_parameter_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"sets \['ROUNDS'\], not \['STEPS'\]"):
        render.with_parameters(render.notebook_of(FOLDER / "01_first_graph.py"), {"STEPS": 1})


def test_a_cell_that_raises_is_told(kernel: NotebookClient) -> None:
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        executed(kernel, "1 / 0")
