"""Gradients of the normalisations over the last axes.

A first kernel computes the gradient of the operand row by row. It also writes the statistics of rows to scratch memory,
if they are not given. A second kernel computes the gradients of the factors, which are sums over all rows. Each kernel
reads the gradient and the operand once from memory; further reads of a row come from the cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from graphkit.executor.devices.cuda.elementwise.fill import filled
from graphkit.executor.devices.cuda.launches import Argument, CardKernel, Input, Launch, Output, Scratch, launched
from graphkit.executor.devices.cuda.rows.groups import Groups, Pass, Work, written
from graphkit.executor.devices.cuda.text.expressions import STORED, float_type
from graphkit.executor.devices.cuda.text.indexing import Coordinates
from graphkit.executor.devices.cuda.text.repeated import repeated
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.operands import operand
from graphkit.ir.graph import Node
from graphkit.ir.types import DType
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.nn.norm import LayerNormGrad, NormOfLastAxes, RMSNormGrad

_ALIGNED = 16


@dataclass(frozen=True)
class _Gradient:
    """The gradient of a node with operands dy, x and scale. held: the type in which it is computed."""

    node: Node
    op: NormOfLastAxes
    held: DType

    @property
    def shape(self) -> tuple[int, ...]:
        return self.node.operands[1].tensor.static_shape

    @property
    def size(self) -> int:
        return math.prod(self.shape[self.op.axes(len(self.shape))[0] :])

    @property
    def rows(self) -> int:
        return math.prod(self.shape) // self.size

    @property
    def statistic_bytes(self) -> int:
        """Bytes of scratch memory for one statistic of all rows."""
        return -(-self.rows * self.held.itemsize // _ALIGNED) * _ALIGNED

    @property
    def operands(self) -> list[tuple[str, Argument]]:
        dy, x = self.node.operands[:2]
        return [(f"const {STORED[dy.dtype]}* dy", Input(0)), (f"const {STORED[x.dtype]}* x", Input(1))]

    def by_rows(self, passes: Sequence[Pass], dx: str, ahead: Sequence[str], once: Sequence[str],
                more: Sequence[tuple[str, Argument]]) -> tuple[Groups, Work]:  # fmt: skip
        """Return the kernel over rows, in which `d` is dy * scale, and `v` is x.

        dx: The expression of the result; "" if no node uses it. more: Further parameters.
        """
        groups = Groups.over((self.rows, self.size), [1], self.held)
        scale, result = self.node.operands[2], self.node.outputs[0].dtype
        factor = repeated("f", scale.tensor.static_shape, self.shape, groups.short, self.size)
        read = [
            *factor.lines,
            f"const A d = (A)gk_read(dy[at]) * (A)gk_read(scale[{factor.place}]);",
            "const A v = (A)gk_read(x[at]);",
        ]
        given = [*self.operands, (f"const {STORED[scale.dtype]}* scale", Input(2)), *factor.given, *more]
        each = []
        if dx:
            given.append((f"{STORED[result]}* dx", Output(0)))
            each = [*read, written("dx", result, "at", dx)]
        passes = [Pass(p.partial, p.numbers, [*read, *p.lines], p.ahead) for p in passes]
        return groups, Work(f"{self.op.name}_rows", given, passes, each, ahead, once, factor.coordinates)

    def by_columns(
        self, h: str, outputs: Sequence[int], statistics: Sequence[tuple[str, Argument]]
    ) -> tuple[Groups, Work]:
        """Return the kernel of the sums over the broadcast axes of scale: of dy * h (result 1) and of dy (result 2)."""
        scale = self.node.operands[2]
        sizes = scale.tensor.static_shape
        lead = len(self.shape) - len(sizes)
        groups = Groups.over(self.shape, [*range(lead), *(lead + i for i, n in enumerate(sizes) if n == 1)], self.held)
        rows = Coordinates("w", 2, groups.short)
        found, (row, _) = rows.lines("at")
        sums = {1: f"d * ({h})", 2: "d"}
        lines = [*found, f"const {groups.index} row = {row};", "const A d = (A)gk_read(dy[at]);",
                 "const A v = (A)gk_read(x[at]);"]  # fmt: skip
        lines += [f"p0.s[{i}] += {sums[output]};" for i, output in enumerate(outputs)]
        given = [*self.operands, *statistics]
        given += [(f"{STORED[scale.dtype]}* sum{output}", Output(output)) for output in outputs]
        once = [written(f"sum{y}", scale.dtype, "g", f"p0.s[{i}]") for i, y in enumerate(outputs)]
        passes = [Pass(f"gk_sums<A, {len(outputs)}>", len(outputs), lines)]
        places = [(rows, (self.rows, self.size))]
        return groups, Work(f"{self.op.name}_columns", given, passes, once=once, places=places)

    def kernel(self, parts: Sequence[tuple[Groups, Work]], kept: int, inplace: bool) -> CardKernel:
        """Return the kernel that runs these parts.

        kept: Bytes at the beginning of scratch memory that all parts share. inplace: Whether dx may overwrite dy or x,
        because nothing reads them afterwards.
        """
        launches: list[Launch] = []
        most = 0
        for groups, work in parts:
            launches += groups.launches(work, kept)
            most = max(most, groups.scratch_bytes(work))
        dx = self.node.outputs[0].dtype
        pairs = tuple((i, 0) for i, v in enumerate(self.node.operands[:2]) if v.dtype is dx)
        return CardKernel(tuple(launches), kept + most, pairs if inplace else ())


def _gradient(node: Node, op: NormOfLastAxes, statistic: DType | None) -> _Gradient | None:
    """Return the gradient of a node; None if it has no kernel. statistic: type of the given statistics, if any."""
    kinds = [node.operands[i].dtype for i in range(3)] + ([] if statistic is None else [statistic])
    wide = op.stash is DType.FLOAT64 or DType.FLOAT64 in kinds
    if any(float_type(kind) is None for kind in kinds):
        return None
    return _Gradient(node, op, DType.FLOAT64 if wide else DType.FLOAT32)


def _of_nothing(node: Node, used: Sequence[bool]) -> CardKernel:
    """Return the kernel for an operand without elements. All results are filled with 0."""
    read = (i for i, is_read in enumerate(used) if is_read)
    fills = (filled(node.outputs[i], i, np.zeros((), node.outputs[i].dtype.numpy)) for i in read)
    return CardKernel(tuple(chain.from_iterable(fills)))


@launched("LayerNormGrad", DOMAIN)
def _layer_norm_grad(node: Node, context: KernelContext) -> CardKernel | None:
    op = operator(node, LayerNormGrad)
    mean, inverse = operand(node, 3), operand(node, 4)
    known = mean is not None and inverse is not None
    found = _gradient(node, op, mean.dtype if mean is not None and known else None)
    if found is None:
        return None
    dx, *sums = [*context.used_outputs, True, True, True][:3]
    if math.prod(found.shape) == 0:
        return _of_nothing(node, [dx, *sums])
    outputs = [output for output, read in enumerate(sums, 1) if read]
    a = STORED[found.held]
    kept = 0 if known else 2 * found.statistic_bytes
    places: list[Argument] = [Input(3), Input(4)] if known else [Scratch(0), Scratch(found.statistic_bytes)]
    kind = STORED[mean.dtype] if mean is not None and known else a
    statistics = [
        (f"{'const ' if known else ''}{kind}* {n}", p) for n, p in zip(("means", "inverses"), places, strict=True)
    ]
    if known:
        passes, ahead = [], ["const A mean = (A)gk_read(means[g]);", "const A r = (A)gk_read(inverses[g]);"]
        more = statistics
    else:
        passes = [Pass("gk_moments<A>", 4, ["p0.take(v);"])]
        ahead = ["const A mean = p0.mean;", "const A r = (A)1 / gk_sqrt(p0.deviations / (A)count + epsilon);"]
        more = [*statistics, (f"{a} epsilon", found.held.numpy.type(op.epsilon))]
    once = [] if known else ["means[g] = mean;", "inverses[g] = r;"]
    parts = []
    if dx:
        name = f"p{len(passes)}"
        passes.append(Pass("gk_sums<A, 2>", 2, [f"{name}.s[0] += d;", f"{name}.s[1] += d * ((v - mean) * r);"], ahead))
        result = f"r * (d - {name}.s[0] / (A)count - (v - mean) * r * ({name}.s[1] / (A)count))"
        parts.append(found.by_rows(passes, result, (), once, more))
    elif not known:
        parts.append(found.by_rows(passes, "", ahead, once, more))
    if outputs:
        parts.append(
            found.by_columns("((v - (A)gk_read(means[row])) * (A)gk_read(inverses[row]))", outputs, statistics)
        )
    return found.kernel(parts, kept, inplace=not outputs)


@launched("RMSNormGrad", DOMAIN)
def _rms_norm_grad(node: Node, context: KernelContext) -> CardKernel | None:
    op = operator(node, RMSNormGrad)
    found = _gradient(node, op, None)
    if found is None:
        return None
    dx, dscale = [*context.used_outputs, True, True][:2]
    if math.prod(found.shape) == 0:
        return _of_nothing(node, [dx, dscale])
    statistics: list[tuple[str, Argument]] = [(f"{STORED[found.held]}* inverses", Scratch(0))]
    more = [*statistics, (f"{STORED[found.held]} epsilon", found.held.numpy.type(op.epsilon))]
    # The mean of d * x * r is r times that of d * x.
    passes = [Pass("gk_sums<A, 2>", 2, ["p0.s[0] += v * v;", "p0.s[1] += d * v;"])]
    ahead = ["const A r = (A)1 / gk_sqrt(p0.s[0] / (A)count + epsilon);"]
    result = "r * (d - v * r * (r * (p0.s[1] / (A)count)))" if dx else ""
    parts = [found.by_rows(passes, result, ahead, ["inverses[g] = r;"], more)]
    if dscale:
        parts.append(found.by_columns("v * inverses[row]", [1], statistics))
    return found.kernel(parts, found.statistic_bytes, inplace=not dscale)
