"""Where a graph's boxes and lines stand in its picture: layers from the sources (left) to the consumer (right).

Shards take the left columns, a band of rows for each group that no other group's boxes enter; the driver's nodes
stand right of them; groups that are only asked stand in a row below. No text is drawn here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from flowrl import graph
from flowrl.described import Described

GAP_X, GAP_Y = 52.0, 22.0
PAD, HEADER = 14.0, 24.0  # of a group's frame
MARGIN, LANE = 28.0, 11.0
_SWEEPS = 8

Size = tuple[float, float]
Vertex = tuple[graph.Node, graph.Node | None, int]  # a node (None, its layer), or the line to a consumer in one layer


@dataclass
class Box:
    """A rectangle, by its upper left corner."""

    x: float
    y: float
    w: float
    h: float

    @property
    def middle(self) -> tuple[float, float]:
        """Its centre."""
        return self.x + self.w / 2, self.y + self.h / 2


def settle(wanted: Sequence[float], distances: Sequence[float]) -> list[float]:
    """Positions nearest to the wanted ones (least squares) that keep their order and distances[i] from i to i + 1."""
    offsets = [0.0]
    for distance in distances:
        offsets.append(offsets[-1] + distance)
    blocks: list[tuple[float, int]] = []  # mean of (wanted - offset), how many: pooled until they rise
    for want, offset in zip(wanted, offsets, strict=False):
        mean, size = want - offset, 1
        while blocks and blocks[-1][0] > mean:
            before, count = blocks.pop()
            mean, size = (before * count + mean * size) / (count + size), count + size
        blocks.append((mean, size))
    levels = [mean for mean, size in blocks for _ in range(size)]
    return [level + offset for level, offset in zip(levels, offsets, strict=False)]


class Layout:
    """The picture's geometry: `boxes` of nodes, `frames` of groups in shards, `stores` of groups without shards."""

    def __init__(self, drawn: Described, sizes: Mapping[graph.Node, Size], group_sizes: Mapping[tuple[str, ...], Size]):
        self.drawn, self._sizes, self._group_sizes = drawn, sizes, group_sizes
        self.boxes: dict[graph.Node, Box] = {}
        self.frames: dict[tuple[str, ...], Box] = {}
        self.stores: dict[str, Box] = {}
        self._above: dict[Vertex, list[Vertex]] = {}
        self._below: dict[Vertex, list[Vertex]] = {}
        self._centres: dict[Vertex, float] = {}
        self._layer = self._layers()
        self._columns = self._ordered()
        self._place_shards()
        self._place_driver()
        self._place_columns()
        self._place_frames()
        self._place_stores()

    # ---------------------------------------------------------------- layers

    def _layers(self) -> dict[graph.Node, int]:
        layer: dict[graph.Node, int] = {}
        nodes, runs_in = self.drawn.nodes, self.drawn.runs_in
        for node in nodes:
            if runs_in[node]:
                layer[node] = 1 + max((layer[up] for up in node.upstream), default=-1)
        self._first_driver = 1 + max(layer.values(), default=-1)
        for node in nodes:
            if not runs_in[node]:
                layer[node] = max(self._first_driver, 1 + max((layer[up] for up in node.upstream), default=-1))
        for node in nodes:  # what the driver itself iterates over stands beside its consumer
            if isinstance(node, graph.Iterate):
                consumers = [layer[other] for other in nodes if node in other.upstream]
                layer[node] = min(consumers, default=layer[node] + 1) - 1
        return layer

    def _ordered(self) -> list[list[Vertex]]:
        """The vertices of each layer from top to bottom: few crossings, the shards' bands apart."""
        columns: list[list[Vertex]] = [[] for _ in range(1 + max(self._layer.values()))]
        for node in self.drawn.nodes:
            self._add((node, None, self._layer[node]), columns)
            for up in node.upstream:
                chain: list[Vertex] = [(up, node, at) for at in range(self._layer[up] + 1, self._layer[node])]
                for vertex in chain:
                    self._add(vertex, columns)
                ends = [(up, None, self._layer[up]), *chain, (node, None, self._layer[node])]
                for left, right in pairwise(ends):
                    self._below[left].append(right)
                    self._above[right].append(left)
        bands = {place: at for at, place in enumerate(dict.fromkeys(self.drawn.runs_in.values()))}
        rank = {vertex: float(at) for column in columns for at, vertex in enumerate(column)}
        for sweep in range(_SWEEPS):
            forth = sweep % 2 == 0
            for column in columns if forth else reversed(columns):
                towards = self._above if forth else self._below
                wish = {v: _mean((rank[other] for other in towards[v]), rank[v]) for v in column}
                column.sort(key=lambda v: (self._band(v, bands), wish[v]))
                rank.update((vertex, float(at)) for at, vertex in enumerate(column))
        return columns

    def _add(self, vertex: Vertex, columns: list[list[Vertex]]) -> None:
        self._above[vertex], self._below[vertex] = [], []
        columns[vertex[2]].append(vertex)

    def _band(self, vertex: Vertex, bands: Mapping[tuple[str, ...], int]) -> int:
        return bands[self.drawn.runs_in[vertex[0]]] if vertex[2] < self._first_driver else -1

    # ---------------------------------------------------------------- rows

    def _height(self, vertex: Vertex) -> float:
        return self._sizes[vertex[0]][1] if vertex[1] is None else 4.0

    def _place_shards(self) -> None:
        top = 0.0
        for place in dict.fromkeys(self.drawn.runs_in[node] for node in self.drawn.nodes):
            if not place:
                continue
            members = [
                [v for v in col if self.drawn.runs_in[v[0]] == place] for col in self._columns[: self._first_driver]
            ]
            heights = [sum(self._height(v) + GAP_Y for v in rows) - GAP_Y for rows in members]
            middle = top + HEADER + PAD + max(heights) / 2
            for rows, height in zip(members, heights, strict=True):
                y = middle - height / 2
                for vertex in rows:
                    self._centres[vertex] = y + self._height(vertex) / 2
                    y += self._height(vertex) + GAP_Y
            top = middle + max(heights) / 2 + PAD + GAP_Y

    def _place_driver(self) -> None:
        """From left to right, each vertex as near as can be to those that it gets items from: chains are straight."""
        for column in self._columns[self._first_driver :]:
            wanted: list[float] = []
            gaps = [(self._height(a) + self._height(b)) / 2 + GAP_Y for a, b in pairwise(column)]
            for at, vertex in enumerate(column):
                free = wanted[-1] + gaps[at - 1] if at else 0.0  # a source: below its neighbour
                wanted.append(_mean((self._centres[other] for other in self._above[vertex]), free))
            self._centres.update(zip(column, settle(wanted, gaps), strict=True))

    # ---------------------------------------------------------------- boxes

    def _place_columns(self) -> None:
        widths = [max([self._sizes[v[0]][0] for v in column if v[1] is None], default=0.0) for column in self._columns]
        for place, (first, last) in self._spans().items():
            inside = sum(widths[first : last + 1]) + GAP_X * (last - first) + 2 * PAD
            widths[last] += max(0.0, self._group_sizes[place][0] - inside)
        self._widths = widths
        self._lefts = [MARGIN + PAD + sum(widths[:at]) + GAP_X * at for at in range(len(widths))]
        shift = MARGIN - min(
            [
                self._centres[v] - self._height(v) / 2 - (PAD + HEADER) * (v[2] < self._first_driver)
                for v in self._centres
            ]
        )
        for vertex in self._centres:
            self._centres[vertex] += shift
        for node in self.drawn.nodes:
            at = self._layer[node]
            w, h = self._sizes[node]
            self.boxes[node] = Box(self._lefts[at] + (widths[at] - w) / 2, self._centre(node) - h / 2, w, h)

    def _centre(self, node: graph.Node) -> float:
        return self._centres[(node, None, self._layer[node])]

    def _spans(self) -> dict[tuple[str, ...], tuple[int, int]]:
        spans: dict[tuple[str, ...], tuple[int, int]] = {}
        for node in self.drawn.nodes:
            place, at = self.drawn.runs_in[node], self._layer[node]
            if place:
                first, last = spans.get(place, (at, at))
                spans[place] = min(first, at), max(last, at)
        return spans

    def _place_frames(self) -> None:
        for place, (first, last) in self._spans().items():
            inside = [box for node, box in self.boxes.items() if self.drawn.runs_in[node] == place]
            x, y = self._lefts[first] - PAD, min(box.y for box in inside) - PAD - HEADER
            right = self._lefts[last] + self._widths[last] + PAD
            self.frames[place] = Box(x, y, right - x, max(box.y + box.h for box in inside) + PAD - y)

    def _place_stores(self) -> None:
        lines = [(name, node) for node in self.drawn.nodes for name, _ in self.drawn.held(node)]
        self.floor = max(box.y + box.h for box in [*self.boxes.values(), *self.frames.values()])
        top = self.floor + GAP_Y + LANE * len(lines)
        names = [name for name in self.drawn.groups if (name,) not in self.frames]
        wish = {n: _mean((self.boxes[node].middle[0] for name, node in lines if name == n), MARGIN) for n in names}
        names.sort(key=lambda name: wish[name])
        widths = [self._group_sizes[(name,)][0] for name in names]
        centres = settle([wish[name] for name in names], [(a + b) / 2 + GAP_Y for a, b in pairwise(widths)])
        left = min((centre - w / 2 for centre, w in zip(centres, widths, strict=True)), default=MARGIN)
        push = max(0.0, MARGIN - left)
        for name, centre, w in zip(names, centres, widths, strict=True):
            self.stores[name] = Box(centre - w / 2 + push, top, w, self._group_sizes[(name,)][1])
        ends = [*self.boxes.values(), *self.frames.values(), *self.stores.values()]
        self.width = max(box.x + box.w for box in ends) + MARGIN
        self.height = max([top - GAP_Y, *(box.y + box.h for box in ends)]) + MARGIN

    # ---------------------------------------------------------------- lines

    def line(self, up: graph.Node, node: graph.Node) -> list[tuple[float, float]]:
        """The points of the line between two nodes: out of one on its right, past what is between, into the next."""
        start, end = self.boxes[up], self.boxes[node]
        points = [(start.x + start.w, start.middle[1])]
        for at in range(self._layer[up] + 1, self._layer[node]):
            y = self._centres[(up, node, at)]
            points += [(self._lefts[at], y), (self._lefts[at] + self._widths[at], y)]
        return [*points, (end.x, end.middle[1])]

    def dotted(self, node: graph.Node, group: str, number: int, nth: int) -> list[tuple[float, float]]:
        """The corners of the line from a node to a group it holds: the number-th line in all, the nth of the node."""
        box, lane = self.boxes[node], self.floor + GAP_Y / 2 + LANE * number
        at = self._layer[node]
        x = box.middle[0] + 14.0 * nth
        if any(other is not box and other.y > box.y and self._layer[n] == at for n, other in self.boxes.items()):
            x = self._lefts[at] + self._widths[at] + 12.0 + 6.0 * nth  # something stands below: down beside the column
            points = [(box.x + box.w, box.y + box.h - 8.0), (x, box.y + box.h - 8.0), (x, lane)]
        else:
            points = [(x, box.y + box.h), (x, lane)]
        if group in self.stores:
            goal = self.stores[group]
            inside = min(max(x, goal.x + 12.0), goal.x + goal.w - 12.0)
            return [*points, (inside, lane), (inside, goal.y)]
        frame = self.frames[(group,)]
        side = 6.0 + (number * 5.0) % (MARGIN - 12.0)
        y = frame.middle[1] + 6.0 * nth
        return [*points, (side, lane), (side, y), (frame.x, y)]


def _mean(values: Iterable[float], otherwise: float) -> float:
    found = list(values)
    return sum(found) / len(found) if found else otherwise
