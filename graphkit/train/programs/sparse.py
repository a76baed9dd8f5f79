"""Row-sparse updates: a step changes only those rows of a table that it read.

A table is a parameter that the model reads only by Gather along axis 0. The gradient has one row per index. The
optimizer updates these rows and their slots in place: the cost does not depend on the size of the table.

Rows that a step does not read stay unchanged, and so do their slots. If several indices refer to one row, it is updated
once, by the sum of their gradients. Bias corrections count all steps, as in torch.optim.SparseAdam.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from graphkit.errors import UsageError
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ops import F
from graphkit.ops.tensor.gather import Gather
from graphkit.train.optim import Optimizer
from graphkit.train.selection import TrainedParameter

_MANY_ROWS = 1 << 12


@dataclass(frozen=True)
class Lookups:
    table: Value
    nodes: tuple[Node, ...]

    @property
    def outputs(self) -> list[Value]:
        return [node.output for node in self.nodes]

    @property
    def indices(self) -> Value:
        """The indices of the rows that the step reads, int64 [K], in the order of `nodes`, with repetitions."""
        flat = [F.reshape(F.cast(n.operands[1], to="int64"), np.array([-1])) for n in self.nodes]
        indices = flat[0] if len(flat) == 1 else F.concat(*flat, axis=0)
        count = np.array(self.table.tensor.static_shape[0])
        found: Value = F.where(F.less(indices, np.array(0)), indices + count, indices)
        return found

    def rows(self, gradients: Sequence[Value]) -> Rows:
        """Return the row-sparse gradient of the table. gradients: the gradients of `outputs`."""
        tail = self.table.tensor.static_shape[1:]
        wide = np.array([-1, *tail])
        parts = [F.reshape(g, wide) if math.prod(tail) else g for g in gradients]
        indices = self.indices
        grads = parts[0] if len(parts) == 1 else F.concat(*parts, axis=0)
        owners = F.last_equal(indices, bound=self.table.tensor.static_shape[0])
        return Rows(self.table, indices, owners, F.gather_grad(grads, grads, owners, axis=0))


@dataclass(frozen=True)
class Rows:
    """A row-sparse gradient: indices of rows, with repetitions, and one gradient row for each position.

    If several positions have the same index, the last of them owns the row. Its gradient row is the sum over these
    positions; those of the others are zero. So `gradient` has the norm of the dense gradient.

    Attributes:
        owners: int64 [K]; for each position, the position that owns its row. None without repetitions.
    """

    table: Value
    indices: Value
    owners: Value | None
    gradient: Value

    def take(self, state: Value) -> Value:
        rows: Value = F.gather(state, self.indices, axis=0)
        return rows

    def at_every_position(self, gradient: Value) -> Value:
        """Return, for each position, the summed gradient of its row. gradient: `self.gradient`, possibly scaled."""
        repeated: Value = gradient if self.owners is None else F.gather(gradient, self.owners, axis=0)
        return repeated

    def compact(self) -> tuple[Value, Value]:
        if self.owners is None:
            return self.indices, self.gradient
        places = F.range(np.array(0), F.reshape(F.shape(self.indices), np.array([], np.int64)), np.array(1))
        own = F.equal(self.owners, places)
        return F.compress(self.indices, own, axis=0), F.compress(self.gradient, own, axis=0)

    def put(self, state: Value, rows: Value) -> Value:
        """Return the state with new rows. Positions with the same index must have identical rows."""
        column = F.unsqueeze(self.indices, np.array([1]))
        new: Value = F.scatter_nd(state, column, rows)
        return new


def lookups(graph: Graph, table: Value, name: str) -> Lookups:
    """Return the nodes that read `table`. Raises UsageError unless they all are Gather along axis 0."""
    readers = [node for node in graph.nodes if table in node.inputs]
    for node in readers:
        if not _gathers_rows(node, table):
            raise UsageError(
                f"parameter {name!r} cannot have row-sparse updates (lazy=, --sparse-update): {node.describe()} uses "
                "the whole table; only Gather along axis 0 may read it"
            )
    if not readers or not table.rank:
        raise UsageError(
            f"parameter {name!r} cannot have row-sparse updates (lazy=, --sparse-update): no Gather along axis 0 "
            "reads it"
        )
    return Lookups(table, tuple(readers))


def _gathers_rows(node: Node, table: Value) -> bool:
    op = node.op
    return isinstance(op, Gather) and op.axis % (table.rank or 1) == 0 and node.inputs[1] is not table


def large_tables(graph: Graph, trained: Sequence[TrainedParameter]) -> list[TrainedParameter]:
    possible = {t.value: t for t in trained if t.value.rank and t.value.tensor.static_shape[0] >= _MANY_ROWS}
    if not possible:
        return []
    read = set()
    for node in graph.nodes:
        for value in {v for v in node.operands if v in possible}:
            read.add(value)
            if not _gathers_rows(node, value):
                del possible[value]
    returned = {*graph.outputs, *(new for _, new in graph.updates)}
    return [t for v, t in possible.items() if v in read and v not in returned]


def with_exact_row_updates(
    graph: Graph, trained: Sequence[TrainedParameter], optimizer: Optimizer
) -> list[TrainedParameter]:
    """Return `trained` with `lazy=True` for large tables whose dense updates would give the same result."""
    equal = {t for t in large_tables(graph, trained) if optimizer.ignores_zeros(t.decay_mult)}
    return [replace(t, lazy=True) if t in equal else t for t in trained]
