"""Gradient rules against numeric differentiation in float64, first and second order."""

from __future__ import annotations

import numpy as np
from cases import each_case
from representative import with_a_new_feature

from graphkit.autodiff import gradient
from graphkit.checks.gradcheck import check_graph
from graphkit.checks.samples import Case, dtypes_of, make_case, samples_of
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import DType, TensorType
from graphkit.ops import registry
from graphkit.ops.evaluate import evaluate


def is_float64(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype is DType.FLOAT64


def differentiable_cases() -> list[Case]:
    found = []
    for cls in registry:
        if cls.grad is None and cls.expand is None:
            continue
        for number, sample in enumerate(samples_of(cls)):
            if sample.grad and DType.FLOAT64 in dtypes_of(cls, sample):
                case = make_case(cls, number, DType.FLOAT64)
                graph, _ = case.between_tensors()
                if any(map(is_float64, graph.inputs)) and any(map(is_float64, graph.outputs)):
                    found.append(case)
    return found


CASES = differentiable_cases()

DIFFERENT = with_a_new_feature(CASES)

# Their second derivatives are long graphs: seconds for a sample.
LONG = frozenset(
    f"{cell}{part}" for cell in ("RNN", "GRU", "LSTM") for part in ("Grad", "Recurrence", "RecurrenceGrad")
)
# The first case of each operator: its gradient rule is made of operators that have gradients.
FIRST = {case.op.name: case for case in reversed(CASES)}


def is_repetition(case: Case) -> bool:
    """Whether second derivatives of this case belong to the full lane."""
    return case.op.name in LONG or case is not FIRST[case.op.name]


@each_case(CASES, group=lambda c: c.op.name[0], full=lambda c: c.name not in DIFFERENT)
def test_gradient(case: Case) -> None:
    graph, feeds = case.between_tensors()
    wrt = {graph.name_of(v): v for v in graph.inputs if is_float64(v)}
    outputs = [v for v in graph.outputs if is_float64(v)]
    report = check_graph(graph.inputs, outputs, wrt, feeds, directions=2)
    assert report.verdict != "FAILED", str(report)  # samples without elements have nothing to differentiate


@each_case(CASES, group=lambda c: c.op.name[0], full=is_repetition)
def test_second_order(case: Case) -> None:
    """The gradient graph differentiated again, in inputs and in the gradients of outputs."""
    graph, feeds = case.between_tensors()
    wrt = {graph.name_of(v): v for v in graph.inputs if is_float64(v)}
    outputs = [v for v in graph.outputs if is_float64(v)]
    seeds = [Value(v.type, f"dy{i}") for i, v in enumerate(outputs)]
    gradients = gradient(outputs, list(wrt.values()), seeds, allow_unused=True)
    rng = np.random.default_rng(1)
    weights = [rng.standard_normal(y.shape) for y in evaluate(Graph(graph.inputs, outputs), feeds)]
    again = wrt | {f"dy{i}": s for i, s in enumerate(seeds)}
    report = check_graph(
        [*graph.inputs, *seeds], gradients, again, [*feeds, *weights], directions=2, together=True, rtol=1e-5, atol=1e-6
    )
    assert report.verdict != "FAILED", str(report)  # samples without elements have nothing to differentiate


@each_case(CASES, group=lambda c: c.op.name[0], full=lambda c: c is not FIRST[c.op.name])
def test_gradient_of_symbolic_shapes(case: Case) -> None:
    """The rule built with every dimension a name gives the same numbers and the operand's shape."""
    results = []
    for symbolic in (False, True):
        graph, feeds = case.between_tensors(symbolic=symbolic)
        wrt = [v for v in graph.inputs if is_float64(v)]
        outputs = [v for v in graph.outputs if is_float64(v)]
        gradients = gradient(outputs, wrt, allow_unused=True)
        results.append(evaluate(Graph(graph.inputs, gradients), feeds))
    for static, named in zip(*results, strict=True):
        assert static.shape == named.shape
        np.testing.assert_allclose(named, static, rtol=1e-12, atol=1e-12)
