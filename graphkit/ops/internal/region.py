"""Operators that are defined by a graph, and run as one kernel where a device has it."""

from __future__ import annotations

from typing import Any

from graphkit.ir.graph import Graph
from graphkit.ir.types import Type
from graphkit.ops._base import DOMAIN, Op


class Region(Op):
    """Apply the operators of `body` to the operands. `body` has one input for each operand."""

    body: Graph
    domain = DOMAIN

    def infer(self, *xs: Type) -> tuple[Type, ...]:
        from graphkit.ops.control.loop_state import output_types

        return output_types(self.body, xs)

    def reference(self, xp: Any, *xs: Any) -> Any:
        from graphkit.ops.evaluate import evaluate

        return tuple(evaluate(self.body, xs, xp))

    def expand(self, *xs: Any) -> Any:
        from graphkit.ir.subgraph import inline

        return tuple(inline(self.body, xs))
