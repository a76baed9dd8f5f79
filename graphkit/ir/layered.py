"""Layered drawing of boxes and edges, as one SVG element without other files.

The layout is Sugiyama's (Sugiyama, Tagawa and Toda, 1981). The longest path from the sources gives the layer of a box.
Barycentres give the order within a layer. Each box is placed as near to its neighbours as the order and the widths of
the boxes allow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise

# Largest number of bend points, where edges cross layers. Further long edges are drawn straight.
_MAX_BENDS = 4_000
_SWEEPS = 6

_LETTER, _LINE, _GAP, _LAYER_GAP, _MARGIN = 6.7, 15.0, 18.0, 34.0, 8.0
_COLOURS = {"input": "#e6f2e6", "node": "#eaf0fa", "group": "#efe9f7", "output": "#f7ecdc", "more": "#f2f2f2"}


@dataclass(eq=False)
class Box:
    """A box with lines of text, or, without lines, the bend point of an edge. x: horizontal centre."""

    lines: tuple[str, ...] = ()
    kind: str = ""
    title: str = ""
    layer: int = 0
    x: float = 0.0
    above: list[Box] = field(default_factory=list)
    below: list[Box] = field(default_factory=list)

    @property
    def width(self) -> float:
        return max(map(len, self.lines)) * _LETTER + 14 if self.lines else 4.0

    @property
    def height(self) -> float:
        return len(self.lines) * _LINE + 8 if self.lines else 0.0


def picture(boxes: Sequence[Box], edges: Sequence[tuple[Box, Box]]) -> str:
    """Return an SVG element. boxes: in topological order; edges: edges into a box come before the edges out of it."""
    layers, paths = arranged(boxes, edges)
    return _svg(layers, paths)


def arranged(boxes: Sequence[Box], edges: Sequence[tuple[Box, Box]]) -> tuple[list[list[Box]], list[list[Box]]]:
    """Return the placed boxes by layer, and for each edge its path: source, bend points, target."""
    layers, paths = _layered(boxes, edges)
    _order(layers)
    _place(layers)
    return layers, paths


def vertical(layers: Sequence[Sequence[Box]]) -> tuple[list[float], float]:
    """Return the vertical centre of each layer, and the height of the drawing."""
    middles, y = [], _MARGIN
    for layer in layers:
        height = max((box.height for box in layer), default=0.0)
        middles.append(y + height / 2)
        y += height + _LAYER_GAP
    return middles, y - _LAYER_GAP + _MARGIN


# --- layers -------------------------------------------------------------------------------------------


def _layered(boxes: Sequence[Box], edges: Sequence[tuple[Box, Box]]) -> tuple[list[list[Box]], list[list[Box]]]:
    """Return the boxes by layer, and for each edge its path: source, bend points, target."""
    for source, target in edges:  # sources come before targets
        target.layer = max(target.layer, source.layer + 1)
    _settle(boxes, edges)
    layers: list[list[Box]] = [[] for _ in range(max((b.layer for b in boxes), default=0) + 1)]
    for box in boxes:
        layers[box.layer].append(box)
    paths, bends = [], 0
    for source, target in edges:
        path = [source]
        if bends + target.layer - source.layer < _MAX_BENDS:
            for layer in range(source.layer + 1, target.layer):
                path.append(Box(layer=layer))
                layers[layer].append(path[-1])
                bends += 1
        path.append(target)
        for a, b in pairwise(path):
            a.below.append(b)
            b.above.append(a)
        paths.append(path)
    return layers, paths


def _settle(boxes: Sequence[Box], edges: Sequence[tuple[Box, Box]]) -> None:
    """Move boxes without incoming edges (mostly inputs) down to the layer above their first reader."""
    first: dict[Box, int] = {}
    fed = {target for _, target in edges}
    for source, target in edges:
        first[source] = min(first.get(source, target.layer), target.layer)
    for box in boxes:
        if box not in fed and box in first:
            box.layer = first[box] - 1


def _order(layers: Sequence[list[Box]]) -> None:
    """Sort each layer by the mean position of each box's neighbours in the layer above, then below, in turns."""
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for layer in layers if down else reversed(layers):
            place = {}
            for box in layer:
                near = box.above if down else box.below
                place[box] = sum(b.x for b in near) / len(near) if near else box.x
            layer.sort(key=place.__getitem__)
            for i, box in enumerate(layer):
                box.x = float(i)


def _place(layers: Sequence[list[Box]]) -> None:
    """Centres: as near to the mean of the neighbours as the widths in a layer allow."""
    for layer in layers:
        _fit(layer, [box.x * 60.0 for box in layer])
    for sweep in range(2 * _SWEEPS):
        down = sweep % 2 == 0
        for layer in layers if down else reversed(layers):
            wanted = []
            for box in layer:
                near = (box.above if down else box.below) or box.below or box.above
                wanted.append(sum(b.x for b in near) / len(near) if near else box.x)
            _fit(layer, wanted)
    left = min((box.x - box.width / 2 for layer in layers for box in layer), default=0.0)
    for layer in layers:
        for box in layer:
            box.x += _MARGIN - left


def _fit(layer: Sequence[Box], wanted: Sequence[float]) -> None:
    """The places nearest to `wanted` (least squares) that keep order and gaps: isotonic regression by pooling."""
    offsets, total = [], 0.0
    for i, box in enumerate(layer):
        if i:
            total += (layer[i - 1].width + box.width) / 2 + _GAP
        offsets.append(total)
    pools: list[tuple[float, int]] = []  # (mean, how many)
    for target, offset in zip(wanted, offsets, strict=True):
        mean, count = target - offset, 1
        while pools and pools[-1][0] > mean:
            before, many = pools.pop()
            mean, count = (before * many + mean * count) / (many + count), many + count
        pools.append((mean, count))
    places = [mean for mean, count in pools for _ in range(count)]
    for box, place, offset in zip(layer, places, offsets, strict=True):
        box.x = place + offset


# --- SVG ------------------------------------------------------------------------------------------------


def _svg(layers: Sequence[list[Box]], paths: Sequence[Sequence[Box]]) -> str:
    middles, height = vertical(layers)
    width = max((box.x + box.width / 2 for layer in layers for box in layer), default=0.0) + _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="monospace" font-size="11">',
        '<g fill="none" stroke="#8a8f98" stroke-width="1.2">',
        *(f'<path d="{_curve(path, middles)}"/>' for path in paths),
        "</g>",
        '<g fill="#8a8f98">',
        *(_arrow(path[-1], middles) for path in paths),
        "</g>",
        *(part for layer in layers for box in layer if box.lines for part in _drawn(box, middles[box.layer])),
        "</svg>",
    ]
    return "".join(parts)


def _curve(path: Sequence[Box], middles: Sequence[float]) -> str:
    points = [(box.x, middles[box.layer]) for box in path]
    points[0] = (path[0].x, middles[path[0].layer] + path[0].height / 2)
    points[-1] = (path[-1].x, middles[path[-1].layer] - path[-1].height / 2 - 5)
    steps = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for (x1, y1), (x2, y2) in pairwise(points):
        half = (y1 + y2) / 2
        steps.append(f"C{x1:.1f} {half:.1f} {x2:.1f} {half:.1f} {x2:.1f} {y2:.1f}")
    return "".join(steps)


def _arrow(box: Box, middles: Sequence[float]) -> str:
    x, y = box.x, middles[box.layer] - box.height / 2
    return f'<path d="M{x - 3.5:.1f} {y - 6:.1f}h7l-3.5 6z"/>'


def _drawn(box: Box, middle: float) -> Iterator[str]:
    left, top = box.x - box.width / 2, middle - box.height / 2
    round_corner = 3 if box.kind == "node" else 10
    yield (
        f'<g class="{box.kind}"><title>{escape(box.title)}</title><rect x="{left:.1f}" y="{top:.1f}" '
        f'width="{box.width:.1f}" height="{box.height:.1f}" rx="{round_corner}" fill="{_COLOURS[box.kind]}" '
        'stroke="#5b6270"/>'
    )
    for i, line in enumerate(box.lines):
        weight = ' font-weight="bold"' if i == 0 else ""
        y = top + 4 + (i + 0.75) * _LINE
        yield f'<text x="{box.x:.1f}" y="{y:.1f}" text-anchor="middle" fill="#1c2026"{weight}>{escape(line)}</text>'
    yield "</g>"
