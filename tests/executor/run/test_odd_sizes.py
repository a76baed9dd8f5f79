"""Imported networks at sizes that few think of: vectors as weights, images without rows, no keys, contradictions."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from combinations import in_one_item
from onnx import TensorProto, helper, numpy_helper

import graphkit as gk
from graphkit.checks.samples import make_case
from graphkit.errors import TypeMismatch
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops import registry
from graphkit.ops._base import DOMAIN

Shape = list[int | str]


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def file_of(nodes: list[Any], inputs: dict[str, Shape], **weights: Any) -> onnx.ModelProto:
    """Its output is y."""
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    held = [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", given, [y], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def by_onnx_runtime(file: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    session = onnxruntime.InferenceSession(file.SerializeToString())
    found: np.ndarray = session.run(None, feeds)[0]
    return found


@in_one_item()
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [["N", 8], ["N", "M", 8], ["N", 4, 8]], ids=str)
def test_a_product_with_a_vector_at_one_size_after_another(shape: Shape, threads: int) -> None:
    file = file_of([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": shape}, w=draw(8))
    executor = gk.load(file).compile(threads=threads)
    for n in (3, 2, 1, 5, 0, 3):
        x = draw(*({"N": n, "M": n + 1}.get(d, d) if isinstance(d, str) else d for d in shape))
        np.testing.assert_allclose(executor.run({"x": x})["y"], by_onnx_runtime(file, {"x": x}), rtol=1e-5, atol=1e-5)


CONVOLUTIONS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((4, 3, 1, 1), {"pads": [1] * 4}),
    ((4, 3, 3, 2), {"strides": [2, 3], "pads": [1, 0, 2, 1]}),
    ((64, 64, 1, 1), {"pads": [1] * 4}),
    ((4, 3, 3, 3), {"pads": [1] * 4}),
    ((4, 3, 7, 7), {"strides": [2, 2], "pads": [3] * 4}),
    ((64, 64, 5, 5), {"pads": [2] * 4}),
    ((8, 1, 3, 3), {"pads": [2] * 4, "group": 8}),
    ((8, 4, 3, 3), {"pads": [1, 2, 1, 2], "group": 2}),
]


@in_one_item("values")
@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize(("w", "attributes"), CONVOLUTIONS, ids=str)
def test_images_without_rows_or_columns(w: tuple[int, ...], attributes: dict[str, Any], optimize: bool) -> None:
    """All that is convolved is padding; or nothing is, and the result is empty, where ONNX Runtime has an error."""
    channels = w[1] * attributes.get("group", 1)
    node = helper.make_node("Conv", ["x", "w"], ["y"], **attributes)
    file = file_of([node], {"x": ["N", channels, "H", "W"]}, w=draw(*w))
    begin, end = np.reshape(attributes["pads"], (2, 2))
    for threads in (1, 2):
        executor = gk.load(file).compile(threads=threads, optimize=optimize)
        for image in ((0, 7), (7, 0), (0, 0), (9, 8), (0, 7)):
            room = np.array(image) + begin + end - w[2:]
            sizes = np.where(room < 0, 0, room // attributes.get("strides", 1) + 1)
            found = executor.run({"x": draw(2, channels, *image)})["y"]
            assert found.shape == (2, w[0], *sizes)
            if 0 in image:
                assert not found.any()
            else:
                x = draw(2, channels, *image)
                np.testing.assert_allclose(found, by_onnx_runtime(file, {"x": x}), rtol=1e-4, atol=1e-4)


@in_one_item()
@pytest.mark.parametrize("queries", [1, 3, 5, 40])
def test_attention_to_no_keys_is_zero(queries: int) -> None:
    nodes = [
        helper.make_node("MatMul", ["q", "k"], ["s"]),
        helper.make_node("Softmax", ["s"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]
    file = file_of(nodes, {"q": ["B", 2, "L", 4], "k": ["B", 2, 4, "S"], "v": ["B", 2, "S", 4]})
    executor = gk.load(file).compile()
    for keys in (3, 0, 2):
        feeds = {"q": draw(1, 2, queries, 4), "k": draw(1, 2, 4, keys), "v": draw(1, 2, keys, 4)}
        np.testing.assert_allclose(executor.run(feeds)["y"], by_onnx_runtime(file, feeds), rtol=1e-4, atol=1e-5)


@in_one_item()
@pytest.mark.parametrize("first", [(2, 3, 4, 4), None])
@pytest.mark.parametrize("channels", [1, 7])
def test_channels_that_a_normalisation_has_not(channels: int, first: tuple[int, ...] | None) -> None:
    node = helper.make_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"])
    vectors = {name: draw(3) for name in "sbm"} | {"v": np.ones(3, np.float32)}
    executor = gk.load(file_of([node], {"x": ["N", "C", "H", "W"]}, **vectors)).compile()
    if first is not None:
        executor.run({"x": draw(*first)})
    with pytest.raises(TypeMismatch, match="BatchNormalization"):
        executor.run({"x": draw(2, channels, 2, 2)})


@in_one_item()
@pytest.mark.parametrize(
    ("nodes", "constants", "x"),
    [
        (
            [("Mul", "x", "c", "a"), ("MatMul", "a", "w", "y")],
            {"c": np.float32(1e-10), "w": np.full((8, 8), 1e15, np.float32)},
            np.full((4, 8), 1e25, np.float32),
        ),
        (
            [("MatMul", "x", "w", "a"), ("Div", "a", "c", "y")],
            {"c": np.float32(1e-30), "w": draw(8, 8) * np.float32(1e-30)},
            draw(4, 8),
        ),
        (
            [("MatMul", "x", "w", "a"), ("Mul", "a", "c", "y")],
            {"c": np.float32(0), "w": draw(8, 8)},
            np.full((4, 8), np.inf, np.float32),
        ),
    ],
)
def test_factors_stay_where_numbers_would_overflow(
    nodes: list[tuple[str, ...]], constants: dict[str, Any], x: np.ndarray
) -> None:
    """As numpy computes them, one after the other; ONNX Runtime joins the first two as well, and has infinity."""
    file = file_of([helper.make_node(op, inputs, [y]) for op, *inputs, y in nodes], {"x": ["N", 8]}, **constants)
    values, functions = {"x": x, **constants}, {"MatMul": np.matmul, "Mul": np.multiply, "Div": np.divide}
    with np.errstate(invalid="ignore"):
        for op, a, b, y in nodes:
            values[y] = functions[op](values[a], values[b])
    np.testing.assert_allclose(gk.load(file).compile().run({"x": x})["y"], values["y"], rtol=1e-4)


@in_one_item()
@pytest.mark.parametrize("rows", [1, 5])
def test_a_gradient_of_padding_that_does_not_fit(rows: int) -> None:
    """A file may contain a gradient without its forward node."""
    case = make_case(registry.get(DOMAIN, "PadGrad"), 2)
    given = [Value(TensorType(case.types[i].dtype, [f"a{i}", f"b{i}"]), f"x{i}") for i in (0, 1)]
    node = Node(case.op, [*given, *(gk.constant(value=array) for array in case.arrays[2:])])
    executor = gk.Model.from_graph(Graph(given, node.outputs, name="g"), {}).compile(threads=1)
    with pytest.raises(TypeMismatch, match="PadGrad"):
        executor.run({"x0": np.ones((rows, 6), np.float32), "x1": np.ones((2, 3), np.float32)})


@in_one_item()
@pytest.mark.parametrize("name", ["RNNRecurrenceGrad", "GRURecurrenceGrad", "LSTMRecurrenceGrad"])
def test_a_gradient_of_recurrence_in_more_directions_than_there_are(name: str) -> None:
    case = make_case(registry.get(DOMAIN, name), 2)
    arrays = [None if a is None else np.concatenate([a] * 3) if np.ndim(a) > 2 else a for a in case.arrays]
    with pytest.raises(TypeMismatch, match=r"directions|expected"):
        Node(case.op, [None if a is None else Value(TensorType(str(a.dtype), a.shape)) for a in arrays])


def test_a_gradient_of_padding_of_another_rank() -> None:
    case = make_case(registry.get(DOMAIN, "PadGrad"), 0)
    dy, x = (Value(TensorType("float32", shape)) for shape in ((4, 4), (3, 2, 1)))
    with pytest.raises(TypeMismatch, match=r"dy float32\[4, 4\] and x float32\[3, 2, 1\] differ in rank$"):
        Node(case.op, [dy, x, Value(TensorType("int64", (4,)))])
