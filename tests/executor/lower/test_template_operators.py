"""Operators whose kernels for new sizes are made without Python: the same results as those of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnxruntime
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.executor.run.session import Executor
from graphkit.executor.run.sized_program import SizedProgram
from graphkit.ir.graph import Value
from graphkit.ops import F
from graphkit.ops._base import apply
from graphkit.ops.internal.channels_last_pool import ChannelsLastAveragePool, ChannelsLastMaxPool
from graphkit.ops.tensor.constants import ReduceToShapeOf

RNG = np.random.default_rng(0)
SIZES = [(2, 5), (1, 1), (3, 4), (2, 16), (4, 3)]


def draw(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, dtype=np.float32)


def axes(*given: int) -> np.ndarray:
    return np.array(given, np.int64)


def rows(x: Value) -> Value:
    """The second size of x, a 0-d tensor."""
    return F.gather(F.shape(x), np.int64(1))


def vector(size: Value) -> Value:
    return F.unsqueeze(size, axes(0))


def indices(x: Value) -> Value:
    return F.cast(F.reduce_sum(x, axes(2), keepdims=False), to="int64")


def planes(x: Value) -> Value:
    """x as [N, 8, M, 8]."""
    return F.mul(F.unsqueeze(F.transpose(x, perm=(0, 2, 1)), axes(3)), draw(8))


# By operator (the first word), a function of x: [N, M, 8].
BODIES: dict[str, Callable[[Value], Value]] = {
    "LayerNormalization": lambda x: F.layer_normalization(x, draw(8), draw(8), axis=-1, epsilon=1e-3)[0],
    "RMSNormalization": lambda x: F.rms_normalization(x, draw(8), axis=-1),
    "InstanceNormalization": lambda x: F.instance_normalization(F.transpose(x, perm=(0, 2, 1)), draw(8), draw(8)),
    "GroupNormalization": lambda x: F.group_normalization(
        F.transpose(x, perm=(0, 2, 1)), draw(8), draw(8), num_groups=4
    ),
    "BatchNormalization": lambda x: F.batch_normalization(
        F.transpose(x, perm=(0, 2, 1)), F.reduce_mean(x, axes(0, 1), keepdims=False), draw(8), draw(8), np.abs(draw(8))
    ),
    "LRN": lambda x: F.lrn(F.unsqueeze(x, axes(3)), size=3, alpha=0.5, beta=0.6, bias=1.5),
    "ReduceSum": lambda x: F.reduce_sum(x, axes(1)),
    "ReduceMean": lambda x: F.reduce_mean(x, axes(-1, 0), keepdims=False),
    "ReduceToShapeOf": lambda x: apply(ReduceToShapeOf(), x, F.reduce_sum(x, axes(1))),
    "Slice bounds": lambda x: F.slice(
        x, vector(F.div(rows(x), np.int64(2))), vector(F.sub(rows(x), F.div(rows(x), np.int64(4)))), axes(1)
    ),
    "Slice backwards": lambda x: F.slice(
        x, vector(F.div(rows(x), np.int64(2))), vector(F.div(rows(x), np.int64(5))), axes(1), axes(-1)
    ),
    "ReduceMax": lambda x: F.reduce_max(x, axes(1, 2)),
    "ReduceMin": lambda x: F.reduce_min(x),
    "ReduceProd": lambda x: F.reduce_prod(x, axes(2)),
    "ReduceL1": lambda x: F.reduce_l1(x, axes(), keepdims=False),
    "ReduceL2": lambda x: F.reduce_l2(x, axes(0)),
    "ReduceSumSquare": lambda x: F.reduce_sum_square(F.exp(x), axes(), noop_with_empty_axes=True),
    "ReduceLogSum": lambda x: F.reduce_log_sum(F.exp(x), axes(1)),
    "ReduceLogSumExp": lambda x: F.reduce_log_sum_exp(x, axes(1)),
    "GlobalAveragePool": lambda x: F.global_average_pool(x),
    "GlobalMaxPool": lambda x: F.global_max_pool(x),
    "MaxPool": lambda x: F.max_pool(planes(x), kernel_shape=(2, 3), auto_pad="SAME_LOWER", strides=(2, 1))[0],
    "AveragePool": lambda x: F.average_pool(planes(x), kernel_shape=(3, 2), pads=(1, 0, 1, 1), strides=(2, 2)),
    "LpPool": lambda x: F.lp_pool(planes(x), kernel_shape=(2, 2), auto_pad="SAME_UPPER", p=3),
    "MaxPool of rows": lambda x: F.max_pool(x, kernel_shape=(8,))[0],
    "AveragePool of rows": lambda x: F.average_pool(x, kernel_shape=(8,), count_include_pad=True),
    "ChannelsLastMaxPool": lambda x: apply(ChannelsLastMaxPool(kernel_shape=(3,), strides=(2,), pads=(1, 1)), x),
    "ChannelsLastMaxPool of bytes": lambda x: apply(
        ChannelsLastMaxPool(kernel_shape=(2,), auto_pad="SAME_LOWER"), F.cast(F.abs(F.mul(x, draw(8) * 9)), to="uint8")
    ),
    "ChannelsLastAveragePool": lambda x: apply(
        ChannelsLastAveragePool(kernel_shape=(3,), auto_pad="SAME_UPPER", strides=(2,), count_include_pad=False), x
    ),
    "Range": lambda x: F.range(np.int64(3), F.add(rows(x), np.int64(4)), np.int64(2)),
    "ConstantOfShape": lambda x: F.constant_of_shape(F.shape(x), value=np.array([2.5])),
    "EyeLike": lambda x: F.eye_like(F.reduce_sum(x, axes(2), keepdims=False), k=1, dtype="int64"),
    "OneHot": lambda x: F.one_hot(indices(x), rows(x), draw(2), axis=1),
    "Gather": lambda x: F.gather(x, F.sub(rows(x), np.int64(1)), axis=1),
    "Concat": lambda x: F.concat(x, F.exp(x), axis=1),
    "CumSum": lambda x: F.cum_sum(x, np.int64(1)),
}  # fmt: skip


def model(name: str) -> gk.Model:
    return gk.Model({"y": BODIES[name](gk.input("x", ["N", "M", 8]))})


def made_natively(executor: Executor) -> set[str]:
    """The operators whose kernels the executor's template makes without Python."""
    (template,) = [b.template for b in executor._programs.builder._sized.values()]  # type: ignore[union-attr]
    return {step.node.op.name for step in template._distinct_steps if step.native is not None}


@in_one_item()
@pytest.mark.parametrize("name", BODIES)
def test_results_at_one_size_after_another(name: str) -> None:
    net = model(name)
    session = onnxruntime.InferenceSession(net.to_onnx(opset=23).SerializeToString())
    executor = net.compile(threads=2)
    for number, (n, m) in enumerate(SIZES):
        x = draw(n, m, 8)
        (found,) = executor.run({"x": x}).values()
        assert isinstance(executor._choice.latest, SizedProgram) == (number > 0)
        (expected,) = session.run(None, {"x": x})
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)
    assert name.split()[0] in made_natively(executor)
