"""Rewrite a float32 ONNX model so that most nodes compute in float16 or bfloat16, with as few Casts as possible."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto

from graphkit.ir.types import DType, TensorType
from graphkit.named_tuples import NamedTuple
from graphkit.onnx_io.editing import products
from graphkit.onnx_io.editing.constants import Evaluate
from graphkit.onnx_io.editing.document import Document, Node, Scope
from graphkit.onnx_io.quantise.editing import Editor, observing, prepared
from graphkit.onnx_io.quantise.layers import Choice, name_of

# Layers: they are computed in the lower precision unless a rule below forbids it.
_LAYERS = frozenset({"Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul"})
# Operators that are computed in either precision, so that there are few Casts.
_EITHER = frozenset(
    {
        "Abs", "Add", "ArgMax", "ArgMin", "AveragePool", "BatchNormalization", "Ceil", "Clip", "Concat", "Cos",
        "DepthToSpace", "Div", "Elu", "Equal", "Erf", "Expand", "Flatten", "Floor", "Gather", "GatherElements",
        "GatherND", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "IsNaN", "LeakyRelu",
        "Less", "LessOrEqual", "Max", "MaxPool", "Min", "Mish", "Mul", "Neg", "NonZero", "PRelu", "Pad", "ReduceMax",
        "ReduceMin", "Relu", "Reshape", "Resize", "Round", "ScatterElements", "ScatterND", "Selu", "Sigmoid", "Sign",
        "Sin", "Slice", "SpaceToDepth", "Split", "Squeeze", "Sub", "Swish", "Tanh", "Tile", "TopK", "Transpose",
        "Trilu", "Unsqueeze", "Where",
    }
)  # fmt: skip
# Operators that accept any element type, whatever precision the node has.
_ANY_INPUT = frozenset({"Cast", "Shape", "Size"})
# Operands that are float32 in either precision.
_FLOAT32_OPERANDS: Mapping[str, tuple[int, ...]] = {"Resize": (1, 2)}

_TENSOR_TYPE = {DType.FLOAT16: TensorProto.FLOAT16, DType.BFLOAT16: TensorProto.BFLOAT16}
# Values may become this much larger than those that were measured.
_HEADROOM = 2.0
_LARGE = 1 << 20


class Limits(NamedTuple):
    """The numbers that a type represents with full precision: magnitudes from `least` to `most`."""

    least: float
    most: float


LIMITS = {DType.FLOAT16: Limits(2.0**-14, 65504.0), DType.BFLOAT16: Limits(2.0**-126, 3.3895314e38)}


class KeptNode(NamedTuple):
    """A node that is computed in float32: its name, its operator, and the reason."""

    name: str
    operator: str
    reason: str


@dataclass
class _Value:
    """A float32 value of the top-level graph: its producer (None: an input), and the nodes that read it."""

    producer: Node | None
    readers: list[Node] = field(default_factory=list)
    # Whether something reads it as float32 in any case: an output of the model, or an operand such as scales.
    is_float32: bool = False


class PrecisionReducer:
    """Decides the precision of each node, and writes the model.

    Args:
        model: The model. It is not changed.
        evaluate: Computes the outputs of a model without inputs.
        dtype: DType.FLOAT16 or DType.BFLOAT16.
        choice: `exclude`: patterns of nodes that stay in float32.
        label: Name of the file, for errors.

    Attributes:
        observed: Names of the values whose magnitudes `write` can use.
        lowered: After `write`: names and operators of the nodes in the lower precision.
        kept: After `write`: nodes in float32 that have a reason. Other nodes are in float32 to save Casts.
        casts: After `write`: the number of Casts that were added.
    """

    def __init__(self, model: ModelProto, evaluate: Evaluate, dtype: DType, choice: Choice, label: str):
        choice.check(Document(model))
        self._document, self._types = prepared(model, evaluate, label, folds=[products.affine_products])
        self._editor, self._dtype, self._choice = Editor(self._document), dtype, choice
        self._top = self._document.top
        self._values = self._collect()
        self.observed = tuple(name for name, value in self._values.items() if value.producer is not None)
        self.lowered: list[tuple[str, str]] = []
        self.kept: list[KeptNode] = []
        self.casts = 0

    # --- reading ---------------------------------------------------------------------------------

    def _is_float32(self, name: str) -> bool:
        array = self._document.initializers.get(name)
        if array is not None:
            return bool(array.data_type == TensorProto.FLOAT)
        found = self._types.get(name)
        return isinstance(found, TensorType) and found.dtype is DType.FLOAT32

    def _collect(self) -> dict[str, _Value]:
        values = {info.name: _Value(None) for info in self._top.inputs if self._is_float32(info.name)}
        for node in self._top.nodes:
            for place, name in _operands(node):
                if name in values and node.kind not in _ANY_INPUT:
                    if place in _FLOAT32_OPERANDS.get(node.kind, ()):
                        values[name].is_float32 = True
                    else:
                        values[name].readers.append(node)
            values.update({name: _Value(node) for name in node.outputs if name and self._is_float32(name)})
        for name in self._top.outputs:
            if name in values:
                values[name].is_float32 = True
        return values

    def observing(self, names: Sequence[str]) -> ModelProto:
        """Return the float model with further outputs: these values."""
        return observing(self._document, self._types, names)

    def _kind_of(self, name: str) -> str:
        """Return the operator that computes a float32 value; "" for other values."""
        producer = self._values[name].producer if name in self._values else None
        return "" if producer is None else producer.kind

    # --- deciding --------------------------------------------------------------------------------

    def _reason(self, node: Node, largest: Mapping[str, float]) -> str:
        """Return why a node must be computed in float32; "" if it need not."""
        if self._choice.excludes(node):
            return "excluded (keep_float32, --keep-float32)"
        if node.bodies:
            return "it has subgraphs"
        if node.kind == "Cast":
            return ""
        if node.kind not in _LAYERS | _EITHER:
            return "its operator sums, has a large range, or has no lower precision"
        if any(self._kind_of(name) == "DequantizeLinear" for name in node.inputs):
            return "it computes with quantised values"
        limits = LIMITS[self._dtype]
        for place, name in _operands(node):
            if place in _FLOAT32_OPERANDS.get(node.kind, ()):
                continue
            array = self._document.array(name) if self._is_float32(name) else None
            if array is not None and (text := _constant_reason(array, limits)):
                return f"its constant {name!r} {text}"
        for name in (*filter(None, node.inputs), *filter(None, node.outputs)):
            if (found := largest.get(name, 0.0)) * _HEADROOM > limits.most:
                return f"{name!r} reaches {found:.4g}"
            if 0 < found < limits.least:
                return f"{name!r} is at most {found:.4g}"
            if math.isnan(found):
                return f"{name!r} has no finite element on the data"
        return ""

    def _decide(self, largest: Mapping[str, float]) -> set[Node]:
        """Return the nodes in the lower precision.

        Layers are in it, and nodes with a reason are not. All others are divided so that the number of Casts is as
        small as possible: a minimum cut of the graph, in which a value costs 1 if a node of the other precision reads
        it, however many such nodes there are. Of several minimum cuts, that with most nodes in the lower precision is
        taken.
        """
        floats = {node for value in self._values.values() for node in (value.producer, *value.readers) if node}
        fixed: dict[Node, bool] = {}
        for node in self._top.nodes:
            if reason := self._reason(node, largest):
                fixed[node] = False
                if node in floats:
                    self.kept.append(KeptNode(name_of(node), node.kind, reason))
            elif node.kind in _LAYERS:
                fixed[node] = True
        return _minimum_cut(self._top.nodes, self._values, fixed) & floats

    # --- writing ---------------------------------------------------------------------------------

    def write(self, largest: Mapping[str, float]) -> ModelProto:
        """Return the rewritten model.

        largest: the largest finite magnitude of values by name, as far as they were measured; NaN for a value without
            a finite element.
        """
        low = self._decide(largest)
        self.lowered = [(name_of(node), node.kind) for node in self._top.nodes if node in low and node.kind != "Cast"]
        code = _TENSOR_TYPE[self._dtype]
        constants: dict[str, str] = {}
        casts: dict[str, Node] = {}
        for name, value in self._values.items():
            is_low = value.producer in low
            others = [node for node in value.readers if (node in low) is not is_low]
            if not others and not (is_low and value.is_float32):
                continue
            other = self._document.fresh(f"{name}_{'float32' if is_low else self._dtype.value}")
            given, result = name, other
            if is_low and name in self._top.outputs:
                given, result = other, name
            for node in dict.fromkeys(value.readers):
                _rename(node, name, result if (node in low) is not is_low else given, _FLOAT32_OPERANDS)
            self._read_as_float32(name, result if is_low else given)
            if given != name:
                assert value.producer is not None
                value.producer.outputs = [given if n == name else n for n in value.producer.outputs]
                self._read_anyhow(name, given)
            target = TensorProto.FLOAT if is_low else code
            casts[given] = self._editor.node("Cast", [given], [result], to=target)
            self.casts += 1
        for node in self._top.nodes:
            if node in low:
                self._lower_constants(node, constants)
                if node.kind == "Cast":
                    node.set_attribute("to", code)
        self._place(casts)
        lowered = {name for node in low for name in node.outputs}
        infos = [info for info in self._top.rest.value_info if info.name not in lowered]
        infos = [ValueInfoProto.FromString(info.SerializeToString()) for info in infos]
        del self._top.rest.value_info[:]
        self._top.rest.value_info.extend(infos)
        self._document.sweep()
        return self._document.written()

    def _read_as_float32(self, name: str, new: str) -> None:
        """Let operands that are always float32 read `new` instead of `name`."""
        for node in self._top.nodes if name != new else ():
            for place in _FLOAT32_OPERANDS.get(node.kind, ()):
                if node.input(place) == name:
                    node.inputs[place] = new

    def _read_anyhow(self, name: str, new: str) -> None:
        """Let nodes that accept any type read `new` instead of `name`."""
        for node in self._top.nodes:
            if node.kind in _ANY_INPUT:
                node.inputs = [new if n == name else n for n in node.inputs]

    def _lower_constants(self, node: Node, done: dict[str, str]) -> None:
        """Let a node read its float32 constants in the lower precision."""
        if node.kind in _ANY_INPUT:
            return
        for place, name in enumerate(node.inputs):
            if place in _FLOAT32_OPERANDS.get(node.kind, ()) or name not in self._document.initializers:
                continue
            if self._is_float32(name):
                if name not in done:
                    array = self._document.array(name)
                    assert array is not None
                    done[name] = self._document.add(array.astype(self._dtype.numpy), f"{name}_{self._dtype.value}")
                node.inputs[place] = done[name]

    def _place(self, casts: Mapping[str, Node]) -> None:
        """Put each Cast after the node that computes its operand."""
        nodes = [casts[info.name] for info in self._top.inputs if info.name in casts]
        for node in self._top.nodes:
            nodes.append(node)
            nodes += [casts[name] for name in node.outputs if name in casts]
        self._top.nodes = nodes


def _operands(node: Node) -> Iterator[tuple[int, str]]:
    """Yield position and name of each value that a node reads; -1 for values that only its subgraphs read."""
    yield from ((place, name) for place, name in enumerate(node.inputs) if name)
    if node.bodies:
        yield from ((-1, name) for name in sorted(node.free - set(node.inputs)))


def _rename(node: Node, old: str, new: str, exempt: Mapping[str, tuple[int, ...]]) -> None:
    """Let a node and its subgraphs read another name."""
    if old == new:
        return
    left = exempt.get(node.kind, ())
    node.inputs = [new if name == old and place not in left else name for place, name in enumerate(node.inputs)]
    stack: list[Scope] = list(node.bodies.values())
    while stack:
        scope = stack.pop()
        scope.outputs = [new if name == old else name for name in scope.outputs]
        for inner in scope.nodes:
            inner.inputs = [new if name == old else name for name in inner.inputs]
            stack.extend(inner.bodies.values())


def _constant_reason(array: np.ndarray, limits: Limits) -> str:
    """Return why a constant needs float32; "" if it does not."""
    magnitudes = np.abs(array[np.isfinite(array)])
    largest = float(magnitudes.max(initial=0.0))
    if largest > limits.most:
        return f"contains {largest:.4g}"
    return f"is at most {largest:.4g}" if 0 < largest < limits.least else ""


def _minimum_cut(nodes: Sequence[Node], values: Mapping[str, _Value], fixed: Mapping[Node, bool]) -> set[Node]:
    """Return the nodes on the side of the lower precision. fixed: nodes whose side is known, True for this side."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    float32, low = 0, 1
    places = {node: index + 2 for index, node in enumerate(nodes)}
    arcs: dict[tuple[int, int], int] = {}

    def arc(a: int, b: int, capacity: int) -> None:
        if a != b:
            arcs[a, b] = min(arcs.get((a, b), 0) + capacity, _LARGE)

    for node, is_low in fixed.items():
        arc(*((places[node], low) if is_low else (float32, places[node])), _LARGE)
    count = len(places) + 2
    for value in values.values():
        source = float32 if value.producer is None else places[value.producer]
        readers = {places[node] for node in value.readers} | ({float32} if value.is_float32 else set())
        # One Cast to the lower precision serves all readers there, and one to float32 those there.
        arc(source, count, 1)
        arc(count + 1, source, 1)
        for reader in readers:
            arc(count, reader, _LARGE)
            arc(reader, count + 1, _LARGE)
        count += 2
    rows, columns = zip(*arcs, strict=True) if arcs else ((), ())
    graph = csr_matrix((np.array(list(arcs.values()), np.int32), (rows, columns)), (count, count))
    residual = graph - maximum_flow(graph, float32, low).flow
    residual.data = np.maximum(residual.data, 0)
    residual.eliminate_zeros()
    reached = set(breadth_first_order(residual, float32, return_predecessors=False).tolist())
    return {node for node, place in places.items() if place not in reached}
