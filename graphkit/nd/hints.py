"""Hints for names of numpy, MXNet and PyTorch that arrays and `gk.nd` do not have."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.ops import registry
from graphkit.ops._calls import elsewhere

_HOST = "gk.nd's arrays are in host memory, so leave it out"
# Attributes of arrays in other libraries -> the expression, where x is the array.
_ATTRIBUTES = {
    "abs": "write abs(x)",
    "argsort": "write np.argsort(x)",
    "as_in_context": _HOST,
    "broadcast_to": "write gk.expand(x, shape)",
    "context": _HOST,
    "cpu": _HOST,
    "ctx": _HOST,
    "device": _HOST,
    "expand_dims": "write np.expand_dims(x, axis)",
    "flat": "write x.ravel()",
    "norm": "write np.linalg.norm(x), or gk.reduce_l2(x)",
    "numpy": "write x.asnumpy()",
    "permute": "write x.transpose(axes)",
    "sort": "write np.sort(x), or gk.top_k(x, k)",
    "t": "write x.T",
    "to": "write x.astype(dtype)",
    "unsqueeze": "write np.expand_dims(x, axis)",
    "view": "write x.reshape(shape)",
}
# Functions of other libraries -> the expression.
_FUNCTIONS = {
    "asarray": "write nd.array(data)",
    "concat": "write gk.concat([a, b], axis=...)",
    "concatenate": "write gk.concat([a, b], axis=...)",
    "dot": "write a @ b",
    "identity": "write nd.eye(n)",
    "newaxis": "write x[None]",
    "stack": "write np.stack([a, b])",
}


def of_attribute(name: str) -> str:
    """Return the end of the message for an attribute that arrays do not have; empty if nothing is known."""
    if name.startswith("_"):
        return ""
    if name in _ATTRIBUTES:
        return f"; {_ATTRIBUTES[name]}"
    return _known(name, "x")


def of_function(name: str, methods: Any) -> str:
    """Return the end of the message for a name that `gk.nd` does not have. methods: The class of arrays."""
    if name.startswith("_"):
        return ""
    if name in _FUNCTIONS:
        return f"; {_FUNCTIONS[name]}"
    if callable(vars(methods).get(name)):
        return f"; write x.{name}(...)"
    return _known(name, "...")


def _known(name: str, operands: str) -> str:
    if registry.function(name) is not None:
        return f"; write gk.{name}({operands})"
    right = elsewhere(name)
    if right is not None and "gk.Model" not in right:
        return f"; write {right}"
    if not hasattr(np, name):
        return ""
    found = getattr(np, name)
    is_function = callable(found) and not isinstance(found, type)
    return f"; write np.{name}({operands})" if is_function else f"; write np.{name}"
