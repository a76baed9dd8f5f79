"""The role of an initialiser: a trainable parameter, a state, or a constant.

- Floating-point tensors are parameters; the mean and variance of a batch normalisation are states.
- Integers, booleans, strings and the narrow float types are constants: shapes and axes that inference reads.
- A floating-point scalar (rank 0) is a constant, because exporters write the literals of formulas like this, while
  learned tensors have axes. An initialiser that only feeds settings (bounds of Clip, scales of Resize, ...) is a
  constant, too.
- PyTorch's exporter marks each of its tensors as a parameter or a buffer. A parameter of rank 0 is a parameter. A
  buffer is a parameter that training leaves unchanged (`trainable` is False, and `frozen` has the reason), and so are
  initial states of recurrent layers that are zero.
- An initialiser that is also a graph input is a default that may be replaced: a parameter, or a state if it is not
  floating-point. Up to IR version 3, where all initialisers are inputs, this is the rule for floats.
- Unused initialisers are left out.

A model that graphkit wrote stores in its metadata where its roles differ from these rules, and the training attributes
of its parameters (lr_mult, wd_mult, trainable, lazy, ...).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from graphkit.ir.types import FLOATS
from graphkit.named_tuples import NamedTuple
from graphkit.onnx_io.scopes import RawNode, Region
from graphkit.onnx_io.tensors import DTYPES

if TYPE_CHECKING:
    from onnx import ModelProto

ROLES_KEY = "ai.graphkit.roles"
ATTRIBUTES_KEY = "ai.graphkit.attributes"
# Metadata about initialisers, which are not copied to the metadata of the model.
KEYS = frozenset({ROLES_KEY, ATTRIBUTES_KEY})
_ROLES = frozenset({"parameter", "state", "constant"})
# Metadata key for the kind of a value in files of PyTorch's exporter (torch.onnx.export, dynamo=True).
_KIND_KEY = "pkg.torch.export.graph_signature.InputSpec.kind"
_LEARNED_KIND = "PARAMETER"
_FIXED_KINDS = {"BUFFER": "a buffer of the file", "CONSTANT_TENSOR": "a constant of the file"}
# Recurrent operator -> positions of its initial states.
_INITIAL_STATES = {"GRU": (5,), "LSTM": (5, 6), "RNN": (5,)}
ZERO_STATE = "the zero initial state of a recurrent layer"


# Operands of ONNX Runtime's quantised operators that are scales.
_SCALES = {
    "DequantizeLinear": {1},
    "DynamicQuantizeLSTM": {8, 10},
    "DynamicQuantizeMatMul": {2},
    "MatMulIntegerToFloat": {2, 3},
    "QAttention": {3, 4},
    "QEmbedLayerNormalization": {8, 9, 10, 11, 12},
    "QGemm": {1, 4, 7},
    "QLinearAdd": {1, 4, 6},
    "QLinearAveragePool": {1, 3},
    "QLinearConv": {1, 4, 6},
    "QLinearGlobalAveragePool": {1, 3},
    "QLinearLeakyRelu": {1, 3},
    "QLinearMul": {1, 4, 6},
    "QLinearReduceMean": {1, 3},
    "QLinearSigmoid": {1, 3},
    "QLinearSoftmax": {1, 3},
    "QLinearWhere": {2, 5, 7},
    "QuantizeLinear": {1},
}


class Plan(NamedTuple):
    """The roles of the initialisers.

    Attributes:
        entries: (region, name, role) of each one that is used, outer regions first.
        frozen: By name, why training leaves a parameter of the file's graph unchanged.
        initial_states: Names of those that only recurrent layers read, as the states before the first step.
    """

    entries: list[tuple[Region, str, str]]
    frozen: dict[str, str]
    initial_states: frozenset[str]


def classify(model: ModelProto, top: Region) -> Plan:
    """Decide the role of each initialiser of the graph and its subgraphs."""
    settings: set[str] = set()
    statistics: set[str] = set()
    starts: set[str] = set()
    others: set[str] = set()
    learned: set[str] = {name for name, _ in top.outputs}
    regions: dict[int, Region] = {id(top): top}
    for region, node in top.walk():
        if id(region) not in regions:
            regions[id(region)] = region
            learned.update(name for name, _ in region.outputs)
        configuring = _settings(node)
        for position, name in enumerate(node.inputs):
            if position in configuring:
                settings.add(name)
            elif node.domain == "" and node.op_type == "BatchNormalization" and position in (3, 4):
                statistics.add(name)
            else:
                learned.add(name)
                is_start = node.domain == "" and position in _INITIAL_STATES.get(node.op_type, ())
                (starts if is_start else others).add(name)
    kinds, frozen = _kinds(model), {}
    feedable = {name for name, _ in top.inputs}
    declared = _declared_roles(model)
    entries: list[tuple[Region, str, str]] = []
    for region in regions.values():
        protos = {**region.initializers, **{name: sparse.values for name, sparse in region.sparse.items()}}
        for name, proto in protos.items():
            replaceable = region is top and name in feedable
            told = declared.get(name) if region is top else None
            if told is None and name not in settings and name not in statistics and name not in learned:
                continue
            rank = len(region.sparse[name].dims if name in region.sparse else proto.dims)
            role = "parameter"
            if DTYPES.get(proto.data_type) not in FLOATS:
                role = "state" if replaceable and model.ir_version >= 4 else "constant"
            elif name in statistics and name not in learned:
                role = "state"
            elif not replaceable and ((rank == 0 and kinds.get(name) != _LEARNED_KIND) or name not in learned):
                role = "constant"
            elif region is top and kinds.get(name) in _FIXED_KINDS:
                frozen[name] = _FIXED_KINDS[kinds[name]]
            entries.append((region, name, told or role))
    return Plan(entries, frozen, frozenset(starts - others - {name for name, _ in top.outputs}))


def _kinds(model: ModelProto) -> dict[str, str]:
    """The kind of each value of the graph, by name, in files of PyTorch's exporter."""
    graph = model.graph
    told = (*graph.input, *graph.value_info, *graph.initializer)
    return {item.name: entry.value for item in told for entry in item.metadata_props if entry.key == _KIND_KEY}


def _settings(node: RawNode) -> Collection[int]:
    """The operands that configure a node."""
    if node.domain == "com.microsoft":
        # Scale and zero point of the result, then tensor, scale and zero point of each operand.
        return range(0, len(node.inputs), 3) if node.op_type == "QLinearConcat" else _SCALES.get(node.op_type, ())
    if node.domain != "":
        return ()
    from graphkit.ops.operands import SETTINGS

    return SETTINGS.get(node.op_type, ())


def _declared_roles(model: ModelProto) -> dict[str, str]:
    return {name: role for name, role in _declared(model, ROLES_KEY).items() if role in _ROLES}


def attributes(model: ModelProto) -> dict[str, dict[str, Any]]:
    """The attributes of parameters in the metadata, by name of the initialiser."""
    declared = _declared(model, ATTRIBUTES_KEY).items()
    return {name: _plain(attrs) for name, attrs in declared if isinstance(attrs, dict)}


def written_attributes(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a parameter for the metadata: all but its initialiser, because its values are stored."""
    return {key: value for key, value in _plain(attrs).items() if key != "init"}


def _plain(attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in attrs.items() if isinstance(value, str | bool | int | float)}


def _declared(model: ModelProto, key: str) -> dict[str, Any]:
    """A JSON object of the metadata; empty when there is none."""
    for entry in model.metadata_props:
        if entry.key == key:
            import json

            try:
                found = json.loads(entry.value)
            except (ValueError, RecursionError):
                return {}
            if isinstance(found, dict):
                return found
    return {}
