"""Layout assignment: the results stay the same, and transposes are only at the borders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.autodiff import gradient
from graphkit.errors import CheckFailed
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType, TensorType, same_type
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate
from graphkit.ops.internal.fused_conv import FusedConv
from graphkit.ops.nn.conv import Conv
from graphkit.passes.cleanup import CLEANUP
from graphkit.passes.core.sweep import run_passes
from graphkit.passes.layout.channels_last import channels_first, channels_last
from graphkit.passes.pipeline import with_filters_last

rng = np.random.default_rng(0)


def weights(*shape: int) -> Value:
    made: Value = F.constant(value=rng.standard_normal(shape).astype(np.float32))
    return made


def conv(x: Any, channels: int, taken: int, kernel: int = 3, rank: int = 2, **attrs: Any) -> Value:
    made: Value = F.conv(x, weights(channels, taken, *(kernel,) * rank), **attrs)
    return made


def ops(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes if node.op.name != "Constant"]


def converted(build: Callable[[Value], Any], shape: tuple[Any, ...] = ("N", 3, 9, 8)) -> Graph:
    """Return the graph after the pass. Checks that the outputs stay the same."""
    x = Value(TensorType("float32", shape), "x")
    built = build(x)
    graph = Graph([x], built if isinstance(built, list) else [built])
    moved = channels_last(graph)
    for node in moved.nodes:
        inferred = node.op.infer_types([None if v is None else v.type for v in node.inputs])
        assert all(map(same_type, inferred, [v.type for v in node.outputs])), node
    result = run_passes(moved, CLEANUP)
    assert [v.type for v in result.outputs] == [v.type for v in graph.outputs]
    array = rng.standard_normal([d if isinstance(d, int) else 2 for d in shape]).astype(np.float32)
    for got, want in zip(evaluate(result, [array]), evaluate(graph, [array]), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    return result


def two_convolutions_with(middle: Callable[[Any], Any]) -> Callable[[Value], Any]:
    return lambda x: conv(middle(conv(x, 6, 3)), 4, 6, 1)


MIDDLES: dict[str, Callable[[Any], Any]] = {
    "pointwise": lambda h: F.sigmoid(F.add(F.relu(h), 1.0)),
    "channel vector": lambda h: F.mul(h, weights(6, 1, 1)),
    "full constant": lambda h: F.add(h, weights(1, 6, 1, 1)),
    "clip": lambda h: F.clip(h, np.float32(0), np.float32(6)),
    "slopes": lambda h: F.p_relu(h, weights(6, 1, 1)),
    "maximum pool": lambda h: F.max_pool(h, kernel_shape=(2, 2), strides=(2, 1), pads=(1, 0, 0, 1))[0],
    "average pool": lambda h: F.average_pool(h, kernel_shape=(3, 3), pads=(1, 1, 1, 1)),
    "global pool": lambda h: F.mul(h, F.sigmoid(conv(F.global_average_pool(h), 6, 6, 1))),
    "global maximum": lambda h: F.global_max_pool(h),
    "concat": lambda h: F.split(F.concat([h, F.relu(h)], axis=1), np.array([6, 6]), axis=1)[1],
    "concat of rows": lambda h: F.concat([h, F.relu(h)], axis=-2),
    "softmax": lambda h: F.softmax(h, axis=1),
    "mean": lambda h: F.reduce_mean(h, np.array([2]), keepdims=True),
    "batch norm": lambda h: F.batch_normalization(
        h, weights(6), weights(6), weights(6), F.constant(value=np.linspace(0.5, 2, 6, dtype=np.float32))
    ),
    "resize": lambda h: F.resize(h, None, np.array([1, 1, 2, 2], np.float32), mode="nearest"),
    "resize to": lambda h: F.resize(h, None, None, np.array([2, 6, 5, 4]), mode="linear"),
    "pad": lambda h: F.pad(h, np.array([0, 0, 1, 2, 0, 0, 0, 1])),
    "pad of axes": lambda h: F.pad(h, np.array([1, 2]), None, np.array([-2])),
    "slice": lambda h: F.slice(h, np.array([1, 0]), np.array([5, 5]), np.array([2, -1]), np.array([2, 1])),
    "transposed convolution": lambda h: F.conv_transpose(h, weights(6, 6, 2, 2), strides=(2, 2)),
    "depthwise": lambda h: conv(h, 6, 1, 3, group=6, pads=(1, 1, 1, 1)),
}


@in_one_item()
@pytest.mark.parametrize("name", MIDDLES)
def test_the_layout_is_carried_on(name: str) -> None:
    graph = converted(two_convolutions_with(MIDDLES[name]))
    names = ops(graph)
    assert names.count("ChannelsLastConv") >= 2
    assert names.count("Transpose") == 2, names
    assert names[0] == names[-1] == "Transpose"


def test_vectors_of_channels_are_reshaped_once() -> None:
    x = Value(TensorType("float32", ("N", 3, 9, 8)), "x")
    vectors = [Value(TensorType("float32", (6, 1, 1)), f"v{i}", role="parameter") for i in range(2)]
    h = conv(x, 6, 3)
    for vector in vectors:
        h = F.mul(h, vector)
    moved = channels_last(Graph([x, *vectors], [conv(h, 4, 6, 1)]))
    assert Counter(ops(moved)) == {"Transpose": 2, "ChannelsLastConv": 2, "Mul": 2, "Reshape": 2}
    targets = {node.inputs[1] for node in moved.nodes if node.op.name == "Reshape"}
    assert len(targets) == 1


@in_one_item()
@pytest.mark.parametrize(
    "middle",
    [
        lambda h: F.lrn(h, size=3),
        lambda h: F.reshape(F.reshape(h, np.array([0, -1])), np.array([0, 6, 7, 6])),
        lambda h: F.transpose(h, perm=(0, 1, 3, 2)),
        lambda h: F.resize(h, None, None, np.array([9, 7, 6, 2]), axes=(3, 2, 1, 0), mode="linear"),
        lambda h: F.reduce_sum(F.add(h, weights(2, 1, 6, 1, 1)), np.array([0]), keepdims=False),
        lambda h: F.reduce_sum(F.mul(h, weights(2, 1, 1, 1, 1)), np.array([0]), keepdims=False),
        lambda h: F.batch_normalization(h, *[np.full(6, v, np.float64) for v in (1.5, 0.25, 0.5, 2.0)]),
        lambda h: F.batch_normalization(
            h, *[np.full(6, v, t) for v, t in ((1.5, "f4"), (0.2, "f4"), (1, "f8"), (2, "f8"))]
        ),
    ],
    ids=[
        *["LRN", "Reshape", "Transpose", "Resize of axes", "Sum of another rank", "Product of another rank"],
        *["BatchNormalization with vectors of another type", "BatchNormalization with statistics of another type"],
    ],
)
def test_other_operators_get_the_standard_order(middle: Callable[[Any], Any]) -> None:
    converted(two_convolutions_with(middle))


def test_an_operand_of_unknown_rank_leaves_the_standard_order() -> None:
    x, other = Value(TensorType("float32", ("N", 3, 9, 8)), "x"), Value(TensorType("float32", None), "other")
    graph = Graph([x, other], [F.relu(F.add(conv(x, 6, 3), other))])
    result = run_passes(channels_last(graph), CLEANUP)
    arrays = [rng.standard_normal((2, 3, 9, 8)).astype(np.float32), rng.standard_normal((6, 1, 1)).astype(np.float32)]
    np.testing.assert_allclose(evaluate(result, arrays)[0], evaluate(graph, arrays)[0], rtol=1e-4, atol=1e-4)


@in_one_item()
@pytest.mark.parametrize("rank", [1, 3])
def test_one_and_three_spatial_axes(rank: int) -> None:
    graph = converted(lambda x: conv(F.relu(conv(x, 5, 3, 2, rank)), 4, 5, 2, rank), ("N", 3, *(5,) * rank))
    assert ops(graph) == ["Transpose", "ChannelsLastConv", "Relu", "ChannelsLastConv", "Transpose"]


@in_one_item()
@pytest.mark.parametrize(
    ("channels", "spatial", "options", "kept"),
    [
        (3, (40, 40), {}, True),
        (4, (9, 16), {}, True),
        (1, (3, 1002), {}, True),
        (15, (40, 40), {}, True),
        (16, (40, 40), {}, False),
        (16, (40, 40), {"filters": 15}, True),
        (61, (40, 40), {"filters": 16, "kernel": 2}, True),
        (64, (40, 40), {"filters": 16, "kernel": 2}, False),
        (65, (40, 40), {"filters": 15}, False),
        (7, (18, 18), {"kernel": 1}, True),
        (8, (18, 18), {"kernel": 1}, False),
        (128, (900,), {}, True),
        (129, (900,), {}, False),
        (8, (81, 81), {"strides": (3, 3)}, True),
        (9, (81, 81), {"strides": (3, 3)}, False),
        (9, (81, 81), {"strides": (2, 2)}, False),
        (9, (81, 81), {"strides": (2, 2), "filters": 17}, True),
        (3, (40, 9), {}, False),
        (3, (5, 12), {}, False),
        (3, ("H", 40), {}, False),
        (16, (40, 34), {"group": 2}, True),
        (18, (40, 34), {"group": 2, "filters": 20}, False),
        (128, (40, 34), {"group": 2, "filters": 18}, True),
        (130, (40, 34), {"group": 2, "filters": 18}, False),
        (16, (40, 18), {"group": 2}, False),
        (16, (40, 34), {"group": 2, "strides": (3, 3)}, False),
        (128, (900,), {"group": 2, "filters": 64, "strides": (3,)}, True),
        (130, (900,), {"group": 2, "filters": 64}, False),
        (64, (900,), {"group": 64, "filters": 128, "strides": (3,)}, False),
        (16, (40, 10), {"group": 16, "filters": 32}, True),
        (61, (40, 50), {"group": 61, "filters": 61, "kernel": 2}, True),
        (61, (40, 40), {"group": 61, "filters": 61, "kernel": 2}, False),
        (64, (40, 50), {"group": 64, "filters": 64, "kernel": 2}, False),
        (64, (400,), {"group": 64, "filters": 64, "kernel": 2}, True),
    ],
    ids=str,
)
def test_few_channels_whose_result_is_an_output_stay(
    channels: int, spatial: tuple[Any, ...], options: dict[str, Any], kept: bool
) -> None:
    given = {"filters": 16, "kernel": 3, "group": 1, **options}
    filters, kernel = given.pop("filters"), given.pop("kernel")

    def alone(x: Value) -> Value:
        pads = (1, 0, 1, 0) if len(spatial) == 2 else (0, 0)
        return conv(x, filters, channels // given["group"], kernel, len(spatial), pads=pads, **given)

    shape = (1, channels, *spatial)
    assert ops(converted(alone, shape)) == (["Conv"] if kept else ["Transpose", "ChannelsLastConv", "Transpose"])
    assert channels_first(converted(alone, shape)) is None


@in_one_item()
@pytest.mark.parametrize(
    ("shape", "weights", "attributes", "kept"),
    [
        ((1, 128, 100), (128, 64, 4), {"strides": (2,)}, True),
        ((1, 129, 100), (129, 64, 4), {"strides": (2,)}, False),
        ((1, 3, 20000), (3, 4, 4), {"strides": (2,)}, False),
        ((1, 3, "L"), (3, 4, 4), {"strides": (2,)}, False),
        ((1, 64, 9, 15), (64, 1, 5, 5), {"strides": (2, 2)}, True),
        ((1, 64, 9, 14), (64, 1, 5, 5), {"strides": (2, 2)}, False),
        ((1, 64, 9, 24), (64, 8, 4, 4), {"strides": (2, 2)}, True),
        ((1, 64, 9, 24), (64, 8, 5, 4), {"strides": (2, 2)}, False),
        ((1, 64, 9, 23), (64, 8, 4, 4), {"strides": (2, 2)}, False),
        ((1, 64, 9, 24), (64, 64, 4, 4), {"strides": (2, 2), "group": 2}, True),
        ((1, 64, 9, 23), (64, 64, 4, 4), {"strides": (2, 2), "group": 2}, False),
        ((1, 64, 9, 24), (64, 8, 4, 4), {"strides": (2, 2), "group": 64}, False),
        ((1, 100, 9, 24), (100, 48, 8, 1), {"strides": (3, 3)}, True),
        ((1, 100, 9, 24), (100, 48, 9, 1), {"strides": (3, 3)}, False),
        ((1, 100, 9, 24), (100, 50, 2, 2), {"strides": (2, 2)}, True),
        ((1, 100, 9, 24), (100, 48, 2, 2), {"strides": (2, 2)}, False),
        ((1, 64, 9, 24), (64, 32, 3, 3), {"strides": (2, 2)}, True),
        ((1, 32, 9, 24), (32, 32, 3, 3), {"strides": (2, 2)}, False),
        ((1, 64, 9, 24), (64, 33, 3, 3), {"strides": (2, 2)}, False),
        ((1, 64, 3, 3, 8), (64, 8, 3, 3, 3), {"strides": (2, 2, 2)}, True),
        ((1, 64, 3, 3, 8), (64, 16, 2, 2, 2), {"strides": (2, 2, 2)}, False),
        ((1, 64, 3, 3, 8), (64, 17, 2, 2, 2), {"strides": (2, 2, 2)}, True),
        ((1, 32, 3, 3, 8), (32, 16, 2, 2, 2), {"strides": (2, 2, 2)}, True),
        ((1, 64, 3, 3, 7), (64, 8, 2, 2, 2), {"strides": (2, 2, 2)}, False),
        ((1, 16, 9, 24), (16, 8, 3, 3), {}, True),
        ((1, 15, 9, 24), (15, 8, 3, 3), {}, False),
    ],
    ids=str,
)
def test_transposed_convolutions_whose_result_is_an_output_stay(
    shape: tuple[Any, ...], weights: tuple[int, ...], attributes: dict[str, Any], kept: bool
) -> None:
    def alone(x: Value) -> Value:
        made: Value = F.conv_transpose(x, F.constant(value=np.ones(weights, np.float32)), **attributes)
        return made

    graph = Graph([x := Value(TensorType("float32", shape), "x")], [alone(x)])
    assert ("ConvTranspose" in ops(channels_last(graph))) is kept
    assert "ConvTranspose" not in ops(channels_last(Graph([x], [F.relu(alone(x))])))


def test_few_channels_whose_result_is_read_are_last() -> None:
    def alone(x: Value) -> Value:
        return conv(x, 16, 3)

    def returned_and_read(x: Value) -> list[Any]:
        y = alone(x)
        return [y, F.relu(y)]

    shape = (1, 3, 40, 40)
    names = ops(converted(lambda x: F.relu(alone(x)), shape))
    assert names == ["Transpose", "ChannelsLastConv", "Relu", "Transpose"]
    assert "Conv" not in ops(converted(returned_and_read, shape))


@in_one_item()
@pytest.mark.parametrize(
    ("shape", "kernel", "attributes", "kept"),
    [
        ((2, 9, 14, 15), 1, {}, True),
        ((1, 8, 300), 1, {}, True),
        ((1, 16, 13, 13), 1, {}, False),  # few positions
        ((1, 6, 20, 20), 1, {}, False),  # few channels
        ((1, 6, 20, 20, 20), 1, {}, True),
        ((1, 8, 20, 20), 1, {"strides": (2, 1)}, True),
        ((1, 61, 15, 23), 1, {"strides": (2, 3)}, True),
        ((1, 61, 15, 21), 1, {"strides": (2, 3)}, False),  # few positions
        ((2, 15, 3, 5), 1, {"group": 5}, True),
        ((2, 15, 6, 5), 1, {"group": 5, "strides": (2, 2)}, True),
        ((0, 9, 14, 15), 1, {}, False),
        ((1, 8, 20, 20), 1, {"pads": (0, 1, 0, 0)}, False),
        ((1, 8, 20, 20), 3, {}, False),
        (("N", 8, 20, 20), 1, {}, False),
    ],
    ids=str,
)
def test_windows_of_one_element_become_products(
    shape: tuple[Any, ...], kernel: int, attributes: dict[str, Any], kept: bool
) -> None:
    """A convolution whose result is only an output, with static sizes, many channels and many positions."""

    def alone(x: Value) -> Value:
        return conv(x, 5, shape[1] // attributes.get("group", 1), kernel, len(shape) - 2, **attributes)

    names = ops(converted(alone, shape))
    assert ("MatMul" in names, any("Conv" in name for name in names)) == (kept, not kept)


@pytest.mark.parametrize("attributes", [{}, {"strides": (3, 2)}, {"dilations": (2, 2)}], ids=str)
def test_windows_of_one_element_and_channel_become_elementwise_products(attributes: dict[str, Any]) -> None:
    names = ops(converted(lambda x: conv(x, 10, 1, 1, group=5, **attributes), (2, 5, 20, 20)))
    assert "Mul" in names
    assert not any("Conv" in name for name in names)


@in_one_item()
@pytest.mark.parametrize("residual_last", [False, True])
@pytest.mark.parametrize("activation", ["", "Relu", "Clip"])
def test_products_keep_what_follows(activation: str, residual_last: bool) -> None:
    residual, bias = weights(1, 5, 14, 15), weights(5)
    epilogue = FusedConv(
        activation=activation, activation_alpha=-0.5, activation_beta=0.75, residual_last=residual_last
    )

    def alone(x: Value) -> Value:
        return Node(epilogue, (x, weights(5, 9, 1, 1), bias, residual)).output

    assert "MatMul" in ops(converted(alone, (1, 9, 14, 15)))


def test_products_keep_name_and_metadata_of_the_convolution() -> None:
    def alone(x: Value) -> Value:
        return Node(Conv(), (x, weights(5, 9, 1, 1), weights(5)), "head", {"ctx_group": "last"}).output

    (product,) = [node for node in converted(alone, (1, 9, 14, 15)).nodes if node.op.name == "MatMul"]
    assert (product.name, product.meta) == ("head", {"ctx_group": "last"})


@pytest.mark.parametrize(("kernel", "rest"), [((1, 1), (14, 15)), ((14, 15), (1, 1))], ids=str)
def test_gradients_do_not_become_products_of_windows(kernel: tuple[int, ...], rest: tuple[int, ...]) -> None:
    """Both gradients are only outputs. Either the filters or the results have one position."""
    x = Value(TensorType("float32", (2, 9, 14, 15)), "x")
    w = Value(TensorType("float32", (9, 9, *kernel)), "w")
    dy = Value(TensorType("float32", (2, 9, *rest)), "dy")
    graph = Graph([x, w, dy], gradient([F.reduce_sum(F.mul(F.conv(x, w), dy), keepdims=False)], [x, w]))
    result = run_passes(channels_last(graph), CLEANUP)
    assert {"ChannelsLastConvGradInput", "ChannelsLastConvGradWeight"} <= set(ops(result))
    arrays = [rng.standard_normal(v.tensor.static_shape).astype(np.float32) for v in (x, w, dy)]
    for got, want in zip(evaluate(result, arrays), evaluate(graph, arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_a_transpose_that_asks_for_channels_last_vanishes() -> None:
    graph = converted(lambda x: F.relu(F.transpose(conv(x, 4, 3), perm=(0, 2, 3, 1))))
    assert ops(graph) == ["Transpose", "ChannelsLastConv", "Relu"]


def test_reductions_that_drop_axes_end_in_the_standard_order() -> None:
    def build(x: Value) -> list[Any]:
        h = conv(x, 4, 3)
        return [F.reduce_mean(h, np.array(axes), keepdims=False) for axes in ([2, 3], [1], [2])]

    graph = converted(build)
    assert ops(graph).count("Transpose") == 2  # in front, and for the mean over rows alone


def test_indices_of_maxima_keep_the_standard_pool() -> None:
    graph = converted(lambda x: list(F.max_pool(conv(x, 4, 3), kernel_shape=(2, 2))))
    assert "MaxPool" in ops(graph)


def test_values_of_both_layouts_have_one_transpose() -> None:
    def build(x: Value) -> list[Any]:
        h = conv(x, 4, 3)
        return [F.lrn(h, size=3), F.lrn(F.relu(h), size=3), F.lrn(h, size=5), conv(h, 2, 4)]

    assert ops(converted(build)).count("Transpose") == 4


def test_double_precision_stays() -> None:
    x = Value(TensorType("float64", (1, 2, 4, 4)), "x")
    graph = Graph([x], [F.conv(x, F.constant(value=np.ones((2, 2, 3, 3))))])
    assert ops(channels_last(graph)) == ["Conv"]


def test_branches_are_entered() -> None:
    def build(x: Value) -> Value:
        branches = []
        for scale in (1.0, 2.0):
            inner = Value(x.type, "inner")
            branches.append(Graph([inner], [conv(F.relu(conv(F.mul(inner, scale), 3, 3)), 2, 3)]))
        condition = F.greater(F.reduce_sum(x, keepdims=False), 0.0)
        made: Value = F.if_(condition, x, then_branch=branches[0], else_branch=branches[1])
        return made

    graph = converted(build)
    (branching,) = [node for node in graph.nodes if node.op.name == "If"]
    assert ops(branching.op.subgraphs()["then_branch"]).count("ChannelsLastConv") == 2


ones = F.constant(value=np.ones(6, np.float32))

TRAINED: dict[str, Callable[[Any], Any]] = {
    "relu": lambda h: conv(F.relu(h), 4, 6),
    "batch norm": lambda h: conv(F.batch_normalization(h, ones, ones, ones, ones, training_mode=True)[0], 4, 6),
    "maximum pool": lambda h: conv(F.max_pool(h, kernel_shape=(3, 2), strides=(2, 1), pads=(1, 0, 1, 1))[0], 4, 6, 1),
    "average pool": lambda h: conv(F.average_pool(h, kernel_shape=(3, 3), pads=(1, 1, 1, 1)), 4, 6),
    "global pool": lambda h: F.mul(h, F.sigmoid(conv(F.global_average_pool(h), 6, 6, 1))),
    "depthwise": lambda h: conv(h, 6, 1, 3, group=6, pads=(1, 1, 1, 1)),
    "concat": lambda h: conv(F.concat([h, F.relu(h)], axis=1), 4, 12, 2),
    "sum of branches": lambda h: F.add(conv(h, 6, 6, 1), F.sum(h, F.relu(h), F.tanh(h))),
}


@in_one_item()
@pytest.mark.parametrize("filters_last", [False, True])
@pytest.mark.parametrize("name", TRAINED)
def test_gradients_keep_the_layout(name: str, filters_last: bool) -> None:
    x, w = Value(TensorType("float32", ("N", 3, 9, 8)), "x"), Value(TensorType("float32", (6, 3, 3, 1)), "w")
    loss = F.reduce_sum_square(TRAINED[name](F.conv(x, w)), keepdims=False)
    graph = Graph([x, w], [loss, *gradient([loss], [w, x])])
    result = run_passes(channels_last(graph, filters_last=filters_last), CLEANUP)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((2, 3, 9, 8), (6, 3, 3, 1))]
    for got, want in zip(evaluate(result, arrays), evaluate(graph, arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4 * float(np.abs(want).max()))
    names = ops(result)
    assert {"ChannelsLastConv", "ChannelsLastConvGradInput", "ChannelsLastConvGradWeight"} <= set(names)
    # Of x, and of its gradient; of w likewise.
    assert names.count("Transpose") == (4 if filters_last else 2), names
    assert not {"MaxPoolGrad", "AveragePoolGrad", "BatchNormGrad", "ConvGradInput", "ConvGradWeight"} & set(names)


def test_indices_that_others_read_keep_the_standard_pool() -> None:
    def build(x: Value) -> list[Any]:
        h = conv(x, 4, 3)
        y, indices = F.max_pool(h, kernel_shape=(2, 2))
        return [y, F.max_pool_grad(F.relu(y), indices, h), indices]

    assert {"MaxPool", "MaxPoolGrad"} <= set(ops(converted(build)))


def test_indices_for_another_shape_keep_the_standard_pool() -> None:
    def build(x: Value) -> list[Any]:
        h = conv(x, 4, 3)
        y, indices = F.max_pool(h, kernel_shape=(2, 2))
        return [y, F.max_pool_grad(F.relu(y), indices, F.neg(h))]

    assert {"MaxPool", "MaxPoolGrad"} <= set(ops(converted(build)))


def test_windows_of_many_elements_keep_the_standard_pool() -> None:
    def build(x: Value) -> list[Value]:
        h = conv(x, 2, 3, 1)
        loss = F.reduce_sum_square(F.max_pool(h, kernel_shape=(17, 16))[0], keepdims=False)
        return gradient([loss], [x])

    assert {"MaxPool", "MaxPoolGrad"} <= set(ops(converted(build, (1, 3, 18, 17))))


@in_one_item()
@pytest.mark.parametrize("target", [(2, 3, 7, 6), (7, 6)], ids=str)
def test_what_is_spread_over_positions(target: tuple[int, ...]) -> None:
    def build(x: Value) -> Value:
        spread = F.expand(F.global_average_pool(x), np.array(target))
        made: Value = conv(F.add(conv(x, 3, 3), spread), 4, 3)
        return made

    converted(build, (2, 3, 9, 8))


def test_gradients_of_gradients() -> None:
    def build(x: Value) -> list[Value]:
        y = F.reduce_sum_square(F.tanh(conv(x, 4, 3)), keepdims=False)
        (dx,) = gradient([y], [x])
        return gradient([F.reduce_sum_square(dx, keepdims=False)], [x])

    names = ops(converted(build, (1, 3, 6, 5)))
    assert not {"ConvGradInput", "ConvGradWeight", "Conv"} & set(names)


def test_gradients_in_double_precision_stay() -> None:
    x, w = (Value(TensorType("float64", (2, 2, 4, 4)), n) for n in ("x", "w"))
    graph = Graph([x, w], [F.conv_grad_input(x, w, x, pads=(1, 2, 2, 1))])
    assert ops(channels_last(graph)) == ["ConvGradInput"]


@in_one_item()
@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_types_that_are_not_asked_for_keep_the_standard_order(kind: str) -> None:
    x = Value(TensorType(kind, ("N", 3, 9, 8)), "x")
    graph = Graph([x], [F.relu(F.conv(x, F.cast(weights(4, 3, 3, 3), to=kind)))])
    moved = with_filters_last({DType.FLOAT16})
    names = set(ops(run_passes(graph, [moved])))
    assert ("ChannelsLastConv" in names) == (kind == "float16")
    moved.verify(run_passes(graph, [moved]))
    with pytest.raises(CheckFailed, match="channels_last ensures") if kind == "float16" else nullcontext():
        moved.verify(graph)
