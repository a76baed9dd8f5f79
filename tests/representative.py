"""Choose samples of operators for the default lane: each has something that no earlier one has."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from graphkit.checks.samples import Case
from graphkit.ir.types import TensorType


def with_a_new_feature(cases: Iterable[Case]) -> frozenset[str]:
    """Names of the cases that have a feature that no earlier case of their operator has. The full lane runs the others.

    Features are the operands that are there with their element types and ranks, which operands are empty, which have
    the same shape, and each attribute with its value. So the default lane sees each value of each attribute, but not
    each combination of values.
    """
    seen: set[Any] = set()
    names = set()
    for case in cases:
        features = {(case.op.domain, case.op.name, *feature) for feature in _features(case)}
        if not features <= seen:
            names.add(case.name)
        seen |= features
    return frozenset(names)


def _features(case: Case) -> Iterator[tuple[Any, ...]]:
    shapes = [kind.shape if isinstance(kind, TensorType) else None for kind in case.types]
    yield "operands", tuple(map(_rank, case.types)), case.is_constant
    yield "empty", tuple(shape is not None and 0 in shape for shape in shapes)
    yield "equal shapes", tuple(a == b for a, b in itertools.pairwise(shapes))
    for name, value in case.op.attributes().items():
        yield name, repr(value)


def _rank(kind: Any) -> Any:
    """Element type and rank of an operand. Types of sequences and optionals stand for themselves."""
    if not isinstance(kind, TensorType):
        return kind
    return kind.dtype, None if kind.shape is None else len(kind.shape)
