"""A part of a graph that a backend computes."""

from __future__ import annotations

from graphkit.ops._base import declared
from graphkit.ops.internal.region import Region


@declared
class BackendGroup(Region):
    """Compute the nodes of `body` in a backend.

    `group` is the name of the group, such as "onnxruntime/0", and `backend` the name of its backend. The executor that
    made the node calls the backend. The reference and the gradient are those of the nodes in `body`.
    """

    backend: str
    group: str
    inputs = ("xs*",)
    outputs = ("ys*",)
    reference_in_float32 = False
