"""Tables of downgrade rules. They are not in the package itself, so that they survive an interrupted import of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np

from graphkit.errors import UnsupportedError
from graphkit.ir.graph import Node, Value
from graphkit.ir.tensor import Tensor
from graphkit.named_tuples import NamedTuple
from graphkit.onnx_io.upgrade import replaces
from graphkit.ops import Op

# `below` of a rule that holds for every target.
ALWAYS = 1 << 30


class Site(NamedTuple):
    """A node about to be replaced: its operator, its operands in the new graph, the target opset."""

    node: Node
    op: Op
    inputs: tuple[Value | None, ...]
    target: int

    def input(self, index: int) -> Value | None:
        return self.inputs[index] if index < len(self.inputs) else None

    def operand(self, index: int) -> Value:
        value = self.input(index)
        if value is None:
            raise UnsupportedError(f"{self.node.describe()}: operand {index} is missing")
        return value

    def fail(self, what: str) -> UnsupportedError:
        return UnsupportedError(f"{self.node.describe()}: {what} cannot be expressed at opset {self.target}")


class Spelling:
    """A node to be written: ONNX attribute values by name, operands as Values."""

    __slots__ = ("attrs", "inputs", "node", "op_type", "outputs", "target")

    def __init__(self, node: Node, op_type: str, inputs: list[Value | None], attrs: dict[str, Any], target: int):
        self.node = node
        self.op_type = op_type
        self.inputs = inputs
        self.attrs = attrs
        self.outputs = len(node.outputs)
        self.target = target

    def input(self, index: int) -> Value | None:
        return self.inputs[index] if index < len(self.inputs) else None

    def drop_input(self, index: int) -> None:
        if index < len(self.inputs):
            self.inputs[index] = None
        while self.inputs and self.inputs[-1] is None:
            self.inputs.pop()

    def input_to_attribute(self, index: int, name: str) -> None:
        """Write input `index` as attribute `name`. Raises UnsupportedError if the input is not a constant."""
        value = self.input(index)
        if value is not None:
            found = constant_array(value)
            if found is None:
                raise UnsupportedError(
                    f"{self.node.describe()}: operand {index} is computed at run time, but must be a constant at opset "
                    f"{self.target}, where it is the attribute {name!r}"
                )
            self.attrs[name] = found.tolist()
            self.drop_input(index)

    def only(self, name: str, default: Any) -> None:
        """Omit attribute `name`. Raises UnsupportedError unless it is `default`, which the target opset implies."""
        value = self.attrs.pop(name, default)
        if value != default:
            raise self.fail(f"attribute {name}={value!r}")

    def fail(self, what: str) -> UnsupportedError:
        return UnsupportedError(f"{self.node.describe()}: {what} cannot be expressed at opset {self.target}")


def constant_array(value: Value) -> np.ndarray | None:
    """The array of a constant, or of a value whose elements shape inference has computed; else None."""
    if value.node is not None and value.node.op.name == "Constant":
        tensor = value.node.op.attributes()["value"]
        return tensor.array if isinstance(tensor, Tensor) else None
    known = getattr(value.type, "constants", None)
    if known is None or not value.tensor.is_static:
        return None
    return np.array(known, value.dtype.numpy).reshape(value.tensor.static_shape)


Rewrite: TypeAlias = Callable[[Site], Sequence[Value] | None]
Spell: TypeAlias = Callable[[Spelling], None]
_Rule = TypeVar("_Rule", bound=Callable[..., Any])

_rewrites: dict[str, list[tuple[int, Rewrite]]] = {}
_spellings: dict[str, list[tuple[int, Spell]]] = {}


def rewrites(*operators: str, below: int) -> Callable[[Rewrite], Rewrite]:
    """Declare a rewrite for targets under `below`; it returns the results, or None to keep the node."""
    return _register(_rewrites, operators, below)


def spells(*operators: str, below: int) -> Callable[[Spell], Spell]:
    """Declare a spelling for targets under `below`."""
    return _register(_spellings, operators, below)


def _register(
    table: dict[str, list[tuple[int, _Rule]]], operators: Sequence[str], below: int
) -> Callable[[_Rule], _Rule]:
    def register(rule: _Rule) -> _Rule:
        for operator in operators:
            known = [entry for entry in table.get(operator, []) if not replaces(rule, entry[1])]
            table[operator] = sorted([*known, (below, rule)], key=lambda entry: -entry[0])
        return rule

    return register


def rewritten(site: Site) -> Sequence[Value] | None:
    """Apply the first rewrite that fits the node; None if none does."""
    for below, rule in _rewrites.get(site.op.name, ()):
        if site.target < below and (results := rule(site)) is not None:
            return results
    return None


def spell(spelling: Spelling) -> None:
    """Apply every spelling that the target needs."""
    for below, rule in _spellings.get(spelling.op_type, ()):
        if spelling.target < below:
            rule(spelling)
