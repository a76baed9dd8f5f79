"""Operators that order computations which exchange no data."""

from __future__ import annotations

from typing import Any

from graphkit.ir.graph import Node
from graphkit.ir.types import ANY, TensorType
from graphkit.ops._base import DOMAIN, F, Op, Sample, op


class Ordered(Op):
    """Return x, after `token` is computed; the value of `token` is not read."""

    domain = DOMAIN
    inputs = ("x", "token")
    types = {"x": ANY, "token": ANY}
    views = ((0, 0),)
    shape_only = ("token",)
    samples = lambda: (Sample((2, 3), (4,)), Sample((), ()), Sample((0, 2), (1,)))

    def infer(self, x: TensorType, token: TensorType) -> TensorType:
        return x

    def reference(self, xp: Any, x: Any, token: Any) -> Any:
        return x

    def grad(self, node: Node, dy: Any) -> Any:
        return dy, None

    def expand(self, x: Any, token: Any) -> Any:
        return F.identity(x)


@op
class ControlDependency(Ordered):
    """Return x, but let operators that read the result run only after `token` is computed.

    The value of `token` is not read. Recomputation uses this operator, so that an activation is computed again only
    when its gradient is available.
    """

    former_names = ("After",)
