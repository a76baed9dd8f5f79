"""Draws a network with a few dozen boxes. In large networks, nodes with a common name prefix share a box."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from graphkit.ir.counts import elements
from graphkit.ir.drawing import shortened, sizes
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.layered import Box, picture
from graphkit.ir.printing import node_line
from graphkit.text import si

# Maximum number of boxes for nodes and groups.
MOST_BOXES = 48

# Name of a group of nodes without a common prefix.
_UNNAMED = "..."

# Largest number of parts of a prefix.
_MOST_PARTS = 32

# Separators of the parts of a name: block1/conv, /layer1/layer1.0/conv1/Conv.
_SEPARATOR = re.compile(r"[/.]+")


def draw(graph: Graph) -> str:
    """Return an SVG element with data inputs, nodes or groups of nodes, and outputs."""
    nodes = [n for n in graph.nodes if n.op.name != "Constant" or n.op.domain]
    return picture(*_boxes(graph, grouped(graph, nodes)))


def grouped(graph: Graph, nodes: Sequence[Node]) -> list[tuple[str, list[Node]]]:
    """Divide the nodes into consecutive groups. Return (name, nodes) of each; the name is "" for a single node.

    A group has a common name prefix: the longest one with at most MOST_BOXES groups. If even the shortest prefix gives
    more groups, consecutive single nodes form an unnamed group. If the groups on both sides of it have the same prefix,
    the three become one. If the nodes of a prefix are not consecutive, they form several groups, so that no group
    depends on a later one.
    """
    names = {node: [p for p in _SEPARATOR.split(graph.node_name(node)) if p] for node in nodes}
    deepest = min(max(map(len, names.values()), default=0), _MOST_PARTS)
    for depth in range(deepest, 0, -1):
        found = _by_prefix(nodes, names, depth)
        if len(found) <= MOST_BOXES:
            return found
    merged: list[tuple[str, list[Node]]] = []
    for alone, parts in groupby(_by_prefix(nodes, names, 1), key=lambda part: not part[0]):
        members = list(parts)
        merged += [(_UNNAMED, [n for _, inner in members for n in inner])] if alone and len(members) > 1 else members
    return _joined(merged)


def _joined(parts: Sequence[tuple[str, list[Node]]]) -> list[tuple[str, list[Node]]]:
    """Join two groups of the same prefix with the unnamed group between them."""
    found: list[tuple[str, list[Node]]] = []
    for name, members in parts:
        if len(found) > 1 and name and found[-2][0] == name and found[-1][0] in ("", _UNNAMED):
            between = found.pop()[1]
            found[-1][1].extend([*between, *members])
        else:
            found.append((name, members))
    return found


def _by_prefix(nodes: Sequence[Node], names: dict[Node, list[str]], depth: int) -> list[tuple[str, list[Node]]]:
    parts: list[tuple[str, list[Node]]] = []
    for node in nodes:
        name = "/".join(names[node][:depth]) if len(names[node]) > depth else ""
        if name and parts and parts[-1][0] == name:
            parts[-1][1].append(node)
        else:
            parts.append((name, [node]))
    return [("", members) if len(members) == 1 else (name, members) for name, members in parts]


def _boxes(graph: Graph, parts: Sequence[tuple[str, list[Node]]]) -> tuple[list[Box], list[tuple[Box, Box]]]:
    boxes: list[Box] = []
    edges: list[tuple[Box, Box]] = []
    made: dict[Value, Box] = {}
    counted: set[Value] = set()
    for value in graph.inputs:
        if value.role == "data":
            name = graph.name_of(value)
            made[value] = Box((shortened(name), sizes(value)), "input", f"input {name}: {value.type}")
            boxes.append(made[value])
    for name, members in parts[:MOST_BOXES]:
        box = _group(graph, name, members, counted) if name else _single(graph, members[0], counted)
        inside = {v for node in members for v in node.outputs}
        operands = dict.fromkeys(v for node in members for v in node.operands if v in made and v not in inside)
        edges += [(source, box) for source in dict.fromkeys(made[v] for v in operands)]
        made |= dict.fromkeys(inside, box)
        boxes.append(box)
    for name, value in zip(graph.output_names, graph.outputs, strict=True):
        if value in made:
            boxes.append(Box((shortened(name), sizes(value)), "output", f"output {name}: {value.type}"))
            edges.append((made[value], boxes[-1]))
    if left := sum(len(members) for _, members in parts[MOST_BOXES:]):
        more = Box((f"... {left:,} more nodes",), "more", f"only the first {MOST_BOXES} boxes are drawn")
        edges += [(box, more) for box in boxes[-1:]]
        boxes.append(more)
    return boxes, edges


def _single(graph: Graph, node: Node, counted: set[Value]) -> Box:
    name = graph.node_name(node)
    lines = [node.op.name, *([shortened(name)] if name.lower() != node.op.name.lower() else [])]
    lines += [sizes(node.outputs[0])] if node.outputs else []
    return Box((*lines, *_parameters([node], counted)), "node", node_line(graph, node)[:600])


def _group(graph: Graph, name: str, members: Sequence[Node], counted: set[Value]) -> Box:
    operators = Counter(node.op.name for node in members).most_common()
    last = members[-1].outputs
    lines = (shortened(name), f"{len(members)} nodes", *([sizes(last[0])] if last else []))
    title = f"{name}, {graph.node_name(members[0])} to {graph.node_name(members[-1])}: " + ", ".join(
        f"{count} {operator}" for operator, count in operators
    )
    return Box((*lines, *_parameters(members, counted)), "group", title[:600])


def _parameters(members: Sequence[Node], counted: set[Value]) -> tuple[str, ...]:
    """Return the number of elements of parameters as text. Parameters that an earlier box counted are left out."""
    read = dict.fromkeys(v for n in members for v in n.operands if v.role == "parameter" and v not in counted)
    counted.update(read)
    count = elements(read)
    return (f"{si(count)} parameters",) if count else ()
