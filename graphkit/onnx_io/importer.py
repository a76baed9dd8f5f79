"""Import of ONNX: a model file becomes a Graph, its parameters and its metadata.

The file's nodes are read in dependency order, and brought up to the canonical opset by `upgrade`. Functions are
inlined, subgraphs are closed over their captures, and every type is inferred anew. Types that the file declares for
inner tensors are only checked: another element type is an error, another shape a warning (see `graphkit.ir.declared`).
Nothing in the file is executed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit import config
from graphkit.collector import without_gc
from graphkit.errors import BAD_VALUE, GraphkitError, InvalidModel, UnsupportedError, UnsupportedOperator, UsageError
from graphkit.ir import context, limits
from graphkit.ir.declared import Declarations
from graphkit.ir.graph import Graph, Node, Value, give_name, next_serial
from graphkit.ir.names import unique_names
from graphkit.ir.stored import StoredArray
from graphkit.ir.tensor import Tensor
from graphkit.ir.types import OptionalType, TensorType, Type
from graphkit.named_tuples import NamedTuple
from graphkit.onnx_io import attributes, functions, initializers, upgrade, validate
from graphkit.onnx_io.building import Differentiate, Names, Setting, StandIns
from graphkit.onnx_io.external_data import ExternalData
from graphkit.onnx_io.scopes import GRADIENT, RawNode, Reader, Region
from graphkit.onnx_io.tensors import (
    claims,
    densify,
    has_data,
    left_in_file,
    to_array,
    type_from_proto,
    type_to_proto,
)
from graphkit.onnx_io.uses import uses
from graphkit.onnx_io.validate import require_text
from graphkit.onnx_io.wire import Place
from graphkit.ops import F, Op, registry
from graphkit.text import nodes_by_operator, quantity

if TYPE_CHECKING:
    from onnx import AttributeProto, ModelProto, TypeProto

# Advice for files with operators of unsupported domains.
_HINTS = {
    "com.microsoft.nchwc": (
        "com.microsoft.nchwc: ONNX Runtime has optimised the file for one kind of CPU; let it save the model with "
        "graph_optimization_level ORT_ENABLE_EXTENDED or lower"
    ),
    "ai.onnx.contrib": "ai.onnx.contrib: these operators are code of the package onnxruntime-extensions, not graphs",
}


class Imported(NamedTuple):
    """An imported model.

    params: one array per graph input of role parameter or state, by its name in `graph`. Large ones stay in the file.
    declared: shapes in the file that shape inference could not check.
    """

    graph: Graph
    params: dict[str, np.ndarray | StoredArray]
    name: str
    meta: dict[str, str]
    declared: Declarations


@without_gc
def import_model(
    source: str | os.PathLike[str] | bytes | ModelProto,
    *,
    external_root: str | os.PathLike[str] | None = None,
    differentiate: Differentiate | None = None,
) -> Imported:
    """Read an ONNX model (opset 1 to 28) from a path, from bytes or from a ModelProto.

    Floating-point initialisers become inputs of role "parameter" (batch normalisation's mean and variance: "state"),
    others constants; see `initializers`.

    Args:
        external_root: One more folder in which external data may be.
        differentiate: Computes the gradients that the operator Gradient stands for.

    Raises:
        InvalidModel: The file is damaged or inconsistent.
        UnsafeModel: The file breaks a safety rule.
        UnsupportedError: A feature is not supported. UnsupportedOperator lists every unknown operator.
    """
    parsed = validate.read_model(source)
    external = ExternalData(parsed.folders, external_root)
    try:
        with context.detached():
            return Builder(parsed.model, parsed.label, external, parsed.large, differentiate).build()
    except RecursionError:
        raise InvalidModel(f"{parsed.label}: types or graphs are nested too deeply") from None


class Builder:
    """Builds the graph of one model; lowering uses it to build the standard definition of one operator."""

    def __init__(
        self,
        model: ModelProto,
        label: str,
        external: ExternalData,
        large: Mapping[str, Place] | None = None,
        differentiate: Differentiate | None = None,
    ):
        self.differentiate = differentiate
        self.differentiated = 0
        self.large = large or {}
        self.model = model
        self.label = label
        self.external = external
        reader = Reader(label)
        self.setting = Setting(validate.opsets_of(model.opset_import, label, warn=True), {})
        self.library = functions.Library(model.functions, self.setting.opsets, reader)
        self.top = reader.graph(model.graph)
        reader.closed(self.top, f"{label}: {self.top.place}")
        self.declared = Declarations(label)
        self.built = 0
        self.most_nodes = config.MAX_NODES.get()
        self.initial_values: dict[tuple[int, str], Value] = {}
        # Placeholders of the branch of an If that is being built, if it cannot be built on its own operands.
        self.stand_ins: StandIns | None = None
        self.final_error: InvalidModel | UnsupportedError | None = None
        # Branch of an If -> number of the attempt that succeeded.
        self.attempts: dict[int, int] = {}

    # --- the whole model ---------------------------------------------------------------------------

    def build(self) -> Imported:
        self.check_operators()
        self.check_functions()
        plan = initializers.classify(self.model, self.top)
        attrs_of = initializers.attributes(self.model)
        arrays: dict[Value, np.ndarray | StoredArray] = {}
        for region, name, role in plan.entries:
            if role == "constant":
                self.initial_values[id(region), name] = self.constant(Tensor(self.initial_array(region, name)), name)
            else:
                array = self.parameter_array(region, name)
                attrs = self.attributes_of(plan, name, array, attrs_of) if region is self.top else None
                value = Value(TensorType(array.dtype, array.shape), name, role=role, attrs=attrs)
                self.initial_values[id(region), name] = value
                arrays[value] = array
        names = Names()
        inputs: list[Value] = []
        for name, proto in self.top.inputs:
            if name in self.top.initializers or name in self.top.sparse:
                continue
            where = f"{self.label}: input {name!r}"
            declared = None if proto is None else type_from_proto(proto, where)
            if declared is None:
                raise InvalidModel(f"{where} has no type")
            if not isinstance(declared, TensorType):
                from graphkit.ops.sequence.elements import with_own_sizes

                declared = with_own_sizes(declared)
            inputs.append(Value(declared, name))
            names.values[name] = inputs[-1]
        outputs = self.region(self.top, names, self.setting)
        unique = unique_names(name for name, _ in self.top.outputs)
        graph = Graph([*inputs, *arrays], outputs, name=self.top.name, output_names=unique)
        if any(_draws(node) for node in graph.nodes):
            from graphkit.passes.training.randomness import bind_rng

            graph = bind_rng(graph)
        meta = self.metadata(graph, unique)
        params = {graph.name_of(value): array for value, array in arrays.items()}
        return Imported(graph.replace(meta=meta), params, self.top.name, meta, self.declared)

    def attributes_of(
        self, plan: initializers.Plan, name: str, array: np.ndarray | StoredArray, written: Mapping[str, dict[str, Any]]
    ) -> dict[str, Any]:
        """The attributes of a parameter: those that graphkit wrote; else `trainable` and `frozen` if it is frozen."""
        if name in written:
            return written[name]
        reason = plan.frozen.get(name)
        if reason is None and name in plan.initial_states and not np.any(np.asarray(array)):
            reason = initializers.ZERO_STATE
        return {} if reason is None else {"trainable": False, "frozen": reason}

    def initial_array(self, region: Region, name: str) -> np.ndarray:
        where = f"{self.label}: initializer {name!r}"
        if name in region.sparse:
            return densify(region.sparse[name], where, self.external)
        return to_array(region.initializers[name], where, self.external, self.place(region, name))

    def place(self, region: Region, name: str) -> Place | None:
        """The place of an initialiser's data in the file, if they were not read with the model; else None."""
        # If several initialisers have this name, the one that counts may be small, and so in memory.
        here = region is not self.top or has_data(region.initializers[name])
        return None if here else self.large.get(name)

    def parameter_array(self, region: Region, name: str) -> np.ndarray | StoredArray:
        """The array of a parameter. Large ones stay in the file, because they may be packed later, or never used."""
        stored = None
        if name in region.initializers:
            where = f"{self.label}: initializer {name!r}"
            stored = left_in_file(region.initializers[name], where, self.external, self.place(region, name))
        return self.initial_array(region, name) if stored is None else stored

    def metadata(self, graph: Graph, output_names: Sequence[str]) -> dict[str, str]:
        """The file's metadata, its producer, and the names that were changed because they were not unique."""
        model = self.model
        texts = [text for entry in model.metadata_props for text in (entry.key, entry.value)]
        facts = [model.producer_name, model.producer_version, model.domain, model.doc_string]
        require_text(f"{self.label}: metadata", *texts, *facts)
        meta = {entry.key: entry.value for entry in model.metadata_props if entry.key not in initializers.KEYS}
        fields = {
            "onnx.producer_name": model.producer_name,
            "onnx.producer_version": model.producer_version,
            "onnx.domain": model.domain,
            "onnx.model_version": str(model.model_version or ""),
            "onnx.doc_string": model.doc_string,
            "onnx.graph_doc_string": self.top.doc,
            "onnx.opset": str(self.setting.version("")),
        }
        meta.update((key, text) for key, text in fields.items() if text)
        renamed = {
            unique: name for unique, (name, _) in zip(output_names, self.top.outputs, strict=True) if unique != name
        }
        for node in graph.nodes:
            if node.name and graph.node_name(node) != node.name:
                renamed[graph.node_name(node)] = node.name
        if self.top.replaced:
            meta["onnx.replaced"] = _json(self.top.replaced)
        if renamed:
            meta["onnx.renamed"] = _json(renamed)
        return meta

    def check_operators(self) -> None:
        """Raises UnsupportedOperator, which lists every operator that graphkit cannot run, with its nodes."""
        missing: dict[str, list[str]] = {}
        for use in uses(self.top, self.setting.opsets, self.library):
            if use.means is None:
                raw = use.node
                operator = f"{raw.domain or 'ai.onnx'}.{raw.op_type}"
                name = raw.name or next(filter(None, raw.outputs), "")
                missing.setdefault(operator, []).append(repr(name) if name else str(raw))
        if missing:
            lines = nodes_by_operator(missing)
            lines += [
                f"  {hint}" for domain, hint in _HINTS.items() if any(o.startswith(f"{domain}.") for o in missing)
            ]
            if any(o.rpartition(".")[0] not in _HINTS for o in missing):
                lines.append(
                    "To add an operator, define a Python class with @gk.op that has the operator's name and `domain`, "
                    "and import it before you load the file (docs/operators.md)"
                )
            count = quantity(len(missing), "operator")
            are = "is" if len(missing) == 1 else "are"
            raise UnsupportedOperator(f"{self.label}: {count} {are} not implemented. Nodes:\n" + "\n".join(lines))

    def check_functions(self) -> None:
        """Raises InvalidModel for functions that call themselves, or expand to too many nodes."""
        if not self.model.functions:
            return
        try:
            nodes = functions.unfolded_nodes(functions.Function("", self.top, self.setting.opsets, (), {}), self.called)
        except InvalidModel as error:
            raise InvalidModel(f"{self.label}: {error}") from None
        if nodes > self.most_nodes:
            raise InvalidModel(
                f"{self.label}: the functions expand to {nodes} nodes, more than the limit of {self.most_nodes} "
                "(GRAPHKIT_MAX_NODES)"
            )

    def called(self, raw: RawNode, opsets: Mapping[str, int]) -> functions.Function | None:
        """The model-local function that a node calls; None for a known operator."""
        target, built = upgrade.destination(raw.domain, raw.op_type, Setting(opsets, {}).version(raw.domain))
        known = built or registry.find(raw.domain, target) is not None
        return None if known else self.library.find(raw)

    # --- nodes -------------------------------------------------------------------------------------

    def region(self, region: Region, names: Names, setting: Setting) -> list[Value]:
        """Build a region's nodes in `names`; returns its outputs."""
        for name in (*region.initializers, *region.sparse):
            value = self.initial_values.get((id(region), name))
            if value is None and region is not self.top:
                value = self.constant(Tensor(self.initial_array(region, name)), name)
            names.values[name] = value
        outputs = {name: proto for name, proto in region.outputs if proto is not None}
        for raw in region.nodes:
            self.node(raw, names, setting)
            for name in raw.outputs:
                # Outputs are checked below.
                if name in region.declared and name not in outputs:
                    self.check_declared(name, names.output(name).type, region.declared[name])
        for name, proto in outputs.items():
            self.hold_to(name, names, proto)
        return [names.output(name) for name, _ in region.outputs]

    def hold_to(self, name: str, names: Names, proto: TypeProto | None) -> None:
        """Check the declared type of an output. If needed, wrap the value in an optional, or unwrap it, as declared."""
        value = names.output(name)
        declared = None if proto is None else type_from_proto(proto, f"{self.label}: tensor {name!r}")
        if declared is not None and isinstance(declared, OptionalType) != isinstance(value.type, OptionalType):
            value = F.optional(value) if isinstance(declared, OptionalType) else F.optional_get_element(value)
            give_name(value, name)
            names.values[name] = value
        self.check_declared(name, value.type, proto)

    def check_declared(self, name: str, inferred: Type, proto: TypeProto | None) -> None:
        """Raise InvalidModel for a wrong declared element type. Warn of a wrong shape, now or when sizes are known."""
        declared = None if proto is None else type_from_proto(proto, f"{self.label}: tensor {name!r}")
        if declared is None:
            return
        if not claims(declared, inferred):
            raise InvalidModel(f"{self.label}: tensor {name!r} is declared as {declared}, but is {inferred}")
        if isinstance(declared, TensorType) and isinstance(inferred, TensorType):
            self.declared.claim(name, declared, inferred)

    def node(self, raw: RawNode, names: Names, setting: Setting) -> None:
        self.built += 1
        if self.built > self.most_nodes:
            raise InvalidModel(
                f"{self.label}: the functions expand to more than {self.most_nodes} nodes (GRAPHKIT_MAX_NODES)"
            )
        limits.check_time()
        where = f"{self.label}: {raw}" + (f" in {setting.calls[-1]}" if setting.calls else "")
        try:
            # The names of a node already give its place. Nodes of its subgraphs need the context, too.
            named = (raw.name or any(raw.outputs)) and not raw.regions
            with nullcontext() if named else context.made_by(where, prefixed=True):
                results = self.results(raw, names, setting, where)
        except GraphkitError as error:
            if str(error).startswith(self.label):
                raise
            kind = InvalidModel if isinstance(error, UsageError) else type(error)
            node, _, operator = str(raw).rpartition(" (")
            if str(error).startswith(f"{node} {operator[:-1]}("):  # the message names the node itself
                where = f"{self.label}: in {setting.calls[-1]}" if setting.calls else self.label
            raise kind(f"{where}: {error}") from error
        except BAD_VALUE as error:
            raise InvalidModel(f"{where}: operands and attributes do not fit: {error}") from error
        for index, name in enumerate(raw.outputs):
            if name:
                value = results[index] if index < len(results) else None
                if value is None:
                    raise InvalidModel(f"{where}: the operator has no output {index} ({name!r})")
                names.values[name] = value

    def results(self, raw: RawNode, names: Names, setting: Setting, where: str) -> Sequence[Value | None]:
        inputs = [self.operand(names, name) for name in raw.inputs]
        protos = attributes.bound(raw, setting.attributes)
        if raw.domain == "" and raw.op_type == "Constant":
            value = attributes.constant_value(protos, where, self.external)
            return [self.constant(value, raw.outputs[0] if raw.outputs else "", raw)]
        attrs = {
            name: attributes.value_of(proto, f"{where}: attribute {name!r}", self.external)
            for name, proto in protos.items()
        }
        version = setting.version(raw.domain)
        view = upgrade.NodeView(raw.op_type, raw.domain, inputs, attrs, raw.outputs, version, where)
        mark = next_serial()
        built = upgrade.run(view)
        if (raw.domain, raw.op_type) == GRADIENT:
            from graphkit.onnx_io import gradient

            built = gradient.build(self, view, names)
        if built is not None:
            for name in view.attrs:
                attributes.ignored(view.domain, view.op_type, name, where)
            return _named(built, raw, mark)
        if not view.domain and view.op_type == "SequenceMap":
            from graphkit.onnx_io import control

            return _named(control.build_map(self, raw, view, names, setting), raw, mark)
        cls = registry.find(view.domain, view.op_type)
        if cls is None:
            return _named(self.call(raw, inputs, protos, setting, where), raw, mark)
        if raw.regions:
            from graphkit.onnx_io import control

            return control.build(self, cls, raw, view, names, setting)
        return self.apply(cls, view, raw).outputs

    def operand(self, names: Names, name: str) -> Value | None:
        """The value that a node reads under a name; None for an absent operand."""
        value = names.find(name) if name else None
        return value if value is None or self.stand_ins is None else self.stand_ins.of(value)

    def apply(self, cls: type[Op], view: upgrade.NodeView, raw: RawNode) -> Node:
        operands = list(view.inputs)
        while operands and operands[-1] is None:
            operands.pop()
        attrs = attributes.fields(cls, view)
        node = Node(cls(**attrs), operands, raw.name, raw.meta, output_names=raw.outputs)
        if not cls.domain and cls.name in ("Conv", "ConvTranspose"):
            from graphkit.ops.nn.conv import check_not_empty

            check_not_empty(node.outputs[0])  # ONNX Runtime does not run it either
        return node

    def call(
        self,
        raw: RawNode,
        inputs: Sequence[Value | None],
        protos: Mapping[str, AttributeProto],
        setting: Setting,
        where: str,
    ) -> Sequence[Value | None]:
        """Build the body of the function that `raw` calls; absent operands stay absent inside."""
        function = self.library.find(raw)
        if function is None:
            from onnx import TypeProto

            types = [TypeProto() if v is None else type_to_proto(v.type) for v in inputs]
            version = setting.version(raw.domain)
            function = functions.standard_function(raw.domain, raw.op_type, version, raw.proto, types)
            if function is None:
                raise UnsupportedOperator(f"{where}: {raw.op_type} is not implemented for these operands")
            kept = [name for name in protos if not attributes.ignored(raw.domain, raw.op_type, name, where)]
            protos = {name: protos[name] for name in kept}
        if function.label in setting.calls:
            raise InvalidModel(f"{where}: {function.label} calls itself")
        if len(setting.calls) >= functions.MAX_CALL_DEPTH:
            raise InvalidModel(f"{where}: function calls nested deeper than {functions.MAX_CALL_DEPTH}")
        if len(inputs) > len(function.region.inputs):
            count = len(function.region.inputs)
            raise InvalidModel(f"{where}: {function.label} takes {quantity(count, 'input')}, but got {len(inputs)}")
        bound = function.bind(protos, where)
        inner = Setting(function.opsets, bound, (*setting.calls, function.label))
        names = Names()
        operands = [*inputs, *[None] * (len(function.region.inputs) - len(inputs))]
        names.values.update((name, value) for (name, _), value in zip(function.region.inputs, operands, strict=True))
        for node in function.region.nodes:
            self.node(node, names, inner)
        # For some operands, a standard body lacks an optional output.
        return [names.values.get(name) for name, _ in function.region.outputs]

    def constant(self, tensor: Tensor, name: str, raw: RawNode | None = None) -> Value:
        cls = registry.get("", "Constant")
        node_name, meta = ("", {}) if raw is None else (raw.name, raw.meta)
        return Node(cls(value=tensor), (), node_name, meta, output_names=[name]).output


def _json(data: Any) -> str:
    import json

    return json.dumps(data)


def _draws(node: Node) -> bool:
    """Whether a node of the graph or of its subgraphs draws random numbers; Dropout only does so in training mode."""
    for graph in node.op.subgraphs().values():
        if any(_draws(inner) for inner in graph.nodes):
            return True
    if not getattr(node.op, "random", False):
        return False
    if node.op.name != "Dropout":
        return True
    mode = node.inputs[2] if len(node.inputs) > 2 else None
    return mode is not None and mode.tensor.constants != (0,)


def _named(results: Sequence[Value | None], raw: RawNode, mark: int) -> Sequence[Value | None]:
    """Name results that a rule or a function has built as in the file."""
    for value, name in zip(results, raw.outputs, strict=False):
        if name and value is not None and value.node is not None and value.serial > mark:
            give_name(value, name)
    return results
