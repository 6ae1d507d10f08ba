"""How flows and runs show themselves in notebooks; IPython's part is played by what it would call."""

from __future__ import annotations

import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

import flowrl
from flowrl import Local
from flowrl.algorithms import PPOConfig
from flowrl.draw import longest_path
from flowrl.live import in_notebook, show, table
from flowrl.operators import ReportMetrics, Union


class Source:
    """Counts, and waits for its turn after the first five."""

    def sample(self) -> int:
        self.count = getattr(self, "count", 0) + 1
        return self.count


def flow() -> flowrl.Flow[Any]:
    return flowrl.from_actors(flowrl.actor(Source, name="<source>"), "sample").gather_sync()


def test_a_flow_is_a_drawing_a_picture_or_text() -> None:
    shards = flowrl.from_items([1, 2], num_shards=2).for_each(abs)
    for shown in (shards, shards.gather_sync()):
        bundle = shown._repr_mimebundle_(include=None, exclude=None)
        assert list(bundle) == ["text/vnd.mermaid", "image/svg+xml", "text/plain"]
        assert bundle["text/vnd.mermaid"].startswith("flowchart LR")
        assert ElementTree.fromstring(bundle["image/svg+xml"]).tag.endswith("svg")
        assert bundle["text/plain"] == shown.explain()


def test_a_long_graph_goes_downwards() -> None:
    """A cell shrinks a drawing to its width."""
    one, other = flowrl.from_items([1, 2], num_shards=2).gather_sync().duplicate(2)
    for _ in range(4):
        one = one.for_each(abs)
    for flow, way in ((one, "LR"), (Union([other, one]), "TB")):
        longest = longest_path(flow.node)
        assert (longest > 8) == (way == "TB"), longest
        assert flow._repr_mimebundle_()["text/vnd.mermaid"].startswith(f"flowchart {way}\n")
        assert flow.to_mermaid().startswith("flowchart LR\n")


def test_a_run_is_a_table() -> None:
    with flowrl.run(flow(), Local()) as run:
        run.step(3)
        bundle = run._repr_mimebundle_()
        assert "&lt;source&gt;" in bundle["text/html"]  # names are no markup
        assert "open, " in bundle["text/html"]
        assert bundle["text/plain"] == repr(run)
        ElementTree.fromstring(bundle["text/html"])
    assert "closed, " in run._repr_mimebundle_()["text/html"]


def test_a_table_says_the_newest_summary_or_item_and_what_stopped_it() -> None:
    with flowrl.run(flow().for_each(ReportMetrics()), Local()) as run:
        handle = run.background()
        handle.wait(2, 30)
        handle.pause(30)
        assert "steps/s" in table(run, handle)
        assert "paused, " in table(run, handle)
    with flowrl.run(flow().for_each(lambda x: 1 // (3 - x)), Local()) as run:
        handle = run.background()
        with pytest.raises(ZeroDivisionError):
            handle.join(30)
        assert handle.state == "stopped by ZeroDivisionError"
        assert "integer" in table(run, handle)
        assert repr(handle).startswith("Handle(stopped by ZeroDivisionError, 2 items, of Run(closed")


class Display:
    """IPython's display, which notes what it shows."""

    def __init__(self) -> None:
        self.shown: list[dict[str, str]] = []

    def __call__(self, bundle: dict[str, str], *, raw: bool, display_id: bool) -> Display:
        assert raw
        assert display_id
        self.shown.append(bundle)
        return self

    def update(self, bundle: dict[str, str], *, raw: bool) -> None:
        self.shown.append(bundle)


@pytest.fixture
def display(monkeypatch: pytest.MonkeyPatch) -> Display:
    fake, module, outer = Display(), ModuleType("IPython.display"), ModuleType("IPython")
    module.display = fake  # type: ignore[attr-defined]
    compiler = SimpleNamespace(format_code_name=lambda file: ("Cell", "In[7]") if file == __file__ else None)
    outer.get_ipython = lambda: SimpleNamespace(kernel=object(), compile=compiler)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", outer)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return fake


def test_a_run_in_the_background_is_drawn_anew_until_it_ends(display: Display) -> None:
    with flowrl.run(flow().take(4), Local()) as run:
        handle = run.background()
        thread = show(handle, run)
        handle.join(30)
        assert isinstance(thread, threading.Thread)
        thread.join(30)
        assert not thread.is_alive()
    assert len(display.shown) >= 2
    assert "ended, " in display.shown[-1]["text/html"]
    assert ">4<" in display.shown[-1]["text/html"]


def test_without_a_notebook_it_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "IPython", None)
    with flowrl.run(flow().take(1), Local()) as run:
        handle = run.background()
        handle.join(30)
        handle._ipython_display_()
    assert capsys.readouterr().out.startswith("Handle(ended, 1 items, of Run(")


def test_ipython_on_a_terminal_is_no_notebook(display: Display, monkeypatch: pytest.MonkeyPatch) -> None:
    """There every update would be printed anew."""
    assert in_notebook()
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", object)
    assert not in_notebook()
    with flowrl.run(flow().take(1), Local()) as run:
        assert show(run.background(), run) is None
    assert not display.shown


def test_a_node_says_which_cell_it_is_from(display: Display) -> None:
    shown = flow().for_each(abs).to_svg()
    assert f"defined at cell In[7]:{sys._getframe().f_lineno - 1}" in shown
    assert "ppo.py:" in PPOConfig().graph().to_svg()


def test_training_shows_a_table_below_the_cell(display: Display) -> None:
    seen: list[int] = []
    reported = flow().for_each(ReportMetrics()).take(30)
    flowrl.train(reported, total_steps=None, backend=Local(), observe=lambda now: seen.append(now.summary.iteration))
    assert seen == list(range(1, 31))
    assert 2 <= len(display.shown) < 30  # at once, at the end, and not with each
    last = display.shown[-1]
    ElementTree.fromstring(last["text/html"])
    assert ">verdict<" in last["text/html"]
    assert "steps 0 " in last["text/plain"]
    before = len(display.shown)
    flowrl.train(flow().for_each(ReportMetrics()).take(3), backend=Local(), progress=False)
    assert len(display.shown) == before


@pytest.mark.parametrize("what", ["wait", "join"])
def test_an_interrupted_cell_pauses_the_run(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with flowrl.run(flow(), Local()) as run:
        handle = run.background()

        def interrupted(*_: Any) -> bool:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(handle._changed, "wait_for", interrupted)
            with pytest.raises(KeyboardInterrupt):
                handle.join(30) if what == "join" else handle.wait(10**9, 30)
        handle.pause(30)  # waits for the item at hand
        assert handle.state == "paused"
        before = handle.count
        run.step(1)
        handle.resume()
        handle.wait(before + 1, 30)
        assert not run.closed
