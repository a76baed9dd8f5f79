"""The protocol of the native sweeps over graphs. Only type checkers import this module."""

from __future__ import annotations

from collections.abc import Set
from typing import Any, Protocol


class NativeSweeps(Protocol):
    """`graphkit._native.GraphSweeps`."""

    def topological(self, values: list[Any], stop: set[Any]) -> list[Any]:
        """Return the same as `graph.topological`."""

    def reads_only(self, nodes: tuple[Any, ...], known: set[Any]) -> bool:
        """Return whether each operand is the result of a node, or in `known`."""

    def copied(self, node: Any, inputs: tuple[Any, ...]) -> Any:
        """Return the node with these operands, or None if their types differ from those of its operands."""

    def copy_all(self, nodes: tuple[Any, ...], scope: Any, table: dict[Any, Any]) -> None:
        """Copy all nodes, with the operands that `table` maps to others, in the scope `scope`.

        Adds the outputs of the copies to `table`. The new operands must have the types of the old ones.
        """

    def copy_until(
        self, nodes: tuple[Any, ...], start: int, at: Set[str], table: dict[Any, Any], counts: dict[Any, int] | None
    ) -> int:
        """Copy the nodes from `start` on that read values of `table`, which maps replaced values to new ones.

        Adds the outputs of the copies to `table`. Moves the numbers of their uses in `counts` to the copies.

        Returns:
            The position of the first node that the caller must handle: its operator is in `at`, or its operands have
            other types than before. If there is none, the number of nodes.
        """
