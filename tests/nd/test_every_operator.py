"""Every operator of the registry runs on arrays with the results of its reference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.checks.samples import Case, dtypes_of, make_case, samples_of
from graphkit.ir.types import DType
from graphkit.ops import Op, apply, registry
from graphkit.ops.evaluate import evaluate

nd = gk.nd
TOLERANCES = {DType.FLOAT16: 1e-2, DType.BFLOAT16: 6e-2, DType.FLOAT64: 1e-6, DType.FLOAT32: 1e-4}


# Modules whose operators the default lane runs, each with one sample.
CHOSEN = {
    "linalg.matmul", "math.arithmetic", "math.logic", "math.reduce", "nn.conv", "nn.global_pool", "nn.lp_pool",
    "nn.norm", "nn.pool", "tensor.concat",
    "tensor.gather", "tensor.scatter", "tensor.slicing",
}  # fmt: skip


_STRINGS = "arrays have no strings"
_CONTAINERS = "arrays are no sequences, maps or optionals"
# Operators that no case compares, and why.
NOT_COMPARED = {
    **dict.fromkeys(
        ["EncodedColumns", "TokenizedNgrams", "CategoryMapper", "RegexFullMatch", "StringConcat", "StringSplit",
         "StringNormalizer", "Tokenizer"], _STRINGS,
    ),
    **dict.fromkeys(
        ["DictVectorizer", "CastMap", "ZipMap", "SequenceAtGrad", "SequenceElementSizes", "SequenceConstruct",
         "SequenceEmpty", "SequenceAt", "SequenceInsert", "SequenceErase", "SequenceLength", "Optional",
         "SplitToSequence", "ConcatFromSequence"], _CONTAINERS,
    ),
    "Constant": "it has no operands, so it makes a node",
}  # fmt: skip


def operators() -> Iterator[type[Op]]:
    """All operators of graphkit that one process can run."""
    for cls in registry:
        if cls.__module__.startswith("graphkit.") and not cls.collective and cls.name not in ("Send", "Receive"):
            yield cls


def cases(cls: type[Op], numbers: Iterable[int], only_first: bool = False) -> Iterator[Case]:
    """The cases of an operator between arrays of numbers."""
    samples = samples_of(cls)
    for number in numbers:
        for dtype in dtypes_of(cls, samples[number])[: 1 if only_first else None]:
            case = make_case(cls, number, dtype)
            # A random operator without a state draws new numbers.
            drawn = cls.random and not has_random_state(case)
            if case.has_tensors_only and not drawn and not has_strings(case):
                yield case


def has_strings(case: Case) -> bool:
    kinds = [*case.types, *(v.type for v in case.graph().outputs)]
    return any(kind is not None and kind.dtype is DType.STRING for kind in kinds)


def has_random_state(case: Case) -> bool:
    position = [formal.name for formal in case.op.formals].index("rng")
    return len(case.types) > position and case.types[position] is not None


@in_one_item()
@pytest.mark.parametrize(
    "cls",
    [cls for cls in operators() if cls.__module__.removeprefix("graphkit.ops.") in CHOSEN],
    ids=lambda cls: cls.name,
)
def test_chosen_operators_on_arrays(cls: type[Op]) -> None:
    compare(cls, cases(cls, [0], only_first=True))


@pytest.mark.full
@pytest.mark.parametrize("cls", list(operators()), ids=lambda cls: cls.name)
def test_operators_on_arrays(cls: type[Op]) -> None:
    compare(cls, cases(cls, range(len(samples_of(cls)))))


def compare(cls: type[Op], given: Iterable[Case]) -> None:
    """Check all cases. There must be one, unless the operator is in NOT_COMPARED."""
    compared = sum([check(case) for case in given])
    assert (compared == 0) == (cls.name in NOT_COMPARED), f"{cls.name}: {compared} comparisons"


def check(case: Case) -> int:
    """Compare the results on arrays with those of the reference; return how many were compared.

    Operands that are constants of the sample's graph stay numpy arrays, unless all are: then all become arrays.
    """
    all_inputs = all(a is None or constant for a, constant in zip(case.arrays, case.is_constant, strict=True))
    operands = [
        None if a is None else nd.array(a) if all_inputs or not constant else a
        for a, constant in zip(case.arrays, case.is_constant, strict=True)
    ]
    if not any(isinstance(x, nd.NDArray) for x in operands):
        return 0
    found = apply(case.op, *operands)
    results = found if isinstance(found, tuple) else (found,)
    expected = evaluate(case.graph(all_inputs=all_inputs), case.feeds(all_inputs=all_inputs))
    tolerance = TOLERANCES.get(case.dtype, 1e-5)
    for result, wanted in zip(results, expected, strict=True):
        assert isinstance(result, nd.NDArray)
        assert (result.dtype, result.shape) == (wanted.dtype, wanted.shape), case.name
        array = result.asnumpy()
        if array.dtype.kind in "biu":
            np.testing.assert_array_equal(array, wanted, err_msg=case.name)
        else:
            wide = np.complex128 if array.dtype.kind == "c" else np.float64
            scale = float(np.max(np.abs(np.nan_to_num(wanted.astype(wide), posinf=0, neginf=0)), initial=1))
            np.testing.assert_allclose(
                array.astype(wide), wanted.astype(wide), rtol=tolerance, atol=tolerance * scale, err_msg=case.name
            )
    return len(expected)
