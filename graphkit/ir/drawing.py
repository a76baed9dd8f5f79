"""A graph as a picture for notebooks: SVG inside HTML that stands alone, without scripts or other files.

The layout is Sugiyama's (Sugiyama, Tagawa and Toda, 1981): layers by the longest path from the inputs, order within
a layer by barycentres, and places that keep the order and come as near to the neighbours' as boxes allow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise

from graphkit.ir.graph import Graph, Value
from graphkit.ir.printing import node_line
from graphkit.ir.types import TensorType

# Nodes that are drawn, the first in order of computation; a larger picture takes long to make and shows nothing.
MAX_NODES = 150
# Places for edges on their way past layers; beyond them long edges are drawn straight.
_MAX_BENDS = 4_000
_SWEEPS = 6

_LETTER, _LINE, _GAP, _LAYER_GAP, _MARGIN = 6.7, 15.0, 18.0, 34.0, 8.0
_COLOURS = {"input": "#e6f2e6", "node": "#eaf0fa", "output": "#f7ecdc", "more": "#f2f2f2"}


@dataclass(eq=False)
class _Box:
    """One thing in a layer: lines of text, or none for the bend of an edge; x is its centre."""

    lines: tuple[str, ...] = ()
    kind: str = ""
    title: str = ""
    layer: int = 0
    x: float = 0.0
    above: list[_Box] = field(default_factory=list)
    below: list[_Box] = field(default_factory=list)

    @property
    def width(self) -> float:
        return max(map(len, self.lines)) * _LETTER + 14 if self.lines else 4.0

    @property
    def height(self) -> float:
        return len(self.lines) * _LINE + 8 if self.lines else 0.0


def to_html(graph: Graph, heading: str) -> str:
    """The heading, escaped, and the drawing of a graph below it, in a box that scrolls."""
    count = len(graph.nodes)
    note = f" The first {MAX_NODES:,} of {count:,} nodes are drawn." if count > MAX_NODES else ""
    return (
        f"<div><code>{escape(heading)}</code>{escape(note)}</div>"
        f'<div style="max-height:640px;overflow:auto">{to_svg(graph)}</div>'
    )


def to_svg(graph: Graph) -> str:
    """The graph as an SVG element: data inputs, nodes with the type that they give, outputs; parameters in tooltips."""
    boxes, edges = _boxes(graph)
    layers, paths = _layered(boxes, edges)
    _order(layers)
    _place(layers)
    return _svg(layers, paths)


# --- what is drawn ----------------------------------------------------------------------------------


def _boxes(graph: Graph) -> tuple[list[_Box], list[tuple[_Box, _Box]]]:
    """Boxes in topological order, and edges between them."""
    boxes: list[_Box] = []
    edges: list[tuple[_Box, _Box]] = []
    made: dict[Value, _Box] = {}
    for value in graph.inputs:
        if value.role == "data":
            name = graph.name_of(value)
            made[value] = _Box((_short(name), _size(value)), "input", f"input {name}: {value.type}")
            boxes.append(made[value])
    shown = [node for node in graph.nodes[:MAX_NODES] if node.op.name != "Constant" or node.op.domain]
    for node in shown:
        label = (node.op.name, *([_size(node.outputs[0])] if node.outputs else []))
        box = _Box(label, "node", node_line(graph, node)[:600])
        boxes.append(box)
        for value in node.outputs:
            made[value] = box
        edges += [(source, box) for source in dict.fromkeys(made[v] for v in node.operands if v in made)]
    for name, value in zip(graph.output_names, graph.outputs, strict=True):
        box = _Box((_short(name), _size(value)), "output", f"output {name}: {value.type}")
        if value in made:
            boxes.append(box)
            edges.append((made[value], box))
    if len(graph.nodes) > MAX_NODES:
        more = _Box((f"... {len(graph.nodes) - MAX_NODES:,} more nodes",), "more")
        boxes.append(more)
        leaves = {id(source) for source, _ in edges}
        edges += [(box, more) for box in boxes if box.kind == "node" and id(box) not in leaves]
    return boxes, edges


def _short(text: str) -> str:
    return text if len(text) <= 28 else f"{text[:13]}...{text[-12:]}"


def _size(value: Value) -> str:
    """The shape, `N x 16 x 8 x 8`, with the element type when it is another than float32."""
    kind = value.type
    if not isinstance(kind, TensorType):
        return _short(str(kind))
    shape = "any rank" if kind.shape is None else " x ".join(map(str, kind.shape)) or "scalar"
    return _short(shape if str(kind.dtype) == "float32" else f"{kind.dtype} {shape}")


# --- layers -------------------------------------------------------------------------------------------


def _layered(boxes: Sequence[_Box], edges: Sequence[tuple[_Box, _Box]]) -> tuple[list[list[_Box]], list[list[_Box]]]:
    """Boxes by layer, and each edge as the boxes that it goes through, bends in between."""
    for source, target in edges:  # sources come before targets
        target.layer = max(target.layer, source.layer + 1)
    _settle(boxes, edges)
    layers: list[list[_Box]] = [[] for _ in range(max((b.layer for b in boxes), default=0) + 1)]
    for box in boxes:
        layers[box.layer].append(box)
    paths, bends = [], 0
    for source, target in edges:
        path = [source]
        if bends + target.layer - source.layer < _MAX_BENDS:
            for layer in range(source.layer + 1, target.layer):
                path.append(_Box(layer=layer))
                layers[layer].append(path[-1])
                bends += 1
        path.append(target)
        for a, b in pairwise(path):
            a.below.append(b)
            b.above.append(a)
        paths.append(path)
    return layers, paths


def _settle(boxes: Sequence[_Box], edges: Sequence[tuple[_Box, _Box]]) -> None:
    """Bring what has no operands (inputs, mostly) down to the layer above its first reader."""
    first: dict[_Box, int] = {}
    fed = {target for _, target in edges}
    for source, target in edges:
        first[source] = min(first.get(source, target.layer), target.layer)
    for box in boxes:
        if box not in fed and box in first:
            box.layer = first[box] - 1


def _order(layers: Sequence[list[_Box]]) -> None:
    """Sort each layer by the mean position of its neighbours in the layer before, down and up by turns."""
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


def _place(layers: Sequence[list[_Box]]) -> None:
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


def _fit(layer: Sequence[_Box], wanted: Sequence[float]) -> None:
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


def _svg(layers: Sequence[list[_Box]], paths: Sequence[Sequence[_Box]]) -> str:
    tops, y = [], _MARGIN
    heights = [max((box.height for box in layer), default=0.0) for layer in layers]
    for height in heights:
        tops.append(y)
        y += height + _LAYER_GAP
    width = max((box.x + box.width / 2 for layer in layers for box in layer), default=0.0) + _MARGIN
    height = y - _LAYER_GAP + _MARGIN
    middles = [top + tall / 2 for top, tall in zip(tops, heights, strict=True)]
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


def _curve(path: Sequence[_Box], middles: Sequence[float]) -> str:
    points = [(box.x, middles[box.layer]) for box in path]
    points[0] = (path[0].x, middles[path[0].layer] + path[0].height / 2)
    points[-1] = (path[-1].x, middles[path[-1].layer] - path[-1].height / 2 - 5)
    steps = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for (x1, y1), (x2, y2) in pairwise(points):
        half = (y1 + y2) / 2
        steps.append(f"C{x1:.1f} {half:.1f} {x2:.1f} {half:.1f} {x2:.1f} {y2:.1f}")
    return "".join(steps)


def _arrow(box: _Box, middles: Sequence[float]) -> str:
    x, y = box.x, middles[box.layer] - box.height / 2
    return f'<path d="M{x - 3.5:.1f} {y - 6:.1f}h7l-3.5 6z"/>'


def _drawn(box: _Box, middle: float) -> Iterator[str]:
    left, top = box.x - box.width / 2, middle - box.height / 2
    round_corner = 3 if box.kind == "node" else 10
    yield (
        f'<g><title>{escape(box.title)}</title><rect x="{left:.1f}" y="{top:.1f}" width="{box.width:.1f}" '
        f'height="{box.height:.1f}" rx="{round_corner}" fill="{_COLOURS[box.kind]}" stroke="#5b6270"/>'
    )
    for i, line in enumerate(box.lines):
        weight = ' font-weight="bold"' if i == 0 else ""
        y = top + 4 + (i + 0.75) * _LINE
        yield f'<text x="{box.x:.1f}" y="{y:.1f}" text-anchor="middle" fill="#1c2026"{weight}>{escape(line)}</text>'
    yield "</g>"
