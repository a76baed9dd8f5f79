"""Numbers as text and text as numbers, as ONNX Runtime has them."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item
from onnx import helper

import graphkit as gk
from graphkit.errors import GraphkitError
from graphkit.ir.types import dtype_of
from graphkit.onnx_io.compare import OnnxRuntimeModel
from graphkit.onnx_io.tensors import CODES

SPECIAL = [0.1, 1.0, -0.0, 1 / 3, np.inf, -np.inf, np.nan, 2.5, 1024.0]
NUMBERS = {
    "float32": [*SPECIAL, 1e10, 1e-10, 123456789.0, 3.4028235e38, 16777216.0, 1e7, 123456.7, 1e-4, 1e-5, 1e8, 1e-45],
    "float64": [*SPECIAL, 1e10, 1e-10, 123456789.123, 1e15, 1e16, 1e17, 2.5e-5, 1e300],
    "float16": [*SPECIAL, 65504.0, 6e-8],
    "bool": [True, False],
    "int8": [-128, 5],
    "uint8": [255, 0],
    "int64": [-(2**63), 2**63 - 1],
    "uint64": [2**64 - 1, 7],
}


def cast(source, target):
    """The file that casts `x`, of element type `source`, to `target`."""
    x = helper.make_tensor_value_info("x", CODES[dtype_of(source)], [None])
    y = helper.make_tensor_value_info("y", CODES[dtype_of(target)], [None])
    node = helper.make_node("Cast", ["x"], ["y"], to=CODES[dtype_of(target)])
    return helper.make_model(
        helper.make_graph([node], "g", [x], [y]), opset_imports=[helper.make_opsetid("", 13)], ir_version=8
    )


@in_one_item()
@pytest.mark.parametrize("dtype", NUMBERS)
def test_numbers_are_written_as_onnx_runtime_writes_them(dtype):
    x = np.array(NUMBERS[dtype], dtype)
    proto = cast(dtype, "string")
    assert gk.load(proto).run({"x": x})["y"].tolist() == OnnxRuntimeModel(proto).run({"x": x})["y"].tolist()


def test_bfloat16_has_the_digits_of_its_value():
    x = gk.input("x", [3], dtype="bfloat16")
    found = gk.Model({"y": gk.cast(x, to="string")}).run({"x": np.array([0.1, -2.0, np.nan], x.dtype.numpy)})["y"]
    assert found.tolist() == ["0.10009766", "-2", "NaN"]


@in_one_item()
@pytest.mark.parametrize("dtype", [*NUMBERS])
def test_text_is_read_as_onnx_runtime_reads_it(dtype):
    words = ["1", "-3", " 7 ", "300", "0", "1.5", "+5", "2147483648"]
    if dtype.startswith("float"):
        words += ["1e3", "inf", "-INF", "nan", "Infinity", "1.9e0"]
    if dtype.startswith(("int", "uint")):
        words += ["9223372036854775807"] + (["18446744073709551615"] if dtype == "uint64" else [])
    x = np.array(words, object)
    proto = cast("string", dtype)
    np.testing.assert_array_equal(gk.load(proto).run({"x": x})["y"], OnnxRuntimeModel(proto).run({"x": x})["y"])


@in_one_item()
@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8", "bool"])
@pytest.mark.parametrize("word", ["abc", "", "1_000", "True"])
def test_text_that_is_no_number_is_an_error(dtype, word):
    with pytest.raises(GraphkitError, match=r"Cast\(x: string\[1\]\): ValueError: "):
        gk.load(cast("string", dtype)).run({"x": np.array([word], object)})
