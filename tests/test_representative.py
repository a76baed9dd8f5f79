"""The samples that the default lane runs have every attribute value and every empty operand of their operator."""

from __future__ import annotations

import numpy as np
from representative import with_a_new_feature

from graphkit.checks.samples import Case, dtypes_of, make_case, samples_of
from graphkit.ops import registry


def values_of(cases: list[Case]) -> set[tuple[str, str]]:
    return {(name, repr(value)) for case in cases for name, value in case.op.attributes().items()}


def ranks_of(cases: list[Case]) -> set[tuple[int | None, ...]]:
    return {tuple(None if a is None else len(getattr(a, "shape", ())) for a in case.arrays) for case in cases}


def empty_operands_of(cases: list[Case]) -> set[tuple[bool, ...]]:
    return {tuple(np.size(a) == 0 for a in case.arrays) for case in cases}


def test_chosen_samples_have_every_value_rank_and_empty_operand() -> None:
    left_out = 0
    for cls in ["Conv", "Einsum", "GridSample", "Pad", "ReduceSum", "Resize", "Slice", "Softmax"]:
        op = registry.get("", cls)
        cases = [make_case(op, n, dtypes_of(op, sample)[0]) for n, sample in enumerate(samples_of(op))]
        names = with_a_new_feature(cases)
        chosen = [case for case in cases if case.name in names]
        assert values_of(chosen) == values_of(cases)
        assert ranks_of(chosen) == ranks_of(cases)
        assert empty_operands_of(chosen) == empty_operands_of(cases)
        assert cases[0] in chosen
        left_out += len(cases) - len(chosen)
    assert left_out > 10
