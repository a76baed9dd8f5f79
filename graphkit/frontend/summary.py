"""A table of a graph: one row per node with its operator, output type and parameters, and the totals."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TextIO

from graphkit.ir.counts import counts, elements
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.named_tuples import NamedTuple
from graphkit.text import listed

_STORED = ("parameter", "state")
_COLUMNS = ("name", "operator", "output", "parameters")


class Row(NamedTuple):
    """One line of the table; `parameters` counts elements, each parameter at the first node that reads it."""

    name: str
    operator: str
    output: str
    parameters: int


def rows(graph: Graph) -> list[Row]:
    """Return the data inputs, then the nodes in topological order.

    Nodes without operands are left out, except random ones.
    """
    counted: set[Value] = set()
    table = [Row(graph.name_of(v), "input", str(v.type), 0) for v in graph.inputs if v.role not in _STORED]
    for node in graph.nodes:
        if not node.inputs and not getattr(node.op, "random", False):
            continue
        read = [v for v in dict.fromkeys(node.inputs) if v is not None and v.role == "parameter" and v not in counted]
        counted.update(read)
        domain = f"{node.op.domain}." if node.op.domain else ""
        output = _without_value(node.outputs[0])
        table.append(Row(graph.node_name(node), domain + node.op.name, output, elements(read)))
    return table


def frozen(graph: Graph) -> dict[str, str]:
    """Return the parameters that training does not change, by name, each with the reason (exporter or use)."""
    return {graph.name_of(v): str(v.attrs["frozen"]) for v in graph.inputs if "frozen" in v.attrs}


def summary(graph: Graph) -> str:
    """The table as plain text: columns aligned, no escape codes, the same for the same graph."""
    table = [(r.name, r.operator, r.output, f"{r.parameters:,}" if r.parameters else "") for r in rows(graph)]
    widths = [max(len(line[i]) for line in [_COLUMNS, *table]) for i in range(len(_COLUMNS))]
    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    lines = [graph.name or "unnamed", rule, _line(_COLUMNS, widths), rule]
    lines += [_line(line, widths) for line in table]
    return "\n".join([*lines, rule, *_total_lines(graph)])


def print_summary(graph: Graph, file: TextIO | None = None) -> None:
    """Write the table: through rich on a terminal, as `summary` elsewhere."""
    out = sys.stdout if file is None else file
    if not (hasattr(out, "isatty") and out.isatty()):
        print(summary(graph), file=out)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=graph.name or "unnamed", title_justify="left")
    for column in _COLUMNS:
        table.add_column(column, justify="right" if column == "parameters" else "left", overflow="fold")
    for row in rows(graph):
        table.add_row(row.name, row.operator, row.output, f"{row.parameters:,}" if row.parameters else "")
    console = Console(file=out)
    console.print(table, markup=False)
    for line in _total_lines(graph):
        console.print(line, markup=False, highlight=False)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    name, operator, output, parameters = cells
    text = f"{name:<{widths[0]}}  {operator:<{widths[1]}}  {output:<{widths[2]}}  {parameters:>{widths[3]}}"
    return text.rstrip()


def _total_lines(graph: Graph) -> Iterator[str]:
    found = counts(graph)
    yield f"parameters: {found.parameters:,} ({found.trainable:,} trainable)"
    if left := frozen(graph):
        yield f"not trained: {listed((f'{name} ({why})' for name, why in left.items()), len(left))}"
    if found.state:
        yield f"running statistics: {found.state:,}"
    yield f"stored: {_size_text(found.bytes)}"


def _size_text(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def _without_value(value: Value) -> str:
    """Return the type as text without known elements. Anonymous sizes are written '?'."""
    given = value.type
    if not isinstance(given, TensorType):
        return str(given)
    shape = "..." if given.shape is None else ", ".join("?" if str(d).startswith("?") else str(d) for d in given.shape)
    return f"{given.dtype}[{shape}]"
