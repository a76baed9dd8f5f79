"""Find the layers of a graph that can have adapters, and give each a name."""

from __future__ import annotations

import ast
import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from graphkit.errors import GraphkitWarning, UsageError, did_you_mean
from graphkit.ir.graph import Graph, Node, Value, topological
from graphkit.ir.origin import titled
from graphkit.ir.types import FLOATS, TensorType
from graphkit.named_tuples import NamedTuple
from graphkit.ops.linalg.matmul import Gemm
from graphkit.ops.nn.conv import Conv
from graphkit.passes.core.match import FixedValues, is_op
from graphkit.passes.core.sweep import all_nodes
from graphkit.text import listed

_T = TypeVar("_T")
# Operators of layers that can have adapters.
KINDS = ("MatMul", "Gemm", "Conv")
# The ending of the name of a weight, or of the scales of a quantised weight; the rest is the name of the layer.
_ENDING = re.compile(r"(?<=.)[._/]weight([._](Q[48]_)?scales?)?$")
# The ending of the name of a result, where an exporter makes it from that of the node.
_RESULT = re.compile(r"[/_]output_\d+$")
# Metadata of nodes in files of PyTorch's exporter: the module paths of the layer and those around it.
_SCOPES = "pkg.torch.onnx.name_scopes"


class Layer(NamedTuple):
    """A layer with a weight that does not depend on the data.

    Attributes:
        name: The name of the layer, the same in each export of a network as far as possible.
        nodes: The nodes that apply the weight. Several nodes share one adapter.
        weight: The weight as the first node reads it: a parameter, or a value that is computed from parameters and
            constants.
        aliases: Other names by which the layer is found: those of its nodes and of its weight.
    """

    name: str
    nodes: tuple[Node, ...]
    weight: Value
    aliases: tuple[str, ...]

    @property
    def is_conv(self) -> bool:
        return isinstance(self.nodes[0].op, Conv)

    @property
    def outputs_first(self) -> bool:
        """Whether axis 0 of the weight counts outputs; otherwise it is axis 1."""
        op = self.nodes[0].op
        return isinstance(op, Conv) or (isinstance(op, Gemm) and op.transB)

    @property
    def outputs(self) -> int:
        size: int = self.weight.tensor.static_shape[0 if self.outputs_first else 1]
        return size

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one row of A: the number of inputs; for a convolution, also the sizes of the kernel."""
        shape: tuple[int, ...] = self.weight.tensor.static_shape
        return shape[1:] if self.is_conv else (shape[1 if self.outputs_first else 0],)


class Refused(NamedTuple):
    """A node with weights that cannot have an adapter: the names by which it is found, and the reason."""

    names: tuple[str, ...]
    reason: str


def select_layers(graph: Graph, patterns: Sequence[str], owner: str) -> list[Layer]:
    """Return the layers whose names match one of the patterns.

    A pattern that is the exact name of a layer selects only this layer, even if it contains brackets.

    If a pattern matches layers that cannot have adapters besides others, a warning lists them.

    Args:
        graph: The graph.
        patterns: Names or glob patterns.
        owner: The function, for errors.

    Raises:
        UsageError: A pattern matches no layer that can have an adapter, or two layers have the same name.
    """
    layers, refused = find_layers(graph)
    by_name = _by_name((layer, (layer.name, *layer.aliases)) for layer in layers)
    refused_by_name = _by_name((each, each.names) for each in refused)
    exact = by_name.keys() | refused_by_name.keys()
    counts = Counter(layer.name for layer in layers)
    chosen: set[str] = set()
    left_out: dict[str, str] = {}
    for pattern in patterns:
        found = _matching(pattern, by_name, exact)
        others = _matching(pattern, refused_by_name, exact)
        if not found:
            raise UsageError(f"{owner}: {_unmatched(graph, pattern, layers, others)}")
        for layer in found:
            if counts[layer.name] > 1:
                raise UsageError(
                    f"{owner}: two layers of {titled(graph, 'model')} have the name {layer.name!r}, so an adapter file "
                    "could not tell them apart; rename one of their nodes or weights"
                )
            chosen.add(layer.name)
        left_out.update((each.names[0], each.reason) for each in others)
    if left_out:
        shown = listed((f"{name} ({reason})" for name, reason in left_out.items()), len(left_out))
        warnings.warn(f"{owner}: these layers match, but get no adapter: {shown}", GraphkitWarning, stacklevel=5)
    return [layer for layer in layers if layer.name in chosen]


def _by_name(named: Iterable[tuple[_T, Sequence[str]]]) -> dict[str, list[_T]]:
    """Return the items of each name."""
    found: dict[str, list[_T]] = {}
    for item, names in named:
        for name in dict.fromkeys(names):
            found.setdefault(name, []).append(item)
    return found


def _matching(pattern: str, by_name: Mapping[str, list[_T]], exact: Collection[str]) -> list[_T]:
    """Return the items with a name that is the pattern, or matches it if no item has exactly this name."""
    if pattern in exact:
        return by_name.get(pattern, [])
    matching = (item for name, items in by_name.items() if fnmatchcase(name, pattern) for item in items)
    return list({id(item): item for item in matching}.values())


def _unmatched(graph: Graph, pattern: str, layers: Sequence[Layer], others: Sequence[Refused]) -> str:
    """Return the error for a pattern that matches no layer."""
    if others:
        return (
            f"the layers that match {pattern!r} cannot have adapters: "
            + listed((f"{each.names[0]} ({each.reason})" for each in others), len(others))
        )  # fmt: skip
    names = [layer.name for layer in layers]
    if not names:
        return f"{titled(graph, 'model')} has no MatMul, Gemm or Conv with weights"
    return f"layers pattern {pattern!r} matches no layer of {titled(graph, 'model')}{did_you_mean(pattern, names)}"


def find_layers(graph: Graph) -> tuple[list[Layer], list[Refused]]:
    """Return the layers that can have adapters, in the order of the graph, and the nodes that cannot."""
    fixed, keys = FixedValues(graph), _Keys()
    groups: dict[Any, list[Node]] = {}
    refused: list[Refused] = []
    for node in graph.nodes:
        if not is_op(node, *KINDS):
            refused += _inside(node)
            continue
        data, weight = node.inputs[:2]
        assert data is not None
        assert weight is not None
        if data in fixed and weight in fixed:
            continue
        reason = _reason(node, fixed)
        if reason:
            operand = data if data in fixed else weight
            refused.append(Refused((_path(node) or graph.node_name(node), *_names(graph, node, operand)), reason))
        elif weight in fixed:
            groups.setdefault((keys.of(weight), _orientation(node)), []).append(node)
    uses = _uses(graph, fixed, {v for nodes in groups.values() for n in nodes if (v := n.inputs[1]) is not None}, keys)
    layers = []
    for nodes in groups.values():
        value = nodes[0].inputs[1]
        assert value is not None
        aliases = dict.fromkeys(name for node in nodes for name in _names(graph, node, value))
        layers.append(Layer(_layer_name(graph, nodes[0], value, uses), tuple(nodes), value, tuple(aliases)))
    return _distinct(graph, layers), refused


def _orientation(node: Node) -> str:
    """Return what must be equal in nodes that share an adapter: the kind of layer, and the axis of the outputs."""
    return "Conv" if isinstance(node.op, Conv) else f"matrix {isinstance(node.op, Gemm) and node.op.transB}"


def _reason(node: Node, fixed: FixedValues) -> str:
    """Return why a node cannot have an adapter; "" if it can, or has no weight."""
    data, weight = node.inputs[:2]
    assert data is not None
    assert weight is not None
    if data in fixed:
        return "its weight is the first operand" if not isinstance(node.op, Conv) else "its input is constant"
    if weight not in fixed:
        return ""
    if not isinstance(weight.type, TensorType) or not weight.type.is_static:
        return "the shape of its weight is not known"
    if weight.dtype not in FLOATS:
        return f"its weight is {weight.dtype}"
    if isinstance(node.op, Conv):
        return "a grouped convolution" if node.op.group != 1 else ""
    if weight.rank != 2:
        return f"its weight has {weight.rank} axes"
    return "its input is transposed (transA)" if isinstance(node.op, Gemm) and node.op.transA else ""


def _inside(node: Node) -> Iterator[Refused]:
    """Yield the layers in the subgraphs of a node."""
    for body in node.op.subgraphs().values():
        fixed = FixedValues(body)
        captured = set(body.inputs)
        for inner in all_nodes(body):
            if is_op(inner, *KINDS) and any(v in captured or v in fixed for v in inner.operands[:2]):
                names = (_path(inner) or inner.name or inner.op.name, inner.name, node.name)
                yield Refused(tuple(filter(None, names)), f"inside of {node.op.name} {node.name!r}")


class _Keys:
    """Keys of values: two values have equal keys if the same operators compute them from the same leaves."""

    def __init__(self) -> None:
        self._known: dict[Value, Any] = {}
        self._numbers: dict[Any, int] = {}

    def of(self, value: Value) -> Any:
        for node in topological([value]):
            if node.outputs[0] not in self._known:
                operands = tuple(v if v is None else self._known.get(v, v) for v in node.inputs)
                for result in node.outputs:
                    key = (node.op, operands, result.index)
                    self._known[result] = self._numbers.setdefault(key, len(self._numbers))
        return self._known.get(value, value)


def leaves_of(value: Value) -> set[Value]:
    """Return the graph inputs that a value depends on."""
    found, pending = {value}, [value]
    while pending:
        node = pending.pop().node
        new = set(() if node is None else node.operands) - found
        found |= new
        pending += new
    return {v for v in found if v.node is None}


def _uses(graph: Graph, fixed: FixedValues, weights: set[Value], keys: _Keys) -> dict[Value, set[Any]]:
    """Return the uses of each graph input: the keys of the weights that it is part of, and None for another use."""
    uses: dict[Value, set[Any]] = {}
    for node in graph.nodes:
        if all(v in fixed for v in node.outputs):
            continue
        for position, value in enumerate(node.inputs):
            if value is not None and value in fixed:
                is_weight = value in weights and position == 1 and is_op(node, *KINDS)
                for leaf in leaves_of(value):
                    uses.setdefault(leaf, set()).add(keys.of(value) if is_weight else None)
    for value in graph.outputs:
        for leaf in leaves_of(value) if value in fixed else ():
            uses.setdefault(leaf, set()).add(None)
    return uses


def _layer_name(graph: Graph, node: Node, weight: Value, uses: dict[Value, set[Any]]) -> str:
    """Return the name of a layer: that of its weight, its module in PyTorch, or that of its node.

    The name of the weight counts only if nothing else uses the weight: an embedding may share it.
    """
    parameters = [v for v in leaves_of(weight) if v.role == "parameter"]
    if len(parameters) == 1 and len(uses[parameters[0]]) == 1:
        name = graph.name_of(parameters[0])
        if (found := _ENDING.search(name)) is not None:
            return name[: found.start()].replace("/", ".")
    return _path(node) or _dotted(_label(node) or graph.node_name(node))


def _label(node: Node) -> str:
    """Return the name of a node; if an upgrade to newer operators has lost it, the part of it in the result's name."""
    return node.name or _RESULT.sub("", node.output.name)


def _dotted(name: str) -> str:
    return name.strip("/").replace("/", ".") or name


def _path(node: Node) -> str:
    """Return the path of the module that a node is exported from, such as `encoder.attn.q`; "" if it is not known."""
    try:
        scopes = ast.literal_eval(node.meta.get(_SCOPES, ""))
        if isinstance(scopes, list) and len(scopes) > 1 and isinstance(scopes[-2], str) and scopes[-2]:
            return str(scopes[-2])
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        pass  # the node is not from such a file
    name = _label(node)
    parts = name.strip("/").split("/")
    return ".".join(parts[:-1]) if name.startswith("/") else ""


def _names(graph: Graph, node: Node, weight: Value) -> tuple[str, ...]:
    """Return the names of a node, and of the parameters in its weight."""
    own = [name] if (name := _label(node)) else []
    return (*own, *sorted(graph.name_of(v) for v in leaves_of(weight) if v.role == "parameter"))


def _distinct(graph: Graph, layers: list[Layer]) -> list[Layer]:
    """Return the layers; those whose names would be equal have the names of their nodes."""
    counts = Counter(layer.name for layer in layers)
    return [
        layer._replace(name=_dotted(_label(layer.nodes[0]) or graph.node_name(layer.nodes[0])))
        if counts[layer.name] > 1
        else layer
        for layer in layers
    ]
