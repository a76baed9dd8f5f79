"""The protocol of the native sweeps over graphs. Only type checkers import this module."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any, Protocol


class NativeSweeps(Protocol):
    """`graphkit._native.GraphSweeps`."""

    def topological(self, values: list[Any], stop: set[Any]) -> list[Any]:
        """Return the same as `graph.topological`."""

    def sound_nodes(
        self, inputs: tuple[Any, ...], outputs: tuple[Any, ...], updates: tuple[tuple[Any, Any], ...]
    ) -> tuple[Any, ...] | None:
        """Return the nodes of a graph in topological order. Return None if the graph is not valid."""

    def operators(self, nodes: tuple[Any, ...]) -> frozenset[str]:
        """Return the same as `Graph.operators` for the nodes of a graph."""

    def replaced(self, given: tuple[Any, ...], table: dict[Any, Any]) -> tuple[Any, ...]:
        """Return values, or pairs of values, with those that `table` maps to others replaced."""

    def copied(self, node: Any, inputs: tuple[Any, ...]) -> Any:
        """Return the node with these operands, or None if their types differ from those of its operands."""

    def remade(self, node: Any, op: Any, inputs: tuple[Any, ...], scope: Any, types: tuple[Any, ...]) -> Any:
        """Return the node with another operator, operands, scope and types of its results."""

    def copy_all(self, nodes: tuple[Any, ...], scope: Any, table: dict[Any, Any]) -> None:
        """Copy all nodes, with the operands that `table` maps to others, in the scope `scope`.

        Adds the outputs of the copies to `table`. The new operands must have the types of the old ones.
        """

    def copy_until(
        self,
        nodes: tuple[Any, ...],
        start: int,
        at: Set[str],
        table: dict[Any, Any],
        counts: dict[Any, int] | None,
        constant: type | None = None,
        after: Set[str] | None = None,
        among: Set[str] | None = None,
    ) -> int:
        """Copy the nodes from `start` on that read values of `table`, which maps replaced values to new ones.

        Adds the outputs of the copies to `table`. Moves the numbers of their uses in `counts` to the copies.

        Returns:
            The position of the first node that the caller must handle: its operator is in `at`, or its operands have
            other types than before. If `constant`, the class of constants, is given, also a node whose operands are all
            constants, or whose results have known elements. If `after`, names of operators, is given, also a node that
            reads a result of one of them; if `among` is given, only if its own operator is in it. If there is none, the
            number of nodes.
        """

    def merge_until(
        self,
        nodes: tuple[Any, ...],
        start: int,
        table: dict[Any, Any],
        numbers: dict[Any, int],
        seen: dict[Any, Any],
        number_of: Callable[..., int],
        merged: set[int],
    ) -> int:
        """Copy nodes as `copy_until` does, and add them to `seen`, which maps keys to nodes. Equal nodes have one key.

        `numbers` stores the numbers of operators between calls for the same sweep. `number_of` returns positive numbers
        that only equal operators share. `merged` contains the numbers of operators whose subgraphs contain neither
        equal nor random nodes.

        Returns:
            The position of the first node that the caller must handle: its key is in `seen`, and it has operands and
            attributes (then it may be in another group); its operator is random, or has subgraphs and is not in
            `merged`; or its operands have other types than before. If there is none, the number of nodes.
        """

    def structure(
        self, inputs: tuple[Any, ...], nodes: tuple[Any, ...], outputs: tuple[Any, ...], number_of: Callable[..., int]
    ) -> tuple[int | None, ...]:
        """Return a key that only graphs with equal structure have: equal but for names.

        `number_of` returns the number of an operator that has none yet.
        """

    def bind_until(
        self,
        nodes: tuple[Any, ...],
        start: int,
        at: Set[str],
        table: dict[Any, Any],
        known: dict[Any, tuple[Any, ...]],
        number_of: Callable[..., int | None],
    ) -> int:
        """Copy nodes as `copy_until` does, also nodes whose operands have other types than before.

        `known` contains types of results. Its keys consist of the number of an operator and those of its operands'
        types; None for an absent operand. `number_of` returns the number of an operator that has none yet, or None if
        it gets none.

        Returns:
            The position of the first node that the caller must handle: its operator is in `at`, or `known` does not
            contain the types of its results. If there is none, the number of nodes.
        """

    def value_parts(
        self, values: tuple[Any, ...], constant: type, number_of: Callable[..., int]
    ) -> list[int | None] | None:
        """Return the types of values, which of them are the same, and which are constants.

        `constant` is the class of constants; `number_of` returns the number of such an operator. Returns None if a
        value is not a tensor.
        """

    def kernel_keys(
        self,
        steps: tuple[Any, ...],
        root: dict[Any, Any],
        known: dict[Any, Any],
        used: frozenset[Any],
        number_of: Callable[..., Any],
        identity: Callable[..., int],
    ) -> list[tuple[Any, ...]]:
        """Return a key for each step: everything that its kernel depends on, if all sizes are known.

        Args:
            steps: The steps.
            root: See `Placement`.
            known: The arrays of parameters and constants, by storage.
            used: See `Placement`.
            number_of: Returns the part of the key for an operator that has no number yet.
            identity: Returns the part of the key for (operand, its type, its array).
        """

    def storages_read(self, steps: tuple[Any, ...], root: dict[Any, Any]) -> list[list[Any]]:
        """Return the storages of the operands of each step. root: see `Placement`."""

    def inplace_pairs(
        self,
        steps: tuple[Any, ...],
        root: dict[Any, Any],
        place: dict[Any, Any],
        used: frozenset[Any],
        permitted: list[Sequence[tuple[int, int]]],
        is_sized: Callable[..., bool],
        has_equal_size: Callable[..., bool],
    ) -> list[list[tuple[Any, Any]]]:
        """Return the pairs (storage read, output) of each step that may share memory.

        `is_sized` must depend on the type of the value only. For root, place and used, see `Placement`.
        """

    def tasks(
        self,
        task_class: type,
        steps: tuple[Any, ...],
        storages: list[list[Any]],
        elements: dict[Any, list[Any]],
        extra: dict[Any, list[Any]],
        pairs: list[list[tuple[Any, Any]]] | None,
        scratch: list[int],
        numbers: dict[Any, int],
        place: dict[Any, Any],
    ) -> list[Any]:
        """Return the task of each step, as `plan_graph` does without this function.

        Args:
            task_class: The class `Task`.
            steps: The steps.
            storages: The result of `storages_read`.
            elements: For steps that do not read the elements of all operands, the storages whose elements they read.
            extra: For some steps, values that must be written before.
            pairs: The result of `inplace_pairs`.
            scratch: For each step, the bytes of its working memory.
            numbers: The buffer of each value that a step writes.
            place: See `Placement`.
        """

    def reader_dependencies(
        self,
        steps: tuple[Any, ...],
        storages: list[list[Any]],
        elements: dict[Any, list[Any]],
        used: frozenset[Any],
        donated: dict[Any, Any],
    ) -> dict[Any, list[Any]]:
        """Return the same as `donation.reader_dependencies`. For the arguments, see `tasks`."""
