"""Casts around normalisations and losses are fused: those of operands, and of results that all readers round."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import DType, TensorType
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate
from graphkit.passes.fuse.norm_casts import fuse_norm_casts

KINDS = (DType.BFLOAT16, DType.FLOAT16)


def value(name, *shape, kind="float32"):
    return Value(TensorType(kind, shape), name)


def feeds(graph, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.uniform(0.5, 2, v.tensor.static_shape).astype(v.dtype.numpy) for v in graph.inputs]


def check(graph, casts):
    """Check that the results keep their bits, and the number of casts."""
    made = fuse_norm_casts(graph)
    assert sum(node.op.name == "Cast" for node in made.nodes) == casts
    arrays = feeds(graph)
    for found, wanted in zip(evaluate(made, arrays), evaluate(graph, arrays), strict=True):
        assert found.dtype == wanted.dtype
        assert found.tobytes() == wanted.tobytes()
    return made


@in_one_item()
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("read_elsewhere", [False, True])
def test_forward(kind, read_elsewhere):
    x, residual = value("x", 2, 3, 3, 4, kind=kind), value("residual", 2, 3, 3, 4)
    vectors = [value(name, 4) for name in ("scale", "b", "mean", "var")]
    y, running, *_ = F.channels_last_batch_norm(F.cast(x, to=DType.FLOAT32), *vectors, residual, activation="Relu")
    outputs = [F.cast(y, to=kind), running, *([F.neg(y)] if read_elsewhere else [])]
    made = check(Graph([x, *vectors, residual], outputs), int(read_elsewhere))
    (norm,) = (node for node in made.nodes if node.op.name == "ChannelsLastBatchNorm")
    assert norm.operands[0].dtype is kind
    assert norm.outputs[0].dtype is (DType.FLOAT32 if read_elsewhere else kind)


@in_one_item()
@pytest.mark.parametrize("kind", KINDS)
def test_gradient(kind):
    dy, x = value("dy", 4, 3, 2, kind=kind), value("x", 4, 3, 2, kind=kind)
    vectors = [value(name, 2) for name in ("scale", "b", "mean", "r")]
    wide = [F.cast(v, to=DType.FLOAT32) for v in (dy, x)]
    dx, dscale, db, _ = F.channels_last_batch_norm_grad(*wide, *vectors, activation="Relu")
    check(Graph([dy, x, *vectors], [F.cast(dx, to=kind), dscale, db]), 0)


def test_who_wants_the_type_of_a_result():
    """If a node reads the type of a result, the cast is kept. Readers of the shape accept any type."""
    x, vectors = value("x", 2, 3, 4), [value(name, 4) for name in ("scale", "b", "mean", "var")]
    i = value("i", 3, kind="int64")
    for reader, casts in ((lambda y: F.cast_like(i, y), 1), (F.shape, 0)):
        y = F.channels_last_batch_norm(x, *vectors)[0]
        check(Graph([x, *vectors, i], [F.cast(y, to=KINDS[0]), reader(y)]), casts)


def test_results_stay_what_they_are():
    """Outputs of the graph, and values that are rounded to two types, are not rounded in the normalisation."""
    x, vectors = value("x", 2, 3, 4), [value(name, 4) for name in ("scale", "b", "mean", "var")]
    y = F.channels_last_batch_norm(x, *vectors)[0]
    check(Graph([x, *vectors], [y, F.cast(y, to=KINDS[0])]), 1)
    y = F.channels_last_batch_norm(x, *vectors)[0]
    check(Graph([x, *vectors], [F.cast(y, to=kind) for kind in KINDS]), 2)
    y = F.channels_last_batch_norm(x, *vectors)[0]
    check(Graph([x, *vectors], [y]), 0)


@in_one_item()
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", [False, True])
def test_layer_norm(kind, bias):
    """As it is, between casts, and with its gradient."""
    x, dy = value("x", 2, 3, 4, kind=kind), value("dy", 6, 4, kind=kind)
    factors = [value(name, 4) for name in ("scale", "b")[: 1 + bias]]
    wide, dwide = F.cast(x, to=DType.FLOAT32), F.reshape(F.cast(dy, to=DType.FLOAT32), np.array([2, 3, 4]))
    y, mean, r = F.layer_normalization(wide, *factors)
    dx, *sums = F.layer_norm_grad(dwide, wide, factors[0], mean, r)
    made = check(Graph([x, dy, *factors], [F.cast(y, to=kind), F.cast(dx, to=kind), *sums]), 0)
    norms = [node for node in made.nodes if "Norm" in node.op.name]
    assert [node.op.name for node in norms] == ["MixedPrecisionLayerNorm", "LayerNormGrad"]
    plain = value("plain", 2, 4)
    graph = Graph([plain, *factors], [F.layer_normalization(plain, *factors)[0]])
    assert fuse_norm_casts(graph) is graph, "nobody casts"


@in_one_item()
@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradient(kind):
    """Also where the scores were widened in another shape, and somebody else reads them so."""
    x, labels = value("x", 2, 3, 4, kind=kind), value("labels", 6, kind="int64")
    wide = F.cast(x, to=DType.FLOAT32)
    rows = F.reshape(F.flatten(wide), np.array([6, 4]))
    for shown in ([], [wide]):
        loss, dscores = F.softmax_cross_entropy_with_grad(rows, labels, np.float32(0.5))
        made = check(Graph([x, labels], [loss, F.cast(dscores, to=kind), *shown]), len(shown))
        (node,) = (node for node in made.nodes if node.op.name == "SoftmaxCrossEntropyWithGrad")
        assert [v.dtype for v in (node.operands[0], *node.outputs)] == [kind, DType.FLOAT32, kind]
