"""Values that lie in the host's memory between a forward and a backward reader.

After Yu et al., 2018, "Dynamic control flow in large-scale machine learning", section 5.3. Only the executor puts these
operators into a graph, on devices with memory of their own (see `graphkit.executor.memory.swapping`); everywhere else
they are x itself.
"""

from __future__ import annotations

from typing import Any

from graphkit.ir.graph import Node
from graphkit.ir.types import ANY, TensorType
from graphkit.ops._base import DOMAIN, F, Op, Sample, op
from graphkit.ops.internal.ordering import Ordered


@op
class SwapOut(Op):
    """x itself; on a device with memory of its own, x in the host's, as long as nothing but SwapIn reads it.

    The copy is made beside the steps that follow.
    """

    domain = DOMAIN
    inputs = ("x",)
    types = {"x": ANY}
    views = ((0, 0),)
    samples = (Sample((2, 3)), Sample(()), Sample((0, 2)))

    def infer(self, x: TensorType) -> TensorType:
        return x

    def reference(self, xp: Any, x: Any) -> Any:
        return x

    def grad(self, node: Node, dy: Any) -> Any:
        return dy

    def expand(self, x: Any) -> Any:
        return F.identity(x)


@op
class SwapIn(Ordered):
    """x itself, after `token`, of which nothing is read; on a device with memory of its own, a copy of what SwapOut has
    put into the host's, which is made beside the steps between this one and the first that reads it."""
