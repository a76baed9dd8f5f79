"""Quantised operators at their edges: sums that wrap around, operands that do not fit, sub-byte types in a graph."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import TypeMismatch
from graphkit.ops import F


def value(*shape, dtype="uint8"):
    return gk.input("x", shape, dtype=dtype)


def test_sums_wrap_around_in_32_bits():
    depth = 70_000  # of products of 255 * 255: above 2^32
    a = np.full((1, depth), 255, np.uint8)
    net = gk.Model({"y": F.mat_mul_integer(value(1, depth), a.T.copy())})
    total = 255 * 255 * depth
    wrapped = (total + 2**31) % 2**32 - 2**31
    assert wrapped != total
    assert net.compile().run({"x": a})["y"].item() == wrapped


@in_one_item()
@pytest.mark.parametrize(
    "make",
    [
        lambda: F.quantize_linear(gk.input("x", [2, 3]), np.ones(2, np.float32)),
        lambda: F.quantize_linear(gk.input("x", [2, 3]), np.ones((2, 2), np.float32), block_size=1),
        lambda: F.quantize_linear(gk.input("x", [2, 3]), np.ones(3, np.float32), np.zeros(2, np.uint8)),
        lambda: F.quantize_linear(gk.input("x", [2, 3]), np.float32(1), axis=1, block_size=-2),
        lambda: F.quantize_linear(gk.input("x", [2, 3]), np.float32(1), np.uint8(0), output_dtype="int8"),
        lambda: F.quantize_linear(gk.input("x", [2, 3]), np.float32(1), output_dtype="int64"),
        lambda: F.quantize_linear(gk.input("x", [2, 3]), np.float32(1), precision="int8"),
        lambda: F.quantize_linear(gk.input("x", [2, 3]), np.ones(3, np.float32), axis=2),
        lambda: F.dequantize_linear(value(2, 3), np.float32(1), np.int8(0)),
        lambda: F.mat_mul_integer(value(2, 3), np.ones((3, 4), np.int8), np.zeros(4, np.uint8)),
        lambda: F.mat_mul_integer(value(2, 3), np.ones((4, 4), np.int8)),
        lambda: F.conv_integer(value(1, 2, 5, 5), np.ones((3, 2, 3, 3), np.int8), None, np.zeros(2, np.int8)),
        lambda: F.conv_integer(value(1, 2, 5, 5), np.ones((3, 2, 3, 3), np.int8), np.zeros(2, np.uint8)),
        lambda: F.table_lookup(value(3), np.zeros(255, np.uint8)),
    ],
)
def test_operands_that_do_not_fit(make):
    with pytest.raises(TypeMismatch):
        make()


def test_a_block_that_is_longer_than_everything():
    x = gk.input("x", [2, 3])
    at = gk.input("s", [2, 1])
    where = {"axis": 1, "block_size": 1 << 62}
    y = F.dequantize_linear(F.quantize_linear(x, at, **where), at, **where)
    feeds = {"x": np.full((2, 3), 4.2, np.float32), "s": np.array([[1.0], [4.0]], np.float32)}
    np.testing.assert_array_equal(gk.Model({"y": y}).compile().run(feeds)["y"], np.full((2, 3), 4.0))
    slopes = gk.grad(gk.Model({"y": y}), wrt=["x", "s"]).compile().run(feeds)
    np.testing.assert_array_equal(slopes["x_grad"], np.ones((2, 3)))
    np.testing.assert_allclose(slopes["s_grad"], [[3 * (4 - 4.2)], [3 * (1 - 1.05)]], rtol=1e-4)


def test_unknown_ranks_and_named_sizes():
    x = gk.input("x", None)
    q = F.quantize_linear(x, np.float32(0.5))
    y = F.dequantize_linear(q, np.float32(0.5))
    net = gk.Model({"y": y})
    for shape in ((), (3,), (2, 3), (0, 4)):
        given = np.full(shape, 1.3, np.float32)
        np.testing.assert_array_equal(net.compile().run({"x": given})["y"], np.full(shape, 1.5, np.float32))


@in_one_item()
@pytest.mark.parametrize("dtype", ["int4", "uint4", "int2", "uint2", "float8_e4m3fn", "float4_e2m1fn"])
def test_narrow_types_are_moved_and_stored(dtype, tmp_path):
    packed = np.array([[0, 1, 1, 0], [1, 0, 1, 1], [1, 1, 0, 0]], np.float32).astype(gk.DType(dtype).numpy)
    chosen = gk.cond(
        gk.input("p", [], dtype="bool"), lambda v: F.identity(v), lambda v: F.transpose(v), packed.T.copy()
    )
    moved = F.unsqueeze(F.flatten(F.reshape(chosen, np.array([4, 3]))), np.array([0]))
    net = gk.Model({"y": F.dequantize_linear(moved, np.float32(0.5)), "shape": F.shape(moved)})
    net.save(tmp_path / "narrow.onnx", opset=25)
    expected = packed.astype(np.float32).T[None] * 0.5
    for model in (net, gk.load(tmp_path / "narrow.onnx")):
        found = model.compile().run({"p": np.array(True)})
        np.testing.assert_array_equal(found["y"], expected)
        assert found["shape"].tolist() == [1, 4, 3]
