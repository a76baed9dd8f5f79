"""Ensembles of trees: TreeEnsembleRegressor, TreeEnsembleClassifier and TreeEnsemble."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.executor.devices.cpu._base import kernel, native
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.executor.devices.operands import dtype, shape
from graphkit.ir.graph import Node
from graphkit.ops._base import operator
from graphkit.ops.ml.forest import AGGREGATES, LEAF, MODES, Forest, kept_with
from graphkit.ops.ml.matrix import ML
from graphkit.ops.ml.tree_ensemble import TRANSFORMS, TreeEnsemble
from graphkit.ops.ml.trees import IdentifiedTrees, TreeEnsembleClassifier, TreeEnsembleRegressor

_LEQ, _LT, _GTE, _GT, _EQ, _NEQ = range(LEAF)
# The bit that is set in the feature of a node if NaN goes to `yes`.
_MISSING = np.int32(np.iinfo(np.int32).min)


@kernel("TreeEnsembleRegressor", ML)
def _regressor(node: Node, context: KernelContext) -> Kernel | None:
    op = operator(node, TreeEnsembleRegressor)
    return _made(node, context, op.forest, op.aggregate_function, op.post_transform, base=_base(op))


@kernel("TreeEnsembleClassifier", ML)
def _classifier(node: Node, context: KernelContext) -> Kernel | None:
    op = operator(node, TreeEnsembleClassifier)
    if op.classlabels_strings:
        return None
    return _made(
        node, context, op.forest, "SUM", op.post_transform, base=_base(op), labels=op.classlabels_int64s,
        is_binary=op.is_binary, is_positive=op.is_positive,
    )  # fmt: skip


@kernel("TreeEnsemble", ML)
def _ensemble(node: Node, context: KernelContext) -> Kernel | None:
    op = operator(node, TreeEnsemble)
    if dtype(node) not in ("float32", "float64"):
        return None
    return _made(node, context, op.forest, AGGREGATES[op.aggregate_function], TRANSFORMS[op.post_transform])


def _base(op: IdentifiedTrees) -> list[float]:
    return [float(value) for value in op.base()]


def _made(
    node: Node, context: KernelContext, forest: Forest, aggregate: str, transform: str, *, base: Sequence[float] = (),
    labels: Sequence[int] = (), is_binary: bool = False, is_positive: bool = False,
) -> Kernel:  # fmt: skip
    scores = node.outputs[-1]
    wide = "float64" in (dtype(node), forest.weight.dtype.name)
    make = native.TreeEnsemble64 if wide else native.TreeEnsemble32
    return make(
        x=shape(node.inputs[0]),
        type=dtype(node),
        y=shape(scores),
        result=str(scores.dtype),
        trees=kept_with(node.op, f"native {wide} {native.records_recipes()}", lambda: _walked(forest, wide)),
        aggregate=aggregate,
        transform=transform,
        base=base,
        labels=labels,
        is_binary=is_binary,
        is_positive=is_positive,
        threads=context.threads,
    )


def _walked(forest: Forest, wide: bool) -> Any:
    """Return the native forest, in which each node that is not a leaf asks `x <= limit`."""
    real = np.float64 if wide else np.float32
    limit, feature, yes, no = _asking_for_at_most(forest, forest.threshold.astype(real))
    extra = len(limit) - len(forest.mode)
    make = native.Forest64 if wide else native.Forest32
    return make(
        limit=limit.tobytes(),
        feature=feature.tobytes(),
        yes=yes.tobytes(),
        no=no.tobytes(),
        roots=forest.roots.tobytes(),
        first=np.pad(forest.first, (0, extra)).tobytes(),
        count=np.pad(forest.count, (0, extra)).tobytes(),
        target=forest.target.tobytes(),
        weight=forest.weight.astype(real).tobytes(),
        has_missing=bool((feature < 0).any()),
        targets=forest.targets,
    )


def _asking_for_at_most(forest: Forest, threshold: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return limit, feature, yes and no of nodes that all ask `x <= limit`.

    x < t becomes x <= the largest number below t. For x > t and x >= t, `yes` and `no` are swapped. A node for == or !=
    becomes two nodes: the first asks x <= t, and the second, for these x, x < t. If a limit is NaN, the answer is no.
    """
    mode, yes, no, missing = forest.mode, forest.yes.copy(), forest.no.copy(), forest.missing.copy()
    assert len(MODES) == LEAF + 1
    nothing, everything = threshold.dtype.type(np.nan), threshold.dtype.type(np.inf)
    with np.errstate(all="ignore"):
        below = np.where(threshold == -everything, nothing, np.nextafter(threshold, -everything))
    strict, reverse = (mode == _LT) | (mode == _GTE), (mode == _GT) | (mode == _GTE)
    limit = np.where(strict, below, threshold)
    # For > and >=, `missing` is inverted because `yes` and `no` are swapped. If the threshold is NaN, no x is greater:
    # the infinite limit sends every x to the original `no`.
    limit = np.where(reverse & np.isnan(threshold), everything, limit)
    yes[reverse], no[reverse] = forest.no[reverse], forest.yes[reverse]
    missing[reverse] = ~missing[reverse]
    # A node for == or != leads to `other` for x > t. For x <= t, its second node leads to `other` or to `equal`.
    asking = np.flatnonzero((mode == _EQ) | (mode == _NEQ))
    unequal = mode[asking] == _NEQ
    equal = np.where(unequal, forest.no[asking], forest.yes[asking])
    other = np.where(unequal, forest.yes[asking], forest.no[asking])
    second = np.arange(len(mode), len(mode) + len(asking), dtype=np.int32)
    yes[asking], no[asking] = second, other
    missing[asking] &= ~unequal
    feature = np.where(missing, forest.feature | _MISSING, forest.feature)
    return (
        np.concatenate([limit, below[asking]]),
        np.concatenate([feature, forest.feature[asking]]).astype(np.int32),
        np.concatenate([yes, other]).astype(np.int32),
        np.concatenate([no, equal]).astype(np.int32),
    )
