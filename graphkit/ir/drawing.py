"""A graph as a picture for notebooks: SVG inside HTML that stands alone, without scripts or other files."""

from __future__ import annotations

from html import escape

from graphkit.ir.graph import Graph, Value
from graphkit.ir.layered import Box, picture
from graphkit.ir.printing import node_line
from graphkit.ir.types import TensorType

# Only this many nodes are drawn, the first ones in topological order. A larger picture takes long, and is not readable.
MAX_NODES = 150


def to_html(graph: Graph, heading: str) -> str:
    """The heading, escaped, and the drawing of a graph below it, in a box that scrolls."""
    count = len(graph.nodes)
    note = f" The first {MAX_NODES:,} of {count:,} nodes are drawn." if count > MAX_NODES else ""
    return (
        f"<div><code>{escape(heading)}</code>{escape(note)}</div>"
        f'<div style="max-height:640px;overflow:auto">{to_svg(graph)}</div>'
    )


def to_svg(graph: Graph) -> str:
    """Return the graph as an SVG element: data inputs, nodes with the types of their outputs, and outputs.

    Tooltips show parameters.
    """
    return picture(*boxes_of(graph))


def boxes_of(graph: Graph) -> tuple[list[Box], list[tuple[Box, Box]]]:
    """Boxes in topological order, and edges between them."""
    boxes: list[Box] = []
    edges: list[tuple[Box, Box]] = []
    made: dict[Value, Box] = {}
    for value in graph.inputs:
        if value.role == "data":
            name = graph.name_of(value)
            made[value] = Box((shortened(name), sizes(value)), "input", f"input {name}: {value.type}")
            boxes.append(made[value])
    shown = [node for node in graph.nodes[:MAX_NODES] if node.op.name != "Constant" or node.op.domain]
    for node in shown:
        label = (node.op.name, *([sizes(node.outputs[0])] if node.outputs else []))
        box = Box(label, "node", node_line(graph, node)[:600])
        boxes.append(box)
        for value in node.outputs:
            made[value] = box
        edges += [(source, box) for source in dict.fromkeys(made[v] for v in node.operands if v in made)]
    for name, value in zip(graph.output_names, graph.outputs, strict=True):
        box = Box((shortened(name), sizes(value)), "output", f"output {name}: {value.type}")
        if value in made:
            boxes.append(box)
            edges.append((made[value], box))
    if len(graph.nodes) > MAX_NODES:
        more = Box((f"... {len(graph.nodes) - MAX_NODES:,} more nodes",), "more")
        boxes.append(more)
        leaves = {id(source) for source, _ in edges}
        edges += [(box, more) for box in boxes if box.kind == "node" and id(box) not in leaves]
    return boxes, edges


def shortened(text: str) -> str:
    return text if len(text) <= 28 else f"{text[:13]}...{text[-12:]}"


def sizes(value: Value) -> str:
    """The shape, `N x 16 x 8 x 8`, with the element type unless it is float32."""
    kind = value.type
    if not isinstance(kind, TensorType):
        return shortened(str(kind))
    shape = "any rank" if kind.shape is None else " x ".join(map(str, kind.shape)) or "scalar"
    return shortened(shape if str(kind.dtype) == "float32" else f"{kind.dtype} {shape}")
