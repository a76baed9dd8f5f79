"""All-reduce as two operators, start and wait: the operators between them run while the all-reduce is under way."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch
from graphkit.ir.types import ANY, NUMERIC, DType, TensorType
from graphkit.ops._base import DOMAIN, F, Op, Sample, op


class Summed(Op):
    """Base of operators that begin to sum arrays over all ranks. The arrays are sent as one; types do not change."""

    domain = DOMAIN
    inputs = ("xs*",)
    outputs = ("sums*",)
    types = {"xs": NUMERIC}
    contiguous = True
    collective = True

    def infer(self, *xs: TensorType) -> tuple[TensorType, ...]:
        if any(x.dtype is not xs[0].dtype for x in xs):
            raise TypeMismatch(f"arrays that are sent as one must have one dtype, not {', '.join(map(str, xs))}")
        return tuple(TensorType(x.dtype, x.shape) for x in xs)

    def reference(self, xp: Any, *xs: Any) -> tuple[Any, ...]:
        return tuple(xp.array(x) for x in xs)

    def expand(self, *xs: Any) -> Any:
        return tuple(F.identity(x) for x in xs)


@op
class AllReduceStart(Summed):
    """Start an all-reduce of each x; the results contain the sums over all ranks after AllReduceWait.

    All ranks use the same `key`. The results lie next to each other in memory, so that they are sent as one array. The
    numpy reference and an exported ONNX file sum over this process only.
    """

    key: str
    samples = lambda: (
        Sample((2, 3), (5,), key="a", onnx=False),
        Sample((0, 2), key="b", onnx=False),
        Sample((), (3, 1), (40,), key="c", onnx=False),
    )


@op
class AllReduceWait(Op):
    """Wait for the all-reduces, or all-gathers, with the given keys.

    started: at least one result of each of them. The result is the number 0, int64 []. Operators that read the sums
    must depend on this result, for example with ControlDependency, so that they run later.
    """

    keys: tuple[str, ...]
    domain = DOMAIN
    inputs = ("started*",)
    outputs = ("done",)
    types = {"started": ANY}
    shape_only = ("started",)
    collective = True
    samples = lambda: (Sample((2, 3), (5,), keys=("a", "b"), onnx=False), Sample((0, 2), keys=("c",), onnx=False))

    def infer(self, *started: TensorType) -> TensorType:
        return TensorType(DType.INT64, ())

    def reference(self, xp: Any, *started: Any) -> Any:
        return xp.zeros((), np.int64)

    def expand(self, *started: Any) -> Any:
        return F.constant(value=np.zeros((), np.int64))
