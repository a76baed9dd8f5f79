"""Expansions into standard operators compute what the operator computes, with known and with named dimensions."""

from __future__ import annotations

import numpy as np
import pytest
from cases import each_case
from representative import with_a_new_feature

from graphkit.checks.samples import Case, dtypes_of, make_case, samples_of
from graphkit.checks.verify import compare_outputs
from graphkit.errors import UnsupportedError
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType, TensorType, dtype_of
from graphkit.ops import DOMAIN, F, registry
from graphkit.ops.evaluate import evaluate


def expanded(graph: Graph) -> Graph:
    """The graph with its one node replaced by standard operators; own operators are expanded until none is left."""
    (node,) = graph.nodes if len(graph.nodes) == 1 else [n for n in graph.nodes if n.op.name != "Constant"]
    outputs = expand(node)
    for _ in range(4):
        pending = [n for n in Graph(graph.inputs, outputs).nodes if n.op.domain == DOMAIN and n.op.expand is not None]
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


def skip_without_expansion(node: Node) -> None:
    """Skip a case that a composite operator has no expansion of: it stays as it is."""
    try:
        expand(node)
    except UnsupportedError as error:
        pytest.skip(str(error))


ALL_CASES = [
    make_case(cls, number, dtype)
    for cls in registry
    if cls.expand is not None
    for number, sample in enumerate(samples_of(cls))
    for dtype in dtypes_of(cls, sample)
    if dtype in (DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.INT64) or dtype is dtypes_of(cls, sample)[0]
]
CASES = [(case, symbolic) for case in ALL_CASES for symbolic in (False, True)]
TOLERANCES = {DType.FLOAT64: (1e-11, 1e-12), DType.FLOAT32: (1e-5, 1e-5), DType.FLOAT16: (2e-2, 1e-2)}


DIFFERENT = with_a_new_feature(ALL_CASES)


def is_repetition(pair: tuple[Case, bool]) -> bool:
    """Whether the case repeats a sample in another than its first element type, or a sample without a new feature."""
    case, _ = pair
    return case.dtype is not dtypes_of(type(case.op), case.sample)[0] or case.name not in DIFFERENT


@each_case(
    CASES,
    group=lambda pair: pair[0].op.name[0],
    name=lambda pair: f"{pair[0].name}-{'symbolic' if pair[1] else 'static'}",
    full=is_repetition,
)
def test_expand(pair: tuple[Case, bool]) -> None:
    case, symbolic = pair
    graph = case.graph(symbolic=symbolic)
    if type(case.op).composite:
        skip_without_expansion(next(node for node in graph.nodes if node.op is case.op))
    expansion = expanded(graph)
    for node in expansion.nodes:
        # Composite operators are expanded to run, not to export, so their parts may be graphkit's own operators.
        assert node.op.domain != DOMAIN or type(case.op).composite, f"{node} is not a standard operator"
    names = [str(value) for value in expansion.outputs]
    ours = dict(zip(names, evaluate(expansion, case.feeds()), strict=True))
    expected = dict(zip(names, evaluate(case.graph(), case.feeds()), strict=True))
    dtypes = {case.dtype, *(dtype_of(a.dtype) for a in expected.values() if isinstance(a, np.ndarray))}
    tolerances = [TOLERANCES.get(dtype, (0.0, 0.0)) for dtype in dtypes]
    for report in compare_outputs(ours, expected, *map(max, zip(*tolerances, strict=True))):
        assert report.passed, f"{report}\n{ours}\n{expected}\n{expansion}"


def test_linear_attention_of_heads_without_a_number() -> None:
    """Their scale is 1, so a read from an empty state gives 0, not 0 / 0."""
    operands = [Value(TensorType("float32", (1, 2, size)), name) for size, name in ((0, "q"), (0, "k"), (3, "v"))]
    y, state = F.linear_attention(*operands, q_num_heads=1, kv_num_heads=1, update_rule="linear")
    graph = Graph(operands, [y, state])
    arrays = [np.ones(v.tensor.static_shape, np.float32) for v in operands]
    for found in (evaluate(graph, arrays), evaluate(expanded(graph), arrays)):
        assert found[0].tolist() == [[[0, 0, 0]] * 2]
        assert found[1].shape == (1, 1, 0, 3)
