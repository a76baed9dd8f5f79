"""Transposed convolutions without strides become convolutions that compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate
from graphkit.passes.layout.unstride_transposed import unstride_transposed

CASES: list[tuple[tuple[Any, ...], tuple[int, ...], dict[str, Any]]] = [
    (("N", 3, 5, 6), (3, 2, 3, 3), {}),
    (("N", 3, "H", "W"), (3, 2, 3, 2), {"pads": (1, 0, 2, 1)}),
    (("N", 4, 5, 5), (4, 3, 3, 3), {"group": 2, "pads": (1, 1, 1, 1)}),
    (("N", 2, 5, 5), (2, 2, 3, 2), {"dilations": (2, 1), "pads": (1, 0, 0, 1), "strides": (1, 1)}),
    (("N", 3, 7), (3, 4, 4), {"pads": (1, 2)}),
    (("N", 2, 3, 4, 3), (2, 2, 2, 2, 2), {}),
]


def built(
    shape: tuple[Any, ...], weights: tuple[int, ...], bias: bool, dtype: str = "float64", **attrs: Any
) -> tuple[Graph, list[np.ndarray]]:
    rng = np.random.default_rng(0)
    channels = weights[1] * attrs.get("group", 1)
    arrays = [rng.standard_normal([d if isinstance(d, int) else 4 for d in shape]), rng.standard_normal(weights)]
    x, w = Value(TensorType(dtype, shape), "x"), Value(TensorType(dtype, weights), "w", role="parameter")
    inputs = [x, w]
    if bias:
        arrays.append(rng.standard_normal(channels))
        inputs.append(Value(TensorType("float64", (channels,)), "b", role="parameter"))
    return Graph(inputs, [F.conv_transpose(*inputs, **attrs)]), arrays


@in_one_item()
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize(("shape", "weights", "attrs"), CASES)
def test_the_same_results(shape: Any, weights: Any, attrs: Any, bias: bool) -> None:
    graph, arrays = built(shape, weights, bias, **attrs)
    after = unstride_transposed(graph)
    names = [node.op.name for node in after.nodes]
    assert "Conv" in names
    assert "ConvTranspose" not in names
    assert after.outputs[0].type == graph.outputs[0].type
    np.testing.assert_allclose(evaluate(after, arrays)[0], evaluate(graph, arrays)[0], rtol=1e-12, atol=1e-12)


@in_one_item()
@pytest.mark.parametrize(
    "attrs",
    [
        {"strides": (2, 1)},
        {"pads": (3, 0, 0, 0)},
        {"output_shape": (6, 6)},
        {"auto_pad": "SAME_UPPER"},
    ],
    ids=str,
)
def test_others_stay(attrs: dict[str, Any]) -> None:
    graph, _ = built((1, 3, 5, 6), (3, 2, 3, 3), False, **attrs)
    assert [node.op.name for node in unstride_transposed(graph).nodes] == ["ConvTranspose"]


@in_one_item()
@pytest.mark.parametrize(
    ("shape", "weights", "attrs", "kept"),
    [
        (("N", 20, 8, 8), (20, 10, 5, 5), {}, True),
        (("N", 20, 80), (20, 10, 3), {}, False),  # few results at the border
        (("N", 20, 8, 8), (20, 10, 5, 5), {"pads": (4, 4, 4, 4)}, False),  # few results
        (("N", 20, 8, "W"), (20, 10, 5, 5), {}, False),
        (("N", 20, 8, 8), (20, 8, 5, 5), {}, False),  # for kernels of few filters
        (("N", 20, 8, 8), (20, 10, 5, 5), {"group": 2}, False),
        (("N", 20, 3, 3, 3), (20, 10, 5, 5, 5), {}, False),
        (("N", 20, 8, 8), (20, 10, 5, 5), {"dilations": (2, 2)}, True),
        (("N", 20, 8, 8), (20, 10, 5, 5), {"dilations": (2, 2), "output_padding": (0, 1)}, False),  # has no kernel
    ],
)
def test_where_products_are_fewer_it_stays(shape: Any, weights: Any, attrs: dict[str, Any], kept: bool) -> None:
    graph, _ = built(shape, weights, False, "float32", **attrs)
    assert ("ConvTranspose" in [node.op.name for node in unstride_transposed(graph).nodes]) is kept


@in_one_item()
@pytest.mark.parametrize(("reads_input", "returned"), [(True, True), (False, True), (True, False)])
def test_few_filters_between_input_and_output_stay(reads_input: bool, returned: bool) -> None:
    x, w = Value(TensorType("float32", (1, 16, 9, 30)), "x"), Value(TensorType("float32", (16, 3, 3, 3)), "w")
    y = F.conv_transpose(x if reads_input else F.tanh(x), w)
    graph = Graph([x, w], [y if returned else F.tanh(y)])
    kept = "ConvTranspose" in [node.op.name for node in unstride_transposed(graph).nodes]
    assert kept is (reads_input and returned)


@in_one_item()
@pytest.mark.parametrize(("pads", "kept"), [((0, 0, 1, 1), True), ((1, 1, 0, 1), False)])
def test_few_filters_with_positions_behind_all_windows_do_not_stay(pads: tuple[int, ...], kept: bool) -> None:
    x, w = Value(TensorType("float32", (1, 16, 9, 30)), "x"), Value(TensorType("float32", (16, 3, 3, 3)), "w")
    graph = Graph([x, w], [F.conv_transpose(x, w, dilations=(2, 2), output_padding=(1, 1), pads=pads)])
    assert ("ConvTranspose" in [node.op.name for node in unstride_transposed(graph).nodes]) is kept


@in_one_item()
@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_only_those_of_our_own_kernel_stay(dtype: str) -> None:
    graph, _ = built((1, 21, 8, 8), (21, 10, 5, 5), False, dtype)
    assert "ConvTranspose" not in [node.op.name for node in unstride_transposed(graph).nodes]


def test_without_channels_it_stays() -> None:
    graph, arrays = built((1, 0, 8, 8), (0, 10, 5, 5), True)
    after = unstride_transposed(graph)
    assert [node.op.name for node in after.nodes] == ["ConvTranspose"]
    expected = np.broadcast_to(arrays[2][:, None, None], (1, 10, 12, 12))
    np.testing.assert_array_equal(evaluate(after, arrays)[0], expected)
