"""Find the layers of a graph that can have adapters, and name them."""

from __future__ import annotations

import ast
import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from graphkit.errors import GraphkitWarning, UsageError, did_you_mean
from graphkit.ir.graph import Graph, Node, Value, topological
from graphkit.ir.origin import titled
from graphkit.ir.types import FLOATS, TensorType
from graphkit.named_tuples import NamedTuple
from graphkit.ops.control.views import capture_count
from graphkit.ops.linalg.matmul import Gemm
from graphkit.ops.nn.conv import Conv
from graphkit.passes.core.match import is_op
from graphkit.passes.core.sweep import is_control
from graphkit.text import listed
from graphkit.train.adapters.bodies import Scope, scopes

_T = TypeVar("_T")
KINDS = ("MatMul", "Gemm", "Conv")
_ENDING = re.compile(r"(?<=.)[._/]weight([._](Q[48]_)?scales?)?$")
# An exporter may name a result after its node, with this ending.
_RESULT = re.compile(r"[/_]output_\d+$")
# Metadata key in files of PyTorch's exporter: the paths of the modules around a node, the innermost last.
_SCOPES = "pkg.torch.onnx.name_scopes"


class Layer(NamedTuple):
    """A layer with a weight that does not depend on the data.

    Attributes:
        name: The name of the layer, the same in each export of a network if possible.
        nodes: The nodes that apply the weight, in the graph or in bodies. They share one adapter.
        weight: The weight that the first node reads, or the equal value of the outermost graph (see `Scope.fixed`).
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
        """Whether axis 0 of the weight counts outputs; otherwise axis 1 does."""
        op = self.nodes[0].op
        return isinstance(op, Conv) or (isinstance(op, Gemm) and op.transB)

    @property
    def outputs(self) -> int:
        size: int = self.weight.tensor.static_shape[0 if self.outputs_first else 1]
        return size

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one row of A: number of inputs, and sizes of the kernel of a convolution."""
        shape: tuple[int, ...] = self.weight.tensor.static_shape
        return shape[1:] if self.is_conv else (shape[1 if self.outputs_first else 0],)


class Refused(NamedTuple):
    names: tuple[str, ...]
    reason: str


def select_layers(graph: Graph, patterns: Sequence[str], owner: str) -> list[Layer]:
    """Return the layers whose names match one of the patterns.

    The exact name of a layer selects only this layer, even if it contains brackets.

    If a pattern matches layers that can have adapters and layers that cannot, a warning lists the latter.

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
    found: dict[str, list[_T]] = {}
    for item, names in named:
        for name in dict.fromkeys(names):
            found.setdefault(name, []).append(item)
    return found


def _matching(pattern: str, by_name: Mapping[str, list[_T]], exact: Collection[str]) -> list[_T]:
    if pattern in exact:
        return by_name.get(pattern, [])
    matching = (item for name, items in by_name.items() if fnmatchcase(name, pattern) for item in items)
    return list({id(item): item for item in matching}.values())


def _unmatched(graph: Graph, pattern: str, layers: Sequence[Layer], others: Sequence[Refused]) -> str:
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
    """Return the layers that can have adapters, and the nodes that cannot, of the graph and of all bodies in it.

    The layers of a body come after those of the graph around it.
    """
    keys = _Keys()
    groups: dict[Any, list[_Place]] = {}
    refused: list[Refused] = []
    found = list(scopes(graph))
    for scope in found:
        for node in scope.graph.nodes:
            if not is_op(node, *KINDS):
                continue
            data, weight = (scope.fixed(v) for v in node.inputs[:2])
            reason = _reason(node, scope)
            if reason:
                name = _path(node) or f"{scope.path}{scope.graph.node_name(node)}"
                refused.append(Refused((name, *_names(node, data or weight, graph)), reason))
            elif weight is not None and data is None:
                groups.setdefault((keys.of(weight), _orientation(node)), []).append(_Place(scope, node, weight))
    uses = _uses(found, {place.weight for places in groups.values() for place in places}, keys)
    counts = Counter(node for places in groups.values() for node in {place.node for place in places})
    layers = {}
    for places in groups.values():
        first, nodes = places[0], tuple(dict.fromkeys(place.node for place in places))
        aliases = dict.fromkeys(name for node in nodes for name in _names(node, first.weight, graph))
        layer = Layer(_layer_name(graph, first, uses), nodes, first.weight, tuple(aliases))
        if any(counts[node] > 1 for node in nodes):
            refused.append(Refused((layer.name, *aliases), "two loops or branches share its node, but not its weight"))
        else:
            layers[first] = layer
    return _distinct(layers), refused


class _Place(NamedTuple):
    scope: Scope
    node: Node
    weight: Value

    @property
    def label(self) -> str:
        return _dotted(_label(self.node) or f"{self.scope.path}{self.scope.graph.node_name(self.node)}")


def _orientation(node: Node) -> str:
    """Return the kind of layer and the axis of its outputs. Nodes that share an adapter agree in both."""
    return "Conv" if isinstance(node.op, Conv) else f"matrix {isinstance(node.op, Gemm) and node.op.transB}"


def _reason(node: Node, scope: Scope) -> str:
    data, weight = (scope.fixed(v) for v in node.inputs[:2])
    if data is not None and weight is not None:
        return ""
    if weight is None:
        if any(v is not None and scope.is_sliced(v) for v in node.inputs[:2]):
            return "each iteration of a Scan takes another slice as its weight"
        if data is None:
            return ""
        return "its weight is the first operand" if not isinstance(node.op, Conv) else "its input is constant"
    if not isinstance(weight.type, TensorType) or not weight.type.is_static:
        return "the shape of its weight is not known"
    if weight.dtype not in FLOATS:
        return f"its weight is {weight.dtype}"
    if isinstance(node.op, Conv):
        return "a grouped convolution" if node.op.group != 1 else ""
    if weight.rank != 2:
        return f"its weight has {weight.rank} axes"
    return "its input is transposed (transA)" if isinstance(node.op, Gemm) and node.op.transA else ""


class _Keys:
    """Two values have equal keys if the same operators compute them from the same leaves."""

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


def _uses(scopes: Sequence[Scope], weights: set[Value], keys: _Keys) -> dict[Value, set[Any]]:
    """For each graph input, return the set of the keys of the weights that depend on it.

    If anything else depends on the input, the set also contains None.

    weights: the weights of the layers in the outermost graph.
    """
    uses: dict[Value, set[Any]] = {}
    for scope in scopes:
        for node in scope.graph.nodes:
            if all(scope.fixed(v) is not None for v in node.outputs):
                continue
            # Skip the operands that bodies capture: the scopes of these bodies show how they are used.
            count = len(node.inputs) - (capture_count(node) if is_control(node) else 0)
            for position, operand in enumerate(node.inputs[:count]):
                value = scope.fixed(operand)
                if value is not None:
                    is_weight = value in weights and position == 1 and is_op(node, *KINDS)
                    for leaf in leaves_of(value):
                        uses.setdefault(leaf, set()).add(keys.of(value) if is_weight else None)
        for result in scope.graph.outputs:
            value = scope.fixed(result)
            for leaf in () if value is None else leaves_of(value):
                uses.setdefault(leaf, set()).add(None)
    return uses


def _layer_name(graph: Graph, place: _Place, uses: dict[Value, set[Any]]) -> str:
    """Name a layer after its weight, its module in PyTorch, or its node, and return this name.

    The weight's name is used only if nothing else, such as an embedding, reads its parameter.
    """
    parameters = [v for v in leaves_of(place.weight) if v.role == "parameter"]
    if len(parameters) == 1 and len(uses[parameters[0]]) == 1:
        name = graph.name_of(parameters[0])
        if (found := _ENDING.search(name)) is not None:
            return name[: found.start()].replace("/", ".")
    return _path(place.node) or place.label


def _label(node: Node) -> str:
    """Return the name of a node, else of its result without the ending `_RESULT`.

    An upgrade of the model to newer operators removes the names of nodes.
    """
    return node.name or _RESULT.sub("", node.output.name)


def _dotted(name: str) -> str:
    return name.strip("/").replace("/", ".") or name


def _path(node: Node) -> str:
    """Return the path of the module of a node, such as `encoder.attn.q`; "" if unknown."""
    try:
        scopes = ast.literal_eval(node.meta.get(_SCOPES, ""))
        if isinstance(scopes, list) and len(scopes) > 1 and isinstance(scopes[-2], str) and scopes[-2]:
            return str(scopes[-2])
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        pass  # the file has no such metadata
    name = _label(node)
    parts = name.strip("/").split("/")
    return ".".join(parts[:-1]) if name.startswith("/") else ""


def _names(node: Node, weight: Value | None, graph: Graph) -> tuple[str, ...]:
    own = [name] if (name := _label(node)) else []
    leaves = set() if weight is None else leaves_of(weight)
    return (*own, *sorted(graph.name_of(v) for v in leaves if v.role == "parameter"))


def _distinct(layers: Mapping[_Place, Layer]) -> list[Layer]:
    """Return the layers with distinct names. Equal names are replaced by those of nodes.

    If these are equal, too, the names of surrounding loops and branches are added.
    """
    counts = Counter(layer.name for layer in layers.values())
    named = {p: x._replace(name=p.label) if counts[x.name] > 1 else x for p, x in layers.items()}
    counts = Counter(layer.name for layer in named.values())
    return [x._replace(name=f"{p.scope.path}{p.label}") if counts[x.name] > 1 else x for p, x in named.items()]
