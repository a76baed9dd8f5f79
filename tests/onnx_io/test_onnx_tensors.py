"""TensorProto to numpy and back for every element type, in raw and in typed fields."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from combinations import in_one_item
from onnx import TensorProto, helper, numpy_helper

from graphkit.ir.types import DType
from graphkit.onnx_io.tensors import CODES, DTYPES, to_array, to_bytes, to_proto

SHAPES = [(), (0, 3), (5,), (2, 3)]


def sample(dtype, shape):
    count = int(np.prod(shape))
    numbers = np.arange(count) % 3
    if dtype is DType.STRING:
        return np.array([f"é{i}" for i in range(count)], object).reshape(shape)
    if dtype in (DType.INT4, DType.INT2, DType.INT8, DType.INT16, DType.INT32, DType.INT64):
        numbers = numbers - 1
    elif dtype is DType.FLOAT8E8M0:
        numbers = 2.0**numbers
    elif dtype.is_float:
        numbers = numbers / 2 - 0.5
    return numbers.astype(dtype.numpy).reshape(shape)


def test_every_element_type_has_a_code():
    assert set(CODES) == set(DType)
    assert len(DTYPES) == len(CODES)


@in_one_item()
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", list(DType), ids=str)
def test_round_trip(dtype, shape):
    array = sample(dtype, shape)
    back = to_array(to_proto(array, "t"), "t")
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert to_bytes(back) == to_bytes(array) if dtype is not DType.STRING else (back == array).all()


@in_one_item()
@pytest.mark.parametrize("dtype", [d for d in DType if d is not DType.STRING], ids=str)
def test_bytes_are_those_that_onnx_writes(dtype):
    array = sample(dtype, (5,))
    assert to_bytes(array) == numpy_helper.from_array(array).raw_data
    np.testing.assert_array_equal(to_array(numpy_helper.from_array(array), "t"), array)


@in_one_item()
@pytest.mark.parametrize("dtype", list(DType), ids=str)
def test_typed_fields(dtype):
    array = sample(dtype, (5,))
    values = array.tolist() if dtype in (DType.STRING, DType.BOOL) else array.reshape(-1)
    proto = helper.make_tensor("t", CODES[dtype], array.shape, values)
    assert not proto.HasField("raw_data")
    back = to_array(proto, "t")
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


def test_special_floats_are_bit_exact():
    array = np.array([np.nan, -0.0, np.inf, 1e-45], np.float32)
    assert to_array(to_proto(array), "t").tobytes() == array.tobytes()
    narrow = np.array([np.nan, -0.0, np.inf], ml_dtypes.bfloat16)
    assert to_array(to_proto(narrow), "t").tobytes() == narrow.tobytes()


def test_big_endian_arrays_are_written_little_endian():
    assert to_proto(np.array([1], ">i4")).raw_data == b"\1\0\0\0"


def test_an_odd_number_of_packed_elements():
    proto = to_proto(np.array([1, -8, 7], ml_dtypes.int4))
    assert proto.raw_data == bytes([0x81, 0x07])
    assert proto.data_type == TensorProto.INT4
