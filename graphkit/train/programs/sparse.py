"""Row-sparse updates: a step changes only those rows of a table that it read.

A table is a parameter that the model reads only by Gather along axis 0, such as the table of an embedding. The gradient
of a step then has one row per index, and the optimizer runs only on these rows, in the memory of the table and of its
slots. Of the remaining work, only one number per row grows with the table.

This is a lazy update: rows that a step does not read stay unchanged, and so do their slots. A dense update would change
them by momentum, or decay their averages or weights. A row that several indices name gets the sum of their gradients,
once. Bias corrections count all steps, as in torch.optim.SparseAdam.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphkit.errors import UsageError
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ops import F
from graphkit.ops.tensor.gather import Gather


@dataclass(frozen=True)
class Lookups:
    """The Gather nodes that read a table."""

    table: Value
    nodes: tuple[Node, ...]

    @property
    def outputs(self) -> list[Value]:
        return [node.output for node in self.nodes]

    @property
    def indices(self) -> Value:
        """The rows that the step reads, int64 [K], one behind the other as `nodes` read them, with repetitions."""
        flat = [F.reshape(F.cast(n.operands[1], to="int64"), np.array([-1])) for n in self.nodes]
        indices = flat[0] if len(flat) == 1 else F.concat(*flat, axis=0)
        count = np.array(self.table.tensor.static_shape[0])
        found: Value = F.where(F.less(indices, np.array(0)), indices + count, indices)
        return found

    def rows(self, gradients: Sequence[Value]) -> Rows:
        """The rows that the step reads, and their gradients from those of `outputs`."""
        tail = self.table.tensor.static_shape[1:]
        wide = np.array([-1, *tail])
        parts = [F.reshape(g, wide) if math.prod(tail) else g for g in gradients]
        indices = self.indices
        grads = parts[0] if len(parts) == 1 else F.concat(*parts, axis=0)
        # Of the positions that name one row the last is its owner, where the gradients are summed.
        places = F.range(np.array(0), F.reshape(F.shape(indices), np.array([], np.int64)), np.array(1))
        none = F.constant(value=np.full(self.table.tensor.static_shape[0], -1, np.int64))
        owners = F.gather(F.scatter_elements(none, indices, places, axis=0, reduction="max"), indices, axis=0)
        return Rows(self.table, indices, owners, F.gather_grad(grads, grads, owners, axis=0))


@dataclass(frozen=True)
class Rows:
    """Rows of a table by index (with repetitions), and a gradient for them.

    `gradient` has at the place of a row's owner the sum over all places that name the row, and zeros at the others:
    its norm is that of the dense gradient. owners: None where each row comes once.
    """

    table: Value
    indices: Value
    owners: Value | None
    gradient: Value

    def take(self, state: Value) -> Value:
        """The rows of a state that has the table's shape."""
        rows: Value = F.gather(state, self.indices, axis=0)
        return rows

    def per_place(self, gradient: Value) -> Value:
        """The gradient of its row at every place; `gradient` is this one, or a multiple of it."""
        spread: Value = gradient if self.owners is None else F.gather(gradient, self.owners, axis=0)
        return spread

    def compact(self) -> tuple[Value, Value]:
        """The same with each row once: its index, and its gradient."""
        if self.owners is None:
            return self.indices, self.gradient
        places = F.range(np.array(0), F.reshape(F.shape(self.indices), np.array([], np.int64)), np.array(1))
        own = F.equal(self.owners, places)
        return F.compress(self.indices, own, axis=0), F.compress(self.gradient, own, axis=0)

    def put(self, state: Value, rows: Value) -> Value:
        """The state with the rows replaced; places that name the same row hold the same bits."""
        column = F.unsqueeze(self.indices, np.array([1]))
        new: Value = F.scatter_nd(state, column, rows)
        return new


def lookups(graph: Graph, table: Value, name: str) -> Lookups:
    """The nodes that read `table`; raises UsageError when something else than Gather along axis 0 reads it."""
    readers = [node for node in graph.nodes if table in node.inputs]
    for node in readers:
        op = node.op
        if not isinstance(op, Gather) or op.axis % (table.rank or 1) != 0 or node.inputs[1] is table:
            raise UsageError(
                f"parameter {name!r} cannot have row-sparse updates: {node.describe()} uses the whole table; "
                "only Gather along axis 0 may read it"
            )
    if not readers or not table.rank:
        raise UsageError(f"parameter {name!r} cannot have row-sparse updates: no Gather along axis 0 reads it")
    return Lookups(table, tuple(readers))
