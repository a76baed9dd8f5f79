"""Networks whose rows are independent, and one of recurrent layers with a state for each row."""

import numpy as np
import onnx
from onnx import TensorProto, helper

import graphkit as gk


def convnet():
    return gk.models.build("lenet", image=(1, 8, 8))


def perceptron():
    return gk.models.build("mlp", inputs=12, hidden=(16,), classes=3)


def recommender():
    """Two inputs of different types, and outputs of ranks 1, 2 and 3."""
    x, ids = gk.input("x", ["N", 3]), gk.input("ids", ["N", 2], np.int64)
    embedded = gk.nn.embedding(ids, 5, 4)
    scores = gk.nn.linear(gk.concat(x, gk.flatten(embedded), axis=1), 6, name="last")
    return gk.Model(
        {"embedded": gk.relu(embedded), "scores": scores, "best": gk.arg_max(scores, axis=1, keepdims=False)}
    )


def attention():
    """Each row has queries for keys that all rows share."""
    q, keys = gk.input("q", ["N", 2, 4]), gk.input("keys", [5, 4])
    return gk.Model({"y": gk.softmax(gk.mat_mul(q, gk.transpose(keys, perm=(1, 0))), axis=-1)})


def recurrent(kind="LSTM", mixed=False):
    """A layer of ONNX, whose steps are the first axis: y, its last step, and the states after it, for each row.

    mixed: The steps are taken from the axis of the rows.
    """
    rng, hidden, width = np.random.default_rng(0), 5, 4
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    states = ["h", "c"] if kind == "LSTM" else ["h"]
    arrays = {
        "w": rng.standard_normal((1, gates * hidden, width)).astype(np.float32),
        "r": rng.standard_normal((1, gates * hidden, hidden)).astype(np.float32),
        "first": np.array([0]), "second": np.array([1]), "last": np.array(-1),
    }  # fmt: skip
    nodes = [
        helper.make_node("Transpose", ["x"], ["steps"], perm=[0, 1, 2] if mixed else [1, 0, 2]),
        *(helper.make_node("Unsqueeze", [f"{s}0", "first"], [s]) for s in states),
        helper.make_node(
            kind, ["steps", "w", "r", "", "", *states], ["y", *(f"y_{s}" for s in states)], hidden_size=hidden,
            name="layer",
        ),
        helper.make_node("Squeeze", ["y", "second"], ["all"]),
        helper.make_node("Gather", ["all", "last"], ["end"], axis=0),
        helper.make_node("Transpose", ["all"], ["sequence"], perm=[1, 0, 2]),
        *(helper.make_node("Squeeze", [f"y_{s}", "first"], [f"{s}1"]) for s in states),
    ]  # fmt: skip
    inputs = {"x": ["N", "T", width], **{f"{s}0": ["N", hidden] for s in states}}
    outputs = {"sequence": ["N", "T", hidden], "end": ["N", hidden], **{f"{s}1": ["N", hidden] for s in states}}

    def infos(shapes):
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]

    stored = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "recurrent", infos(inputs), infos(outputs), stored)
    return gk.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]))
