"""Read the graphs of a file as regions: nodes in dependency order, with checked names.

This checks that names are unique, that inputs are defined, and that there are no cycles. It also finds the outer names
that a subgraph uses. The time is linear in nodes and edges; nesting and size have limits.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from graphkit import config
from graphkit.errors import InvalidModel
from graphkit.onnx_io.codes import AttributeType
from graphkit.onnx_io.validate import require_text, tell

if TYPE_CHECKING:
    from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, SparseTensorProto, TensorProto, TypeProto

_Item = TypeVar("_Item")

# The only operator whose attributes contain names of values.
GRADIENT = ("ai.onnx.preview.training", "Gradient")

MAX_DEPTH = 32


class RawNode:
    """A node of the file: names, attributes by name, subgraphs as regions.

    `index` is the node's position in its region, and `place` describes the region. Errors use them if neither the node
    nor its outputs have names.
    """

    __slots__ = (
        "attributes",
        "domain",
        "index",
        "inputs",
        "name",
        "op_type",
        "outputs",
        "overload",
        "place",
        "proto",
        "regions",
    )

    def __init__(
        self,
        proto: NodeProto,
        regions: Mapping[str, Region],
        attributes: Mapping[str, AttributeProto],
        index: int = 0,
        place: str = "",
    ):
        domain = proto.domain
        self.index, self.place = index, place
        self.op_type = proto.op_type
        self.domain = "" if domain == "ai.onnx" else domain
        self.overload = proto.overload
        self.name = proto.name
        self.inputs = tuple(proto.input)
        self.outputs = tuple(proto.output)
        self.attributes = attributes
        self.regions = regions
        self.proto = proto

    @property
    def meta(self) -> dict[str, str]:
        texts = {p.key: p.value for p in self.proto.metadata_props}
        if texts:
            require_text(f"{self}: metadata", *texts, *texts.values())
        return texts

    @property
    def needs(self) -> Iterator[str]:
        """Names that must be defined before the node: its inputs, and outer names that its subgraphs use."""
        given: Iterator[str] = filter(None, self.inputs)
        if (self.domain, self.op_type) == GRADIENT:
            given = itertools.chain(given, self._named_in_attributes())
        return itertools.chain(given, *(r.free for r in self.regions.values())) if self.regions else given

    def _named_in_attributes(self) -> Iterator[str]:
        for key in ("y", "xs", "zs"):
            attribute = self.attributes.get(key)
            if attribute is not None:
                yield from (text.decode(errors="replace") for text in (attribute.s, *attribute.strings) if text)

    def __str__(self) -> str:
        operator = f"{self.domain}.{self.op_type}" if self.domain else self.op_type
        if self.name:
            return f"node {self.name!r} ({operator})"
        output = next(filter(None, self.outputs), None)
        if output:
            return f"node of {output!r} ({operator})"
        return f"node {self.index} ({operator}) of {self.place}" if self.place else f"node ({operator})"


class Region:
    """The content of a GraphProto or FunctionProto.

    `nodes` are in dependency order. `free` maps each name that the region uses and does not define to the first
    node that uses it (None: an output of the region). `replaced` are names that several Constant nodes define: the
    last one counts. `place` says where the region is in the file: "graph 'main'", "function my.Swish", or
    "the then_branch of node 'choose' (If)". It is text: with a reference to the node, the file's weights would stay in
    memory until Python looks for reference cycles.
    """

    __slots__ = (
        "declared",
        "doc",
        "free",
        "initializers",
        "inputs",
        "name",
        "nodes",
        "outputs",
        "place",
        "replaced",
        "sparse",
    )

    def __init__(self, name: str, place: str):
        self.name = name
        self.place = place
        self.doc = ""
        self.inputs: list[tuple[str, TypeProto | None]] = []
        self.outputs: list[tuple[str, TypeProto | None]] = []
        self.initializers: dict[str, TensorProto] = {}
        self.sparse: dict[str, SparseTensorProto] = {}
        self.declared: dict[str, TypeProto] = {}
        self.nodes: list[RawNode] = []
        self.free: dict[str, RawNode | None] = {}
        self.replaced: list[str] = []

    def walk(self) -> Iterator[tuple[Region, RawNode]]:
        """Every node, with its region, of this region and of all nested ones."""
        stack = [self]
        while stack:
            region = stack.pop()
            for node in region.nodes:
                yield region, node
                stack.extend(node.regions.values())


class Reader:
    """Builds regions of one file; `label` begins every message."""

    def __init__(self, label: str):
        self.label = label
        self._nodes = 0

    def graph(self, proto: GraphProto, depth: int = 0, place: str = "") -> Region:
        """Read a graph and its subgraphs. Raises InvalidModel, which names node and value. place: see Region."""
        require_text(f"{self.label}: graph", proto.name, proto.doc_string)
        region = Region(proto.name, place or (f"graph {proto.name!r}" if proto.name else "the file's graph"))
        region.doc = proto.doc_string
        region.inputs = [(i.name, i.type) for i in proto.input]
        region.outputs = [(o.name, o.type) for o in proto.output]
        region.declared = {v.name: v.type for v in proto.value_info}
        where = f"{self.label}: {region.place}"
        require_text(where, *region.declared, *(n for n, _ in region.inputs), *(n for n, _ in region.outputs))
        for tensor in proto.initializer:
            self._initializer(region, tensor, where)
        for sparse in proto.sparse_initializer:
            self._once(region.sparse, sparse.values.name, sparse, f"{where}: sparse initializer")
        seen: set[str] = set()
        for name, _ in region.inputs:
            if not name or name in seen:
                raise InvalidModel(f"{where}: input {name!r} is {'listed twice' if name else 'without a name'}")
            seen.add(name)
        for name in region.sparse:
            if name in region.initializers:
                raise InvalidModel(f"{where}: initializer {name!r} is given twice")
        if any(not name for name, _ in region.outputs):
            raise InvalidModel(f"{where}: an output has no name")
        self._finish(region, proto.node, {*seen, *region.initializers, *region.sparse}, where, depth)
        return region

    def function(self, proto: FunctionProto, standard: bool = False) -> Region:
        """Read the body of a function, which sees no outer names.

        standard: the standard generated the body for given operands. It may lack outputs that these operands do not
        need.
        """
        require_text(f"{self.label}: function", proto.domain, proto.name, *proto.input, *proto.output)
        region = Region(proto.name, f"function {proto.domain}.{proto.name}")
        region.inputs = [(name, None) for name in proto.input]
        region.outputs = [(name, None) for name in proto.output]
        region.declared = {v.name: v.type for v in proto.value_info}
        where = f"{self.label}: {region.place}"
        if len(set(proto.input)) != len(proto.input):
            raise InvalidModel(f"{where}: an input is listed twice")
        self._finish(region, proto.node, set(proto.input), where, 0)
        if standard:
            region.free = {name: node for name, node in region.free.items() if node is not None}
        self.closed(region, where)
        return region

    def closed(self, region: Region, where: str) -> None:
        """Raises InvalidModel if the region uses undefined names."""
        if region.free:
            name, node = next(iter(region.free.items()))
            user = f"{node}: input" if node is not None else "output"
            raise InvalidModel(
                f"{where}: {user} {name!r} is not defined: no node, graph input or initializer has this name"
            )

    def _initializer(self, region: Region, tensor: TensorProto, where: str) -> None:
        """Store an initialiser. Of several with the same name, the last one counts, as in ONNX Runtime."""
        require_text(f"{where}: initializer", tensor.name)
        if not tensor.name:
            tell(f"{where}: an initializer has no name; it is ignored")
            return
        if tensor.name in region.initializers:
            tell(f"{where}: initializer {tensor.name!r} is given twice; the last one counts")
        region.initializers[tensor.name] = tensor

    def _once(self, table: dict[str, _Item], name: str, item: _Item, what: str) -> None:
        require_text(what, name)
        if not name or name in table:
            raise InvalidModel(f"{what} {name!r} is {'given twice' if name else 'without a name'}")
        table[name] = item

    def _finish(self, region: Region, protos: Sequence[NodeProto], given: set[str], where: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise InvalidModel(f"{where}: subgraphs nested deeper than {MAX_DEPTH}")
        self._nodes += len(protos)
        if self._nodes > (most := config.MAX_NODES.get()):
            raise InvalidModel(f"{self.label}: more than {most} nodes (GRAPHKIT_MAX_NODES)")
        nodes = [self._node(proto, index, region.place, depth) for index, proto in enumerate(protos)]
        producers: dict[str, int] = {}
        for index, node in enumerate(nodes):
            for name in filter(None, node.outputs):
                if name in producers and _is_constant(node) and _is_constant(nodes[producers[name]]):
                    # Some tools append constants for shapes whose names exist already. As in ONNX Runtime, the last one
                    # counts.
                    region.replaced.append(name)
                elif name in given or name in producers:
                    other = f"by {nodes[producers[name]]}" if name in producers else "as an input or initializer"
                    raise InvalidModel(f"{where}: {node}: output {name!r} is defined already, {other}")
                producers[name] = index
        if region.replaced:
            nodes = [n for i, n in enumerate(nodes) if not _is_constant(n) or producers[n.outputs[0]] == i]
            producers = {name: i for i, node in enumerate(nodes) for name in node.outputs if name}
        region.nodes = [nodes[i] for i in _ordered(nodes, producers, where)]
        for node in region.nodes:
            for name in node.needs:
                if name not in producers and name not in given:
                    region.free.setdefault(name, node)
        for name, _ in region.outputs:
            if name not in producers and name not in given:
                region.free.setdefault(name, None)

    def _node(self, proto: NodeProto, index: int, place: str, depth: int) -> RawNode:
        where = f"{self.label}: {place}"
        attributes: dict[str, AttributeProto] = {}
        regions: dict[str, Region] = {}
        node = RawNode(proto, regions, attributes, index, place)
        require_text(f"{where}: node", node.name, node.op_type, node.domain, node.overload, *node.inputs, *node.outputs)
        for attribute in proto.attribute:
            name, kind = attribute.name, attribute.type
            if not isinstance(name, str) or not isinstance(attribute.ref_attr_name, str):
                require_text(f"{where}: {node}: attribute", name, attribute.ref_attr_name)
            if name in attributes or name in regions:
                raise InvalidModel(f"{where}: {node}: attribute {name!r} is given twice")
            if kind == AttributeType.GRAPH or (not kind and attribute.HasField("g")):
                if attribute.ref_attr_name:
                    raise InvalidModel(f"{where}: {node}: a graph attribute cannot be a reference")
                regions[name] = self.graph(attribute.g, depth + 1, f"the {name} of {node}")
            else:
                attributes[name] = attribute
        if not node.op_type:
            raise InvalidModel(f"{where}: {node} has no operator type")
        return node


def _is_constant(node: RawNode) -> bool:
    return node.op_type == "Constant" and node.domain == "" and len(node.outputs) == 1 and node.outputs[0] != ""


def _ordered(nodes: Sequence[RawNode], producers: Mapping[str, int], where: str) -> Iterable[int]:
    """Indices in dependency order; the file's order if it is valid. Raises InvalidModel for a cycle."""
    ahead = any(producers.get(name, -1) >= index for index, node in enumerate(nodes) for name in node.needs)
    if not ahead:
        return range(len(nodes))
    order: list[int] = []
    state = bytearray(len(nodes))  # 0 not seen, 1 on the path, 2 placed
    for root in range(len(nodes)):
        if state[root]:
            continue
        state[root] = 1
        stack = [(root, nodes[root].needs)]
        while stack:
            index, needs = stack[-1]
            for name in needs:
                producer = producers.get(name, -1)
                if producer < 0 or state[producer] == 2:
                    continue
                if state[producer] == 1:
                    path = [i for i, _ in stack]
                    loop = path[path.index(producer) :]
                    shown = " -> ".join(str(nodes[i]) for i in [*loop[:5], producer])
                    raise InvalidModel(f"{where}: the nodes depend on each other: {shown}")
                state[producer] = 1
                stack.append((producer, nodes[producer].needs))
                break
            else:
                state[index] = 2
                order.append(index)
                stack.pop()
    return order
