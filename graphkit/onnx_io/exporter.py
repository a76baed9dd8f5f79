"""Export to ONNX: a Graph and its parameters become a ModelProto that any runtime reads.

`lowering` converts the graph to operators of the target opset. Then it is written: captures of subgraphs become names
of the outer scope, hidden operands are omitted, and attributes and operand types are checked against the target's
schemas.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, TensorProto

from graphkit.distribution import is_installed, version
from graphkit.errors import UnsupportedError, UsageError, did_you_mean
from graphkit.ir.graph import Graph, Node, Operator, Value
from graphkit.ir.names import Names
from graphkit.ir.stored import StoredArray
from graphkit.ir.tensor import Tensor
from graphkit.ir.types import DType, dtype_of
from graphkit.onnx_io import initializers
from graphkit.onnx_io.codes import NEWEST_OPSET
from graphkit.onnx_io.lowering import lower
from graphkit.onnx_io.scopes import Reader
from graphkit.onnx_io.spelling import domain_version, spelled, target_schema
from graphkit.onnx_io.tensors import packed_nbytes, to_header, to_proto, type_to_proto
from graphkit.onnx_io.writing import ALIGNMENT, Initialiser, UnwrittenModel, write
from graphkit.ops import Op, operator
from graphkit.ops.control.views import capture_count
from graphkit.passes.simplify.known_ranks import known_ranks
from graphkit.signatures import typed

OLDEST_TARGET = 13
DEFAULT_TARGET = 21
# Constants above this many bytes are written as initialisers, which tools can store outside the model.
_INLINE_CONSTANT = 1 << 10

# Metadata that the importer derives from other fields of the file.
_FIELDS = {"onnx.domain": "domain", "onnx.doc_string": "doc_string"}
_DERIVED = frozenset({"onnx.renamed", "onnx.replaced", "onnx.opset", "onnx.model_version", "onnx.graph_doc_string"})


def _own_version() -> str:
    """Return graphkit's version; "" in a source tree that was never installed."""
    return version() if is_installed() else ""


@typed("Model.to_onnx")
def export(
    graph: Graph,
    params: Mapping[str, Any],
    *,
    opset: int | None = None,
    name: str = "",
    meta: Mapping[str, str] | None = None,
    as_inputs: bool | Collection[str] = False,
    with_updates: bool = False,
) -> ModelProto:
    """Convert `graph` to ONNX at `opset` (13 to 28; None: 21, or the first later one that has all operators).

    Args:
        params: An array for every input of role parameter or state. They become initialisers.
        as_inputs: Make parameters graph inputs, too, all of them or those of these names. An initialiser is then a
            default. If all are inputs, it may be missing.
        with_updates: Add one output for each update of a state: `<state>_updated`.

    Raises:
        UnsupportedError: The target opset cannot express a node.
        UsageError: A parameter is missing or does not fit.
    """
    return _convert(graph, params, None, opset, name, meta, as_inputs, with_updates)


@typed("Model.save")
def save(
    graph: Graph,
    params: Mapping[str, Any],
    path: str | os.PathLike[str],
    *,
    external: bool | None = None,
    opset: int | None = None,
    name: str = "",
    meta: Mapping[str, str] | None = None,
    as_inputs: bool | Collection[str] = False,
    with_updates: bool = False,
) -> list[Path]:
    """Write `graph` to an ONNX file; return the files written, the model last. See `export` and `writing.write`."""
    larger: list[Initialiser] = []
    proto = _convert(graph, params, larger, opset, name, meta, as_inputs, with_updates)
    return write(UnwrittenModel(proto, larger), path, external=external)


def _convert(
    graph: Graph,
    params: Mapping[str, Any],
    larger: list[Initialiser] | None,
    opset: int | None,
    name: str,
    meta: Mapping[str, str] | None,
    as_inputs: bool | Collection[str],
    with_updates: bool,
) -> ModelProto:
    """See `export`. larger: list that receives all initialisers instead of the model, larger ones without a copy."""
    if opset is not None and not OLDEST_TARGET <= opset <= NEWEST_OPSET:
        raise UnsupportedError(f"cannot export at opset {opset}; {OLDEST_TARGET} to {NEWEST_OPSET} are possible")
    # Names are chosen before lowering, because `params` uses the names of the original graph.
    names = {value: graph.name_of(value) for value in graph.inputs}
    outputs = dict(zip(graph.output_names, graph.outputs, strict=True))
    if with_updates:
        for state, new in graph.updates:
            outputs[f"{names[state]}_updated"] = new
    flat = known_ranks(Graph(graph.inputs, outputs.values(), name=graph.name, output_names=outputs, meta=graph.meta))

    def written(target: int, values: Mapping[str, Any], as_inputs: bool | Collection[str]) -> ModelProto:
        writer = _Writer(lower(flat, target), names, values, target, as_inputs, detaches=larger is not None)
        found = writer.model(name or graph.name, meta or graph.meta)
        if larger is not None:
            larger[:] = writer.detach(found)
        return found

    try:
        return written(opset or DEFAULT_TARGET, params, as_inputs)
    except UnsupportedError as error:
        refused = error
    for later in range((opset or DEFAULT_TARGET) + 1, NEWEST_OPSET + 1):
        try:
            written(later, {}, True)  # a trial without parameters, which may be large
        except UnsupportedError as error:
            refused = refused if opset else error
            continue
        if opset:
            raise UnsupportedError(f"{refused}; opset {later} has all operators (--opset, opset=)") from None
        return written(later, params, as_inputs)
    raise refused


class _Writer:
    """Writes one lowered graph. Names are unique over the graph and all its subgraphs."""

    def __init__(
        self,
        graph: Graph,
        input_names: Mapping[Value, str],
        params: Mapping[str, Any],
        target: int,
        as_inputs: bool | Collection[str],
        detaches: bool,
    ):
        self.graph = graph
        self.input_names = input_names
        self.params = params
        self.target = target
        self.as_inputs = as_inputs
        # The names of the parameters that become inputs, if not all of them do.
        self.own_inputs = frozenset(() if isinstance(as_inputs, bool) else as_inputs)
        self.names = Names()
        self.node_names = Names()
        self.domains: dict[str, set[str]] = {"": set()}
        self.roles: dict[str, str] = {}
        self.attributes: dict[str, dict[str, Any]] = {}
        # Arrays of the larger initialisers by name, if these are written without data.
        self.detached: dict[str, np.ndarray | StoredArray] | None = {} if detaches else None

    def model(self, name: str, meta: Mapping[str, str]) -> ModelProto:
        known = {self.input_names[v] for v in self.graph.inputs if v.role in ("parameter", "state")}
        unknown = next((key for key in (*self.params, *sorted(self.own_inputs)) if key not in known), None)
        if unknown is not None:
            raise UsageError(f"the graph has no parameter {unknown!r}{did_you_mean(unknown, known)}")
        proto = ModelProto(producer_name="graphkit", producer_version=_own_version())
        self.top(proto.graph, name)
        proto.ir_version = onnx.helper.OP_SET_ID_VERSION_MAP["ai.onnx", self.target]
        for domain, operators in sorted(self.domains.items()):
            version = self.target if domain == "" else domain_version(domain, self.target, operators)
            proto.opset_import.add(domain=domain, version=version)
        if meta.get("onnx.model_version", "").isdigit():
            proto.model_version = int(meta["onnx.model_version"])
        proto.graph.doc_string = meta.get("onnx.graph_doc_string", "")
        for key, text in meta.items():
            if key in _FIELDS:
                setattr(proto, _FIELDS[key], text)
            elif key not in _DERIVED:
                proto.metadata_props.add(key=key, value=text)
        # Store the roles that an importer would guess wrong in the metadata.
        plan = initializers.classify(proto, Reader(name).graph(proto.graph))
        taken = {n: role for region, n, role in plan.entries if n in region.initializers}
        differing = {n: role for n, role in self.roles.items() if taken.get(n) != role}
        if differing:
            proto.metadata_props.add(key=initializers.ROLES_KEY, value=json.dumps(differing, sort_keys=True))
        if self.attributes:
            proto.metadata_props.add(key=initializers.ATTRIBUTES_KEY, value=json.dumps(self.attributes, sort_keys=True))
        return proto

    def top(self, proto: GraphProto, name: str) -> None:
        """Write the model's graph in place. Copying a message serialises it, which protobuf limits to 2 GiB."""
        graph = self.graph
        proto.name = name or "graph"
        table = {v: self.names.take(self.input_names[v]) for v in graph.inputs}
        read = _values_read(graph)
        for value in graph.inputs:
            if value.role == "rng" and value not in read:
                continue
            if value.role in ("parameter", "state"):
                array = self.param(value)
                if array is not None:
                    self.initialiser(proto, array, table[value])
                    self.roles[table[value]] = value.role
                    if attrs := initializers.written_attributes(value.attrs):
                        self.attributes[table[value]] = attrs
                if self.as_inputs is not True and self.input_names[value] not in self.own_inputs:
                    continue
            proto.input.add(name=table[value], type=type_to_proto(value.type))
        self.body(proto, graph, graph.output_names, table, top=True)

    def initialiser(self, proto: GraphProto, array: np.ndarray | StoredArray, name: str) -> None:
        """Add an initialiser to the model's graph."""
        added = proto.initializer.add()
        dtype = dtype_of(array.dtype)
        small = dtype is DType.STRING or packed_nbytes(dtype, math.prod(array.shape)) < ALIGNMENT
        if self.detached is None or small:
            to_proto(np.asarray(array), name, into=added)
            return
        to_header(array, name, added)
        self.detached[name] = array

    def detach(self, model: ModelProto) -> list[Initialiser]:
        """Remove all initialisers from a written model, and return them in order, larger ones with their arrays."""
        arrays = self.detached or {}
        found = []
        for tensor in model.graph.initializer:
            header = TensorProto()
            header.CopyFrom(tensor)
            array = arrays.get(tensor.name)
            found.append(Initialiser(header) if array is None else Initialiser.of(array, header))
        del model.graph.initializer[:]
        return found

    def param(self, value: Value) -> np.ndarray | StoredArray | None:
        """The array of a parameter input, checked against its type."""
        name = self.input_names[value]
        if name not in self.params:
            if self.as_inputs is True:
                return None
            raise UsageError(f"parameter {name!r} has no value")
        given = self.params[name]
        array = given if isinstance(given, StoredArray) else np.asarray(given)
        wanted = value.tensor
        static = wanted.static_shape if wanted.is_static else array.shape
        if dtype_of(array.dtype) is not wanted.dtype or array.shape != static:
            raise UsageError(f"parameter {name!r} is {wanted}; its array is {array.dtype}{list(array.shape)}")
        return array

    def body(
        self, proto: GraphProto, graph: Graph, output_names: Sequence[str], table: dict[Value, str], top: bool
    ) -> None:
        """Write the nodes and outputs of `graph`; `table` names its inputs (captures by their outer names)."""
        given = set(table)
        names: dict[Value, str] = dict(table)
        final: list[tuple[str, Value, bool]] = []
        for wanted, value in zip(output_names, graph.outputs, strict=True):
            if top and table.get(value) == wanted:
                final.append((wanted, value, True))  # an input that is an output, too, under the same name
                continue
            unique = self.names.take(wanted)
            direct = value not in names
            if direct:
                names[value] = unique
            final.append((unique, value, direct))
        constants: set[Value] = set()

        def name_of(value: Value) -> str:
            if value not in names:
                names[value] = self.names.take(graph.name_of(value))
            node = value.node
            if node is not None and _is_constant(node) and value not in given and value not in constants:
                constants.add(value)
                self.constant(proto, node, names[value], graph.node_name(node), top)
            return names[value]

        read = {*graph.outputs, *(v for node in graph.nodes for v in node.operands)}
        for node in graph.nodes:
            if _is_constant(node):
                continue  # written at its first use, because a spelling may omit it
            self.node(proto, node, graph.node_name(node), self.used_outputs(node, read), name_of)
        for unique, value, direct in final:
            if direct:
                name_of(value)
            else:
                proto.node.add(op_type="Identity", input=[name_of(value)], output=[unique],
                               name=self.node_names.take(f"{unique}/identity"))  # fmt: skip
            proto.output.add(name=unique, type=type_to_proto(value.type))

    def constant(self, proto: GraphProto, node: Node, name: str, node_name: str, top: bool) -> None:
        tensor: Tensor = node.op.attributes()["value"]
        if top and tensor.nbytes > _INLINE_CONSTANT and tensor.dtype is not DType.STRING:
            self.initialiser(proto, tensor.array, name)
            self.roles[name] = "constant"
            return
        written = proto.node.add(op_type="Constant", output=[name], name=self.node_names.take(node_name))
        written.attribute.append(onnx.helper.make_attribute("value", to_proto(tensor.array)))

    def node(self, proto: GraphProto, node: Node, name: str, outputs: Iterable[Value], name_of: Any) -> None:
        written, inputs = spelled(node, list(node.inputs), self.target)
        self.domains.setdefault(written.domain, set()).add(written.op_type)
        written.name = self.node_names.take(name)
        written.input.extend("" if v is None else name_of(v) for v in inputs)
        for key, text in node.meta.items():
            written.metadata_props.add(key=key, value=text)
        for key, subgraph in node.op.subgraphs().items():
            captured = _captured(node)
            written.attribute.append(onnx.helper.make_attribute(key, self.subgraph(subgraph, captured, name_of)))
        written.output.extend(name_of(v) for v in outputs)
        proto.node.append(written)

    def used_outputs(self, node: Node, read: Set[Value]) -> Iterable[Value]:
        """The outputs that get names: unread trailing ones are omitted if they are optional in the target's schema."""
        outputs = list(node.outputs)
        form = operator(node, Op).onnx
        schema = None if form is None else target_schema(form.name, self.target, form.domain)
        if schema is None:
            return outputs
        while len(outputs) > max(schema.min_output, 1) and outputs[-1] not in read and not _counts(node.op):
            outputs.pop()
        return outputs

    def subgraph(self, graph: Graph, captured: Sequence[Value], outer_name: Any) -> GraphProto:
        proto = GraphProto(name=graph.name or "body")
        own = graph.inputs[: len(graph.inputs) - len(captured)]
        table = {v: self.names.take(graph.name_of(v)) for v in own}
        for value in own:
            proto.input.add(name=table[value], type=type_to_proto(value.type))
        outer = graph.inputs[len(own) :]
        table.update((inner, outer_name(value)) for inner, value in zip(outer, captured, strict=True))
        self.body(proto, graph, graph.output_names, table, top=False)
        return proto


def _is_constant(node: Node) -> bool:
    return node.op.name == "Constant" and node.op.domain == ""


def _counts(op: Operator) -> bool:
    """Whether the number of outputs is part of the operator's meaning, so that none may be omitted."""
    return bool(op.subgraphs()) or op.name in ("Split", "BatchNormalization")


def _values_read(graph: Graph) -> set[Value]:
    """Values that outputs or written operands refer to by name. A capture is included only if its subgraph reads it."""
    read = set(graph.outputs)
    for node in graph.nodes:
        captured = _captured(node)
        own = len(node.inputs) - len(captured)
        read.update(v for v in node.inputs[:own] if v is not None)
        for subgraph in node.op.subgraphs().values():
            inner = _values_read(subgraph)
            names = subgraph.inputs[len(subgraph.inputs) - len(captured) :]
            read.update(outer for outer, name in zip(captured, names, strict=True) if name in inner)
    return read


def _captured(node: Node) -> list[Value]:
    """The operands of a control-flow node that its subgraphs know by their outer names."""
    if not node.op.subgraphs():
        return []
    count = capture_count(node)
    return [v for v in node.inputs[len(node.inputs) - count :] if v is not None]
