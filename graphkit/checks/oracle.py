"""Results of other engines for a sample: onnx's reference evaluator and ONNX Runtime run a model of one node.

The model is built from the operator's declaration, without the exporter. So an error in one of the two is not hidden by
the same error in the other. Operators with subgraphs are not supported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from graphkit.checks.samples import Case
from graphkit.errors import UnsupportedError
from graphkit.ir.graph import Graph
from graphkit.ir.tensor import Tensor
from graphkit.ir.types import DType, MapType, OptionalType, SequenceType, Type

# ONNX's names of element types. All others are graphkit's names in capitals.
_ONNX_NAMES: Mapping[DType, str] = {
    DType.FLOAT32: "FLOAT",
    DType.FLOAT64: "DOUBLE",
    DType.FLOAT8E4M3FN: "FLOAT8E4M3FN",
    DType.FLOAT8E4M3FNUZ: "FLOAT8E4M3FNUZ",
    DType.FLOAT8E5M2: "FLOAT8E5M2",
    DType.FLOAT8E5M2FNUZ: "FLOAT8E5M2FNUZ",
    DType.FLOAT8E8M0: "FLOAT8E8M0",
    DType.FLOAT4E2M1: "FLOAT4E2M1",
}


def onnx_type(dtype: DType) -> int:
    """The number of an element type in TensorProto.DataType."""
    number: int = onnx.TensorProto.DataType.Value(_ONNX_NAMES.get(dtype, dtype.name))
    return number


def single_node_model(case: Case, opset: int) -> onnx.ModelProto:
    """A ModelProto of the case's operator at `opset`; inputs are called `x<position>`, outputs `y<position>`."""
    op = case.op
    form = op.onnx
    if form is None:
        raise UnsupportedError(f"{op.name} is not an operator of the standard")
    hidden = {formal.name for formal in op.formals} & set(form.hidden)
    names, infos = [], []
    for position, kind in enumerate(case.types):
        formal = op.formals[min(position, len(op.formals) - 1)]
        if formal.name in hidden:
            continue
        names.append("" if kind is None else f"x{position}")
        if kind is not None:
            infos.append(helper.make_value_info(f"x{position}", _type_proto(kind)))
    while names and not names[-1]:
        names.pop()
    graph = case.graph()
    outputs = [f"y{i}" for i in range(len(graph.outputs))]
    attributes = [
        _attribute(form.renames.get(key, key), item) for key, item in op.attributes().items() if key not in form.hidden
    ]
    node = helper.make_node(form.name, names, outputs, domain=form.domain)
    node.attribute.extend(attributes)
    results = zip(outputs, graph.outputs, strict=True)
    types = [helper.make_value_info(name, _type_proto(value.type, shaped=False)) for name, value in results]
    proto = helper.make_graph([node], op.name, infos, types)
    imports = [helper.make_opsetid("", opset)]
    if form.domain:
        imports.append(helper.make_opsetid(form.domain, form.since))
    return helper.make_model(proto, opset_imports=imports, ir_version=10)


def onnx_evaluator(case: Case, opset: int) -> list[Any]:
    """The outputs that onnx's reference evaluator gives."""
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(single_node_model(case, opset))
    with np.errstate(all="ignore"):
        return list(evaluator.run(None, _feeds(case)))


def onnxruntime_session(case: Case, opset: int) -> list[Any]:
    """The outputs that ONNX Runtime gives."""
    from graphkit.onnx_io.compare import OnnxRuntimeModel

    results = OnnxRuntimeModel(single_node_model(case, opset), threads=1).run(_feeds(case))
    return list(results.values())


def _type_proto(kind: Type, *, shaped: bool = True) -> onnx.TypeProto:
    if isinstance(kind, SequenceType):
        return helper.make_sequence_type_proto(_type_proto(kind.element, shaped=False))
    if isinstance(kind, OptionalType):
        return helper.make_optional_type_proto(_type_proto(kind.element, shaped=False))
    if isinstance(kind, MapType):
        return helper.make_map_type_proto(onnx_type(kind.key), _type_proto(kind.element))
    return helper.make_tensor_type_proto(onnx_type(kind.dtype), kind.static_shape if shaped else None)


def _feeds(case: Case) -> dict[str, Any]:
    hidden = case.op.onnx.hidden if case.op.onnx else ()
    feeds = {}
    for position, (array, kind) in enumerate(zip(case.arrays, case.types, strict=True)):
        formal = case.op.formals[min(position, len(case.op.formals) - 1)]
        if kind is not None and formal.name not in hidden:
            # LogSoftmax of the reference evaluator writes to its operand.
            feeds[f"x{position}"] = array.copy() if isinstance(array, np.ndarray) else array
    return feeds


def _attribute(key: str, item: Any) -> onnx.AttributeProto:
    if isinstance(item, Graph):
        raise UnsupportedError(f"attribute {key} is a graph")
    if isinstance(item, bool):
        return helper.make_attribute(key, int(item))
    if isinstance(item, DType):
        return helper.make_attribute(key, onnx_type(item))
    if isinstance(item, Tensor):
        return helper.make_attribute(key, numpy_helper.from_array(np.asarray(item.array), key))
    if isinstance(item, Type):
        return helper.make_attribute(key, _type_proto(item, shaped=False))
    if isinstance(item, tuple) and not item:
        return helper.make_attribute(key, [], attr_type=onnx.AttributeProto.INTS)
    return helper.make_attribute(key, item)
