"""Symbols of one operator: graphkit and, after export, ONNX Runtime compute them."""

import json

import numpy as np

import graphkit as gk
from graphkit.mxnet_io.importer import import_model
from graphkit.onnx_io.compare import OnnxRuntimeModel


def symbol(folder, op, inputs, attributes, outputs=1):
    """Write the symbol of one operator; return its path. inputs: the shape of each input by name, None if unknown."""
    shapes = {name: {} if shape is None else {"__shape__": str(shape)} for name, shape in inputs.items()}
    nodes = [{"op": "null", "name": name, "attrs": found, "inputs": []} for name, found in shapes.items()]
    texts = {key: str(value) for key, value in attributes.items()}
    nodes.append({"op": op, "name": "made", "attrs": texts, "inputs": [[i, 0, 0] for i in range(len(inputs))]})
    heads = [[len(inputs), i, 0] for i in range(outputs)]
    path = folder / "one-symbol.json"
    path.write_text(json.dumps({"nodes": nodes, "arg_nodes": [], "heads": heads}))
    return path


def imported(folder, op, inputs, attributes=None, outputs=1, shapes=None):
    """Return a model of one operator. By default, its inputs have the shapes of the arrays."""
    sizes = {name: array.shape if shapes is None else None for name, array in inputs.items()}
    found = import_model(symbol(folder, op, sizes, attributes or {}, outputs), params={}, shapes=shapes)
    return gk.Model.from_graph(found.graph, found.params)


def compare(folder, op, inputs, attributes, *expected, tolerance=1e-6, shapes=None):
    """Compare outputs of one operator, in graphkit and in ONNX Runtime, with the expected ones."""
    inputs = {name: np.asarray(array, np.float32) for name, array in inputs.items()}
    model = imported(folder, op, inputs, attributes, len(expected), shapes)
    feeds = {name: inputs[name] for name in model.inputs}
    engines = {"graphkit": model.run(feeds), "ONNX Runtime": OnnxRuntimeModel(model.to_onnx(), threads=1).run(feeds)}
    for engine, found in engines.items():
        for result, wanted in zip(found.values(), expected, strict=True):
            assert result.dtype == np.float32
            np.testing.assert_allclose(result, wanted, rtol=tolerance, atol=tolerance, err_msg=f"{engine}: {op}")
