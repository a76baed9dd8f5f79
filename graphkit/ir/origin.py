"""Names of nodes in errors: the name, or else the result, the code that made the node, and the nearest named node."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from graphkit.text import listed, quantity

if TYPE_CHECKING:
    from graphkit.ir.graph import Graph, Node, Value

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_COMMANDS = "graphkit.cli."
# Largest number of values that are searched for a name.
_FARTHEST = 1000
# How many operands an error lists.
_MOST_OPERANDS = 16


def described(node: Node) -> str:
    """`node 'fc' Gemm(x: float32[2, 3], ...)`; see `origin` for a node without a name."""
    named = node.name or any(v.name for v in node.outputs)
    return _line(node, [v.name for v in node.outputs], None if named else origin(node))


def unfinished(node: Node, output_names: Sequence[str]) -> str:
    """Describe a node whose construction fails, as `described` does.

    The node has no outputs yet. The user's code is still on the stack.
    """
    if node.name or node.scope.prefixed:
        return _line(node, output_names, None)
    return _line(node, output_names, origin(node, _caller()))


def brief(node: Node) -> str:
    """`node 'fc'`, `the node of 'y'`, or `a Relu made by ...`. Cheap: does not look at other nodes."""
    if node.name:
        return f"node {node.name!r}"
    result = next((v.name for v in node.outputs if v.name), "")
    made = _made(node, "")
    return f"the node of {result!r}" if result else f"a {node.op.name}" + (f" {made}" if made else "")


def label(node: Node) -> str:
    """Short: `'fc'`, the name of the first named result, or `Relu (made by ...)`."""
    name = node.name or next((v.name for v in node.outputs if v.name), "")
    return repr(name) if name else node.op.name + _in_brackets(origin(node))


def titled(graph: Graph, kind: str = "graph") -> str:
    """For errors: `graph 'lenet'`, or `the graph of inputs 'x', 'y'` if it has no name. kind: "graph" or "model"."""
    if graph.name:
        return f"{kind} {graph.name!r}"
    names = [repr(v.name or "input") for v in graph.inputs if v.role == "data"]
    if not names:
        return f"the {kind} without a name"
    return f"the {kind} of input{'s' * (len(names) > 1)} {listed(names, len(names))}"


def graph_facts(graph: Graph) -> Iterator[str]:
    """Yield the parts of a graph's `repr`: name, counts, signature. Does not assign names, which takes linear time."""
    yield repr(graph.name) if graph.name else ""
    yield quantity(len(graph.inputs), "input")
    yield quantity(len(graph.nodes), "node")
    yield quantity(len(graph.outputs), "output")
    yield signature(graph)


def signature(graph: Graph) -> str:
    """`(x: float32[N, 3]) -> (y: float32[N, 10])`: the data inputs and outputs, the first three of each."""
    data = [v for v in graph.inputs if v.role == "data"]
    names = graph._output_names or [v.name or (v.node.name if v.node else "") or "output" for v in graph.outputs[:3]]
    results = (f"{name}: {v.type}" for name, v in zip(names, graph.outputs, strict=False))
    given = listed((f"{v.name or 'input'}: {v.type}" for v in data), len(data))
    return f"({given}) -> ({listed(results, len(graph.outputs))})"


def origin(node: Node, place: str = "") -> str:
    """Return which code made a node, and the nearest named node or input before it; "" if nothing is known.

    Examples: "made by pass fuse_gelu, after node 'fc'", "made in scope 'block1' at train.py:12". place: file and line
    of the code.
    """
    made = _made(node, place)
    named = any(v is not None and _name(v) for v in node.inputs)
    before = "" if named else _before(node)
    return ", ".join(filter(None, [made, before and f"after {before}"]))


def _made(node: Node, place: str) -> str:
    scope = node.scope
    made = f" by {scope.maker}" if scope.maker else ""
    made += f" in scope {scope.prefix.rstrip('/')!r}" if scope.prefix else ""
    made += f" at {place}" if place else ""
    return f"made{made}" if made else ""


def _line(node: Node, output_names: Sequence[str], made: str | None) -> str:
    operands = listed(("absent" if v is None else str(v) for v in node.inputs), len(node.inputs), _MOST_OPERANDS)
    domain = f"{node.op.domain}." if node.op.domain else ""
    call = f"{domain}{node.op.name}({operands})"
    if node.name:
        return f"node {node.name!r} {call}"
    result = next(filter(None, output_names), "")
    if result:
        return f"node of {result!r} {call}"
    return f"node {call}{_in_brackets(made)}"


def _in_brackets(text: str | None) -> str:
    return f" ({text})" if text else ""


def _name(value: Value) -> str:
    return value.name or ("" if value.node is None else value.node.name)


def _before(node: Node) -> str:
    """Return the nearest named node or value that the operands depend on."""
    pending: deque[Value] = deque(v for v in node.inputs if v is not None)
    seen = set(pending)
    while pending and len(seen) < _FARTHEST:
        value = pending.popleft()
        if value.node is None:
            if value.name:
                return f"input {value.name!r}"
            continue
        if value.node.name:
            return f"node {value.node.name!r}"
        if value.name:
            return f"the node of {value.name!r}"
        new = [v for v in value.node.inputs if v is not None and v not in seen]
        seen.update(new)
        pending.extend(new)
    return ""


def _caller() -> str:
    """Return file and line of the innermost stack frame of the user's code; "" in a command of graphkit.

    Slow, so only for errors.
    """
    frame = sys._getframe(1)
    while frame is not None:
        path, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__"))
        if module.startswith(_COMMANDS):
            return ""
        # Packages such as graphkit.models may lie outside of the folder.
        if not path.startswith((_PACKAGE, "<frozen")) and not module.startswith("graphkit."):
            return f"{os.path.basename(path)}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""
