"""Kernels that move data, on every sample of their operators in every element type: the references' bits."""

import numpy as np
import pytest

from graphkit.checks.samples import Case, all_cases
from graphkit.executor.devices.cpu import native
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import has_factory, make_kernel
from graphkit.ir.types import DType
from graphkit.ops import registry
from graphkit.ops.evaluate import run_node

MOVED = (
    "Transpose",
    "Expand",
    "Tile",
    "DepthToSpace",
    "SpaceToDepth",
    "Slice",
    "Concat",
    "Split",
    "Pad",
    "Gather",
    "GatherElements",
    "GatherND",
    "ScatterElements",
    "ScatterND",
    "ReverseSequence",
    "OneHot",
    "Trilu",
    "EyeLike",
    "ConstantOfShape",
    "Range",
    "SliceGrad",
    "GatherGrad",
    "CumSum",
    "RandomUniform",
    "RandomUniformLike",
    "Bernoulli",
    "Dropout",
    "RngFoldIn",
)
# Sums in another order than the references', logarithms and cosines of their own.
COMPUTED = ("Resize", "ResizeGrad", "PadGrad", "RandomNormal", "RandomNormalLike")
# Float operands decide the size, which is not known before the run.
DYNAMIC = ("Range", "OneHot")
TOLERANCE = {DType.FLOAT32: 2e-6, DType.FLOAT64: 1e-13, DType.FLOAT16: 1e-3, DType.BFLOAT16: 8e-3}

CASES = [
    case
    for cls in registry
    if cls.name in {*MOVED, *COMPUTED}
    for case in all_cases(cls)
    if not any(a is not None and a.dtype == object for a in case.arrays)
]


def run(kernel, node, arrays):
    outputs = [np.full(v.tensor.static_shape, 77, v.dtype.numpy) for v in node.outputs]
    kernel([None if a is None else np.ascontiguousarray(a).reshape(a.shape) for a in arrays], outputs)
    return outputs


def test_every_operator_that_moves_data_has_a_factory():
    names = {cls.name: cls.domain for cls in registry}
    assert all(has_factory("cpu", names[name], name) for name in (*MOVED, *COMPUTED))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_native_equals_reference(case: Case, threads: int):
    (node,) = [n for n in case.graph().nodes if n.op.name == case.op.name]
    if not node.outputs[0].tensor.is_static:
        assert case.op.name in DYNAMIC
        return
    kernel = make_kernel("cpu", node, KernelContext(threads=threads, used_outputs=(True,) * len(node.outputs)))
    assert kernel is not None
    tolerance = TOLERANCE.get(node.outputs[0].dtype, 0) if case.op.name in COMPUTED else 0
    for got, expected in zip(
        run(kernel, node, case.arrays), run_node(node, case.arrays[: len(node.inputs)]), strict=True
    ):
        assert got.dtype == expected.dtype
        assert got.shape == expected.shape
        if tolerance:
            wide = [a.astype(np.float64) for a in (got, expected)]
            np.testing.assert_allclose(*wide, rtol=tolerance, atol=tolerance)
        else:
            assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("isa", ["baseline", "avx2", "avx512"])
def test_every_instruction_set_computes_the_same(isa):
    try:
        native.use_isa(isa)
    except native.Unsupported as error:
        pytest.skip(str(error))
    try:
        for case in CASES:
            if case.op.name in {
                "Transpose",
                "DepthToSpace",
                *COMPUTED,
                "RandomUniform",
                "RandomUniformLike",
                "Dropout",
            }:
                test_native_equals_reference(case, 1)
    finally:
        native.use_isa("")
