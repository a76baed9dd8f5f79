"""Operators that the standard defines as functions, built from its bodies at every version that has one."""

from __future__ import annotations

import onnx
import pytest
from combinations import in_one_item
from onnx import ModelProto, TypeProto

from graphkit.checks.samples import make_case
from graphkit.checks.verify import compare_outputs
from graphkit.ir import context
from graphkit.ir.graph import Graph
from graphkit.onnx_io.external_data import ExternalData
from graphkit.onnx_io.functions import has_standard_body, standard_function
from graphkit.onnx_io.importer import Builder
from graphkit.onnx_io.scopes import RawNode
from graphkit.onnx_io.spelling import spelled
from graphkit.onnx_io.tensors import type_to_proto
from graphkit.ops import registry
from graphkit.ops.evaluate import evaluate

# Draws random numbers; has a body for no type of the first version.
LEFT_OUT = {("Bernoulli", 15), ("Bernoulli", 22), ("GroupNormalization", 18)}


def versions():
    """(operator, name, version) for every version of an operator here that the standard defines as a function."""
    ours = {(cls.onnx.domain, cls.onnx.name): cls for cls in registry if cls.onnx is not None}
    for schema in onnx.defs.get_all_schemas_with_history():
        cls = ours.get((schema.domain, schema.name))
        name, version = schema.name, schema.since_version
        if cls is not None and has_standard_body(schema.domain, name, version) and (name, version) not in LEFT_OUT:
            yield pytest.param(cls, version, id=f"{name}-{version}")


@in_one_item()
@pytest.mark.parametrize(("cls", "version"), list(versions()))
def test_a_body_computes_what_the_operator_does(cls, version):
    case = make_case(cls, 0)
    graph = case.graph()
    node = graph.outputs[0].node
    proto, operands = spelled(node, list(node.inputs), max(version, 13))
    proto.input[:] = ["" if v is None else f"x{i}" for i, v in enumerate(operands)]
    proto.output[:] = [f"y{i}" for i in range(len(node.outputs))]
    types = [TypeProto() if v is None else type_to_proto(v.type) for v in operands]
    assert standard_function(cls.onnx.domain, proto.op_type, version, proto, types) is not None
    model = ModelProto(graph=onnx.GraphProto(name="body"))
    model.opset_import.add(domain="", version=version)
    builder = Builder(model, "body", ExternalData())
    raw = RawNode(proto, {}, {a.name: a for a in proto.attribute})
    with context.detached():
        found = builder.call(raw, operands, raw.attributes, builder.setting, "body")
    pairs = [(a, b) for a, b in zip(found, node.outputs, strict=False) if a is not None]
    assert pairs
    results = []
    for values in zip(*pairs, strict=True):
        arrays = evaluate(Graph(graph.inputs, values), case.feeds())
        results.append({f"y{i}": array for i, array in enumerate(arrays)})
    for difference in compare_outputs(*results):
        assert difference.passed, str(difference)
