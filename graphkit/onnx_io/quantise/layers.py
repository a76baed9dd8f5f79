"""Layers: convolutions and matrix products with a constant weight, and why others are not quantised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import numpy as np
from onnx import ModelProto

from graphkit.errors import UsageError, did_you_mean
from graphkit.ir.types import DType, TensorType, Type
from graphkit.named_tuples import NamedTuple
from graphkit.onnx_io.editing.document import Document, Node, Scope

PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_FLOATS = (DType.FLOAT32, DType.FLOAT16)


class Kept(NamedTuple):
    """A layer that stays in float: its name, its operator, and the reason."""

    name: str
    operator: str
    reason: str


class FloatWeight(NamedTuple):
    """A weight before it was quantised, and its name."""

    name: str
    array: np.ndarray


@dataclass(frozen=True)
class Choice:
    """Patterns of node names or operators. include: the layers to quantise (empty: all). exclude: nodes that stay."""

    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    # The argument and the option of `exclude`, for messages.
    title: str = "exclude (--exclude)"

    def excludes(self, node: Node) -> bool:
        return _matches(node, self.exclude)

    def reason(self, node: Node) -> str:
        """Return why a layer is not chosen; "" if it is."""
        if self.excludes(node):
            return "excluded (exclude, --exclude)"
        return "" if not self.include or _matches(node, self.include) else "not included (include, --include)"

    def check(self, document: Document) -> None:
        """Raise UsageError for a pattern that fits no node."""
        nodes = [node for scope in document.scopes for node in scope.nodes]
        for title, patterns in (("include (--include)", self.include), (self.title, self.exclude)):
            for pattern in patterns:
                if not any(_matches(node, [pattern]) for node in nodes):
                    names = {*map(name_of, nodes), *(node.kind for node in nodes)}
                    raise UsageError(
                        f"{title} {pattern!r}: no node has such a name or operator{did_you_mean(pattern, names)}"
                    )


def name_of(node: Node) -> str:
    """Return the name of a node, or that of its first output if it has none."""
    return node.proto.name or next(filter(None, node.outputs), node.kind)


def _matches(node: Node, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name_of(node), pattern) or fnmatchcase(node.kind, pattern) for pattern in patterns)


@dataclass
class Layer:
    """A Conv, ConvTranspose, Gemm or MatMul whose weight is an initialiser.

    Attributes:
        scope, node: Where it is.
        weight: The weight.
        axis: The axis of the output channels that may have a scale each; None if there is none.
        name: Name of the weight.
        transpose: The Transpose between the weight, a matrix, and the node; None if there is none.
    """

    scope: Scope
    node: Node
    name: str
    weight: np.ndarray
    axis: int | None
    transpose: Node | None = None

    @property
    def matrix(self) -> np.ndarray | None:
        """The weight of a MatMul or Gemm as a matrix [columns, terms]; None if it has another rank."""
        if self.node.kind not in ("Gemm", "MatMul") or self.weight.ndim != 2:
            return None
        return self.weight if self.axis == 0 else self.weight.T

    @property
    def channels(self) -> int:
        """The number of output channels."""
        if self.node.kind == "ConvTranspose":
            return int(self.weight.shape[1]) * int(self.node.attribute("group", 1))
        return int(self.weight.shape[-1 if self.axis is None and self.node.kind == "MatMul" else self.axis or 0])


@dataclass
class Layers:
    """The layers that can be quantised; and `kept`, those that cannot."""

    found: list[Layer] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    # Products of two computed matrices: they have no weight.
    products: list[Node] = field(default_factory=list)

    def keep_products(self) -> None:
        """Leave products of two computed matrices in float."""
        reason = "it multiplies two computed matrices"
        self.kept += [Kept(name_of(node), node.kind, reason) for node in self.products]
        self.products = []

    def names(self) -> list[tuple[str, str]]:
        """Return the name and the operator of each layer and product."""
        nodes = [*(layer.node for layer in self.found), *self.products]
        return [(name_of(node), node.kind) for node in nodes]


def find_layers(document: Document, types: Mapping[str, Type], choice: Choice) -> Layers:
    """Return the layers of all scopes."""
    choice.check(document)
    result = Layers()
    makers = {name: node.kind for scope in document.scopes for node in scope.nodes for name in node.outputs if name}
    for scope in document.scopes:
        for node in scope.nodes:
            if node.kind not in PRODUCTS:
                continue
            reason = choice.reason(node) or _element_type(node, types)
            found: Layer | str = reason or _layer(document, scope, node, makers)
            if isinstance(found, Layer):
                result.found.append(found)
            elif found == _COMPUTED and node.kind == "MatMul":
                result.products.append(node)
            else:
                result.kept.append(Kept(name_of(node), node.kind, found))
    return result


def functions_with_layers(model: ModelProto) -> list[str]:
    """Return the names of the functions of a file that contain layers. These stay in float."""
    return [found.name for found in model.functions if any(node.op_type in PRODUCTS for node in found.node)]


_COMPUTED = "its weight is not constant"


def _element_type(node: Node, types: Mapping[str, Type]) -> str:
    found = types.get(node.outputs[0])
    if not isinstance(found, TensorType):
        return "its element type is unknown"
    return (
        "" if found.dtype in _FLOATS else f"its element type is {found.dtype}; only float32 and float16 are supported"
    )


def _layer(document: Document, scope: Scope, node: Node, makers: Mapping[str, str]) -> Layer | str:
    name = node.input(1)
    weight = document.array(name)
    if weight is None:
        return "it is quantised already" if makers.get(name) == "DequantizeLinear" else _COMPUTED
    if document.array(node.inputs[0]) is not None:
        return "its first operand is constant"
    if not weight.size or weight.ndim == 0:
        return "its weight is empty" if not weight.size else "its weight is a scalar"
    if not np.isfinite(weight).all():
        return f"its weight {name!r} contains NaN or infinity"
    return Layer(scope, node, name, weight, _axis(node, weight))


def _axis(node: Node, weight: np.ndarray) -> int | None:
    match node.kind:
        case "Conv":
            return 0
        case "ConvTranspose":
            return 1 if node.attribute("group", 1) == 1 else None
        case "Gemm":
            return 0 if node.attribute("transB", 0) else 1
    return 1 if weight.ndim == 2 else None
