"""The implementation of each node, and fallbacks if an implementation is not possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item
from compiled_graph import ROW, body, unknown_operator, value

from graphkit.errors import RuntimeFailure
from graphkit.executor.lower.lowering import LoweredGraph, Settings
from graphkit.executor.lower.registry import lower_graph
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F


def lowered(inputs: Sequence[Value], outputs: Sequence[Any], *arrays: Any, optimize: bool = True) -> LoweredGraph:
    executor = Executor(Graph(inputs, outputs), ParamStore({}), threads=1, optimize=optimize)
    executor.run({v.name: np.asarray(a) for v, a in zip(inputs, arrays, strict=True)})
    assert executor._choice.latest is not None
    return executor._choice.latest.lowered


def ways(graph: LoweredGraph) -> dict[str, str]:
    return {node.op.name: type(lowering).__name__ for node, lowering in graph.steps}


ONES = np.ones(3, np.float32)


def test_a_kernel_a_branch_and_a_loop() -> None:
    flag, m, x = value("flag", dtype="bool"), value("m", dtype="int64"), value("x", 3)
    same = {k: Graph([v := Value(ROW)], [f(v)]) for k, f in (("then_branch", F.exp), ("else_branch", F.sqrt))}
    chosen = F.if_(flag, x, **same)
    total = F.loop(m, None, chosen, body=body([ROW], lambda i, c, s: [c, F.add(s, np.float32(1))]))
    graph = lowered([flag, m, x], [F.softmax(total)], True, 2, ONES)
    assert ways(graph) == {"If": "Branch", "Loop": "Loop", "Softmax": "PreparedKernel"}
    named = {part for _, lowering in graph.steps for part in lowering.subgraphs}
    assert named == {"then", "else", "body"}
    assert list(graph.interpreted()) == []


@pytest.mark.parametrize(("size", "kernels"), [(8, 1), (4, 3)], ids=["shared", "small parameters"])
def test_layers_with_equal_types_share_kernels(size: int, kernels: int) -> None:
    rng = np.random.default_rng(0)
    kind = TensorType("float32", (size, size))
    x, *weights = value("x", 2, size), *(Value(kind, f"w{i}", role="parameter") for i in range(3))
    arrays = {v.name: rng.standard_normal((size, size), np.float32) for v in weights}
    result, expected = x, (data := rng.standard_normal((2, size), np.float32))
    for weight in weights:
        result = F.tanh(F.mat_mul(result, weight))
        expected = np.tanh(expected @ arrays[weight.name])
    executor = Executor(Graph([x, *weights], [result]), ParamStore(dict.fromkeys(arrays, kind), arrays))
    np.testing.assert_allclose(executor(data)[0], expected, rtol=1e-4, atol=1e-5)
    assert executor._choice.latest is not None
    lowerings = [id(lowering) for _, lowering in executor._choice.latest.lowered.steps]
    assert (len(lowerings), len(set(lowerings))) == (3, kernels)


def test_dynamic_shapes() -> None:
    x = value("x", 3)
    found = F.non_zero(x)  # [1, n]
    rows = F.transpose(found)
    first = F.gather(rows, np.array(0), axis=0)
    graph = lowered([x], [F.neg(found), F.shape(rows), first], ONES)
    assert ways(graph) == {
        "NonZero": "DataDependent", "Neg": "RunTimeKernel", "Reshape": "RunTimeKernel", "Shape": "ShapeStep",
        "Gather": "RowStep",
    }  # fmt: skip


def test_what_has_no_kernel_is_interpreted_and_says_why() -> None:
    xs = value("xs", 3, 4)
    step = Graph([s := Value(ROW), v := Value(ROW)], [F.add(s, v)])
    total = F.scan(np.zeros(3, np.float32), xs, body=step, num_scan_inputs=1, scan_input_axes=[1])
    graph = lowered([xs], [total], np.ones((3, 4), np.float32), optimize=False)
    assert ways(graph) == {"Scan": "PythonKernel"}
    assert [(node.op.name, reason) for _, node, reason in graph.interpreted()] == [
        ("Scan", "it scans along axis 1 of float32[3, 4]")
    ]


@pytest.mark.onednn
def test_a_scaled_product_with_a_bias_and_a_residual_is_native() -> None:
    """Exports have this form if dropout's scale is between two layers."""
    rng = np.random.default_rng(1)
    a, w, row, rest = (rng.standard_normal(s).astype(np.float32) for s in ((1, 8, 6), (6, 4), (4,), (1, 8, 4)))
    x = value("x", 1, 8, 6)
    y = F.add(F.add(F.mat_mul(F.mul(x, np.float32(2)), w), row), rest)
    graph = lowered([x], [y], a)
    assert [node.op.alpha for node, _ in graph.steps if node.op.name == "FusedMatMul"] == [2]
    assert list(graph.interpreted()) == []
    (got,) = Executor(Graph([x], [y]), ParamStore({}))(a)
    expected = 2 * a.astype(np.float64) @ w + row + rest
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


def test_a_pointwise_operator_without_a_rule_leaves_its_neighbours_native() -> None:
    with unknown_operator(lambda xp, x: 3 * x, elementwise=True) as tripled:
        x = value("x", 3)
        executor = Executor(Graph([x], [F.tanh(F.neg(tripled(F.exp(F.neg(x)))))]), ParamStore({}))
        (got,) = executor(ONES)
        np.testing.assert_allclose(got, np.tanh(-3 * np.exp(-ONES)), rtol=1e-5)
        assert [step.kernel for step in executor.plan.steps] == ["native", "interpreted", "native"]


def test_a_reference_that_breaks_its_promise_inside_a_loop() -> None:
    with unknown_operator(lambda xp, x: xp.reshape(x, (3, 1))) as turned:
        m, x = value("m", dtype="int64"), value("x", 3)
        outcome = F.loop(m, None, x, body=body([ROW], lambda i, c, s: [c, turned(s)]))
        executor = Executor(Graph([m, x], [outcome]), ParamStore({}))
        with pytest.raises(RuntimeFailure, match=r"Unknown.*result 0 is float32\[3, 1\]; float32\[3\] was inferred"):
            executor.run({"m": np.array(1), "x": np.ones(3, np.float32)})


def test_interpreted_inside_a_loop() -> None:
    with unknown_operator(lambda xp, x: x / 2) as halved:
        m, x = value("m", dtype="int64"), value("x", 3)
        outcome = F.loop(m, None, x, body=body([ROW], lambda i, c, s: [c, halved(s)]))
        graph = lowered([m, x], [outcome], 2, ONES)
        assert ways(graph) == {"Loop": "Loop"}
        (lowering,) = graph.lowerings
        assert ways(lowering.subgraphs["body"]) == {"Unknown": "InterpretedInSubgraph"}
        assert [(name.split("/")[1], node.op.name) for name, node, _ in graph.interpreted()] == [("body", "Unknown")]


@in_one_item()
@pytest.mark.parametrize("native", [True, False])
def test_without_the_native_engine_every_node_is_interpreted(native: bool) -> None:
    x = value("x", 3)
    settings = Settings("cpu" if native else "none", native, 1, False, True, True)
    graph = lower_graph(Graph([x], [F.exp(x)]), {}, settings, {})
    assert ways(graph) == {"Exp": "PreparedKernel" if native else "PythonKernel"}
