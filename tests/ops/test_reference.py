"""Every standard operator's reference against onnx's reference evaluator, in every element type it allows.

If the evaluator is wrong or cannot run, ONNX Runtime is used instead; EVALUATOR_WRONG says why. LESS_PRECISE lists
operators that the evaluator computes in float32 for all element types. A test fails if an entry is no longer needed.
"""

from __future__ import annotations

import fnmatch
from typing import Any

import numpy as np
import pytest
from cases import each_case
from combinations import in_one_item

from graphkit.checks.oracle import onnx_evaluator, onnxruntime_session
from graphkit.checks.samples import Case, all_cases
from graphkit.checks.verify import compare_outputs
from graphkit.errors import GraphkitError
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import DType, SequenceType, TensorType, Type
from graphkit.ops import F, registry
from graphkit.ops.evaluate import evaluate

OPSET = 28
# ONNX Runtime's newest, and one that some of its kernels stop at.
RUNTIME_OPSETS = (26, 21)

# Case name pattern -> why the evaluator's answer is not the standard's.
EVALUATOR_WRONG = {
    "AffineGrid-*-float64": "returns float32",
    "AffineGrid-*float16": "returns float32",
    "CastLike-*": "refuses the attribute round_mode of CastLike-25",
    "ConvTranspose-4-*": "cannot reshape the bias of a grouped convolution",
    "Det-?-*float16": "has no halves",
    "Dropout-7-bfloat16": "returns float32",
    "GRU-[56]-*": "ignores sequence_lens",
    "GRU-7-*": "ignores clip",
    "GRU-8-*": "ignores activations",
    "GlobalAveragePool-3-*": "divides by zero for an empty batch",
    "GlobalMaxPool-1-*": "drops the spatial axis of a three-dimensional operand",
    "GlobalMaxPool-2-*": "returns another rank for a five-dimensional operand",
    "GridSample-[89]-*": "moves coordinates to the border where PyTorch and ONNX Runtime repeat elements",
    "LRN-[02]-*": "sums another window of channels than the standard's",
    "LSTM-5-*": "ignores sequence_lens",
    "LSTM-[67]-*": "ignores input_forget and clip",
    "LSTM-8-*": "ignores activations",
    "LayerNormalization-[0-5]-float64": "gives mean and deviation in the type of x instead of stash_type's",
    "LayerNormalization-[0-5]-*float16": "gives mean and deviation in the type of x instead of stash_type's",
    "LpNormalization-[235]-*": "adds up signed elements for p=1",
    "LpPool-2-*": "takes a last, partial window of ceil_mode from another place",
    "MaxPool-6-*": "pads auto_pad=SAME_LOWER at the end",
    "MaxPool-10-int8": "pads integers with NaN",
    "MaxPool-12-*": "counts positions of storage_order 1 in another order",
    "MaxRoiPool-*": "has no implementation",
    "MeanVarianceNormalization-*-float64": "adds a float32 constant to another type",
    "MeanVarianceNormalization-*float16": "adds a float32 constant to another type",
    "OneHot-1-*": "takes only scalars for depth, the standard also vectors of one element",
    "OneHot-?-bool": "subtracts booleans",
    "Optional-*": "puts the value into a list",
    "Pow-0-int*": "refuses integers to negative integer powers",
    "RNN-4-*": "ignores sequence_lens",
    "RNN-[5789]-*": "ignores clip, has only two of the activations",
    "RNN-6-*float16": "returns the last state in float32",
    "RNN-10-*": "has only two of the activations",
    "ReduceLogSumExp-8-*": "cannot return a scalar",
    "ReduceSumSquare-*-*int32": "returns 64-bit integers",
    "Resize-27-bool": "has no booleans",
    "RegexFullMatch-5-*": "takes Unicode's digits and letters, which RE2's classes do not have",
    "SequenceInsert-3-*": "puts at the front what stands behind all others",
    "Softsign-3-*": "cannot return a scalar",
    "StringConcat-3-*": "loses the last zero byte of a string",
    "StringNormalizer-[45]-*": "looks for stop words inside of elements, strips accents, drops empty strings",
    "StringSplit-[45]-*": "keeps the blanks behind the last part when `maxsplit` ends the search",
    "StringSplit-7-*": "finds one part in an empty string",
    "StringSplit-8-*": "has no scalars",
    "TfIdfVectorizer-[68]-*": "cannot do without weights",
    "Unique-11-*": "cannot compare slices of strings",
    "Unique-[147]-*": "takes elements along axis 0 whatever the axis when not sorted",
}
# Case name pattern -> where the evaluator rounds to float32 although the elements are wider.
LESS_PRECISE = {
    "DeformConv-*-float64": "computes coordinates in float32",
    "CausalConvWithState-[12]-float64": "computes the activation in float32",
    "LinearAttention-*-float64": "computes in float32",
    "Attention-1-float64": "takes the square root of the scale in float32",
    "Erf-*-float64": "evaluates erf in float32",
    "Gelu-*-float64": "rounds the constants of its formula to float32",
    "GridSample-*-float64": "computes coordinates in float32",
    "GroupNormalization-*-float64": "normalises in float32",
    "HardSwish-*-float64": "rounds its constants to float32",
    "Resize-*-float64": "computes coordinates in float32",
}

# Rounding of one operator. The evaluator computes halves in halves; graphkit in float32, rounded once.
TOLERANCES = {
    DType.FLOAT64: (1e-9, 1e-11),
    DType.FLOAT32: (2e-5, 2e-6),
    DType.FLOAT16: (1e-2, 4e-3),
    DType.BFLOAT16: (8e-2, 3e-2),
}


def standard_cases() -> list[Case]:
    classes = [cls for cls in registry if cls.onnx is not None and not cls.domain]
    return [
        case
        for cls in classes
        for case in map(Case.as_stored, all_cases(cls))
        if case.sample.onnx and not case.op.subgraphs()
    ]


CASES = standard_cases()


def listed_in(ledger: dict[str, str], case: Case) -> bool:
    return any(fnmatch.fnmatchcase(case.name, pattern) for pattern in ledger)


def asked_of_runtime(case: Case) -> list[Any]:
    """ONNX Runtime's results; where it has no kernel for the element type, those of another type, converted."""
    refused: GraphkitError | None = None
    for dtype in (case.dtype, DType.INT64, DType.FLOAT32):
        if dtype is DType.INT64 and not case.dtype.is_integer:
            continue
        for opset in RUNTIME_OPSETS:
            try:
                results = onnxruntime_session(case.converted(dtype), opset)
            except GraphkitError as error:
                refused = refused or error
                continue
            return [as_type(r, value.type) for r, value in zip(results, case.graph().outputs, strict=True)]
    raise AssertionError(f"ONNX Runtime has no answer: {refused}")


def as_type(result: Any, kind: Type) -> Any:
    if isinstance(kind, TensorType):
        return np.asarray(result).astype(kind.dtype.numpy)
    if isinstance(kind, SequenceType):
        return [as_type(item, kind.element) for item in result]
    return None if result is None else as_type(result, kind.element)


def tolerance(case: Case) -> tuple[float, float]:
    rtol, atol = TOLERANCES.get(case.dtype, (1e-5, 1e-6))
    if listed_in(LESS_PRECISE, case) or listed_in(EVALUATOR_WRONG, case):
        single = TOLERANCES[DType.FLOAT32]
        return max(rtol, single[0]), max(atol, single[1])
    return rtol, atol


def disagreements(case: Case, expected: list[Any], rounding: tuple[float, float]) -> list[str]:
    results = evaluate(case.graph(), case.feeds())
    assert len(results) == len(expected)
    ours, theirs = ({f"y{i}": y for i, y in enumerate(values)} for values in (results, expected))
    failed = [report for report in compare_outputs(ours, theirs, *rounding) if not report.passed]
    return [f"{report}\nours:\n{results}\ntheirs:\n{expected}" for report in failed]


# The first case of each sample with floats, with integers, and so on.
FIRST = {(c.op.name, c.number, c.dtype.numpy.kind): c for c in reversed(CASES)}


def is_other_dtype(case: Case) -> bool:
    """Whether the case repeats a sample in another element type of the same kind."""
    return case is not FIRST[case.op.name, case.number, case.dtype.numpy.kind]


@each_case(CASES, group=lambda c: c.op.name[0], full=is_other_dtype)
def test_reference(case: Case) -> None:
    expected = asked_of_runtime(case) if listed_in(EVALUATOR_WRONG, case) else onnx_evaluator(case, OPSET)
    problems = disagreements(case, expected, tolerance(case))
    assert not problems, "\n".join(problems)


@in_one_item()
@pytest.mark.parametrize("pattern", [*EVALUATOR_WRONG, *LESS_PRECISE])
def test_ledger_entry_is_needed(pattern: str) -> None:
    matching = [case for case in CASES if fnmatch.fnmatchcase(case.name, pattern)]
    assert matching, "no case has this name"
    for case in matching:
        try:
            if disagreements(case, onnx_evaluator(case, OPSET), TOLERANCES.get(case.dtype, (1e-5, 1e-6))):
                return
        except Exception:  # noqa: BLE001 - whatever the evaluator raises shows that it cannot run this
            return
    pytest.fail("onnx's evaluator agrees on all of these; remove the entry")


def test_float16_is_rounded_once() -> None:
    x = np.float16([0.1, 0.2, 0.3])
    value = Value(TensorType("float16", (3,)), "x")
    (result,) = evaluate(Graph([value], [F.exp(value)]), [x])
    np.testing.assert_array_equal(result, np.exp(x.astype(np.float32)).astype(np.float16))
