"""The default opset of saved models: the first from 21 on that has all operators of the model."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import graphkit as gk
from graphkit.errors import UnsupportedError
from graphkit.onnx_io.compare import OnnxRuntimeModel
from graphkit.onnx_io.validate import opset_version
from graphkit.ops import registry


def product():
    """A model of CumProd, which the standard has since opset 26, with a parameter."""
    x, w = gk.input("x", ["N", 3]), gk.parameter("w", [3], init="ones")
    y = gk.cum_prod(x * w, np.array(1), name="running")
    return gk.Model({"y": y})


def test_a_newer_operator_raises_the_opset(tmp_path):
    net, x = product(), np.array([[1, 2, 3]], np.float32)
    net.save(tmp_path / "p.onnx")
    assert opset_version(tmp_path / "p.onnx") == 26
    onnx.checker.check_model(onnx.load(tmp_path / "p.onnx"))
    again = gk.load(tmp_path / "p.onnx")
    np.testing.assert_array_equal(again.run({"x": x})["y"], [[1, 2, 6]])
    again.save(tmp_path / "q.onnx")
    assert opset_version(tmp_path / "q.onnx") == 26
    np.testing.assert_array_equal(OnnxRuntimeModel(tmp_path / "q.onnx").run({"x": x})["y"], [[1, 2, 6]])


def test_others_stay_at_21():
    x = gk.input("x", [3])
    assert opset_version(gk.Model({"y": gk.swish(x)}).to_onnx()) == 21  # a newer operator that has a definition


def test_an_opset_that_is_asked_for_is_kept_or_refused():
    assert opset_version(product().to_onnx(opset=28)) == 28
    with pytest.raises(UnsupportedError, match=r"running.*CumProd is not in opset 22.*opset 26 has all operators"):
        product().to_onnx(opset=22)


def test_the_newest_opset_is_tried_too():
    x = gk.cast(gk.input("x", [2, 2]), to="int8")
    assert opset_version(gk.Model({"y": gk.bit_shift(x, x, direction="LEFT")}).to_onnx()) == 28


@pytest.mark.parametrize("opset", [None, 17])
def test_an_operator_without_standard_form_is_named(opset):
    @gk.op
    class Formless(gk.Op):
        """x."""

        domain = "com.example"
        inputs = ("x",)

        def infer(self, x):
            return x

    try:
        net = gk.Model({"y": gk.formless(gk.input("x", [2]), name="mine")})
        with pytest.raises(UnsupportedError, match=r"mine.*Formless cannot be expressed in standard operators"):
            net.to_onnx(opset=opset)
    finally:
        registry.remove(Formless)


@pytest.mark.parametrize("opset", [12, 99])
def test_opsets_out_of_range_are_refused(opset):
    with pytest.raises(UnsupportedError, match="13 to"):
        product().to_onnx(opset=opset)
