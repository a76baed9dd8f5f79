"""Values on samples are computed in parts of bounded size, and the results do not depend on the parts."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx_networks import conv_net, floats

import graphkit as gk
from graphkit.errors import InputError
from graphkit.quantisation import calibration


@pytest.fixture
def sizes(monkeypatch):
    """Bytes of the values of each run."""
    found, run = [], calibration.BatchRunner.run

    def counted(self, feeds, size, outputs):
        results = run(self, feeds, size, outputs)
        found.append(sum(array.nbytes for array in results.values()))
        return results

    monkeypatch.setattr(calibration.BatchRunner, "run", counted)
    return found


@pytest.mark.parametrize("convert", ["quantize", "reduce_precision"])
def test_parts_are_bounded_and_give_the_same_model(monkeypatch, sizes, convert):
    def made():
        return getattr(gk, convert)(gk.load(conv_net()), data=floats(6, 3, 8, 8))

    whole = made().message.SerializeToString()
    runs, largest = len(sizes), max(sizes)
    sizes.clear()
    limit = largest // 3
    monkeypatch.setattr(calibration, "PART_BYTES", limit)
    assert made().message.SerializeToString() == whole
    assert len(sizes) > runs
    single = max(size for size in sizes)  # a value that is larger than the limit is a part of its own
    assert single < largest


def test_samples_beyond_a_fixed_batch_are_measured():
    """The largest value is in the last sample, which a fixed batch size of 2 does not contain in the first run."""
    node = onnx.helper.make_node
    graph = onnx.helper.make_graph(
        [node("MatMul", ["x", "w"], ["h"], "first"), node("MatMul", ["h", "v"], ["y"], "second")], "g",
        [onnx.helper.make_tensor_value_info("x", 1, [2, 4])], [onnx.helper.make_tensor_value_info("y", 1, [2, 4])],
        [onnx.numpy_helper.from_array(floats(4, 4, seed=i), name) for i, name in enumerate("wv")],
    )  # fmt: skip
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    x = np.ones((5, 4), np.float32)
    assert not gk.reduce_precision(gk.load(model), data=x).kept
    x[4] = 60000
    with pytest.raises(gk.errors.UnsupportedError, match="no node would compute in fp16"):
        gk.reduce_precision(gk.load(model), data=x)


def test_missing_inputs_are_named():
    with pytest.raises(InputError, match="no array for input 'x'"):
        gk.reduce_precision(gk.load(conv_net()), data={"z": floats(1, 3, 8, 8)})
