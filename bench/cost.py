"""Compute lower bounds of a model's cost: operations of its matrix products, and bytes that must move at least once."""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx

_BYTES = {onnx.TensorProto.FLOAT: 4, onnx.TensorProto.INT64: 8}


@dataclass(frozen=True)
class Cost:
    """`flops`: two per multiply-add of Conv, Gemm, MatMul and LSTM; other operators count nothing.

    `bytes`: inputs, parameters and outputs, each moved once; of a table that is only gathered from, the gathered rows.
    """

    flops: int
    bytes: int


def cost(model: onnx.ModelProto) -> Cost:
    """Count a model of fixed shapes."""
    graph = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    shapes: dict[str, list[int]] = {t.name: list(t.dims) for t in graph.initializer}
    sizes = {t.name: math.prod(t.dims) * _BYTES[t.data_type] for t in graph.initializer}
    for value in (*graph.input, *graph.output, *graph.value_info):
        kind = value.type.tensor_type
        shapes[value.name] = [d.dim_value for d in kind.shape.dim]
        if value in graph.input or value in graph.output:
            sizes[value.name] = math.prod(shapes[value.name]) * _BYTES[kind.elem_type]
    flops = 0
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
        flops += _flops(node, shapes)
    for tensor in graph.initializer:
        nodes = readers.get(tensor.name, [])
        if nodes and all(n.op_type == "Gather" and n.input[0] == tensor.name for n in nodes):
            gathered = sum(math.prod(shapes[n.output[0]]) * _BYTES[tensor.data_type] for n in nodes)
            sizes[tensor.name] = min(sizes[tensor.name], gathered)
    return Cost(flops, sum(sizes.values()))


def _flops(node: onnx.NodeProto, shapes: dict[str, list[int]]) -> int:
    match node.op_type:
        case "Conv":
            return 2 * math.prod(shapes[node.output[0]]) * math.prod(shapes[node.input[1]][1:])
        case "MatMul":
            return 2 * math.prod(shapes[node.output[0]]) * shapes[node.input[0]][-1]
        case "Gemm":
            transposed = any(a.name == "transA" and a.i for a in node.attribute)
            return 2 * math.prod(shapes[node.output[0]]) * shapes[node.input[0]][0 if transposed else 1]
        case "LSTM":
            steps, batch, _ = shapes[node.input[0]]
            return 2 * steps * batch * sum(math.prod(shapes[name]) for name in node.input[1:3])
    return 0
