"""Stable text and DOT of a graph. The same construction always gives the same text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from graphkit.collector import without_gc

if TYPE_CHECKING:
    from graphkit.ir.graph import Graph, Node, Value

_FRESH = r"\?\d+"


@without_gc
def to_text(graph: Graph) -> str:
    """One line per input and node, subgraphs indented; anonymous dimensions are numbered in order of appearance."""
    numbers: dict[str, str] = {}

    def renumber(match: re.Match[str]) -> str:
        return numbers.setdefault(match.group(), f"?{len(numbers) + 1}")

    return re.sub(_FRESH, renumber, "\n".join(_graph_lines(graph, "")))


def _graph_lines(graph: Graph, indent: str) -> Iterator[str]:
    yield f"{indent}graph {graph.name or 'unnamed'} {{"
    inner = indent + "  "
    for value in graph.inputs:
        role = "" if value.role == "data" else f"  # {value.role}"
        yield f"{inner}input {graph.name_of(value)}: {value.type}{role}"
    for node in graph.nodes:
        yield inner + node_line(graph, node)
        for key, subgraph in node.op.subgraphs().items():
            yield f"{inner}  {key}:"
            yield from _graph_lines(subgraph, inner + "    ")
    for name, value in zip(graph.output_names, graph.outputs, strict=True):
        actual = graph.name_of(value)
        yield f"{inner}output {name}" + ("" if name == actual else f" = {actual}")
    for state, new in graph.updates:
        yield f"{inner}update {graph.name_of(state)} = {graph.name_of(new)}"
    yield indent + "}"


def node_line(graph: Graph, node: Node) -> str:
    """`y: float32[N, 10] = Gemm(x, w, b) [trans_b=1]  # fc`: results, operator, operands, attributes, node name."""
    results = ", ".join(f"{graph.name_of(v)}: {v.type}" for v in node.outputs)
    operands = ", ".join("-" if v is None else graph.name_of(v) for v in node.inputs)
    domain = f"{node.op.domain}." if node.op.domain else ""
    inner = node.op.subgraphs()
    attributes = ", ".join(f"{k}={v}" for k, v in node.op.attributes().items() if k not in inner)
    line = f"{results} = {domain}{node.op.name}({operands})" + (f" [{attributes}]" if attributes else "")
    name = graph.node_name(node)
    return line if name == graph.name_of(node.outputs[0]) else f"{line}  # {name}"


@without_gc
def to_dot(graph: Graph) -> str:
    """Graphviz source: boxes for nodes, ellipses for inputs and outputs, types on the edges."""
    lines = [f"digraph {_quote(graph.name or 'graph')} {{", "  node [shape=box, fontname=monospace];"]
    for value in graph.inputs:
        shape = "ellipse" if value.role == "data" else "note"
        lines.append(
            f"  {_quote('in:' + graph.name_of(value))} [label={_quote(str_input(graph, value))}, shape={shape}];"
        )
    for node in graph.nodes:
        name = graph.node_name(node)
        lines.append(f"  {_quote('n:' + name)} [label={_quote(f'{node.op.name}' + chr(10) + name)}];")
        lines.extend(
            f"  {_edge_source(graph, v)} -> {_quote('n:' + name)} [label={_quote(str(v.type))}];" for v in node.operands
        )
    for name, value in zip(graph.output_names, graph.outputs, strict=True):
        lines.append(f"  {_quote('out:' + name)} [label={_quote(name)}, shape=ellipse];")
        lines.append(f"  {_edge_source(graph, value)} -> {_quote('out:' + name)} [label={_quote(str(value.type))}];")
    return "\n".join([*lines, "}"])


def str_input(graph: Graph, value: Value) -> str:
    return f"{graph.name_of(value)}\n{value.type}"


def _edge_source(graph: Graph, value: Value) -> str:
    return _quote("in:" + graph.name_of(value) if value.node is None else "n:" + graph.node_name(value.node))


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
