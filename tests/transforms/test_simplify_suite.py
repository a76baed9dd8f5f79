"""Operators that ONNX expands into others: all their models are simplified, and compared in ONNX Runtime."""

import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

from graphkit.errors import GraphkitError
from graphkit.transforms.simplify import simplify_onnx

# ONNX Runtime computes some of these with other roundings than their expansion.
RTOL, ATOL = 1e-3, 1e-5


def fixed_integers(model, feeds):
    """Turn the integer and bool inputs of a model into initialisers, so that shape arithmetic can be folded."""
    made = onnx.ModelProto.FromString(model.SerializeToString())
    integer = {name for name, array in feeds.items() if isinstance(array, np.ndarray) and array.dtype.kind in "ib"}
    kept = [info for info in model.graph.input if info.name not in integer]
    del made.graph.input[:]
    made.graph.input.extend(kept)
    made.graph.initializer.extend(numpy_helper.from_array(feeds[name], name) for name in sorted(integer))
    return made


def run(message, feeds):
    session = onnxruntime.InferenceSession(message.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()})


def compare(name, reference, found):
    for a, b in zip(reference, found, strict=True):
        if not isinstance(a, np.ndarray):
            continue
        assert (a.dtype, a.shape) == (b.dtype, b.shape), name
        if a.dtype.kind in "fc":
            np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), RTOL, ATOL, err_msg=name)
        else:
            np.testing.assert_array_equal(a, b, name)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.long
def test_expanded_operators(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = [case for case in load_model_tests(kind="node") if "expanded" in case.name and case.data_sets]
    compared = fewer = 0
    onnxruntime.set_default_logger_severity(4)
    for case in cases:
        given = [np.asarray(a) if isinstance(a, np.generic) else a for a in case.data_sets[0][0]]
        feeds = dict(zip([i.name for i in case.model.graph.input], given, strict=False))
        for model in (case.model, fixed_integers(case.model, feeds)):
            path = tmp_path / "model.onnx"
            path.write_bytes(model.SerializeToString())
            try:
                found = simplify_onnx(path)
                reference = run(model, feeds)
            except (GraphkitError, RuntimeError, *_runtime_errors()):  # graphkit or ONNX Runtime does not support it
                continue
            assert found.after.node_count <= found.before.node_count, case.name
            assert found.message.opset_import == model.opset_import
            compare(case.name, reference, run(found.message, feeds))
            compared += 1
            fewer += found.after.node_count < found.before.node_count
    assert compared > 400
    assert fewer > 300


def _runtime_errors():
    """The errors of ONNX Runtime for models that it does not run. They have no common base."""
    state = onnxruntime.capi.onnxruntime_pybind11_state
    return (state.Fail, state.InvalidArgument, state.NotImplemented, state.InvalidGraph, state.RuntimeException)
