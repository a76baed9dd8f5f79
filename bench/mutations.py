"""Damage done to what a model file says. It follows from a random generator."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import onnx
from damage import FLOATS, INTEGERS, TEXTS, damaged
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

_BOUND = {TensorProto.INT32: 31, TensorProto.INT64: 63, TensorProto.INT8: 7, TensorProto.UINT8: 8}


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Make one to four changes to a model file: mostly to its content, sometimes to its bytes."""
    if rng.random() < 0.15:
        return damaged(data, rng)
    model = onnx.load_model_from_string(data)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        rng.choices(_CHANGES, _WEIGHTS)[0](model, rng)
    return bytes(model.SerializeToString())


# --- what a file says ---------------------------------------------------------------------------------


def _graphs(model: ModelProto) -> list[GraphProto]:
    found, pending = [], [model.graph]
    while pending:
        graph = pending.pop()
        found.append(graph)
        pending += [a.g for n in graph.node for a in n.attribute if a.type == AttributeProto.GRAPH]
    return found


def _node(model: ModelProto, rng: random.Random) -> NodeProto | None:
    nodes = [n for g in _graphs(model) for n in g.node if n.op_type != "Constant" or rng.random() < 0.2]
    return rng.choice(nodes) if nodes else None


def _attribute(model: ModelProto, rng: random.Random) -> None:
    """A number, a text or a tensor of an attribute."""
    node = _node(model, rng)
    if node is None or not node.attribute:
        return
    a = rng.choice(node.attribute)
    if a.type == AttributeProto.INT:
        a.i = rng.choice(INTEGERS)
    elif a.type == AttributeProto.FLOAT:
        a.f = rng.choice(FLOATS)
    elif a.type == AttributeProto.STRING:
        a.s = rng.choice(TEXTS).encode()
    elif a.type == AttributeProto.INTS:
        _numbers(a.ints, INTEGERS, rng)
    elif a.type == AttributeProto.FLOATS:
        _numbers(a.floats, FLOATS, rng)
    elif a.type == AttributeProto.STRINGS:
        _numbers(a.strings, [t.encode() for t in TEXTS], rng)
    elif a.type == AttributeProto.TENSOR:
        _change_tensor(a.t, rng)


def _numbers(held: Any, choices: Any, rng: random.Random) -> None:
    kind = rng.randrange(4)
    if kind == 0 or not held:
        held.append(rng.choice(choices))
    elif kind == 1:
        del held[rng.randrange(len(held))]
    else:
        held[rng.randrange(len(held))] = rng.choice(choices)


def _other_attribute(model: ModelProto, rng: random.Random) -> None:
    """Add an attribute of the operator, or remove one, double it, or change its type."""
    node = _node(model, rng)
    if node is None:
        return
    kind = rng.randrange(4)
    if kind == 0 and node.attribute:
        del node.attribute[rng.randrange(len(node.attribute))]
    elif kind == 1 and node.attribute:
        node.attribute.add().CopyFrom(rng.choice(node.attribute))
    elif kind == 2 and node.attribute:
        rng.choice(node.attribute).type = rng.randrange(15)
    # Texts that are not valid UTF-8 are read as bytes.
    elif all(isinstance(text, str) for text in (node.op_type, node.domain)) and onnx.defs.has(
        node.op_type, node.domain
    ):
        known = onnx.defs.get_schema(node.op_type, node.domain).attributes
        given = {a.name for a in node.attribute}
        free = [a for a in known.values() if a.name not in given]
        if free:
            _add(node, rng.choice(free), rng)


def _add(node: NodeProto, spec: Any, rng: random.Random) -> None:
    values: dict[str, Callable[[], Any]] = {
        "INT": lambda: rng.choice(INTEGERS),
        "FLOAT": lambda: rng.choice(FLOATS),
        "STRING": lambda: rng.choice(TEXTS),
        "INTS": lambda: [rng.choice(INTEGERS) for _ in range(rng.randrange(1, 5))],
        "FLOATS": lambda: [rng.choice(FLOATS) for _ in range(rng.randrange(1, 5))],
    }
    make = values.get(spec.type.name)
    if make is not None:
        node.attribute.append(onnx.helper.make_attribute(spec.name, make()))


def _operand(model: ModelProto, rng: random.Random) -> None:
    """Exchange, remove, add or replace operands or results of a node."""
    node = _node(model, rng)
    if node is None:
        return
    names = [n for g in _graphs(model) for n in (*(i.name for i in g.input), *(t.name for t in g.initializer))]
    names += [name for g in _graphs(model) for other in g.node for name in other.output]
    kind = rng.randrange(6)
    if kind == 0 and node.input:
        node.input[rng.randrange(len(node.input))] = rng.choice(["", *names])
    elif kind == 1 and node.input:
        del node.input[rng.randrange(len(node.input))]
    elif kind == 2:
        node.input.append(rng.choice(names))
    elif kind == 3 and len(node.input) > 1:
        order = list(node.input)
        rng.shuffle(order)
        node.input[:] = order
    elif kind == 4 and len(node.output) > 1:
        del node.output[rng.randrange(len(node.output))]
    else:
        node.output.append(rng.choice(("more", *names)))


def _operator(model: ModelProto, rng: random.Random) -> None:
    """Replace the operator of a node, or double or remove the node."""
    graph = rng.choice(_graphs(model))
    if not graph.node:
        return
    kind, place = rng.randrange(4), rng.randrange(len(graph.node))
    if kind == 0:
        del graph.node[place]
    elif kind == 1:
        graph.node.add().CopyFrom(graph.node[place])
    else:
        names = sorted({s.name for s in onnx.defs.get_all_schemas() if s.domain == graph.node[place].domain})
        if names:
            graph.node[place].op_type = rng.choice(names)


def _tensor(model: ModelProto, rng: random.Random) -> None:
    tensors = [t for g in _graphs(model) for t in g.initializer]
    tensors += [a.t for g in _graphs(model) for n in g.node for a in n.attribute if a.type == AttributeProto.TENSOR]
    if tensors:
        _change_tensor(rng.choice(tensors), rng)


def _change_tensor(tensor: TensorProto, rng: random.Random) -> None:
    """Change elements, dimensions, the element type, or the number of bytes of a tensor."""
    kind = rng.randrange(6)
    if kind <= 2 and tensor.data_location != TensorProto.EXTERNAL:
        try:
            array = numpy_helper.to_array(tensor).copy()
        except (KeyError, TypeError, ValueError):  # damaged before
            return
        if not array.size or array.dtype.kind not in "iufb":
            return
        bits = _BOUND.get(tensor.data_type, 6)
        for _ in range(rng.choice((1, 1, array.size))):
            choices = [i for i in INTEGERS if -(2**bits) <= i < 2**bits] if array.dtype.kind in "iu" else FLOATS
            value = abs(rng.choice(choices)) if array.dtype.kind == "u" else rng.choice(choices)
            array.reshape(-1)[rng.randrange(array.size)] = value
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    elif kind == 3:
        _numbers(tensor.dims, INTEGERS, rng)
    elif kind == 4:
        tensor.data_type = rng.randrange(30)
    elif tensor.raw_data:
        tensor.raw_data = damaged(tensor.raw_data, rng)


def _declared(model: ModelProto, rng: random.Random) -> None:
    """Change the type of an input or an output."""
    graph = rng.choice(_graphs(model))
    values = [*graph.input, *graph.output, *graph.value_info]
    if not values:
        return
    tensor = rng.choice(values).type.tensor_type
    kind = rng.randrange(5)
    if kind == 0:
        tensor.elem_type = rng.randrange(30)
    elif kind == 1:
        tensor.shape.dim.add().dim_value = rng.choice(INTEGERS)
    elif kind == 2 and tensor.shape.dim:
        del tensor.shape.dim[rng.randrange(len(tensor.shape.dim))]
    elif tensor.shape.dim:
        dim = rng.choice(tensor.shape.dim)
        if kind == 3:
            dim.dim_value = rng.choice(INTEGERS)
        else:
            dim.dim_param = rng.choice(("N", "N*M", "N-1", "?", "(" * 50, "N//0", *TEXTS))


def _frame(model: ModelProto, rng: random.Random) -> None:
    """Change versions, names, or lists of the model and its graph."""
    graph = model.graph
    kind = rng.randrange(6)
    if kind == 0 and model.opset_import:
        rng.choice(model.opset_import).version = rng.choice((*INTEGERS, *range(1, 27)))
    elif kind == 1:
        model.ir_version = rng.choice(INTEGERS)
    elif kind == 2 and graph.output:
        graph.output[rng.randrange(len(graph.output))].name = rng.choice(TEXTS)
    elif kind == 3 and graph.input:
        graph.input.add().CopyFrom(rng.choice(graph.input))
    elif kind == 4 and graph.node:
        rng.choice(graph.node).name = rng.choice(TEXTS)
    else:
        entry = model.metadata_props.add()
        entry.key, entry.value = rng.choice(("classes", "graphkit", *TEXTS)), rng.choice(("[]", "{", *TEXTS))


_CHANGES: tuple[Callable[[ModelProto, random.Random], None], ...] = (
    _attribute, _other_attribute, _operand, _operator, _tensor, _declared, _frame,
)  # fmt: skip
_WEIGHTS = (6, 3, 3, 2, 6, 3, 1)
