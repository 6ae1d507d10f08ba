"""The picture: well-formed, nothing overlaps, from left to right."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl import (
    Flow,
    from_items,
    from_iterable,
    graph,
)
from flowrl.described import Described
from flowrl.layout import Layout, settle
from flowrl.svg import _Picture
from tests.drawn_graphs import branching, flows, off_policy, ppo_like, replayed

SVG = "{http://www.w3.org/2000/svg}"


def overlapping(layout: Layout) -> list[tuple[Any, Any]]:
    """Pairs of boxes that overlap; a frame may hold its own nodes only."""
    boxes: list[tuple[Any, Any]] = [*layout.boxes.items(), *layout.frames.items(), *layout.stores.items()]

    def belongs(a: Any, b: Any) -> bool:
        return isinstance(b, tuple) and isinstance(a, graph.Node) and layout.drawn.runs_in[a] == b

    def meet(a: Any, b: Any) -> bool:
        return a.x < b.x + b.w and b.x < a.x + a.w and a.y < b.y + b.h and b.y < a.y + a.h

    return [(a, b) for (a, box), (b, other) in combinations(boxes, 2) if meet(box, other) and not belongs(a, b)]


def check_picture(flow: Flow[Any]) -> None:
    layout = _Picture(Described(flow.node)).layout
    assert not overlapping(layout)
    root = ElementTree.fromstring(flow.to_svg())
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    for box in [*layout.boxes.values(), *layout.frames.values(), *layout.stores.values()]:
        assert box.x >= 0
        assert box.y >= 0
        assert box.x + box.w <= width
        assert box.y + box.h <= height
    for node, box in layout.boxes.items():
        for up in node.upstream:
            assert layout.boxes[up].x + layout.boxes[up].w < box.x  # from left to right


@pytest.mark.parametrize("make", [ppo_like, branching, off_policy, replayed])
def test_svg_has_every_node_once_and_no_overlap(make: Any) -> None:
    flow = make()
    check_picture(flow)
    bold = [t.text for t in ElementTree.fromstring(flow.to_svg()).iter(f"{SVG}text") if "font-weight" in t.attrib]
    for name in graph.names_of(flow.node).values():
        assert bold.count(name) == 1
    assert "href" not in flow.to_svg()


def test_a_chain_is_drawn_on_one_line() -> None:
    boxes = _Picture(Described(ppo_like().node)).layout.boxes.values()
    assert len({round(box.middle[1], 6) for box in boxes}) == 1


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=8), st.floats(0, 20))
def test_settle_keeps_distances_and_stays_where_it_can(wanted: list[float], distance: float) -> None:
    gaps = [distance] * (len(wanted) - 1)
    placed = settle(wanted, gaps)
    assert all(b - a >= distance - 1e-6 for a, b in pairwise(placed))
    assert np.mean(placed) == pytest.approx(np.mean(wanted), abs=1e-6)
    if all(b - a >= distance for a, b in pairwise(wanted)):
        assert placed == pytest.approx(wanted, abs=1e-6)


def test_settle_by_hand() -> None:
    assert settle([0, 0, 10], [4, 4]) == [-2, 2, 10]


def test_a_tooltip_says_the_whole_name_the_operator_and_where() -> None:
    name = """Ünïcode "q" <b> & ]]> 'x' 表"""
    flow = from_items([1], num_shards=1).gather_sync().for_each(abs, name=name).named("a<")
    titles = [title.text or "" for title in ElementTree.fromstring(flow.to_svg()).iter(f"{SVG}title")]
    assert any(title.startswith(f"a</{name}\nabs\nruns in: driver\ndefined at ") for title in titles)


@given(flows())
def test_every_graph_can_be_pictured(flow: Flow[Any]) -> None:
    check_picture(flow)


def test_a_long_chain_is_well_formed() -> None:
    node = from_iterable(list).node
    for _ in range(1200):
        node = graph.Take(upstream=(node,), label="take", where="here:1", n=1)
    assert len(list(ElementTree.fromstring(Flow(node).to_svg()).iter(f"{SVG}rect"))) == 1202
