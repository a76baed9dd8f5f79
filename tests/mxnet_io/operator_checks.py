"""Checks of cases: graphkit computes each, and ONNX Runtime computes the exported graph."""

import numpy as np

import graphkit as gk
from graphkit.mxnet_io.importer import import_model
from tests.mxnet_io.operator_cases import operand_name, symbol_of


def imported(cases, folder, shapes=None):
    """Return a model with the outputs of all cases, and its feeds."""
    path = folder / "cases-symbol.json"
    path.write_text(symbol_of(cases))
    feeds, params = {}, {}
    for number, item in enumerate(cases):
        for position, array in enumerate(item.operands):
            if position not in item.labels:
                (params if position in item.weights else feeds)[operand_name(number, position)] = array
    shapes = {name: array.shape for name, array in feeds.items()} if shapes is None else shapes
    found = import_model(path, params=params, shapes=shapes)
    return gk.Model.from_graph(found.graph, found.params), feeds


def difference(found, wanted, tolerance):
    """Return how two arrays differ, or None."""
    if found.dtype != wanted.dtype or found.shape != wanted.shape:
        return f"is {found.dtype}{list(found.shape)}, not {wanted.dtype}{list(wanted.shape)}"
    try:
        np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)
    except AssertionError as error:
        return str(error)
    return None


def check(cases, folder, exported=True):
    """Compare the outputs of all cases with the expected ones: graphkit's, and ONNX Runtime's."""
    model, feeds = imported(cases, folder)
    judge(cases, "graphkit", list(model.run(feeds).values()))
    if exported:
        gk.verify(model, feeds).raise_if_failed()


def judge(cases, engine, outputs):
    faults, position = [], 0
    for item in cases:
        for number, wanted in enumerate(item.gives):
            fault = difference(np.asarray(outputs[position]), wanted, item.tolerance)
            position += 1
            if fault:
                faults.append(f"{item}, output {number} of {engine} {fault}")
    assert position == len(outputs)
    assert not faults, f"{len(faults)} faults\n" + "\n".join(faults)
