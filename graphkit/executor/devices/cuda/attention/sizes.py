"""What attention is over: sizes, and where the rows of a head lie in each array."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from graphkit.executor.devices.cuda.launches import THREADS
from graphkit.executor.devices.operands import operand, repeating, shape
from graphkit.ir.graph import Node
from graphkit.ir.types import DType
from graphkit.ops._base import operator
from graphkit.ops.internal.fused import AttentionOp

# Below so many queries tensor cores are not asked.
FEW = 16


class Strides(NamedTuple):
    """Elements between neighbours of an array [N, H, rows, columns] whose columns lie side by side."""

    batch: int
    head: int
    row: int

    @classmethod
    def of(cls, layout: str, heads: int, rows: int, columns: int) -> Strides:
        if layout == "NHLD":
            return cls(heads * rows * columns, rows * columns, columns)
        return cls(rows * heads * columns, columns, heads * columns)

    def folded(self, heads: int) -> Strides:
        """So many neighbouring heads of one row as the rows of one head."""
        return Strides(self.batch, heads * self.head, self.head)


@dataclass(frozen=True)
class Attended:
    """q: [batch, heads, rows, depth], k: [batch, groups, keys, depth], v: [batch, groups, keys, width], of type `kind`.

    Where heads share keys, and each has one query, those that share are the rows of one.
    mask: its strides along [batch, heads, rows, keys], 0 where it is repeated, and `mask_kind` its type; None where
    there is none. statistics: which of a query's largest score and its sum of exponentials are wanted too.
    """

    kind: DType
    batch: int
    heads: int
    groups: int
    rows: int
    keys: int
    depth: int
    width: int
    q: Strides
    k: Strides
    v: Strides
    y: Strides
    mask: tuple[int, int, int, int] | None
    mask_kind: DType | None
    op: AttentionOp
    statistics: tuple[bool, bool] = (False, False)

    @classmethod
    def of(cls, node: Node, statistics: tuple[bool, bool] = (False, False)) -> Attended:
        """Of a node of FusedAttention, of the operator with statistics or of the gradient, whose shapes are known."""
        op, mask = operator(node, AttentionOp), operand(node, 3)
        heads_axis, rows_axis = (1, 2) if op.layout == "NHLD" else (2, 1)
        q, k, v = (shape(x) for x in node.inputs[:3])
        batch, heads, rows, depth = q[0], q[heads_axis], q[rows_axis], q[3]
        groups, keys, width = k[heads_axis], k[rows_axis], v[3]
        strides: tuple[int, int, int, int] | None = None
        if mask is not None:
            a, b, c, d = repeating(_with_four(shape(mask)), (batch, heads, rows, keys))
            strides = (a, b, c, d)
        found = cls(
            node.outputs[0].dtype, batch, heads, groups, rows, keys, depth, width,
            q=Strides.of(op.layout, heads, rows, depth), k=Strides.of(op.layout, groups, keys, depth),
            v=Strides.of(op.layout, groups, keys, width), y=Strides.of(op.output_layout, heads, rows, width),
            mask=strides, mask_kind=None if mask is None else mask.dtype, op=op, statistics=statistics,
        )  # fmt: skip
        return found._folded() if rows == 1 and found.sharing > 1 else found

    def _folded(self) -> Attended:
        mask = None
        if self.mask is not None:
            batch, head, _, key = self.mask
            mask = (batch, head * self.sharing, head, key)
        return replace(
            self, heads=self.groups, rows=self.sharing, q=self.q.folded(self.sharing), y=self.y.folded(self.sharing),
            mask=mask, op=self.op.replace(causal=False),  # the only query of a head sees all
        )  # fmt: skip

    @property
    def sharing(self) -> int:
        """How many heads of q have one of k and v."""
        return 1 if self.heads == self.groups else self.heads // self.groups

    @property
    def mask_is_boolean(self) -> bool:
        return self.mask_kind is DType.BOOL

    @property
    def results(self) -> int:
        return self.batch * self.heads * self.rows * self.width

    @property
    def queries(self) -> int:
        return self.batch * self.heads * self.rows

    @property
    def counts(self) -> tuple[int, int, int]:
        """Elements of q, k and v."""
        keys = self.batch * self.groups * self.keys
        return self.queries * self.depth, keys * self.depth, keys * self.width

    @property
    def short(self) -> bool:
        """Whether 32 bits hold every index, those behind the last tile included."""
        each = self.batch * self.heads
        reach = [each * (self.rows + THREADS) * max(self.depth, self.width, 1)]
        reach += [each * (self.keys + THREADS) * max(self.depth, self.width, 1)]
        if self.mask is not None:
            sizes = (self.batch, self.heads, self.rows + THREADS, self.keys + THREADS)
            reach.append(sum(size * stride for size, stride in zip(sizes, self.mask, strict=True)))
        return max(reach) < 1 << 31


def _with_four(sizes: Sequence[int]) -> tuple[int, ...]:
    return (*[1] * (4 - len(sizes)), *sizes)


def pack_of(columns: int, size: int) -> int:
    """Elements of `size` bytes in one access: rows of so many columns begin at multiples of it; 16 bytes at most."""
    return math.gcd(columns, 16 // size)
