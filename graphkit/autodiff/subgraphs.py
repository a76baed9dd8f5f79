"""Shared by the gradient rules of control flow: the signatures between them and the backward sweep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from graphkit.ir.graph import Node, Value
from graphkit.ops.sequence.elements import holds_floats

# One gradient per operand (None: no gradient), and the forward node extended by the values to save (None: unchanged).
Contribution: TypeAlias = tuple[Sequence[Value | None], Node | None]


class Differentiate(Protocol):
    """The backward sweep over a subgraph.

    Returns the gradients of `wrt` (they read the seeds and values of the subgraph), and the subgraph's control flow
    nodes that were extended to save values.
    """

    def __call__(
        self, outputs: Sequence[Value], seeds: Sequence[Value], wrt: Sequence[Value]
    ) -> tuple[list[Value | None], list[Node]]: ...


def differentiable(value: Value) -> bool:
    """Whether a value has a gradient: a tensor of floats, or a sequence or an optional of such."""
    return holds_floats(value.type)
