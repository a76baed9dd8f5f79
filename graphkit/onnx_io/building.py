"""What the parts of the importer share while they build a graph: names, settings, stand-ins, and the builder's face."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from graphkit.errors import InvalidModel, UnsupportedError
from graphkit.ir import dims
from graphkit.ir.graph import Value
from graphkit.ir.types import SequenceType, TensorType, Type
from graphkit.onnx_io import validate
from graphkit.onnx_io.scopes import Region

if TYPE_CHECKING:
    from onnx import AttributeProto, TypeProto

# The gradients of values in others, as graph; a value that has no influence has zeros.
Differentiate: TypeAlias = Callable[[Sequence[Value], Sequence[Value]], Sequence[Value]]


class Names:
    """Values by name; a subgraph looks further in the scope around it."""

    __slots__ = ("outer", "values")

    def __init__(self, outer: Names | None = None):
        self.values: dict[str, Value | None] = {}
        self.outer = outer

    def find(self, name: str) -> Value | None:
        """The value called `name`; None when it is an operand that a function's caller left out."""
        scope: Names | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.outer
        raise InvalidModel(f"{name!r} is not defined: no node, graph input or initializer has this name")

    def output(self, name: str) -> Value:
        """The value called `name`, which must be there."""
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
    """Operands of less known types for what one branch reads from outside of itself.

    `mark` is the checkpoint taken before the branch. `ranks`: forget ranks, not sizes alone. `constants`: forget the
    sizes and elements of constants too, those inside the branch included. `originals` has the value that each stands
    for, `outer` the stand-ins of the branch around this one.
    """

    def __init__(self, mark: int, ranks: bool, constants: bool, outer: StandIns | None):
        self.originals: dict[Value, Value] = {}
        self._mark, self._ranks, self._constants, self._outer = mark, ranks, constants, outer
        self._made: dict[Value, Value] = {}

    def of(self, value: Value) -> Value:
        """The operand to read in place of `value`: itself where it is the branch's own."""
        if self._outer is not None:
            value = self._outer.of(value)
        if value in self.originals:  # an operand of a function's call, which the body reads
            return value
        constant = value.node is not None and value.node.op.name == "Constant" and not value.node.op.domain
        # Parameters and stand-ins are outside wherever they are made.
        outside = value.serial < self._mark or (value.is_input and value.role != "data")
        if not (self._constants if constant else outside):
            return value
        if value not in self._made:
            # A value of this role may be captured from outside although it is made inside.
            made = Value(_forgotten(value.type, self._ranks), value.name, role="parameter")
            self._made[value], self.originals[made] = made, value
        return self._made[value]


def _forgotten(kind: Type, ranks: bool) -> Type:
    """A type of the same elements of which less is known."""
    if isinstance(kind, SequenceType):
        return SequenceType(_forgotten(kind.element, ranks))
    if not isinstance(kind, TensorType):
        return kind.with_element(_forgotten(kind.element, ranks))
    if ranks or kind.shape is None:
        return TensorType(kind.dtype)
    return TensorType(kind.dtype, [dims.fresh() for _ in kind.shape])


class GraphBuilder(Protocol):
    """What the import of control flow and of Gradient asks of the builder.

    Attributes:
        label: Name of the file, for errors.
        stand_ins: Those of the branch that is being built, if it cannot be built on its own operands.
        final_error: An error that no attempt to build a branch can avoid.
        attempts: By branch of an If, the attempt that has built it.
        differentiate: Computes the gradients of an imported Gradient node.
        differentiated: How many Gradient nodes were imported.
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
