"""Shared by the parts of the importer that build a graph: names, settings, placeholders, and the builder's protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from graphkit.errors import InvalidModel, UnsupportedError
from graphkit.ir import dims
from graphkit.ir.graph import Value
from graphkit.ir.types import SequenceType, TensorType, Type
from graphkit.named_tuples import NamedTuple
from graphkit.onnx_io import validate
from graphkit.onnx_io.scopes import Region

if TYPE_CHECKING:
    from onnx import AttributeProto, TypeProto

# (outputs, inputs) -> the gradients of the outputs with respect to the inputs, as graph values; zeros without
# dependence.
Differentiate: TypeAlias = Callable[[Sequence[Value], Sequence[Value]], Sequence[Value]]


class Names:
    """Values by name. If a subgraph does not define a name, the enclosing scope is searched."""

    __slots__ = ("outer", "values")

    def __init__(self, outer: Names | None = None):
        self.values: dict[str, Value | None] = {}
        self.outer = outer

    def find(self, name: str) -> Value | None:
        """The value called `name`; None if it is a function's parameter for which the call has no operand."""
        scope: Names | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.outer
        raise InvalidModel(f"{name!r} is not defined: no node, graph input or initializer has this name")

    def output(self, name: str) -> Value:
        """The value called `name`, which must exist."""
        found = self.find(name)
        if found is None:
            raise InvalidModel(f"{name!r} is an output, but has no value")
        return found


class Setting(NamedTuple):
    """The context of nodes: opset by domain, attributes of the enclosing function, and the calls so far."""

    opsets: Mapping[str, int]
    attributes: Mapping[str, AttributeProto]
    calls: tuple[str, ...] = ()

    def version(self, domain: str) -> int:
        return validate.version_of(domain, self.opsets)


class StandIns:
    """Placeholders for the outer values that a branch reads, with less precise types.

    mark: checkpoint taken before the branch. ranks: whether ranks are unknown, too, and not only sizes. constants:
    whether sizes and elements of constants are unknown, too, also of those inside the branch. originals: placeholder ->
    the value that it replaces. outer: the placeholders of the enclosing branch.
    """

    def __init__(self, mark: int, ranks: bool, constants: bool, outer: StandIns | None):
        self.originals: dict[Value, Value] = {}
        self._mark, self._ranks, self._constants, self._outer = mark, ranks, constants, outer
        self._made: dict[Value, Value] = {}

    def of(self, value: Value) -> Value:
        """The operand to read instead of `value`: a placeholder, or `value` itself if it belongs to the branch."""
        if self._outer is not None:
            value = self._outer.of(value)
        if value in self.originals:  # already a placeholder: the operand of a function call, read in the body
            return value
        constant = value.node is not None and value.node.op.name == "Constant" and not value.node.op.domain
        # Parameters and placeholders count as outer values, wherever they were created.
        outside = value.serial < self._mark or (value.is_input and value.role != "data")
        if not (self._constants if constant else outside):
            return value
        if value not in self._made:
            # With the role "parameter", the value can be captured from outside, although it is created inside.
            made = Value(_forgotten(value.type, self._ranks), value.name, role="parameter")
            self._made[value], self.originals[made] = made, value
        return self._made[value]


def _forgotten(kind: Type, ranks: bool) -> Type:
    """The same type with unknown sizes, and an unknown rank if `ranks`."""
    if isinstance(kind, SequenceType):
        return SequenceType(_forgotten(kind.element, ranks))
    if not isinstance(kind, TensorType):
        return kind.with_element(_forgotten(kind.element, ranks))
    if ranks or kind.shape is None:
        return TensorType(kind.dtype)
    return TensorType(kind.dtype, [dims.fresh() for _ in kind.shape])


class GraphBuilder(Protocol):
    """The methods and attributes of the builder that the import of control flow and of Gradient uses.

    Attributes:
        label: Name of the file, for errors.
        stand_ins: Placeholders of the branch that is being built, if it cannot be built on its own operands.
        final_error: An error that no further attempt to build a branch can avoid.
        attempts: Branch of an If -> number of the attempt that succeeded.
        differentiate: Computes the gradients of an imported Gradient node.
        differentiated: Number of values that gradients have added to the graph.
    """

    label: str
    stand_ins: StandIns | None
    final_error: InvalidModel | UnsupportedError | None
    attempts: dict[int, int]
    differentiate: Differentiate | None
    differentiated: int

    def region(self, region: Region, names: Names, setting: Setting) -> list[Value]:
        """Build the nodes of a graph, and return its outputs."""

    def check_declared(self, name: str, inferred: Type, proto: TypeProto | None) -> None:
        """Compare an inferred type with the one that the file declares."""
