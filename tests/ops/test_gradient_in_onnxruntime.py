"""Exported gradients run in ONNX Runtime's CPU provider, in float32 and in float16, with graphkit's results."""

from __future__ import annotations

import fnmatch
from typing import Any

import numpy as np
from cases import each_case

from graphkit.autodiff import gradient
from graphkit.checks.samples import Case, dtypes_of, make_case, samples_of
from graphkit.checks.verify import compare
from graphkit.errors import GraphkitError
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import DType, TensorType
from graphkit.onnx_io.compare import OnnxRuntimeModel
from graphkit.onnx_io.exporter import export
from graphkit.ops import registry
from graphkit.ops.evaluate import evaluate

# Case name -> why the gradient is not compared.
LEFT_OUT = {"CumProd-*": "no elements: ONNX Runtime fails on the empty axis"}


def of_type(values: Any, dtype: DType) -> list[Value]:
    return [v for v in values if isinstance(v.type, TensorType) and v.type.dtype is dtype]


def cases() -> list[Case]:
    found = []
    for cls in registry:
        if cls.grad is None and cls.expand is None:
            continue
        for number, sample in enumerate(samples_of(cls)):
            for dtype in (DType.FLOAT16, DType.FLOAT32):
                if sample.grad and not cls.random and dtype in dtypes_of(cls, sample):
                    case = make_case(cls, number, dtype).as_stored()
                    graph, _ = case.between_tensors()
                    if of_type(graph.inputs, dtype) and of_type(graph.outputs, dtype):
                        found.append(case)
    return found


CASES = cases()
FIRST = {(case.op.name, case.dtype): case for case in reversed(CASES)}


def in_runtime(graph: Graph, arrays: dict[str, Any]) -> dict[str, Any]:
    proto = export(graph, {})
    return OnnxRuntimeModel(proto, threads=1).run({i.name: arrays[i.name] for i in proto.graph.input})


@each_case(
    CASES, group=lambda c: c.op.name[0], full=lambda c: c is not FIRST[c.op.name, c.dtype] or c.dtype is DType.FLOAT32
)
def test_exported_gradient_runs(case: Case) -> None:
    graph, feeds = case.between_tensors()
    arrays = dict(zip(graph.input_names, feeds, strict=True))
    outputs, wrt = of_type(graph.outputs, case.dtype), of_type(graph.inputs, case.dtype)
    try:
        in_runtime(Graph(graph.inputs, outputs), arrays)
    except GraphkitError:
        return  # nor does the operator itself run there
    if any(fnmatch.fnmatchcase(case.name, pattern) for pattern in LEFT_OUT):
        return
    back = Graph(graph.inputs, gradient(outputs, wrt, allow_unused=True))
    theirs = in_runtime(back, arrays)
    ours = dict(zip(back.output_names, evaluate(back, feeds), strict=True))
    tolerance = 0.03 if case.dtype is DType.FLOAT16 else 1e-3
    for name, array in ours.items():
        largest = float(np.max(np.abs(array), initial=1.0, where=np.isfinite(array)))
        report = compare(name, theirs[name], array, tolerance, tolerance * largest)
        assert report.passed, str(report)
