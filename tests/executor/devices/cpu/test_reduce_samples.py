"""Reductions, normalisations, selections and losses: native kernels equal the references on every sample."""

from __future__ import annotations

import numpy as np
import pytest

from graphkit.checks.samples import Case, all_cases
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_kernel
from graphkit.ir.types import DType
from graphkit.ops import registry
from graphkit.ops.evaluate import run_node

REDUCTIONS = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp")
NAMES = {
    *(f"Reduce{name}" for name in REDUCTIONS),
    *("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool", "Softmax", "LogSoftmax"),
    *("ArgMax", "ArgMin", "TopK"),
    *("LayerNormGrad", "RMSNormGrad", "BatchNormGrad"),
    *("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss", "SoftmaxCrossEntropyGrad"),
    "SoftmaxCrossEntropyWithGrad",
    *(
        "LayerNormalization",
        "RMSNormalization",
        "InstanceNormalization",
        "GroupNormalization",
        "BatchNormalization",
        "LRN",
    ),
}
CASES = [case for cls in registry if cls.name in NAMES for case in all_cases(cls)]
TOLERANCE = {DType.FLOAT16: 2e-3, DType.BFLOAT16: 1e-2, DType.FLOAT64: 1e-12}
# Cases that have no native kernel, by operator.
UNCOVERED = {
    "GlobalLpPool": lambda case: case.op.p not in (1, 2),
    "LayerNormalization": lambda case: case.op.stash is DType.FLOAT64 and case.dtype is not DType.FLOAT64,
}


def run(kernel, node, arrays):
    outputs = [np.full(v.tensor.static_shape, 77).astype(v.dtype.numpy) for v in node.outputs]
    kernel(arrays, outputs)
    return outputs


def test_every_operator_has_samples():
    assert {case.op.name for case in CASES} == NAMES


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_native_equals_reference(case: Case, isa: str):
    node = case.graph().outputs[0].node
    arrays = list(case.arrays)
    results = []
    for threads in (1, 3):
        kernel = make_kernel("cpu", node, KernelContext(threads=threads, used_outputs=(True,) * len(node.outputs)))
        assert (kernel is None) == UNCOVERED.get(case.op.name, lambda _: False)(case)
        if kernel is None:
            return
        results.append(run(kernel, node, arrays))
    for alone, shared in zip(*results, strict=True):
        assert alone.tobytes() == shared.tobytes()
    tolerance = TOLERANCE.get(case.dtype, 2e-6)
    for got, expected in zip(results[0], run_node(node, arrays), strict=True):
        assert got.dtype == expected.dtype
        if expected.dtype.kind in "biu":
            np.testing.assert_array_equal(got, expected)
        else:
            got, expected = (a.astype(np.float64) for a in (got, expected))
            np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)
