"""Sizes of attention, and the layout of heads in each array."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from graphkit.executor.devices.cuda.launches import THREADS
from graphkit.executor.devices.operands import operand, repeating, shape
from graphkit.ir.graph import Node
from graphkit.ir.types import DType
from graphkit.named_tuples import NamedTuple
from graphkit.ops._base import operator
from graphkit.ops.internal.fused_attention import AttentionOp

# With fewer queries, tensor cores are not used.
FEW = 16


class Strides(NamedTuple):
    """Strides of an array [N, H, rows, columns] in elements. Columns are adjacent."""

    batch: int
    head: int
    row: int

    @classmethod
    def of(cls, layout: str, heads: int, rows: int, columns: int) -> Strides:
        if layout == "NHLD":
            return cls(heads * rows * columns, rows * columns, columns)
        return cls(rows * heads * columns, columns, heads * columns)

    def folded(self, heads: int) -> Strides:
        """Return the strides if `heads` adjacent heads with one row each become the rows of one head."""
        return Strides(self.batch, heads * self.head, self.head)


@dataclass(frozen=True)
class AttentionSizes:
    """The sizes and layouts of an attention.

    The operands are q: [batch, heads, rows, depth], k: [batch, groups, keys, depth], v: [batch, groups, keys, width].
    If heads share keys, and each head has a single query, the heads that share keys become the rows of one head.

    Attributes:
        kind: Element type of q, k, v and y.
        q, k, v, y: Strides.
        mask: Strides of the mask along [batch, heads, rows, keys], 0 along broadcast axes; None without a mask.
        mask_kind: Element type of the mask; None without a mask.
        op: The operator.
        statistics: Whether the largest score of each query is a result, and whether its sum of exponentials is.
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
    def of(cls, node: Node, statistics: tuple[bool, bool] = (False, False)) -> AttentionSizes:
        """Return the sizes of a node: FusedAttention, with or without statistics, or its gradient."""
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

    def _folded(self) -> AttentionSizes:
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
        """The number of heads of q that share a head of k and v."""
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
        """Numbers of elements of q, k and v."""
        keys = self.batch * self.groups * self.keys
        return self.queries * self.depth, keys * self.depth, keys * self.width

    @property
    def short(self) -> bool:
        """Whether 32 bits are enough for all indices, also those of rows after the end in the last tile."""
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
    """Return how many elements of `size` bytes one access reads, at most 16 bytes. It divides the number of columns."""
    return math.gcd(columns, 16 // size)
