"""Count, mean and squared deviations over the samples of all ranks, and the all-reduce that their gradients need."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch
from graphkit.ir.graph import Node
from graphkit.ir.types import DType, TensorType
from graphkit.ops._base import DOMAIN, F, Op, Sample, op
from graphkit.ops.axes import INT64
from graphkit.ops.operands import fits

_DOUBLE = frozenset({DType.FLOAT64})


def merged_moments(
    counts: np.ndarray, means: np.ndarray, deviations: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Combine count, mean and sum of squared deviations of parts, along the first axis.

    Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979. Parts
    without samples have no effect.
    """
    total = counts.sum(axis=0)
    mean = (counts * means).sum(axis=0) / np.maximum(total, 1)
    return total, mean, (deviations + counts * (means - mean) ** 2).sum(axis=0)


@op
class AllReduceMoments(Op):
    """Combine the number, mean and sum of squared deviations of each rank's samples into those of all samples.

    Deviations are from the mean. All ranks use the same `key`. count: an int64 scalar, 0 if there are no samples; mean
    and deviations: float64 vectors [C]. They are merged as in Chan, Golub and LeVeque, 1979. The numpy reference and an
    exported ONNX file use only this process, and return their operands unchanged.
    """

    former_names = ("AllMoments",)
    key: str
    domain = DOMAIN
    inputs = ("count", "mean", "deviations")
    outputs = ("total", "joint_mean", "joint_deviations")
    types = {"count": INT64, "mean": _DOUBLE, "deviations": _DOUBLE}
    collective = True
    samples = lambda: (
        Sample(np.array(7), (3,), (3,), key="a", onnx=False),
        Sample(np.array(0), (0,), (0,), key="b", onnx=False),
    )

    def infer(self, count: TensorType, mean: TensorType, deviations: TensorType) -> tuple[TensorType, ...]:
        if not fits(count.shape, ()) or (mean.shape is not None and not fits(deviations.shape, mean.shape)):
            raise TypeMismatch(f"{count}, {mean} and {deviations} are not a number and two vectors")
        return tuple(TensorType(t.dtype, t.shape) for t in (count, mean, deviations))

    def reference(self, xp: Any, count: Any, mean: Any, deviations: Any) -> Any:
        return xp.array(count), xp.array(mean), xp.array(deviations)

    def grad(self, node: Node, d_total: Any, d_mean: Any, d_deviations: Any) -> Any:
        """Sum the gradients of all processes' results: each operand contributes to the results of every process.

        With n = total: joint mean = sum(count * mean) / n; joint deviations = sum(deviations + count * (mean - joint
        mean)^2). The derivative of the deviations through the joint mean is 0.
        """
        count, mean, _ = node.operands
        total, joint, _ = node.outputs
        count, total = F.cast(count, to="float64"), F.cast(total, to="float64")
        found = [d for d in (d_mean, d_deviations) if d is not None]
        if not found:
            return None, None, None
        summed = F.all_reduce(*found, key=f"{self.key} gradient")
        sums = iter([summed] if len(found) == 1 else summed)
        parts, by_deviations = [], None
        if d_mean is not None:
            parts.append(F.mul(F.div(count, total), next(sums)))
        if d_deviations is not None:
            by_deviations = next(sums)
            parts.append(F.mul(F.mul(F.add(count, count), F.sub(mean, joint)), by_deviations))
        return None, parts[0] if len(parts) == 1 else F.add(*parts), by_deviations

    def expand(self, count: Any, mean: Any, deviations: Any) -> Any:
        return F.identity(count), F.identity(mean), F.identity(deviations)


@op
class AllReduce(Op):
    """Sum each x over all ranks. All ranks use the same `key`.

    This is AllReduceStart and AllReduceWait in one. The numpy reference and an exported ONNX file sum over this process
    only.
    """

    former_names = ("AllSum",)
    key: str
    domain = DOMAIN
    inputs = ("xs*",)
    outputs = ("sums*",)
    types = {"xs": _DOUBLE}
    collective = True
    samples = lambda: (Sample((3,), (3,), key="a", onnx=False), Sample((0,), key="b", onnx=False))

    def infer(self, *xs: TensorType) -> tuple[TensorType, ...]:
        return tuple(TensorType(x.dtype, x.shape) for x in xs)

    def reference(self, xp: Any, *xs: Any) -> tuple[Any, ...]:
        return tuple(xp.array(x) for x in xs)

    def grad(self, node: Node, *dys: Any) -> tuple[Any, ...]:
        """All-reduce the gradients: every rank used the sums."""
        found = [dy for dy in dys if dy is not None]
        summed = F.all_reduce(*found, key=f"{self.key} gradient")
        sums = iter([summed] if len(found) == 1 else summed)
        return tuple(None if dy is None else next(sums) for dy in dys)

    def expand(self, *xs: Any) -> Any:
        return tuple(F.identity(x) for x in xs)
