"""Shared by the gradient rules of control flow: the signatures between them and the backward sweep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from graphkit.ir.graph import Node, Value
from graphkit.ops.sequence.elements import holds_floats

# One gradient per operand (None: no dependence), and the forward node extended by what they need, if any.
Contribution: TypeAlias = tuple[Sequence[Value | None], Node | None]


class Differentiate(Protocol):
    """The backward sweep over a subgraph.

    Returns the gradients of `wrt` in terms of the subgraph's values and the seeds, and the forward nodes of control
    flow in it that were extended by values to save.
    """

    def __call__(
        self, outputs: Sequence[Value], seeds: Sequence[Value], wrt: Sequence[Value]
    ) -> tuple[list[Value | None], list[Node]]: ...


def differentiable(value: Value) -> bool:
    """Whether a value has a gradient: a tensor of floats, or a sequence or an optional of such."""
    return holds_floats(value.type)
