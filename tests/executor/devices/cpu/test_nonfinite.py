"""NaN, infinities, subnormals and negative zeros go through native kernels as through the references.

If a kernel loses a NaN, the wrong result looks valid. If engines differ, the tests expect numpy's result. For example,
the maximum of a NaN and a number is NaN in numpy, but a number in ONNX Runtime.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cases import each_case
from combinations import in_one_item
from kernel_runs import run_kernel
from representative import with_a_new_feature

from graphkit.checks.samples import Case, all_cases
from graphkit.executor.devices.cpu import native
from graphkit.executor.devices.cpu.pointwise import OPERATORS
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_kernel, rule_of
from graphkit.executor.memory.packing import aligned_bytes
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import DType, TensorType, dtype_of
from graphkit.ops import Op, registry
from graphkit.ops.evaluate import run_node

# Tolerances (rtol, atol) of finite results.
TOLERANCE = {
    DType.FLOAT64: (1e-9, 1e-11),
    DType.FLOAT32: (3e-5, 3e-6),
    DType.FLOAT16: (1e-2, 4e-3),
    DType.BFLOAT16: (8e-2, 3e-2),
}
SMALLEST = {DType.FLOAT32: 1e-41, DType.FLOAT64: 1e-310, DType.FLOAT16: 1e-7, DType.BFLOAT16: 1e-39}

# Case name pattern -> why its results differ for operands that are not finite.
DIFFERENT = {
    "*Conv-*": "zero times a weight that is not finite: the reference multiplies padding, the library leaves it out",
    "*ConvGradWeight-*": "the same for gradients that are not finite",
    "*ConvGradInput-*": "the same for weights that are not finite",
    "*BatchNorm-*": "the statistics of infinities are summed in another order: inf - inf",
    "*BatchNormGrad-*": "the same",
    "GroupNormGrad-*": "the same",
    "InstanceNormalization-*": "the same",
    "FusedAttentionGrad-*": "products with infinities are summed in another order: inf - inf",
    "LayerNormGrad-*": "a standard deviation of 0, which no normalisation gives",
    "MaxPool-4-*": "if all elements of a window are -inf, the index of any of them is a right result",
    "SoftmaxCrossEntropy*": "the weight of a class that no label names is not read, as in ONNX Runtime",
    "PadGrad-*": "infinity times a neighbour's weight of 0, which the reference's sparse sums leave out",
    "Resize*": "the same",
    "RoiAlign-*": "a sample of weight 0 is not read",
    "DFT-*": "numpy's transform of a real signal leaves NaN out of imaginary parts; see test_signal.py",
    "Det-*": "elimination brings NaN to more elements than LAPACK's",
    "Inverse-*": "the same",
    "Slogdet-*": "the same",
    "Solve-*": "the same",
    "Potrf*": "a matrix that has no factor is an error",
    "Trsm*": "blocks of rows are computed together, also rows that do not depend on the element",
    "WeightOnlyMatMul-*": "a scale that is infinite is multiplied with the sum of a block; see test_quant.py for a",
    "LinearSample-*": "elements outside of an image are 0; the reference multiplies the nearest element by 0",
    "*RecurrenceGrad-*": "the terms are summed in another order: 0 * inf and inf - inf",
}

# The same for single operands: (pattern, position) -> why.
DIFFERENT_OPERANDS: dict[tuple[str, int], str] = {}
if "amx_bf16" in native.cpu_features():
    DIFFERENT_OPERANDS["*ConvTranspose-*-bfloat16", 1] = "zero times a weight: tiles multiply zeros, too"


def listed(case: Case) -> bool:
    return any(fnmatch.fnmatchcase(case.name, pattern) for pattern in DIFFERENT)


def differs(case: Case, position: int) -> bool:
    return any(fnmatch.fnmatchcase(case.name, pattern) and at == position for pattern, at in DIFFERENT_OPERANDS)


OPERATORS_OF_FLOATS = [cls for cls in registry if not cls.random and rule_of("cpu", cls).has_kernels]


def float_cases(cls: type[Op]) -> Iterator[Case]:
    for case in all_cases(cls):
        if case.dtype in TOLERANCE and case.has_tensors_only and not case.op.subgraphs() and not listed(case):
            yield case


def planted(case: Case, every_place: bool) -> Iterator[tuple[str, Case]]:
    """Yield copies of the case in which one element of a float operand is replaced, or all elements.

    every_place: Put each value at the first, the middle and the last position. If False, at one of these, in turn.
    """
    for position, array in enumerate(case.arrays):
        if array is None or array.dtype == object or dtype_of(array.dtype) not in TOLERANCE or not array.size:
            continue
        if case.is_constant[position] or differs(case, position):
            continue
        places = sorted({0, array.size // 2, array.size - 1})
        for number, value in enumerate((np.nan, np.inf, -np.inf, SMALLEST[dtype_of(array.dtype)], -0.0)):
            for place in places if every_place else [places[(number + position) % len(places)]]:
                changed = array.copy()
                changed.reshape(-1)[place] = value
                yield f"input {position}[{place}] = {value}", _with(case, position, changed)
        for value in (np.nan, -np.inf):
            yield f"input {position} all {value}", _with(case, position, np.full_like(array, value))


def _with(case: Case, position: int, array: np.ndarray) -> Case:
    return replace(case, arrays=(*case.arrays[:position], array, *case.arrays[position + 1 :]))


def check(got: Any, expected: Any, what: str) -> None:
    expected = np.asarray(expected)
    dtype = dtype_of(got.dtype)
    if dtype not in TOLERANCE:
        np.testing.assert_array_equal(got, expected, what)
        return
    rtol, atol = TOLERANCE[dtype]
    np.testing.assert_allclose(got.astype(np.float64), expected.astype(np.float64), rtol, atol, err_msg=what)


def run_native(node: Node, arrays: list[Any], threads: int = 1) -> list[np.ndarray] | None:
    kernel = make_kernel("cpu", node, KernelContext(threads=threads, used_outputs=(True,) * len(node.outputs)))
    if kernel is None:
        return None
    return run_kernel(kernel, node, [None if a is None else np.asarray(a, order="C") for a in arrays])


def compare(case: Case, every_place: bool) -> None:
    node = case.graph().nodes[-1]  # the nodes before it are constant operands, such as shapes
    if not all(v.tensor.is_static for v in node.outputs):
        return
    kernel = make_kernel("cpu", node, KernelContext(threads=1, used_outputs=(True,) * len(node.outputs)))
    if kernel is None:
        return
    for what, changed in planted(case, every_place):
        outputs = run_kernel(kernel, node, [None if a is None else np.asarray(a, order="C") for a in changed.arrays])
        with np.errstate(all="ignore"):
            for got, expected in zip(outputs, run_node(node, list(changed.arrays)[: len(node.inputs)]), strict=True):
                check(got, expected, f"{case.name}: {what}")


@in_one_item(group=lambda arguments: arguments["cls"].name[0])
@pytest.mark.parametrize("cls", OPERATORS_OF_FLOATS, ids=lambda cls: cls.name)
def test_samples(cls: type[Op]) -> None:
    cases = [case for case in float_cases(cls) if case.dtype is DType.FLOAT32]
    different = with_a_new_feature(cases)
    for case in cases:
        if case.name in different:
            compare(case, every_place=False)


@pytest.mark.full
@in_one_item(group=lambda arguments: arguments["cls"].name[0])
@pytest.mark.parametrize("cls", OPERATORS_OF_FLOATS, ids=lambda cls: cls.name)
def test_samples_of_all_types(cls: type[Op], isa: str) -> None:
    for case in float_cases(cls):
        compare(case, every_place=True)


# --- vectors and their tails ----------------------------------------------------------------------


def special_values(dtype: DType) -> np.ndarray:
    values = [np.nan, -np.nan, np.inf, -np.inf, SMALLEST[dtype], -SMALLEST[dtype], -0.0, 0.0, 1e3, -1e3, 1.5, -1.5]
    return np.array(values).astype(dtype.numpy)


@each_case([cls for cls in registry if cls.name in OPERATORS], group=lambda cls: "all", name=lambda cls: cls.name)
def test_pointwise(cls: type[Op], isa: str) -> None:
    """Every special number, and every pair of them, in whole vectors and in their tails."""
    seen = set()
    for case in float_cases(cls):
        fits = len(case.arrays) in (1, 2) and cls.name != "Clip"  # its bounds are scalars
        fits = fits and all(a is not None and dtype_of(a.dtype) is case.dtype for a in case.arrays)
        if not fits or (case.op, case.dtype) in seen:
            continue
        seen.add((case.op, case.dtype))
        special = special_values(case.dtype)
        filler = np.random.default_rng(0).standard_normal(53).astype(case.dtype.numpy)
        left, right = (np.concatenate([a.reshape(-1), filler, special]) for a in np.meshgrid(special, special))
        arrays = [left, right][: len(case.arrays)]
        node = Node(case.op, [Value(TensorType(case.dtype, a.shape)) for a in arrays])
        outputs = run_native(node, arrays)
        if outputs is not None:
            with np.errstate(all="ignore"):
                check(outputs[0], run_node(node, arrays)[0], case.name)


# --- activations behind products ------------------------------------------------------------------


def erf(x: np.ndarray) -> np.ndarray:
    from graphkit.ops.xp import numpy_xp

    return np.asarray(numpy_xp.special.erf(x))


# oneDNN's name, alpha, beta, the function.
ACTIVATIONS: dict[str, tuple[str, float, float, Any]] = {
    "Relu": ("relu", 0, 0, lambda x: np.maximum(x, 0)),
    "LeakyRelu": ("relu", 0.25, 0, lambda x: np.where(x >= 0, x, x * 0.25)),
    "Clip": ("clip", -0.5, 6, lambda x: np.clip(x, -0.5, 6)),
    "Clip from below": ("clip", 0, np.inf, lambda x: np.maximum(x, 0)),
    "HardSigmoid": ("hard_sigmoid", 0.2, 0.5, lambda x: np.clip(0.2 * x + 0.5, 0, 1)),
    "HardSwish": ("hard_swish", 1 / 6, 0.5, lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    "Sigmoid": ("sigmoid", 0, 0, lambda x: 1 / (1 + np.exp(-x))),
    "Tanh": ("tanh", 0, 0, np.tanh),
    "Silu": ("swish", 1, 0, lambda x: x / (1 + np.exp(-x))),
    "Elu": ("elu", 1, 0, lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0)))),
    "Gelu": ("gelu", 0, 0, lambda x: 0.5 * x * (1 + erf(x * np.sqrt(0.5)))),
    "Softplus": ("softplus", 1, 0, lambda x: np.logaddexp(0, x)),
    "Exp": ("exp", 0, 0, np.exp),
}


def image_window(pad: int, groups: int = 1) -> Any:
    return native.Window((1, 1), (1, 1), (pad, pad), (pad, pad), groups)


def convolution(channels: int, kernel: int, groups: int = 1, last: bool = False, size: int = 9) -> Any:
    """Return a function that makes kernels, and the shapes in memory of x, w, bias and y."""
    x = (2, channels, size, size)
    w = (channels, channels // groups, kernel, kernel)

    def make(**options: Any) -> Any:
        return native.Convolution(x, w, x, image_window(kernel // 2, groups), bias=True, channels_last=last, **options)

    placed = (x[0], *x[2:], x[1]) if last else x
    return make, placed, w, (channels,), placed


def transposed(channels: int, kernel: int, last: bool = False) -> Any:
    x, w = (2, channels, 6, 6), (channels, channels, kernel, kernel)

    def make(**options: Any) -> Any:
        return native.Deconvolution(x, w, x, image_window(kernel // 2), bias=True, channels_last=last, **options)

    placed = (x[0], *x[2:], x[1]) if last else x
    return make, placed, w, (channels,), placed


def product(rows: int, terms: int, columns: int) -> Any:
    def make(pack_weights: bool = False, **options: Any) -> Any:
        return native.MatMul((rows, terms), (terms, columns), bias=(columns,), pack_b=pack_weights, **options)

    return make, (rows, terms), (terms, columns), (columns,), (rows, columns)


PRODUCTS = {
    "matmul": product(37, 19, 45),
    "large matmul": product(130, 64, 96),
    "row": product(1, 40, 70),
    "convolution 1x1": convolution(16, 1),
    "convolution 1x1, channels last": convolution(24, 1, last=True),
    "convolution 3x3": convolution(19, 3),
    "convolution 3x3, channels last": convolution(19, 3, last=True),
    "large convolution": convolution(64, 3, last=True, size=20),
    "depthwise": convolution(40, 3, 40),
    "depthwise, channels last": convolution(40, 3, 40, last=True),
    "three groups": convolution(6, 3, 3),
    "three groups, channels last": convolution(9, 3, 3, last=True),
    "transposed": transposed(17, 3),
    "transposed, channels last": transposed(16, 3, last=True),
}


@pytest.mark.skipif(not native.has_onednn(), reason="built without oneDNN")
@in_one_item("values")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activation_behind_a_product(activation: str, name: str, threads: int) -> None:
    """There are NaN and infinities in the product, in the residual, in both or in neither."""
    make, x_shape, w_shape, bias_shape, y_shape = PRODUCTS[name]
    kind, alpha, beta, function = ACTIVATIONS[activation]
    rng = np.random.default_rng(5)
    x, w, bias = (rng.standard_normal(s).astype(np.float32) for s in (x_shape, w_shape, bias_shape))
    w /= np.sqrt(w[..., 0].size if w.ndim == 2 else w[0].size).astype(np.float32)
    plain = make(threads=threads)
    for residual_mode in (None, "first", "last") if "transposed" not in name else (None,):
        options = dict(residual=residual_mode is not None, residual_last=residual_mode == "last")
        for packs in (False, True):
            kernel = make(epilogue=native.Epilogue(kind, alpha, beta, **options), threads=threads, pack_weights=packs)
            weights = packed(kernel, w)
            for what in ("numbers", "x", "residual", "both", "bias", "numbers"):
                given, added, shift = x.copy(), rng.standard_normal(y_shape).astype(np.float32), bias.copy()
                if what in ("x", "both"):
                    given.reshape(-1)[[0, given.size // 2, given.size - 1]] = np.nan, np.inf, -np.inf
                if what in ("residual", "both"):
                    added.reshape(-1)[[1, added.size // 3, added.size - 1]] = np.inf, -np.inf, np.nan
                if what == "bias":
                    shift[:3] = -np.inf, np.nan, np.inf
                y = np.empty(y_shape, np.float32)
                plain([given, w, shift], [y])
                with np.errstate(all="ignore"):
                    wide = y.astype(np.float64)
                    expected = function(wide + added if residual_mode == "first" else wide)
                    expected = expected + added if residual_mode == "last" else expected
                operands = [given, weights, shift] if residual_mode is None else [given, weights, shift, added]
                got = np.empty(y_shape, np.float32)
                kernel(operands, [got])
                where = f"{kernel.implementation}: special numbers in {what}, residual {residual_mode}"
                np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-5, err_msg=where)
                if residual_mode is not None:
                    kernel([*operands[:3], added], [added])
                    np.testing.assert_allclose(added, got, rtol=2e-4, atol=2e-5, err_msg=where + ", in place")


def packed(kernel: Any, plain: np.ndarray) -> np.ndarray:
    if not kernel.packed_inputs:
        return plain
    memory = aligned_bytes(kernel.packed_bytes(1))
    kernel.pack(1, plain, memory)
    return memory


@pytest.mark.skipif(not native.has_onednn(), reason="built without oneDNN")
@in_one_item()
@pytest.mark.parametrize("threads", [1, 3])
def test_activation_in_pieces(threads: int) -> None:
    """Each thread computes some rows of the product. One row is NaN."""
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((512, 256)).astype(np.float32), rng.standard_normal((256, 256)).astype(np.float32)
    a[400, 7] = np.nan
    kernel = native.MatMul(a.shape, b.shape, epilogue=native.Epilogue("relu"), deterministic=True, threads=threads)
    y = np.empty((512, 256), np.float32)
    kernel([a, b], [y])
    assert np.isnan(y[400]).all()
    assert not np.isnan(np.delete(y, 400, axis=0)).any()
