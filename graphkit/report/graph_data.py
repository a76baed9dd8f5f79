"""The data of the page that draws a graph: views, and the details of each node."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from graphkit.errors import UsageError
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType, Type
from graphkit.ops import Op, operator
from graphkit.ops.control.views import capture_count
from graphkit.ops.cost import node_costs
from graphkit.passes.core.sweep import is_control
from graphkit.report.graph_views import Drawing, Entry, View
from graphkit.report.node_times import NodeTimes, StepTime
from graphkit.text import human, quantity

# Length of the longest text of an attribute, and of the longest constant.
_CHARACTERS = 400

# Kinds of operators by package of graphkit.ops. The page draws each kind in its own colour.
_KINDS = {
    "nn": "layers", "linalg": "matrix products", "rnn": "layers", "math": "arithmetic", "tensor": "data movement",
    "control": "control flow", "quant": "quantisation", "ml": "classical models",
}  # fmt: skip
_NAMES = (*dict.fromkeys(_KINDS.values()), "other operators")


# Kinds of boxes. The page has their numbers.
_BOXES = ("input", "output", "node", "group")


def page_data(graph: Graph, drawing: Drawing, times: NodeTimes | None, made_up: Collection[str] = ()) -> dict[str, Any]:
    """Return the data that the script of the page reads. Texts are numbers of entries of the list `texts`.

    made_up: Names of results that the user did not choose.
    """
    texts = _Texts()
    steps, missing = ({}, 0.0) if times is None else _matched(graph, drawing, times, made_up)
    views = [_view(drawing, view, texts) for view in drawing.views]
    nodes = [_node(drawing, entry, steps.get(i, ()), texts) for i, entry in enumerate(drawing.entries)]
    return {
        "texts": texts.listed, "views": views, "nodes": nodes, "kinds": _NAMES,
        "timed": times is not None, "unmatched": missing,
    }  # fmt: skip


def _is_inside(path: str, containers: Collection[str]) -> bool:
    """Whether the path is that of a step in a subgraph of a node."""
    return bool(containers) and any(path[:i] in containers for i, letter in enumerate(path) if letter == "/")


def _matched(
    graph: Graph, drawing: Drawing, times: NodeTimes, made_up: Collection[str]
) -> tuple[dict[int, list[StepTime]], float]:
    """Return the steps by number of the node, and the seconds of steps that belong to no node.

    A step belongs to the node that computes a value with the name of its result: the passes keep the names of values.
    If no name is known, it belongs to the node with its name. Names of results in `made_up` are compared last, because
    the user did not choose them.

    Raises:
        UsageError: The profile is one of another model.
    """
    if graph.name and graph.name not in times.graphs:
        names = ", ".join(map(repr, times.graphs[:3]))
        raise UsageError(f"{times.label} is one of another model: {names}, expected {graph.name!r}")
    results = [(e.prefix + v.name, v.name in made_up, i)
               for i, e in enumerate(drawing.entries) for v in e.node.outputs if v.name]  # fmt: skip
    values, others = [{name: i for name, is_made_up, i in results if is_made_up is kind} for kind in (False, True)]
    nodes = {e.path: i for i, e in enumerate(drawing.entries) if e.node.name or e.bodies}
    containers = {entry.path for entry in drawing.entries if entry.bodies}
    found: dict[int, list[StepTime]] = {}
    left, missing = 0, 0.0
    for step in times.steps:
        candidates = (*map(values.get, step.results), nodes.get(step.path), *map(others.get, step.results))
        number = next((i for i in candidates if i is not None), None)
        if number is not None:
            found.setdefault(number, []).append(step)
        elif not _is_inside(step.path, containers):  # the time of a node includes the steps in its subgraphs
            left, missing = left + 1, missing + step.seconds
    if times.source:
        _require_same(graph, drawing, times, found, left)
    return found, missing


def _require_same(
    graph: Graph, drawing: Drawing, times: NodeTimes, found: Mapping[int, Sequence[StepTime]], left: int
) -> None:
    """Raise UsageError if most steps of a profile belong to no node, or many to nodes with results of other shapes.

    found: Steps by number of the node. left: number of steps that belong to no node.
    """
    total = len(times.steps)
    label = f"{times.label} is one of another model, or of training"
    if 2 * left > total:
        known = f"only {total - left:,} of its {quantity(total, 'step')} belong"
        raise UsageError(f"{label}: {known} to nodes of {graph.name or 'this model'!r}")
    other = [(step, node) for i, steps in found.items() for step in steps
             if not _fits(step.type, (node := drawing.entries[i].node).outputs[0].type)]  # fmt: skip
    if 4 * len(other) > total:
        step, node = other[0]
        raise UsageError(
            f"{label}: the results of {len(other):,} steps have other shapes than those of their nodes, such as "
            f"{step.type} and {node.outputs[0].type}"
        )


def _fits(concrete: str, declared: Type) -> bool:
    """Whether a type of a profile has the rank and the known sizes of a declared one, in any order.

    Passes change the order of axes, and the element type of quantised values.
    """
    if not isinstance(declared, TensorType) or declared.shape is None or not concrete:
        return True
    sizes = concrete.rstrip("]").partition("[")[2]
    given = Counter(sizes.split(", ") if sizes else ())
    known = Counter(str(size) for size in declared.shape if isinstance(size, int))
    return given.total() == len(declared.shape) and known <= given


class _Texts:
    """Texts that are stored once."""

    def __init__(self) -> None:
        self.listed: list[str] = []
        self._numbers: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        number = self._numbers.get(text)
        if number is None:
            number = self._numbers[text] = len(self.listed)
            self.listed.append(text)
        return number


def _view(drawing: Drawing, view: View, texts: _Texts) -> dict[str, Any]:
    """Return a view: boxes as columns, edges as lists of source, target, and the points between them."""
    items = view.items
    return {
        "title": texts(view.title),
        "parent": view.parent,
        "kind": [_BOXES.index(item.kind) for item in items],
        "x": [round(item.box.x - item.box.width / 2) for item in items],
        "y": [round(view.middles[item.box.layer] - item.box.height / 2) for item in items],
        "w": [round(item.box.width) for item in items],
        "h": [round(item.box.height) for item in items],
        "lines": [[texts(line) for line in item.box.lines] for item in items],
        "name": [texts(item.name) for item in items],
        "entry": [item.entry for item in items],
        "opens": [item.opens for item in items],
        "type": [-1 if item.value is None else texts(str(item.value.type)) for item in items],
        "edges": [[source, target, *map(round, points)] for source, target, points in view.edges],
    }


def _node(drawing: Drawing, entry: Entry, steps: Sequence[StepTime], texts: _Texts) -> dict[str, Any]:
    """Return the details of a node."""
    graph, node = entry.graph, entry.node
    op = operator(node, Op)
    bodies = node.op.subgraphs()
    cost = node_costs(graph, node).total
    is_known = cost.unknown < cost.nodes or not cost.nodes
    found = {
        "op": texts(f"{op.domain}.{op.name}" if op.domain else op.name),
        "name": texts(graph.node_name(node)),
        "kind": _NAMES.index(_kind(op)),
        "at": [entry.view, entry.item],
        "attributes": [[texts(k), texts(_cut(str(v)))] for k, v in op.attributes().items() if k not in bodies],
        "inputs": [_operand(drawing, entry, i, v, texts) for i, v in enumerate(node.inputs) if v is not None],
        "outputs": [[texts(graph.name_of(v)), texts(str(v.type))] for v in node.outputs],
        "bodies": [[texts(part), view] for part, view in entry.bodies.items()],
        "flops": _amount(cost.flops) if is_known else None,
        "bytes": _amount(cost.bytes) if is_known else None,
    }
    if steps:
        found["time"] = sum(step.seconds for step in steps)
        found["steps"] = [[texts(s.operator), texts(s.implementation), s.seconds, s.calls] for s in steps]
    return found


def _kind(op: Op) -> str:
    package = type(op).__module__.removeprefix("graphkit.ops.").partition(".")[0]
    return _KINDS.get(package, _NAMES[-1])


def _amount(size: Any) -> int | str:
    """Return a static size as a number, and a symbolic one as text."""
    return size if isinstance(size, int) else str(size)


def _operand(drawing: Drawing, entry: Entry, index: int, value: Value, texts: _Texts) -> list[int | str]:
    """Return parameter of the operator, name, type, number of the node that computes the value, and what it stores."""
    node, origin = entry.node, drawing.origin(value)
    formals = operator(node, Op).formals
    formal = formals[min(index, len(formals) - 1)].name if formals else ""
    if is_control(node) and index >= len(node.inputs) - capture_count(node):
        formal = "captured"
    stored = ""
    if origin.role != "data":
        stored = f"{origin.role}{_size(origin)}"
    elif origin.node is not None and drawing.is_stored(origin):
        known = None if not isinstance(origin.type, TensorType) else origin.type.constants
        stored = "constant" + (f" {_cut(str(list(known)))}" if known is not None else _size(origin))
    source = drawing.numbers.get(value.node, -1) if value.node is not None else -1
    return [texts(formal), texts(entry.graph.name_of(value)), texts(str(value.type)), source, texts(stored)]


def _size(value: Value) -> str:
    """Return the number of elements and bytes of a stored tensor, as text."""
    kind = value.type
    if not isinstance(kind, TensorType) or not kind.is_static:
        return ""
    return f", {quantity(math.prod(kind.static_shape), 'element')}, {human(kind.nbytes)}"


def _cut(text: str) -> str:
    return text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]}... ({len(text):,} characters)"
