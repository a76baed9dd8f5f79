"""Replace what does not depend on the inputs by constants: constant nodes, shape arithmetic, branches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto

from graphkit.errors import GraphkitError
from graphkit.ir.dims import DimExpr
from graphkit.ir.types import BOOLS, INTEGERS, DType, TensorType
from graphkit.onnx_io.editing.document import Document, Node, Scope
from graphkit.onnx_io.editing.rules import RANDOM, Round, producers_of, reshape_target
from graphkit.onnx_io.tensors import to_proto

# Computes the outputs of a model without inputs.
Evaluate = Callable[[ModelProto], Mapping[str, np.ndarray]]

# Bytes of the largest value that is computed.
_LARGEST = 1 << 28

# Operators that are left alone although their operands are constant: runtimes look for them, as for quantised weights.
_KEPT = RANDOM | {"Constant", "DequantizeLinear", "Optional", "SequenceConstruct", "SequenceEmpty"}


def constant_nodes(round: Round) -> None:
    """Turn Constant nodes into initialisers, except outputs of a scope."""
    document = round.document
    for scope in document.scopes:
        kept = []
        for node in scope.nodes:
            tensor = _tensor_of(node) if node.kind == "Constant" else None
            if tensor is None or node.outputs[0] in scope.outputs:
                kept.append(node)
                continue
            document.put(tensor, node.outputs[0])
            round.changes += 1
        scope.nodes = kept


def _tensor_of(node: Node) -> TensorProto | None:
    """Return the tensor of a Constant; None for a sparse one."""
    attribute: AttributeProto = node.proto.attribute[0]
    value = onnx.helper.get_attribute_value(attribute)
    name = node.outputs[0]
    if attribute.name == "value":
        return value if isinstance(value, TensorProto) else None
    make = onnx.helper.make_tensor
    kinds = {"float": TensorProto.FLOAT, "int": TensorProto.INT64, "string": TensorProto.STRING}
    kind = kinds.get(attribute.name.removeprefix("value_").removesuffix("s"))
    if kind is None:
        return None
    values = list(value) if attribute.name.endswith("s") else [value]
    return make(name, kind, [len(values)] if attribute.name.endswith("s") else [], values)


def as_constant(name: str, array: np.ndarray) -> Node:
    """Return a Constant node that computes `name`."""
    proto = NodeProto(op_type="Constant", name=f"{name}_constant")
    proto.attribute.append(onnx.helper.make_attribute("value", to_proto(array)))
    return Node(proto, [], [name], {})


def known_values(round: Round) -> None:
    """Replace integers that inference knows, as in shape arithmetic, by constants."""
    document = round.document
    uses = document.uses
    for scope in document.scopes:
        kept = []
        for node in scope.nodes:
            arrays = _known(round, node, uses) if node.kind not in _KEPT and not node.bodies else None
            if not arrays:
                kept.append(node)
                continue
            wanted = [name for name in arrays if name in scope.outputs]
            if len(wanted) > 1:
                kept.append(node)
                continue
            for name, array in arrays.items():
                if name in wanted:
                    kept.append(as_constant(name, array))
                else:
                    document.put(array, name)
            round.changes += 1
        scope.nodes = kept


def _known(round: Round, node: Node, uses: Mapping[str, int]) -> dict[str, np.ndarray] | None:
    """Return the arrays of all outputs that are read; None if one is unknown."""
    found = {}
    for name in node.outputs:
        if not name or not uses[name]:
            continue
        kind = round.type(name)
        if kind is None or not kind.is_static or kind.constants is None:
            return None
        if kind.dtype not in INTEGERS and kind.dtype not in BOOLS:
            return None
        found[name] = np.array(kind.constants, kind.dtype.numpy).reshape(kind.static_shape)
    return found


def fold(round: Round, evaluate: Evaluate) -> None:
    """Compute values that depend only on initialisers. Values that make the file too large stay as nodes."""
    document = round.document
    uses = document.uses
    refused: set[str] = set()
    while True:
        part = _Part(round, refused, uses)
        if not part.frontier:
            return
        growth = {name: part.nbytes(name) for name in part.frontier}
        if sum(growth.values()) - part.freed <= max(round.budget, 0):
            break
        # Values that are too large in any case, or else the largest one.
        large = {name for name, size in growth.items() if size - part.freed > max(round.budget, 0)}
        refused |= large or {max(growth, key=growth.__getitem__)}
    arrays = _evaluated(document, part, evaluate)
    round.budget -= sum(growth[name] for name in arrays) - part.freed
    for scope in document.scopes:
        kept = []
        for node in scope.nodes:
            names = [name for name in node.outputs if name in arrays]
            if not names or node not in part.members:
                kept.append(node)
                continue
            if any(uses[name] and name not in arrays for name in node.outputs if name in part.frontier):
                kept.append(node)
                continue
            for name in names:
                if name in scope.outputs:
                    kept.append(as_constant(name, arrays[name]))
                else:
                    document.put(arrays[name], name)
            round.changes += len(names)
        scope.nodes = kept


class _Part:
    """The nodes that depend only on initialisers.

    frontier: their outputs that other nodes read. freed: bytes of initialisers that only they read.
    """

    def __init__(self, round: Round, refused: set[str], uses: Mapping[str, int]):
        self.round = round
        document = round.document
        constant = set(document.initializers)
        self.members: dict[Node, None] = {}
        read_inside: dict[str, int] = {}
        for scope in document.scopes:
            for node in scope.nodes:
                if self._foldable(node, constant, refused, scope):
                    self.members[node] = None
                    constant.update(filter(None, node.outputs))
                    for name in filter(None, node.inputs):
                        read_inside[name] = read_inside.get(name, 0) + 1
        self.frontier = [
            name for node in self.members for name in node.outputs if name and uses[name] > read_inside.get(name, 0)
        ]
        self.freed = sum(
            document.nbytes(name) for name, count in read_inside.items()
            if name in document.initializers and uses[name] == count
        )  # fmt: skip

    def _foldable(self, node: Node, constant: set[str], refused: set[str], scope: Scope) -> bool:
        if node.kind in _KEPT or "." in node.kind.replace("ai.onnx.ml.", "") or node.bodies:
            return False
        if any(name in refused for name in node.outputs) or not all(n in constant for n in node.inputs if n):
            return False
        if sum(name in scope.outputs for name in node.outputs) > 1:
            return False
        kinds = [self.round.types.get(name) for name in node.outputs if name]
        if not all(isinstance(k, TensorType) and k.is_static and k.dtype is not DType.STRING for k in kinds):
            return False
        return sum(k.nbytes for k in kinds if isinstance(k, TensorType)) <= _LARGEST

    def nbytes(self, name: str) -> int:
        kind = self.round.type(name)
        assert kind is not None
        return kind.nbytes


def _evaluated(document: Document, part: _Part, evaluate: Evaluate) -> dict[str, np.ndarray]:
    """Return the arrays of the frontier. Values that cannot be computed, as in branches never taken, are left out."""
    try:
        return dict(evaluate(_model_of(document, part, part.frontier)))
    except GraphkitError:
        found: dict[str, np.ndarray] = {}
        for name in part.frontier:
            try:
                found.update(evaluate(_model_of(document, part, [name])))
            except GraphkitError:
                continue
        return found


def _model_of(document: Document, part: _Part, outputs: Sequence[str]) -> ModelProto:
    """Return a model without inputs that computes values of a part."""
    needed = set(outputs)
    nodes = []
    for node in reversed(part.members):
        if any(name in needed for name in node.outputs):
            nodes.append(node)
            needed.update(filter(None, node.inputs))
    made = ModelProto(ir_version=max(document.model.ir_version, 4))
    made.opset_import.extend(document.model.opset_import)
    made.graph.name = "constants"
    made.graph.node.extend(node.written() for node in reversed(nodes))
    made.graph.initializer.extend(document.initializers[n] for n in document.initializers if n in needed)
    made.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    return made


def computed_shapes(round: Round) -> None:
    """Replace shape arithmetic before Reshape and Expand by constants with 0, -1 and 1 for symbolic sizes."""
    document = round.document
    for scope in document.scopes:
        for node in scope.nodes:
            if node.kind not in ("Reshape", "Expand") or len(node.inputs) < 2 or document.opset < 5:
                continue
            if node.inputs[1] in document.initializers or node.attribute("allowzero", 0):
                continue
            data, target = round.type(node.inputs[0]), round.types.get(node.inputs[1])
            if data is None or not isinstance(target, TensorType) or target.value is None:
                continue
            chosen = reshape_target if node.kind == "Reshape" else _expand_target
            sizes = chosen(data.known_shape, target.value)
            if sizes is not None:
                node.inputs[1] = document.add(np.array(sizes, np.int64), f"{node.outputs[0]}_shape")
                round.changes += 1


def _expand_target(data: tuple[int | DimExpr, ...], wanted: Sequence[int | DimExpr]) -> list[int] | None:
    """The target of an Expand without symbolic sizes: 1 where the operand has the size itself."""
    offset = len(wanted) - len(data)
    found = []
    for i, size in enumerate(wanted):
        if isinstance(size, DimExpr):
            if i < offset or data[i - offset] != size:
                return None
            size = 1
        found.append(size)
    return found


def branches(round: Round) -> None:
    """Replace each If with a constant condition by the nodes of the branch that is taken."""
    for scope in round.document.scopes:
        kept: list[Node] = []
        table: dict[str, str] = {}
        for node in scope.nodes:
            condition = round.ints(node.inputs[0]) if node.kind == "If" else None
            if not condition:
                kept.append(node)
                continue
            body = node.bodies["then_branch" if condition[0] else "else_branch"]
            if not _can_inline(node, body, producers_of(body), scope):
                kept.append(node)
                continue
            for result, source in zip(node.outputs, body.outputs, strict=False):
                if not result:
                    continue
                if result in scope.outputs:
                    maker = producers_of(body)[source]
                    maker.outputs[maker.outputs.index(source)] = result
                    table[source] = result
                else:
                    table[result] = source
            kept.extend(body.nodes)
            round.changes += 1
        scope.nodes = kept
        round.document.rename(table)


def _can_inline(node: Node, body: Scope, producers: Mapping[str, Node], scope: Scope) -> bool:
    """Whether outputs of the scope can keep their names when a branch replaces an If."""
    if body.rest.sparse_initializer:
        return False
    pairs = [(r, s) for r, s in zip(node.outputs, body.outputs, strict=False) if r]
    wanted = [source for result, source in pairs if result in scope.outputs]
    return all(source in producers for source in wanted) and len({s for _, s in pairs}) == len(pairs)
