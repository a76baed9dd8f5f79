"""Expansions into standard operators compute what the operator computes, with known and with named dimensions."""

from __future__ import annotations

import pytest

from graphkit.checks.samples import Case, dtypes_of, make_case, samples_of
from graphkit.checks.verify import compare_outputs
from graphkit.ir.graph import Graph, Node
from graphkit.ir.types import DType
from graphkit.ops import DOMAIN, registry
from graphkit.ops.evaluate import evaluate

CASES = [
    make_case(cls, number, dtype)
    for cls in registry
    if cls.expand is not None
    for number, sample in enumerate(samples_of(cls))
    for dtype in dtypes_of(cls, sample)
    if dtype in (DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.INT64) or dtype is dtypes_of(cls, sample)[0]
]
TOLERANCES = {DType.FLOAT64: (1e-11, 1e-12), DType.FLOAT32: (1e-5, 1e-5), DType.FLOAT16: (2e-2, 1e-2)}


def expanded(graph: Graph) -> Graph:
    """The graph with its one node replaced by standard operators; own operators are expanded until none is left."""
    (node,) = graph.nodes if len(graph.nodes) == 1 else [n for n in graph.nodes if n.op.name != "Constant"]
    outputs = expand(node)
    for _ in range(4):
        pending = [n for n in Graph(graph.inputs, outputs).nodes if n.op.domain == DOMAIN]
        if not pending:
            break
        replaced = {}
        for inner in pending:
            replaced.update(zip(inner.outputs, expand(inner), strict=True))
        outputs = rebuilt(outputs, replaced)
    return Graph(graph.inputs, outputs)


def expand(node: Node) -> list:
    result = node.op.expand(*node.inputs)
    outputs = list(result) if isinstance(result, tuple) else [result]
    assert len(outputs) == len(node.outputs)
    return outputs


def rebuilt(outputs: list, replaced: dict) -> list:
    from graphkit.ir.graph import topological

    table = dict(replaced)
    for node in topological(outputs, stop=replaced):
        new = node.rebuilt([None if v is None else table.get(v, v) for v in node.inputs])
        table.update(zip(node.outputs, new.outputs, strict=True))
    return [table.get(v, v) for v in outputs]


@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.name}-expand")
def test_expand(case: Case, symbolic: bool) -> None:
    graph = case.graph(symbolic=symbolic)
    expansion = expanded(graph)
    for node in expansion.nodes:
        assert node.op.domain == "", f"{node} is not a standard operator"
    names = [str(value) for value in expansion.outputs]
    ours = dict(zip(names, evaluate(expansion, case.feeds()), strict=True))
    expected = dict(zip(names, evaluate(case.graph(), case.feeds()), strict=True))
    for report in compare_outputs(ours, expected, *TOLERANCES.get(case.dtype, (0.0, 0.0))):
        assert report.passed, f"{report}\n{ours}\n{expected}\n{expansion}"
