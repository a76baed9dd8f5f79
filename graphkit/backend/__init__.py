"""Backends: other engines that compute the parts of a graph that they support.

`net.compile(backends="onnxruntime")` and `gk.Trainer(..., backends=...)` use them; docs/backends.md is the guide.
"""

from __future__ import annotations

from graphkit.backend.backends import Backend, Part
from graphkit.backend.registry import explain, names, register, resolve, unregister, use

__all__ = ["Backend", "Part", "explain", "names", "register", "resolve", "unregister", "use"]
