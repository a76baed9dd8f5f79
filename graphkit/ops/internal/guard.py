"""FiniteGuard: delay the writes of a run until it is known that its result is finite."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import NotFinite, TypeMismatch
from graphkit.ir.graph import Node
from graphkit.ir.types import ANY, FLOATS, TensorType
from graphkit.ops._base import DOMAIN, F, Op, Sample, op


@op
class FiniteGuard(Op):
    """Return x if the scalar `token` is finite; else stop the run with NotFinite, which shows the token's value.

    Operators that read the result run after this check. If a run fails, states whose new values depend on the result
    stay unchanged. ONNX has no such check: an exported file always returns x.
    """

    domain = DOMAIN
    checks_values = True
    inputs = ("x", "token")
    types = {"x": ANY, "token": FLOATS}
    samples = lambda: (
        Sample((2, 3), np.array(1.5, np.float32), onnx=False),
        Sample((), np.array([-2.0], np.float64), onnx=False),
        Sample((0, 2), np.array(0.0, np.float16), onnx=False),
    )

    def infer(self, x: TensorType, token: TensorType) -> TensorType:
        if token.is_static and token.size != 1:
            raise TypeMismatch(f"the token must have one element, not {token}")
        return x

    def reference(self, xp: Any, x: Any, token: Any) -> Any:
        value = float(token.reshape(()))
        if not np.isfinite(value):
            raise NotFinite(str(value))
        return xp.array(x)

    def grad(self, node: Node, dy: Any) -> Any:
        return dy, None

    def expand(self, x: Any, token: Any) -> Any:
        return F.identity(x)
