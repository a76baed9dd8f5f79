"""One node of ai.onnx.ml in ONNX Runtime and here: compiled, and by the references."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper

import graphkit as gk
from graphkit.checks.verify import compare_outputs
from graphkit.onnx_io.compare import OnnxRuntimeModel
from graphkit.ops.evaluate import evaluate

NodeModel = Callable[..., ModelProto]


def make_node_model(
    op_type: str, inputs: Sequence[Any], *, version: int = 1, outputs: int = 1, **attributes: Any
) -> ModelProto:
    """The model; inputs x0, x1, ... are arrays or dicts, and outputs are y0, y1, ... The batch is symbolic."""
    infos = []
    for i, given in enumerate(inputs):
        if isinstance(given, Mapping):
            key, value = next(iter(given.items()))
            key_type = onnx.TensorProto.STRING if isinstance(key, str) else onnx.TensorProto.INT64
            element = helper.make_tensor_type_proto(_code(np.asarray(value)), [])
            infos.append(helper.make_value_info(f"x{i}", helper.make_map_type_proto(key_type, element)))
        else:
            shape = [f"n{i}", *given.shape[1:]] if given.ndim > 1 else given.shape
            infos.append(helper.make_tensor_value_info(f"x{i}", _code(given), shape))
    names = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op_type, [f"x{i}" for i in range(len(inputs))], names, domain="ai.onnx.ml", **attributes)
    graph = helper.make_graph([node], "node", infos, [onnx.ValueInfoProto(name=name) for name in names])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", version)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def _code(array: np.ndarray) -> int:
    text = array.dtype.kind in "OUS"
    return onnx.TensorProto.STRING if text else helper.np_dtype_to_tensor_dtype(array.dtype)


@pytest.fixture
def node_model() -> NodeModel:
    return make_node_model


@pytest.fixture
def as_in_runtime() -> Callable[..., dict[str, Any]]:
    """Run a node in ONNX Runtime, compiled here and interpreted; all agree. Returns the results."""

    def check(op_type: str, inputs: Sequence[Any], rtol: float = 1e-4, **attributes: Any) -> dict[str, Any]:
        model = make_node_model(op_type, inputs, **attributes)
        feeds = {f"x{i}": given for i, given in enumerate(inputs)}
        theirs = OnnxRuntimeModel(model, threads=1).run(feeds)
        net = gk.load(model)
        interpreted = dict(zip(net.outputs, evaluate(net.graph, list(feeds.values())), strict=True))
        compiled = net.compile().run(feeds)
        for ours in (interpreted, compiled):
            for report in compare_outputs(ours, theirs, rtol=rtol, atol=1e-5):
                assert report.passed, f"{report}\n{ours}\n{theirs}"
        return dict(compiled)

    return check
