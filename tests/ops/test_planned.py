"""The executor with every switch on, with every switch off, and the reference evaluator agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cases import each_case
from representative import with_a_new_feature

from graphkit.checks.samples import Case, dtypes_of, make_case, samples_of
from graphkit.checks.verify import compare_outputs
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph
from graphkit.ir.types import DType
from graphkit.ops import registry
from graphkit.ops.evaluate import evaluate

CASES = [
    make_case(cls, number, dtype)
    for cls in registry
    for number, sample in enumerate(samples_of(cls))
    for dtype in dtypes_of(cls, sample)[:1]
]
DIFFERENT = with_a_new_feature(CASES)


def run(graph: Graph, case: Case, **switches: bool) -> list[Any]:
    executor = Executor(graph, ParamStore({}), threads=1, **switches)
    return list(executor.run(dict(zip(graph.input_names, case.feeds(), strict=True))).values())


def assert_alike(ours: Sequence[Any], expected: Sequence[Any]) -> None:
    for report in compare_outputs(named(ours), named(expected)):
        assert report.passed, str(report)


def named(results: Sequence[Any]) -> dict[str, Any]:
    return {f"output {i}": result for i, result in enumerate(results)}


def draws_from_the_executor(case: Case) -> bool:
    """A random node that is given no generator state: the executor feeds it its own."""
    return case.op.random and not any(t is not None and t.dtype is DType.UINT64 for t in case.types)


@each_case(CASES, group=lambda c: c.op.name[0], full=lambda c: c.name not in DIFFERENT)
def test_planned(case: Case) -> None:
    """All switches on, all switches off, and the reference evaluator."""
    graph = case.graph()
    planned = run(graph, case)
    unplanned = run(graph, case, optimize=False, inplace=False, share=False)
    reference = evaluate(graph, case.feeds())
    assert_alike(planned, unplanned)
    if not draws_from_the_executor(case):
        assert_alike(unplanned, reference)


@each_case(
    [c for c in CASES if not draws_from_the_executor(c)], group=lambda c: c.op.name[0], full=lambda c: c.number > 1
)
def test_symbolic_run(case: Case) -> None:
    """The executor specialises a graph whose every dimension is a name."""
    graph = case.graph(symbolic=True)
    assert_alike(run(graph, case), evaluate(case.graph(), case.feeds()))


@each_case(
    [c for c in CASES if not draws_from_the_executor(c) and len(c.graph().outputs) > 1], group=lambda c: c.op.name[0]
)
def test_one_output_alone(case: Case) -> None:
    """Kernels get no memory for unused outputs."""
    graph = case.graph()
    expected = evaluate(graph, case.feeds())
    for number, output in enumerate(graph.outputs):
        alone = Graph(graph.inputs, [output])
        assert_alike(run(alone, case, optimize=False), expected[number : number + 1])
