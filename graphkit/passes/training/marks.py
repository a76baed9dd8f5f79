"""Read the marks of nodes: attributes that `gk.attr_scope` sets."""

from __future__ import annotations

from graphkit.ir.graph import Node


def is_marked(node: Node, mark: str) -> bool:
    """Return whether a node has the mark."""
    return node.meta.get(mark, "").lower() in ("1", "true", "yes")
