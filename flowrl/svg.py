"""A graph as a self-contained SVG picture."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from xml.sax.saxutils import escape

from flowrl import graph
from flowrl.described import Described, class_name, clean, shortened, width
from flowrl.layout import PAD, Box, Layout, Size

_FONT = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"
_EM = 0.615  # width of a monospaced character, in units of the font's size
_NAME, _DETAIL = 13.0, 11.0  # font sizes
_LINE = 15.0
_WIDEST, _MOST_LINES = 34, 3  # of the text in a box
_INK, _PALE, _EDGE, _PAPER, _RIM = "#1f2933", "#52606d", "#7b8794", "#fcfcfa", "#d9dde2"
_TINTS = (  # fill and stroke of each group in turn
    ("#e4f0fb", "#3f7fb8"), ("#e9f5e6", "#4f8f46"), ("#fdf0df", "#b87a2b"),
    ("#f3e8f7", "#8a5aa5"), ("#fbe7e7", "#b35454"), ("#e2f4f3", "#3a8f8a"),
)  # fmt: skip

Point = tuple[float, float]


def to_svg(node: graph.Node) -> str:
    """The graph as an SVG picture, the sources on the left; it needs nothing else and has a background of its own.

    Coloured frames are the shards of a group, rounded boxes below are groups that are only asked, dotted lines lead to
    the groups that a node holds. Pointing at a box shows the whole operator, its bounds and where it was defined.
    """
    return _Picture(Described(node)).text()


class _Picture:
    def __init__(self, drawn: Described):
        self.drawn = drawn
        self.colours = {name: _TINTS[at % len(_TINTS)] for at, name in enumerate(drawn.groups)}
        self.lines = {node: self._lines(node) for node in drawn.nodes}
        places = dict.fromkeys(place for place in drawn.runs_in.values() if place)
        titles = {place: _size([self._frame_title(place)], PAD) for place in places}
        stores: dict[tuple[str, ...], Size] = {
            (name,): _size(self._store_lines(name), 12.0) for name in drawn.groups if (name,) not in titles
        }
        self.layout = Layout(
            drawn, {node: _size(lines, 10.0) for node, lines in self.lines.items()}, {**titles, **stores}
        )

    def text(self) -> str:
        """The whole document."""
        layout = self.layout
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {layout.width:.0f} {layout.height:.0f}" '
            f'width="{layout.width:.0f}" height="{layout.height:.0f}" role="img" '
            f'font-family="{escape(_FONT)}">',
            f"<title>{escape(f'The graph that ends in {self.drawn.names[self.drawn.root]}')}</title>",
            f'<rect width="100%" height="100%" rx="8" fill="{_PAPER}" stroke="{_RIM}"/>',
            *(self._frame(place) for place in layout.frames),
            *self._dotted(),
            *self._solid(),
            *(self._node(node) for node in self.drawn.nodes),
            *(self._store(name) for name in layout.stores),
        ]
        return "\n".join([*parts, "</svg>"]) + "\n"

    # ---------------------------------------------------------------- boxes

    def _lines(self, node: graph.Node) -> list[str]:
        bounds = self.drawn.bounds(node)
        name = shortened(self.drawn.names[node], _WIDEST)
        return [name, *_folded(self.drawn.detail(node)), *_folded(", ".join(bounds))]

    def _node(self, node: graph.Node) -> str:
        place = self.drawn.runs_in[node]
        stroke = self.colours[place[0]][1] if place else _EDGE
        bounds = self.drawn.bounds(node)
        whole = [self.drawn.names[node], self.drawn.text(node), *([", ".join(bounds)] if bounds else [])]
        title = "\n".join([*whole, f"runs in: {self.drawn.place(node)}", f"defined at {clean(node.where)}"])
        return _box(self.layout.boxes[node], title, self.lines[node], "#ffffff", stroke, 5.0)

    def _store_lines(self, name: str) -> list[str]:
        group = self.drawn.groups[name]
        return [shortened(clean(name), _WIDEST), shortened(f"{group.count} × {class_name(group)}", _WIDEST)]

    def _store(self, name: str) -> str:
        group = self.drawn.groups[name]
        fill, stroke = self.colours[name]
        title = f"{clean(name)}: {group.count} × {class_name(group)}\ndescribed at {clean(group.where)}"
        return _box(self.layout.stores[name], title, self._store_lines(name), fill, stroke, 18.0)

    def _frame_title(self, place: Sequence[str]) -> str:
        return ", ".join(f"{self.drawn.groups[name].count} × {shortened(clean(name), _WIDEST)}" for name in place)

    def _frame(self, place: tuple[str, ...]) -> str:
        box = self.layout.frames[place]
        fill, stroke = self.colours[place[0]]
        groups = [self.drawn.groups[name] for name in place]
        title = "\n".join(
            f"{clean(name)}: {group.count} × {class_name(group)}, described at {clean(group.where)}"
            for name, group in zip(place, groups, strict=True)
        )
        return (
            f'<g><title>{escape(title)}</title><rect {_place(box)} rx="10" fill="{fill}" stroke="{stroke}" '
            f'stroke-opacity="0.5"/><text x="{box.x + PAD:.1f}" y="{box.y + 20:.1f}" font-size="{_NAME:g}" '
            f'font-weight="bold" fill="{stroke}">{escape(self._frame_title(place))}</text></g>'
        )

    # ---------------------------------------------------------------- lines

    def _solid(self) -> list[str]:
        paths = []
        for node in self.drawn.nodes:
            for position, up in enumerate(node.upstream):
                silent = isinstance(node, graph.Unite) and not node.emit[position]
                title = f"{self.drawn.names[up]} → {self.drawn.names[node]}{' (not emitted)' if silent else ''}"
                points = self.layout.line(up, node)
                colour = _RIM if silent else _EDGE
                paths.append(
                    f'<g><title>{escape(title)}</title><path d="{_curve(points)}" fill="none" stroke="{colour}" '
                    f'stroke-width="1.6"/>{_arrow(points[-1], "right", colour)}</g>'
                )
        return paths

    def _dotted(self) -> list[str]:
        paths: list[str] = []
        for node in self.drawn.nodes:
            for nth, (name, option) in enumerate(self.drawn.held(node)):
                label = "asks" if self.drawn.asks(node) else option or "holds"
                points = self.layout.dotted(node, name, len(paths), nth)
                colour = self.colours[name][1]
                title = f"{self.drawn.names[node]} {label} {clean(name)}"
                way = "down" if name in self.layout.stores else "right"
                paths.append(
                    f'<g><title>{escape(title)}</title><path d="{_rounded(points)}" fill="none" stroke="{colour}" '
                    f'stroke-width="1.4" stroke-dasharray="2 4" stroke-linecap="round"/>'
                    f"{_arrow(points[-1], way, colour)}</g>"
                )
        return paths


def _folded(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDEST, max_lines=_MOST_LINES, placeholder=" …", break_on_hyphens=False)


def _size(lines: Sequence[str], padding: float) -> Size:
    wide = max(width(line) * _EM * (_NAME if at == 0 else _DETAIL) for at, line in enumerate(lines))
    return wide + 2 * padding, _LINE * len(lines) + 14.0


def _box(box: Box, title: str, lines: Sequence[str], fill: str, stroke: str, radius: float) -> str:
    x, _ = box.middle
    texts = [
        f'<text x="{x:.1f}" y="{box.y + 18 + _LINE * at:.1f}" text-anchor="middle" '
        + (
            f'font-size="{_NAME:g}" font-weight="bold" fill="{_INK}"'
            if at == 0
            else f'font-size="{_DETAIL:g}" fill="{_PALE}"'
        )
        + f">{escape(line)}</text>"
        for at, line in enumerate(lines)
    ]
    rect = f'<rect {_place(box)} rx="{radius:g}" fill="{fill}" stroke="{stroke}" stroke-width="1.3"/>'
    return f"<g><title>{escape(title)}</title>{rect}{''.join(texts)}</g>"


def _place(box: Box) -> str:
    return f'x="{box.x:.1f}" y="{box.y:.1f}" width="{box.w:.1f}" height="{box.h:.1f}"'


def _curve(points: Sequence[Point]) -> str:
    (x, y), steps = points[0], []
    for to_x, to_y in points[1:]:
        bend = (to_x - x) / 2
        steps.append(f"C{x + bend:.1f} {y:.1f} {to_x - bend:.1f} {to_y:.1f} {to_x:.1f} {to_y:.1f}")
        x, y = to_x, to_y
    return f"M{points[0][0]:.1f} {points[0][1]:.1f} {' '.join(steps)}"


def _rounded(points: Sequence[Point]) -> str:
    """Straight lines with round corners; every step is along one axis."""
    steps = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        entry, leave = _towards(corner, before), _towards(corner, after)
        steps.append(f"L{entry[0]:.1f} {entry[1]:.1f} Q{corner[0]:.1f} {corner[1]:.1f} {leave[0]:.1f} {leave[1]:.1f}")
    return " ".join([*steps, f"L{points[-1][0]:.1f} {points[-1][1]:.1f}"])


def _towards(start: Point, goal: Point) -> Point:
    far = abs(goal[0] - start[0]) + abs(goal[1] - start[1])
    part = min(6.0, far / 2) / far if far else 0.0
    return start[0] + (goal[0] - start[0]) * part, start[1] + (goal[1] - start[1]) * part


def _arrow(tip: Point, way: str, colour: str) -> str:
    x, y = tip
    back = [(x - 7, y - 4), (x - 7, y + 4)] if way == "right" else [(x - 4, y - 7), (x + 4, y - 7)]
    return f'<path d="M{x:.1f} {y:.1f} ' + " ".join(f"L{bx:.1f} {by:.1f}" for bx, by in back) + f' Z" fill="{colour}"/>'
