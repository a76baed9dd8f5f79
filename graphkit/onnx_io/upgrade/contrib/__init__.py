"""Operators of com.microsoft, which exporters and ONNX Runtime's optimiser write: built from standard ones.

ONNX Runtime's schemas define their meaning (docs/ContribOperators.md there). If a schema is unclear, the CPU kernel
decides, with which the tests compare. A rule removes every attribute that it supports. A remaining attribute is an
error, because it may change the result.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from graphkit.errors import UnsupportedError
from graphkit.onnx_io.upgrade import ALWAYS, BUILT, NodeView, Results, upgrade

DOMAIN = "com.microsoft"


def contrib(*operators: str, domain: str = DOMAIN) -> Callable[[Callable[[NodeView], Results]], Any]:
    """Declare the decorated function as the rule that builds `operators`, for files of every version."""

    def register(build: Callable[[NodeView], Results]) -> Any:
        @wraps(build)
        def apply(node: NodeView) -> Results:
            results = build(node)
            if node.attrs:
                named = ", ".join(f"{name}={value!r}" for name, value in node.attrs.items())
                raise UnsupportedError(f"{node.label}: unknown attributes: {named}")
            return results

        upgrade(*operators, below=ALWAYS, becomes=BUILT, domain=domain)(apply)
        return build

    return register
