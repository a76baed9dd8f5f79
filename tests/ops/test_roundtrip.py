"""JSON and ONNX round trips of every operator, and planned against unplanned execution."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from graphkit.checks.samples import Case, dtypes_of, make_case, samples_of
from graphkit.checks.verify import compare
from graphkit.executor.params import ParamStore
from graphkit.executor.session import Executor
from graphkit.ir.graph import Graph
from graphkit.ir.serialize import from_dict, to_dict
from graphkit.onnx_io.exporter import export
from graphkit.onnx_io.importer import import_model
from graphkit.ops import registry
from graphkit.ops.evaluate import evaluate

CASES = [
    make_case(cls, number, dtype)
    for cls in registry
    for number, sample in enumerate(samples_of(cls))
    for dtype in dtypes_of(cls, sample)[:1]
]
STANDARD = [c for c in CASES if c.op.onnx is not None or c.op.expand is not None]
OPSET = 28


def assert_same_bits(results: list[Any], expected: list[Any]) -> None:
    assert len(results) == len(expected)
    for a, b in zip(results, expected, strict=True):
        if isinstance(b, list):
            assert_same_bits(list(a), b)
            continue
        a, b = np.asarray(a), np.asarray(b)
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert a.tobytes() == b.tobytes() if a.dtype != object else a.tolist() == b.tolist()


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.name}-json")
def test_json(case: Case) -> None:
    graph = case.graph()
    again = from_dict(json.loads(json.dumps(to_dict(graph))), registry.get)
    assert str(again) == str(graph)
    assert [node.op for node in again.nodes if not node.op.subgraphs()] == [
        node.op for node in graph.nodes if not node.op.subgraphs()
    ]
    assert to_dict(again) == to_dict(graph)
    assert_same_bits(evaluate(again, case.feeds()), evaluate(graph, case.feeds()))


@pytest.mark.parametrize("case", STANDARD, ids=lambda c: f"{c.name}-onnx")
def test_onnx(case: Case) -> None:
    graph = case.graph()
    imported = import_model(export(graph, {}, opset=OPSET).SerializeToString())
    assert imported.graph.output_names == graph.output_names
    if case.op.random and case.op.domain == "":
        assert any(node.op.name == case.op.name for node in imported.graph.nodes)
        return
    if case.op.onnx is not None and not case.op.subgraphs():
        assert case.op in [node.op for node in imported.graph.nodes]
    names = dict(zip(graph.input_names, case.feeds(), strict=True)) | imported.params
    feeds = [names[imported.graph.name_of(v)] for v in imported.graph.inputs]
    for ours, expected in zip(evaluate(imported.graph, feeds), evaluate(graph, case.feeds()), strict=True):
        if isinstance(expected, list):
            continue
        report = compare(case.name, ours, expected)
        assert report.passed, str(report)


def run(graph: Graph, case: Case, **switches: bool) -> list[Any]:
    executor = Executor(graph, ParamStore({}), threads=1, **switches)
    return list(executor.run(dict(zip(graph.input_names, case.feeds(), strict=True))).values())


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.name}-planned")
def test_planned(case: Case) -> None:
    """All switches on, all switches off, and the reference evaluator."""
    graph = case.graph()
    planned = run(graph, case)
    unplanned = run(graph, case, optimize=False, inplace=False, share=False)
    reference = evaluate(graph, case.feeds())
    for a, b, c in zip(planned, unplanned, reference, strict=True):
        if isinstance(c, list):
            continue
        for label, ours, other in (("planned and unplanned", a, b), ("unplanned and reference", b, c)):
            report = compare(label, ours, other)
            assert report.passed, str(report)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.name}-symbolic_run")
def test_symbolic_run(case: Case) -> None:
    """The executor specialises a graph whose every dimension is a name."""
    graph = case.graph(symbolic=True)
    for ours, expected in zip(run(graph, case), evaluate(case.graph(), case.feeds()), strict=True):
        if not isinstance(expected, list):
            report = compare(case.name, ours, expected)
            assert report.passed, str(report)
