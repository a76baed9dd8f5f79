"""Marks of nodes: metadata that `gk.attr_scope` gives them."""

from __future__ import annotations

from graphkit.ir.graph import Node


def is_marked(node: Node, mark: str) -> bool:
    """Whether a node has the mark."""
    return node.meta.get(mark, "").lower() in ("1", "true", "yes")
