"""Gradients where a function has a kink, a tie, a zero or the end of its domain.

The convention is PyTorch's: at a kink one of the two slopes or, for a tie of several operands, equal shares; an
infinite slope is infinite; where a subgradient exists, there is no NaN. Where the function itself is NaN, so is its
gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.autodiff import gradient
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType, dtype_of
from graphkit.model import Model
from graphkit.ops import F, constant
from graphkit.ops.evaluate import evaluate

INF = math.inf


class Edge(NamedTuple):
    """A function of float64 operands, and the gradient of its (weighted) sum in each of them."""

    name: str
    build: Callable[..., Any]
    operands: tuple[Any, ...]
    gradients: tuple[Any, ...]
    weights: Any = None


def i64(*values: int) -> Value:
    return constant(np.asarray(values, np.int64))


def ones(like: Value, count: int) -> Value:
    return constant(np.ones(count, like.dtype.numpy))


def unary(name: str, build: Callable[..., Any], x: Any, dx: Any, weights: Any = None) -> Edge:
    return Edge(name, build, (x,), (dx,), weights)


def rows(reduction: Callable[..., Any]) -> Callable[[Value], Any]:
    return lambda x: reduction(x, i64(1), keepdims=False)


def power(exponent: float) -> Callable[[Value], Any]:
    return lambda x: F.pow(x, exponent)


ELU_0 = 1.0
SELU_0 = 1.6732632 * 1.0507010
KINKS = [
    unary("Abs", F.abs, [-1.0, 0.0, 1.0], [-1, 0, 1]),
    unary("Relu", F.relu, [-1.0, 0.0, 1.0], [0, 0, 1]),
    unary("LeakyRelu", lambda x: F.leaky_relu(x, alpha=0.25), [-1.0, 0.0, 1.0], [0.25, 0.25, 1]),
    Edge("PRelu", F.p_relu, ([-1.0, 0.0, 1.0], [0.5, 0.5, 0.5]), ([0.5, 0.5, 1], [-1, 0, 0])),
    unary("ThresholdedRelu", lambda x: F.thresholded_relu(x, alpha=1.0), [0.5, 1.0, 2.0], [0, 0, 1]),
    unary("Shrink", F.shrink, [-1.0, -0.5, 0.0, 0.5, 1.0], [1, 0, 0, 0, 1]),
    unary("Elu", F.elu, [0.0], [ELU_0]),
    unary("Selu", F.selu, [0.0], [SELU_0]),
    unary("Celu", F.celu, [-1000.0, 0.0], [0, 1]),
    unary("HardSigmoid", lambda x: F.hard_sigmoid(x, alpha=0.25), [-2.0, 0.0, 2.0], [0, 0.25, 0]),
    unary("HardSwish", F.hard_swish, [-4.0, 0.0, 4.0], [0, 0.5, 1]),
    unary("Softsign", F.softsign, [0.0], [1]),
    unary("Clip", lambda x: F.clip(x, -1.0, 1.0), [-2.0, -1.0, 0.0, 1.0, 2.0], [0, 1, 1, 1, 0]),
    Edge("Clip-bounds", F.clip, ([-2.0, -1.0, 1.0, 3.0], -1.0, 1.0), ([0, 1, 1, 0], 1, 1)),
    Edge("Clip-crossed", F.clip, ([-2.0, 0.0, 2.0], 1.0, -1.0), ([0, 0, 0], 0, 3)),
    unary("Sign", lambda x: F.add(F.sign(x), F.mul(x, 0.0)), [-1.0, 0.0, 1.0], [0, 0, 0]),
    Edge("Mod", lambda a, b: F.mod(a, b), ([4.0, 5.0], [2.0, 2.0]), ([1, 1], [-2, -2])),
]
TIES = [
    Edge("Max", F.max, ([1.0, 2.0], [1.0, 3.0]), ([0.5, 0], [0.5, 1])),
    Edge("Max-3", F.max, ([1.0], [1.0], [1.0]), ([1 / 3], [1 / 3], [1 / 3])),
    Edge("Min", F.min, ([1.0, 2.0], [1.0, 3.0]), ([0.5, 1], [0.5, 0])),
    unary("ReduceMax", rows(F.reduce_max), [[1.0, 2.0, 2.0]], [[0, 0.5, 0.5]]),
    unary("ReduceMin", rows(F.reduce_min), [[1.0, 1.0, 2.0]], [[0.5, 0.5, 0]]),
    unary("MaxPool", lambda x: F.max_pool(x, kernel_shape=(2,)), [[[1.0, 1.0, 2.0, 2.0]]], [[[1, 0, 2, 0]]]),
    unary("GlobalMaxPool", F.global_max_pool, [[[2.0, 2.0, 1.0]]], [[[0.5, 0.5, 0]]]),
    unary("TopK", lambda x: F.top_k(x, i64(1))[0], [1.0, 1.0, 0.0], [1, 0, 0]),
    Edge(
        "ScatterElements-max",
        lambda x, u: F.scatter_elements(x, i64(0, 0), u, reduction="max"),
        ([1.0, 5.0], [1.0, 1.0]),
        ([1 / 3, 1], [1 / 3, 1 / 3]),
    ),
]
ZEROS = [
    unary("Sqrt", F.sqrt, [0.0, 4.0], [INF, 0.25]),
    unary("Pow-0", power(0.0), [0.0, -2.0, 2.0], [0, 0, 0]),
    unary("Pow-1", power(1.0), [0.0, -2.0], [1, 1]),
    unary("Pow-2", power(2.0), [0.0, -2.0], [0, -4]),
    unary("Pow-1/2", power(0.5), [0.0, 4.0], [INF, 0.25]),
    unary("Pow-negative", power(-1.0), [-2.0, 2.0], [-0.25, -0.25]),
    Edge("Pow-exponent", F.pow, ([0.0, 0.0, 1.0], [0.0, 2.0, 3.0]), ([0, 0, 3], [0, 0, 0])),
    unary("ReduceL1", rows(F.reduce_l1), [[0.0, 0.0], [0.0, -4.0]], [[0, 0], [0, -1]]),
    unary("ReduceL2", rows(F.reduce_l2), [[0.0, 0.0], [3.0, 4.0]], [[0, 0], [0.6, 0.8]]),
    unary("LpPool-1", lambda x: F.lp_pool(x, kernel_shape=(2,), p=1), [[[0.0, 0.0]]], [[[0, 0]]]),
    unary("LpPool-2", lambda x: F.lp_pool(x, kernel_shape=(2,)), [[[0.0, 0.0]]], [[[0, 0]]]),
    unary("LpPool-3", lambda x: F.lp_pool(x, kernel_shape=(2,), p=3), [[[0.0, 0.0]]], [[[0, 0]]]),
    unary("GlobalLpPool-2", F.global_lp_pool, [[[0.0, 0.0], [3.0, 4.0]]], [[[0, 0], [0.6, 0.8]]]),
    unary("GlobalLpPool-3", lambda x: F.global_lp_pool(x, p=3), [[[0.0, 0.0]]], [[[0, 0]]]),
    # A row of zeros stays as it is.
    unary("LpNormalization-2", F.lp_normalization, [[0.0, 0.0]], [[1, 2]], [[1.0, 2.0]]),
    unary("LpNormalization-1", lambda x: F.lp_normalization(x, p=1), [[0.0, 0.0]], [[1, 2]], [[1.0, 2.0]]),
    unary("ReduceProd-1", rows(F.reduce_prod), [[0.0, 2.0, 3.0]], [[6, 0, 0]]),
    unary("ReduceProd-2", rows(F.reduce_prod), [[0.0, 0.0, 3.0]], [[0, 0, 0]]),
    unary("CumProd", lambda x: F.cum_prod(x, i64(0)), [0.0, 2.0, 0.0, 3.0], [3, 0, 0, 0]),
    Edge(
        "ScatterElements-mul",
        lambda x, u: F.scatter_elements(x, i64(0, 0), u, reduction="mul"),
        ([3.0, 5.0], [0.0, 2.0]),
        ([0, 1], [6, 0]),
    ),
    unary("Det", F.det, [[1.0, 2.0], [2.0, 4.0]], [[4, -2], [-2, 1]]),
    unary("Det-0", F.det, [[0.0, 0.0], [0.0, 0.0]], [[0, 0], [0, 0]]),
    unary("RMSNormalization", lambda x: F.rms_normalization(x, ones(x, 2), epsilon=0.25), [[0.0, 0.0]], [[2, 2]]),
]
NO_VARIANCE = [
    unary("LayerNormalization-one", lambda x: F.layer_normalization(x, ones(x, 1)), [[3.0]], [[0]]),
    unary(
        "LayerNormalization-equal", lambda x: F.layer_normalization(x, ones(x, 2), epsilon=0.25), [[3.0, 3.0]],
        [[-2, 2]], [[1.0, 3.0]],
    ),
    unary(
        "InstanceNormalization-one", lambda x: F.instance_normalization(x, ones(x, 1), ones(x, 1)), [[[3.0]]], [[[0]]]
    ),
    unary(
        "GroupNormalization-one", lambda x: F.group_normalization(x, ones(x, 2), ones(x, 2), num_groups=2),
        [[[3.0], [4.0]]], [[[0], [0]]],
    ),
    # (x - mean) / 1e-9 there: the deviation's own slope counts as 0.
    unary(
        "MeanVarianceNormalization-equal", lambda x: F.mean_variance_normalization(x, axes=(1,)), [[2.0, 2.0]],
        [[-1e9, 1e9]], [[1.0, 3.0]],
    ),
    unary("MeanVarianceNormalization-one", lambda x: F.mean_variance_normalization(x, axes=(1,)), [[2.0]], [[0]]),
]  # fmt: skip
INFINITIES = [
    unary("Log", F.log, [0.0], [INF]),
    unary("Reciprocal", F.reciprocal, [0.0], [-INF]),
    unary("Asin", F.asin, [-1.0, 1.0], [INF, INF]),
    unary("Acos", F.acos, [-1.0, 1.0], [-INF, -INF]),
    unary("Atanh", F.atanh, [-1.0, 1.0], [INF, INF]),
    unary("Acosh", F.acosh, [1.0], [INF]),
    unary("ReduceLogSum", rows(F.reduce_log_sum), [[0.0, 0.0]], [[INF, INF]]),
    unary("ReduceLogSumExp", rows(F.reduce_log_sum_exp), [[-INF, -INF], [-INF, 1.0]], [[0, 0], [0, 1]]),
    unary("Softmax-masked", F.softmax, [[-INF, 1.0, 1.0]], [[0, -0.5, 0.5]], [[1.0, 1.0, 3.0]]),
    unary("LogSoftmax-masked", F.log_softmax, [[-INF, 1.0]], [[1, -1]], [[1.0, 2.0]]),
    unary("Softplus", F.softplus, [-1000.0, 0.0, 1000.0], [0, 0.5, 1]),
    unary("Sigmoid", F.sigmoid, [-1000.0, 1000.0], [0, 0]),
    unary("Tanh", F.tanh, [-1000.0, 1000.0], [0, 0]),
    unary("Erf", F.erf, [-1000.0, 1000.0], [0, 0]),
    unary("Gelu", F.gelu, [-1000.0, 1000.0], [0, 1]),
    unary("Gelu-tanh", lambda x: F.gelu(x, approximate="tanh"), [-1000.0, 1000.0], [0, 1]),
    unary("Mish", F.mish, [-1000.0, 1000.0], [0, 1]),
    unary("Swish", F.swish, [-1000.0, 1000.0], [0, 1]),
    unary("Elu-far", F.elu, [-1000.0, 1000.0], [0, 1]),
    unary(
        "CrossEntropy-certain", lambda x: F.softmax_cross_entropy_loss(x, i64(1, 0))[0], [[-INF, 2.0], [1.0, 1.0]],
        [[0, 0], [-0.25, 0.25]],
    ),
    unary(
        "CrossEntropy-far", lambda x: F.softmax_cross_entropy_loss(x, i64(0))[0], [[-2000.0, 2000.0]], [[-1, 1]]
    ),
    # A query that may look at nothing has the result 0, whatever the values are.
    Edge(
        "Attention-masked",
        lambda q, v: F.attention(q, q, v, constant(np.array([[False, False], [True, True]])))[0],
        (np.zeros((1, 1, 2, 1)), np.ones((1, 1, 2, 1))),
        (np.zeros((1, 1, 2, 1)), np.full((1, 1, 2, 1), 0.5)),
    ),
    unary("Syevd-values", lambda a: F.syevd(a)[1], [[2.0, 0.0], [0.0, 2.0]], [[1, 0], [0, 3]], [1.0, 3.0]),
]  # fmt: skip
EDGES = [*KINKS, *TIES, *ZEROS, *NO_VARIANCE, *INFINITIES]


def differentiated(edge: Edge, dtype: Any) -> tuple[Graph, list[np.ndarray]]:
    """The graph of the edge's gradients, and the operands."""
    arrays = [np.asarray(a, dtype) for a in edge.operands]
    operands = [Value(TensorType(dtype_of(a.dtype), a.shape), f"x{i}") for i, a in enumerate(arrays)]
    y = edge.build(*operands)
    y = y[0] if isinstance(y, tuple) else y
    seeds = None if edge.weights is None else [constant(np.asarray(edge.weights, dtype))]
    return Graph(operands, gradient([y], operands, seeds)), arrays


@pytest.mark.parametrize("edge", EDGES, ids=lambda e: e.name)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_edges(edge: Edge) -> None:
    graph, arrays = differentiated(edge, np.float64)
    for found, expected in zip(evaluate(graph, arrays), edge.gradients, strict=True):
        np.testing.assert_allclose(found, np.asarray(expected, np.float64), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("edge", EDGES, ids=lambda e: e.name)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_native_kernels_agree(edge: Edge) -> None:
    graph, arrays = differentiated(edge, np.float32)
    executor = Model.from_graph(graph, {}).compile()
    results = executor.run(dict(zip(graph.input_names, arrays, strict=True)))
    for found, expected in zip(results.values(), edge.gradients, strict=True):
        np.testing.assert_allclose(found, np.asarray(expected, np.float32), rtol=2e-6, atol=1e-6)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("function", [F.softmax, F.log_softmax], ids=["Softmax", "LogSoftmax"])
def test_nothing_to_choose_from_is_not_a_number(function: Callable[..., Any]) -> None:
    """Softmax of only -inf is 0 / 0, in the standard and in PyTorch, and its gradient is NaN."""
    x = Value(TensorType(dtype_of(np.float64), (1, 2)), "x")
    y = function(x)
    (dx,) = gradient([y], [x])
    found = evaluate(Graph([x], [y, dx]), [np.full((1, 2), -np.inf)])
    assert all(np.isnan(a).all() for a in found)


def test_every_edge_has_a_name_of_its_own() -> None:
    names = [edge.name for edge in EDGES]
    assert len(set(names)) == len(names)


@in_one_item()
@pytest.mark.parametrize(
    ("x_shape", "w_shape", "is_product"),
    [
        ((2, 3, 5, 6), (4, 3, 2, 3), True),
        ((2, 3, 5, 6), (0, 3, 2, 3), False),
        ((2, 0, 5, 6), (4, 0, 2, 3), False),
    ],
    ids=["patches", "no filters", "no channels"],
)
def test_gradient_of_a_convolution_of_patches(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], is_product: bool
) -> None:
    """A product of the patches, unless there are none of some size."""
    weights = np.random.default_rng(0).standard_normal(w_shape).astype(np.float32)
    x = Value(TensorType("float32", x_shape), "x")
    y = F.conv(x, constant(weights), strides=w_shape[2:])
    (dx,) = gradient([F.reduce_sum(y, keepdims=False)], [x])
    net = Model({"dx": dx})
    assert any(n.op.name == "MatMul" for n in net.graph.nodes) == is_product
    wanted = np.zeros(x_shape, np.float32)
    wanted[:, :, :4, :6] = np.tile(weights.sum(axis=0), (1, 2, 2))
    np.testing.assert_allclose(net.run({"x": np.zeros(x_shape, np.float32)})["dx"], wanted, rtol=1e-5, atol=1e-6)
