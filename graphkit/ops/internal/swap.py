"""Move values to host memory between their last use in the forward pass and their use in the backward pass.

After Yu et al., 2018, "Dynamic control flow in large-scale machine learning", section 5.3. Only the executor puts these
operators into a graph, on devices with their own memory (see `graphkit.executor.memory.swapping`). Everywhere else they
return x.
"""

from __future__ import annotations

from typing import Any

from graphkit.ir.graph import Node
from graphkit.ir.types import ANY, TensorType
from graphkit.ops._base import DOMAIN, F, Op, Sample, op
from graphkit.ops.internal.ordering import Ordered


@op
class SwapOut(Op):
    """Copy x from GPU memory to host memory, in parallel to the following steps.

    The copy is made only on a GPU, and only if SwapIn is the only reader of the result. Otherwise the result is x.
    """

    domain = DOMAIN
    inputs = ("x",)
    types = {"x": ANY}
    views = ((0, 0),)
    samples = lambda: (Sample((2, 3)), Sample(()), Sample((0, 2)))

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
    """Copy x, a result of SwapOut, back to GPU memory after `token` is computed. On the CPU, the result is x.

    The value of `token` is not read. The copy runs in parallel to the following steps, until the first one that reads
    the result.
    """
