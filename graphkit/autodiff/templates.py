"""Copy the gradient of an equal node instead of calling its gradient rule again.

Layers of a network repeat: many nodes have equal operators on operands of equal types. The nodes that a gradient rule
makes for the first of them are a template. For the others, they are copied with other operands. Updates of parameters
are copied in the same way.
"""

from __future__ import annotations

from collections.abc import Container, Hashable, Sequence
from typing import Any

from graphkit.ir import context
from graphkit.ir.graph import Node, Value, native_sweeps, topological
from graphkit.ir.types import TensorType
from graphkit.ops import Op
from graphkit.ops._op import number_of
from graphkit.ops.tensor.constants import Constant

# A value that may be absent.
Operand = Value | None


class Template:
    """The nodes that a gradient rule made for one node.

    Attributes:
        results: The gradient of each operand; None where there is none, or where nothing needs it.
    """

    def __init__(self, boundary: Sequence[Operand], nodes: Sequence[Node], results: Sequence[Operand]):
        """boundary: The operands and results of the node, and the gradients of the results. Nodes read these values."""
        self._boundary, self._nodes, self.results = boundary, tuple(nodes), results

    def copied(self, boundary: Sequence[Operand]) -> list[Operand]:
        """Return the gradients of the operands of another node. `boundary` contains its values, in the same order."""
        table: dict[Any, Value] = {
            old: new for old, new in zip(self._boundary, boundary, strict=True) if old is not None and new is not None
        }
        scope, native = context.current(), native_sweeps()
        if native is not None:
            native.copy_all(self._nodes, scope, table)
        else:
            for node in self._nodes:
                operands = [None if v is None else table[v] for v in node.inputs]
                copy = node.with_types(operands, [v.type for v in node.outputs], scope=scope)
                table.update(zip(node.outputs, copy.outputs, strict=True))
        return [None if v is None else table[v] for v in self.results]


class Templates:
    """The templates of one backward pass.

    A rule of graphkit depends only on the operator, on the types of the operands, results and gradients, on which of
    these are the same value, and on which of them are constants. Rules that are defined elsewhere may depend on more.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, Template] = {}
        # Constants keep their numbers in a table, so that large ones can be equal, too.
        self._constants: dict[Hashable, int] = {}

    def key(self, node: Node, gradients: Sequence[Operand], active: Container[Value]) -> Hashable | None:
        """Return what the gradients of the node depend on; None if they must not be copied."""
        op, scope = node.op, context.current()
        if not isinstance(op, Op) or not op._is_numbered or scope.made is not None:
            return None
        parts = self.parts((*node.inputs, *node.outputs, *gradients))
        if parts is None:
            return None
        return (number_of(op), scope.attrs.get(context.GROUP), *parts, *[v in active for v in node.inputs])

    def parts(self, values: Sequence[Operand]) -> list[Any] | None:
        """Return the types of values, which of them are the same, and which are constants.

        Returns None if a value is not a tensor.
        """
        native = native_sweeps()
        if native is not None:
            return native.value_parts(tuple(values), Constant, self._constant)
        parts: list[Any] = []
        positions: dict[Value, int] = {}
        for value in values:
            if value is None:
                parts.append(None)
                continue
            position = positions.setdefault(value, len(positions))
            kind, producer = value.type, value.node
            if not isinstance(kind, TensorType):
                return None
            is_constant = producer is not None and isinstance(producer.op, Constant)
            constant = self._constant(producer.op) if producer is not None and is_constant else None
            parts += (position, kind.number, constant)
        return parts

    def _constant(self, operator: Any) -> int:
        return self._constants.setdefault(operator, len(self._constants))

    def find(self, key: Hashable) -> Template | None:
        """Return the template of an equal node, or None."""
        return self._known.get(key)

    def add(self, key: Hashable, boundary: Sequence[Operand], results: Sequence[Operand], first: int) -> None:
        """Store the result of a gradient rule, if other nodes can copy it.

        Args:
            key: The key of the node.
            boundary: See `Template`.
            results: The gradients of the operands; None where nothing needs them.
            first: A serial number between those of the nodes made before the rule was called and those that it made.
        """
        outer = [v for v in boundary if v is not None]
        nodes = sorted(topological(results, stop=outer), key=lambda node: node.serial)
        made = {v for node in nodes for v in node.outputs}.union(outer)
        known = {symbol for v in outer for symbol in v.tensor.symbols}
        if all(
            node.serial > first
            and all(v is None or v in made for v in node.inputs)
            and all(isinstance(v.type, TensorType) and known.issuperset(v.type.symbols) for v in node.outputs)
            for node in nodes
        ) and all(v is None or v in made for v in results):
            self._known[key] = Template(boundary, nodes, results)
