"""Every native kernel against its operator's reference: all samples of the registry, all element types, all layouts.

The test finds all operators with a kernel factory in the registry. The lists in this file are exceptions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from cases import each_case
from combinations import full, in_one_item
from instruction_sets import BEST_ISA, ISAS, using_isa
from kernel_runs import at_page_end, unwritten
from representative import with_a_new_feature

from graphkit.checks.samples import Case, all_cases
from graphkit.executor.devices.cpu import native
from graphkit.executor.devices.cpu.pointwise import OPERATORS as POINTWISE
from graphkit.executor.devices.kernel import Kernel, KernelContext, is_native
from graphkit.executor.devices.operands import operand
from graphkit.executor.devices.registry import make_kernel, rule_of
from graphkit.ir.graph import Node
from graphkit.ir.types import FLOATS, INTEGERS, DType, dtype_of
from graphkit.ops import Op, registry
from graphkit.ops._base import operator
from graphkit.ops.evaluate import run_node
from graphkit.ops.internal.fused import FusedMatMul
from graphkit.ops.math.random import RandomOp
from graphkit.ops.nn.lp_pool import GlobalLpPool
from graphkit.ops.nn.norm import LayerNormalization

ACCELERATED = [cls for cls in registry if rule_of("cpu", cls).has_kernels]

# (rtol, atol); integers, booleans and what is only moved have to be the same bits.
TOLERANCE = {
    DType.FLOAT32: (2e-6, 2e-6),
    DType.FLOAT64: (1e-12, 1e-12),
    DType.FLOAT16: (2e-3, 2e-3),
    DType.BFLOAT16: (1e-2, 1e-2),
}
# The library chooses the order of its sums by the processor.
TOLERANCE_LIBRARY = TOLERANCE | {DType.FLOAT32: (1e-5, 1e-5), DType.BFLOAT16: (2**-6, 2**-6)}
# Sums of differences of sums.
TOLERANCE_DIFFERENCES = TOLERANCE | {DType.FLOAT32: (1e-5, 1e-5)}
OF_DIFFERENCES = {"FusedAttentionGrad"}
# The pointwise machine and the reference round differently, the reference in every one of its steps.
TOLERANCE_POINTWISE = {
    DType.FLOAT32: (4e-6, 3e-7),
    DType.FLOAT64: (1e-14, 1e-15),
    DType.FLOAT16: (1e-3, 1e-7),
    DType.BFLOAT16: (8e-3, 1e-30),
}
# Operators that take booleans and add up numbers all the same.
ADDS_UP = {"Resize"}
GUARD = 64  # bytes before and behind every result
CANARY = 0xA5


@dataclass
class Held:
    """A constant operand as the executor hands it to a kernel."""

    array: np.ndarray
    version: int = 0


def placed(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a copy that is aligned to a cache line, and the memory that contains it and its guards."""
    memory = np.full(array.nbytes + 2 * GUARD + 64, CANARY, np.uint8)
    start = -(memory.ctypes.data + GUARD) % 64 + GUARD
    whole = memory[start - GUARD : start + array.nbytes + GUARD]
    copy = whole[GUARD : GUARD + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy, whole


def moves(case: Case) -> bool:
    """Whether the operator accepts booleans like numbers. Then it only moves or compares its operands."""
    formals = case.op.formals
    allowed: Any = case.op.types.get(formals[0].name, ()) if formals else ()
    return not isinstance(allowed, str) and DType.BOOL in allowed and case.op.name not in {*POINTWISE, *ADDS_UP}


def differs(case: Case, got: np.ndarray, expected: np.ndarray) -> str:
    if (got.dtype, got.shape) != (expected.dtype, expected.shape):
        return f"{got.dtype}{list(got.shape)}, not {expected.dtype}{list(expected.shape)}"
    if moves(case) or dtype_of(got.dtype) not in FLOATS:
        return "" if got.tobytes() == expected.tobytes() else "other bits"
    name = case.op.name
    table = TOLERANCE_POINTWISE if name in POINTWISE else TOLERANCE_LIBRARY if name in OF_LIBRARY else TOLERANCE
    table = TOLERANCE_DIFFERENCES if name in OF_DIFFERENCES else table
    rtol, atol = table[dtype_of(got.dtype)]
    try:
        np.testing.assert_allclose(got.astype(np.float64), expected.astype(np.float64), rtol, atol)
    except AssertionError as error:
        return str(error)
    return ""


def run_aligned(kernel: Kernel, arrays: list[Any], results: list[np.ndarray]) -> list[np.ndarray]:
    """Run a kernel on memory that is aligned to cache lines. It must not write outside of its results."""
    outputs = [placed(result) for result in results]
    kernel([None if a is None else placed(a)[0] for a in arrays], [array for array, _ in outputs])
    for array, whole in outputs:
        assert (whole[:GUARD] == CANARY).all(), "written before a result"
        assert (whole[GUARD + array.nbytes :] == CANARY).all(), "written behind a result"
    return [array for array, _ in outputs]


def run_at_page_end(kernel: Kernel, arrays: list[Any], results: list[np.ndarray]) -> list[np.ndarray]:
    """Run with operands and results that are not aligned to cache lines and end at unmapped memory."""
    outputs = [at_page_end(result) for result in results]
    kernel([None if a is None else at_page_end(a) for a in arrays], outputs)
    return outputs


def run_in_place(
    kernel: Kernel, arrays: list[Any], results: list[np.ndarray], pair: tuple[int, int]
) -> list[np.ndarray]:
    """With an operand and a result, by their positions, in the same memory."""
    position, output = pair
    operands = [None if a is None else placed(a)[0] for a in arrays]
    outputs = [placed(r)[0] for r in results]
    outputs[output] = operands[position].reshape(-1).view(outputs[output].dtype).reshape(outputs[output].shape)
    kernel(operands, outputs)
    return outputs


def pairs_in_place(kernel: Kernel, arrays: list[Any], results: list[np.ndarray]) -> list[tuple[int, int]]:
    """Return the in-place pairs of the kernel whose operand and result exist and have the same size."""
    allowed = kernel.inplace if is_native(kernel) else ()
    there = [(i, o) for i, o in allowed if i < len(arrays) and arrays[i] is not None]
    return [(i, o) for i, o in there if arrays[i].nbytes == results[o].nbytes]


def data_dependent_kernel(node: Node, context: KernelContext) -> Any:
    make = rule_of("cpu", node.op).data_dependent
    return None if make is None else make(node, context)


def attempts(case: Case, node: Node, arrays: list[Any]) -> Iterator[tuple[str, Sequence[np.ndarray | None]]]:
    """Yield the results in every layout, with one thread and with three. Constants are packed if necessary."""
    used = (True,) * len(node.outputs)
    for threads in (1, 3):
        kernel = data_dependent_kernel(node, KernelContext(threads))
        if kernel is not None:
            yield f"{threads} threads", kernel(arrays)
            yield (
                f"{threads} threads, at the end of a page",
                kernel([None if a is None else at_page_end(a) for a in arrays]),
            )
            for alone in range(len(node.outputs)) if len(node.outputs) > 1 else ():
                one = tuple(position == alone for position in range(len(node.outputs)))
                yield f"output {alone} alone", kernel(arrays, one)
    if not all(v.tensor.is_static for v in node.outputs):
        return
    for threads in (1, 3):
        kernel = make_kernel("cpu", node, KernelContext(threads, used_outputs=used))
        if kernel is None:
            return
        yield f"{threads} threads", run_aligned(kernel, arrays, unwritten(node))
        yield f"{threads} threads, at the end of a page", run_at_page_end(kernel, arrays, unwritten(node))
        for pair in pairs_in_place(kernel, arrays, unwritten(node)):
            yield f"{threads} threads, {pair} in place", run_in_place(kernel, arrays, unwritten(node), pair)
    held = {i: Held(a) for i, a in enumerate(arrays) if a is not None and i}
    kernel = make_kernel("cpu", node, KernelContext(1, constant_inputs=held, used_outputs=used))
    if kernel is not None and is_native(kernel) and kernel.packed_inputs:
        operands = list(arrays)
        for position in kernel.packed_inputs:
            packed = np.empty(kernel.packed_bytes(position), np.uint8)
            kernel.pack(position, arrays[position], packed)
            operands[position] = packed
        yield "packed constants", run_aligned(kernel, operands, unwritten(node))
    for alone in range(len(node.outputs)) if len(node.outputs) > 1 else ():
        one = tuple(position == alone for position in range(len(node.outputs)))
        kernel = make_kernel("cpu", node, KernelContext(1, used_outputs=one))
        if kernel is not None:
            outputs: list[Any] = [r if read else None for r, read in zip(unwritten(node), one, strict=True)]
            kernel(arrays, outputs)
            yield f"output {alone} alone", outputs


def numeric_cases(cls: type[Op]) -> Iterator[Case]:
    for case in all_cases(cls):
        if case.has_tensors_only and not any(t is not None and t.dtype is DType.STRING for t in case.types):
            yield case


def nodes_of(case: Case) -> Iterator[Node]:
    """The case's node with its literals as constants, and with all operands as inputs where that leaves sizes known."""
    for all_inputs in (False, True):
        node = [n for n in case.graph(all_inputs=all_inputs).nodes if n.op.name == case.op.name][-1]
        if not all_inputs or (any(case.is_constant) and all(v.tensor.is_static for v in node.outputs)):
            yield node


@pytest.fixture
def shared() -> Iterator[None]:
    """Work of any size is shared among the threads, as that of larger operands is."""
    native.share_all_work(True)
    yield
    native.share_all_work(False)


ONE_BYTE = (DType.INT8, DType.UINT8, DType.BOOL)
WIDER = (DType.INT16, DType.UINT16, DType.INT32, DType.UINT32, DType.INT64, DType.UINT64)


def is_representative(cases: Sequence[Case]) -> list[bool]:
    """Which cases of an operator the default lane runs: each sample with a new feature in its first element type; each
    other float type, one type of a byte and one wider integer type with one sample. These differ from operator to
    operator.
    """
    numbers_of: dict[DType, list[int]] = {}
    for case in cases:
        numbers_of.setdefault(case.dtype, []).append(case.number)
    first = {case.number: case for case in reversed(cases)}
    different = with_a_new_feature(first[number] for number in sorted(first))
    turn = sum(cases[0].op.name.encode()) if cases else 0
    kept = [dtype for dtype in numbers_of if dtype in FLOATS]
    for family in (ONE_BYTE, WIDER):
        there = [dtype for dtype in family if dtype in numbers_of]
        kept += there[turn % len(there) :][:1] if there else []
    chosen = {dtype: numbers_of[dtype][i % len(numbers_of[dtype])] for i, dtype in enumerate(kept)}
    return [case.name in different or chosen.get(case.dtype) == case.number for case in cases]


def differences(case: Case) -> list[str]:
    """Return the differences between the native kernels and the reference of a case."""
    wrong = []
    for node in nodes_of(case):
        arrays = [None if a is None else np.asarray(a, order="C") for a in case.arrays[: len(node.inputs)]]
        with np.errstate(all="ignore"):
            expected = run_node(node, arrays)
        alone: Sequence[np.ndarray | None] | None = None
        for what, results in attempts(case, node, arrays):
            for number, (got, wanted) in enumerate(zip(results, expected, strict=True)):
                if got is not None and (difference := differs(case, got, wanted)):
                    wrong.append(f"{case.name}, {what}, output {number}: {difference}")
            # Sums are cut by shapes, never by the number of threads.
            alone = results if alone is None else alone
            if what == "3 threads" and case.op.name not in OF_LIBRARY:
                same = all(a.tobytes() == b.tobytes() for a, b in zip(alone, results, strict=True))
                wrong += [] if same else [f"{case.name}: other bits than those of one thread"]
    return wrong


def check_kernels(cls: type[Op], default: bool) -> None:
    """Compare the kernels of the cases that the default lane runs, or those of all others."""
    cases = list(numeric_cases(cls))
    chosen = [case for case, kept in zip(cases, is_representative(cases), strict=True) if kept is default]
    wrong = [text for case in chosen for text in differences(case)]
    assert not wrong, "\n".join([f"{len(wrong)} differences, in {len(chosen)} cases", *wrong[:20]])


@pytest.mark.usefixtures("shared", "isa")
@in_one_item(group=lambda arguments: arguments["cls"].name[0])
@pytest.mark.parametrize("cls", ACCELERATED, ids=lambda cls: cls.name)
def test_kernels_equal_the_reference(cls: type[Op]) -> None:
    check_kernels(cls, default=True)


@pytest.mark.full
@pytest.mark.usefixtures("shared", "isa")
@in_one_item(group=lambda arguments: arguments["cls"].name[0])
@pytest.mark.parametrize("cls", ACCELERATED, ids=lambda cls: cls.name)
def test_kernels_of_all_types_equal_the_reference(cls: type[Op]) -> None:
    check_kernels(cls, default=False)


@pytest.mark.full
@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("name", [full(name) if name == "baseline" else name for name in ISAS if name != BEST_ISA])
def test_kernels_of_other_instruction_sets_equal_the_reference(name: str) -> None:
    """One sample of each operator in its first type, and one in another float type, not always the same."""
    with using_isa(name):
        wrong = []
        for number, cls in enumerate(ACCELERATED):
            cases = {case.dtype: case for case in numeric_cases(cls)}
            first, *others = cases
            others = [dtype for dtype in others if dtype in FLOATS]
            chosen = [first, others[number % len(others)]] if others else [first]
            wrong += [text for dtype in chosen for text in differences(cases[dtype])]
    assert not wrong, "\n".join(wrong[:20])


# --- what has no kernel ---------------------------------------------------------------------------


def _lacks(*dtypes: DType) -> Callable[[Node], bool]:
    """Whether the node's numbers have one of these types."""

    def lacks(node: Node) -> bool:
        return any(v.dtype in dtypes for v in (*node.operands, *node.outputs))

    return lacks


_not_float32 = _lacks(*(FLOATS - {DType.FLOAT32}))


def _not_of_library(node: Node) -> bool:
    """Whether a product or a convolution has numbers, or filters in an order, that the library does not know."""
    numbers = _lacks(DType.FLOAT64, DType.FLOAT16, *(INTEGERS - {DType.INT8, DType.UINT8}))
    return numbers(node) or getattr(node.op, "filters_last", False)


def _has_other_parameters(node: Node) -> bool:
    """Whether a quantised product has a parameter for each row, or other scales than float32."""
    named = operator(node, Op).named_inputs(node.inputs)
    rows = [v for name, v in named.items() if name in ("a_scale", "a_zero_point") and v is not None]
    return any(v.shape not in ((), (1,)) for v in rows) or _lacks(*(FLOATS - {DType.FLOAT32}))(node)


_BYTES_AND_WORDS = {DType.INT8, DType.UINT8, DType.INT16, DType.UINT16}


def _is_other_quantisation(node: Node) -> bool:
    """Whether a QuantizeLinear or DequantizeLinear is of other numbers than float32, or of other integers."""
    quantises = node.op.name == "QuantizeLinear"
    real, whole = (node.operands[0], node.output) if quantises else (node.output, node.operands[0])
    integers = _BYTES_AND_WORDS if quantises else _BYTES_AND_WORDS | {DType.INT32}
    other = getattr(node.op, "precision", None) not in (None, DType.FLOAT32)
    return other or {real.dtype, node.operands[1].dtype} != {DType.FLOAT32} or whole.dtype not in integers


def _is_of_small_numbers(node: Node) -> bool:
    """Whether a Cast has numbers of fewer than 8 bits or floats of 8 on a side."""
    return not {node.operands[0].dtype, node.output.dtype} <= {*FLOATS, *INTEGERS, DType.BOOL}


def _draws_from_its_own_seed(node: Node) -> bool:
    """Whether the node draws from numpy's generator, as onnx's evaluator does."""
    return operator(node, RandomOp).own_seed is not None


def _drops_otherwise(node: Node) -> bool:
    """Whether a Dropout draws from its own seed, or is of 8-bit floats."""
    return _draws_from_its_own_seed(node) or node.operands[0].dtype not in FLOATS


def _is_other_product(node: Node) -> bool:
    """Whether neither oneDNN computes a product, nor a graphkit kernel for its types without an epilogue."""
    if not _not_of_library(node):
        return False
    kinds = {DType.FLOAT64, DType.INT32, DType.INT64, DType.UINT32, DType.UINT64}
    follows = isinstance(node.op, FusedMatMul) and (node.op.activation or operand(node, 3) is not None)
    return node.output.dtype not in kinds or bool(follows)


_BOTH_LAYOUTS = ("", "ChannelsLast")
_AND_GRADIENT = ("", "Grad")
# Which nodes of an operator are interpreted, by its name.
INTERPRETED: dict[str, Callable[[Node], bool]] = {
    **dict.fromkeys(("LpPool", "RoiAlign", "RNN", "GRU", "LSTM"), _not_float32),
    **{f"FusedAttention{part}": _not_float32 for part in ("", "WithStatistics", "Grad")},
    "CachedAttention": _not_float32,
    **{f"{layout}AveragePool{part}": _not_float32 for layout in _BOTH_LAYOUTS for part in _AND_GRADIENT},
    **{f"ChannelsLastMaxPool{part}": _not_float32 for part in ("Grad", "Indices")},
    "ChannelsLastMaxPool": _lacks(*(FLOATS - {DType.FLOAT32})),
    **{f"ChannelsLastBatchNorm{part}": _not_float32 for part in _AND_GRADIENT},
    **{f"{cell}Recurrence{part}": _not_float32 for cell in ("RNN", "GRU", "LSTM") for part in _AND_GRADIENT},
    "MaxPool": _lacks(*(FLOATS - {DType.FLOAT32}), DType.INT8, DType.UINT8),
    "MaxPoolGrad": _not_float32,
    "MaxUnpool": lambda node: len(node.operands) > 2,  # expanded
    **dict.fromkeys(("MatMulInteger", "QLinearMatMul"), _has_other_parameters),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), _is_other_quantisation),
    **dict.fromkeys(("MatMul", "Gemm", "FusedMatMul"), _is_other_product),
    "FusedConv": _not_of_library,
    **{f"{layout}Conv{part}": _not_of_library for layout in _BOTH_LAYOUTS for part in ("", "Transpose")},
    **{f"{layout}ConvGrad{part}": _not_of_library for layout in _BOTH_LAYOUTS for part in ("Input", "Weight")},
    **dict.fromkeys(("Det", "LinearRecurrence", "Im2Col", "DFT"), _lacks(DType.FLOAT16, DType.BFLOAT16)),
    "LinearSample": _not_float32,
    "Cofactor": lambda node: node.output.tensor.size == 0,
    "Col2Im": lambda node: node.output.dtype not in {DType.FLOAT32, DType.FLOAT64, DType.INT32, DType.INT64},
    "GlobalLpPool": lambda node: operator(node, GlobalLpPool).p not in (1, 2),
    "LayerNormalization": lambda node: (
        operator(node, LayerNormalization).stash is DType.FLOAT64 and node.outputs[0].dtype is not DType.FLOAT64
    ),
    # float16 or bfloat16 mixed with float32, as in training on GPUs.
    "SoftmaxCrossEntropyWithGrad": lambda node: (
        {v.dtype for v in (node.operands[0], node.outputs[1])} != {node.outputs[0].dtype}
    ),
    "LayerNormGrad": lambda node: len({v.dtype for v in (*node.operands[:3], node.outputs[0])}) > 1,
    "TreeEnsembleClassifier": lambda node: node.outputs[0].dtype is DType.STRING,
    "Cast": _is_of_small_numbers,
    **dict.fromkeys(("IsNaN", "IsInf"), lambda node: node.operands[0].dtype not in FLOATS),
    **dict.fromkeys(
        ("RandomUniform", "RandomNormal", "RandomUniformLike", "RandomNormalLike", "Bernoulli"),
        _draws_from_its_own_seed,
    ),
    "Dropout": _drops_otherwise,
}
# The library has kernels for bfloat16 where the processor multiplies it, and not for every shape.
OF_LIBRARY = {name for name, missing in INTERPRETED.items() if missing in (_not_of_library, _is_other_product)}


@each_case(ACCELERATED, group=lambda cls: "all", name=lambda cls: f"{cls.domain}.{cls.name}")
def test_what_is_interpreted_is_listed(cls: type[Op]) -> None:
    for case in numeric_cases(cls):
        node = next(nodes_of(case))
        if cls.name in OF_LIBRARY and DType.BFLOAT16 in {v.dtype for v in node.operands}:
            continue
        context = KernelContext(1, used_outputs=(True,) * len(node.outputs))
        found = data_dependent_kernel(node, context) is not None
        if all(v.tensor.is_static for v in node.outputs):
            found |= make_kernel("cpu", node, context) is not None
        listed = INTERPRETED.get(cls.name, lambda _: False)(node)
        assert found or listed, f"{case.name} has no kernel: its factory returned None, or the kernel is Unsupported"
        assert not (found and listed), f"{case.name} has a kernel, and is listed as interpreted"
