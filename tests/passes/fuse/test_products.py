"""Convolutions and matrix products are fused with their neighbours, and batch normalisation with their weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F
from graphkit.ops.internal.fused_conv import FusedConv
from graphkit.passes.fuse.conv import fuse_conv
from graphkit.passes.fuse.fold_batch_norm import fold_batch_norm
from graphkit.passes.fuse.matmul import fuse_matmul
from graphkit.passes.simplify.fold import fold


def data(*shape: Any, name: str = "x", dtype: str = "float32") -> Value:
    return Value(TensorType(dtype, shape), name)


def parameter(*shape: int, name: str = "w", role: str = "parameter") -> Value:
    return Value(TensorType("float32", shape), name, role=role)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


ACTIVATIONS: list[Callable[[Any], Any]] = [
    F.relu,
    F.sigmoid,
    F.tanh,
    F.hard_swish,
    F.gelu,
    F.hard_sigmoid,
    lambda y: F.gelu(y, approximate="tanh"),
    lambda y: F.leaky_relu(y, alpha=0.25),
    lambda y: F.elu(y, alpha=0.5),
    lambda y: F.swish(y),
    lambda y: F.clip(y, np.float32(0.0), np.float32(6.0)),
    lambda y: F.clip(y, None, np.float32(0.5)),
]


@in_one_item()
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_conv_takes_bias_residual_and_activation(apply: Any, activation: Any) -> None:
    x, w, b, r = data("N", 3, 5, 5), parameter(4, 3, 3, 3), parameter(4, 1, 1, name="b"), data("N", 4, 3, 3, name="r")
    y = activation(F.add(F.add(F.conv(x, w), b), r))
    kept: list[Graph] = []
    assert apply([x, w, b, r], y, fuse_conv, N=2, keep=kept) == {"FusedConv": 1, "Reshape": 1}
    last = kept[0].nodes[-1].op
    assert last.activation
    assert not last.residual_last
    y = F.add(r, activation(F.conv(x, w)))
    assert apply([x, w, r], y, fuse_conv, N=2, keep=kept) == {"FusedConv": 1}
    assert kept[1].nodes[-1].op.residual_last


@in_one_item()
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_product_takes_bias_residual_and_activation(apply: Any, activation: Any) -> None:
    x, w, b, r = data("N", 5, 3), parameter(3, 4), parameter(4, name="b"), data("N", 5, 4, name="r")
    assert apply([x, w, b, r], activation(F.add(r, F.add(b, F.mat_mul(x, w)))), fuse_matmul, N=2) == {"FusedMatMul": 1}
    assert apply([x, w, r], F.add(activation(F.mat_mul(x, w)), r), fuse_matmul, N=2) == {"FusedMatMul": 1}
    rows = data("N", 3)
    assert apply([rows, w, b], activation(F.gemm(rows, w, b)), fuse_matmul, N=2) == {"FusedMatMul": 1}


def test_product_takes_transposes_and_factors(apply: Any) -> None:
    a, b = data(2, "M", 3, name="a"), data(2, "N", 3, name="b")
    y = F.mul(F.mat_mul(F.mul(a, 0.5), F.transpose(b, perm=(0, 2, 1))), 3.0)
    kept: list[Graph] = []
    assert apply([a, b], y, fuse_matmul, M=4, N=5, keep=kept) == {"FusedMatMul": 1}
    op = kept[0].nodes[-1].op
    assert (op.transA, op.transB, op.alpha) == (False, True, 1.5)
    both = F.mat_mul(
        F.transpose(a, perm=(0, 2, 1)), F.div(F.transpose(F.transpose(b, perm=(0, 2, 1)), perm=(0, 2, 1)), 2.0)
    )
    assert apply([a, b], both, fuse_matmul, M=4, N=4) == {"FusedMatMul": 1}


def test_a_transposed_product_is_one_of_transposed_operands(apply: Any) -> None:
    a, b, c = data("N", 3, name="a"), data("N", 4, name="b"), parameter(4, name="c")
    kept: list[Graph] = []
    y = F.mul(F.transpose(F.gemm(a, b, transA=True), perm=(1, 0)), 2.0)
    assert apply([a, b], y, fuse_matmul, N=5, keep=kept) == {"FusedMatMul": 1}
    op = kept[0].nodes[-1].op
    assert (op.transA, op.transB, op.alpha) == (True, False, 2.0)
    turned = F.transpose(F.mat_mul(a, data(3, 4, name="b")), perm=(1, 0))
    assert apply([a, turned.node.inputs[0].node.inputs[1]], turned, fuse_matmul, N=5) == {"FusedMatMul": 1}
    # A bias belongs to columns, which are rows then; another reader needs the product as it was.
    y = F.transpose(F.gemm(a, b, c, transA=True), perm=(1, 0))
    assert apply([a, b, c], y, fuse_matmul, N=5) == {"Gemm": 1, "Transpose": 1}
    product = F.gemm(a, b, transA=True)
    y = F.mat_mul(F.transpose(product, perm=(1, 0)), F.relu(product))
    assert apply([a, b], y, fuse_matmul, N=5) == {"FusedMatMul": 1, "Gemm": 1, "Relu": 1}


def test_gemm_operand_that_is_no_vector(apply: Any) -> None:
    x, w, c = data(2, 3), parameter(4, 3), parameter(2, 4, name="c")
    y = F.relu(F.gemm(x, w, c, transB=True, alpha=0.5))
    assert apply([x, w, c], y, fuse_matmul) == {"FusedMatMul": 1}
    column = parameter(2, 1, name="c")
    assert apply([x, w, column], F.relu(F.gemm(x, w, column, transB=True)), fuse_matmul) == {"Gemm": 1, "Relu": 1}
    row = parameter(4, name="c")
    assert apply([x, w, row], F.relu(F.gemm(x, w, row, transB=True, beta=0.5)), fuse_matmul) == {"Gemm": 1, "Relu": 1}


def test_flattened_rows(apply: Any) -> None:
    x, w, b = data("N", "T", 6), parameter(6, 4), parameter(4, name="b")
    rows = F.reshape(x, ints(-1, 6))
    y = F.reshape(F.gemm(rows, w, b), F.concat(F.shape(x, start=0, end=2), ints(4), axis=0))
    r = data("N", "T", 4, name="r")
    found = apply([x, w, b, r], F.relu(F.add(r, y)), fuse_matmul, N=2, T=3)
    assert found["FusedMatMul"] == 1
    assert not found.keys() & {"Gemm", "Reshape", "Add", "Relu"}
    # Rows come from heads that are joined for the product, or are grouped in another way.
    heads = data("N", "T", 2, 3)
    y = F.reshape(F.gemm(F.reshape(heads, ints(-1, 6)), w, b), F.concat(F.shape(heads, end=2), ints(4), axis=0))
    found = apply([heads, w, b, r], F.add(r, y), fuse_matmul, N=2, T=3)
    assert (found["FusedMatMul"], found["Gemm"], found["Add"], found["Reshape"]) == (1, 0, 0, 1)
    regrouped = F.reshape(F.gemm(rows, w, b), ints(3, -1, 4))
    assert apply([x, w, b], regrouped, fuse_matmul, N=2, T=3)["Reshape"] <= 2
    # Columns that are split are not rows.
    split = F.reshape(F.gemm(rows, w, b), ints(-1, 2, 2))
    assert apply([x, w, b], split, fuse_matmul, N=2, T=3) == {"Gemm": 1, "Reshape": 2}


@in_one_item()
@pytest.mark.parametrize(
    ("build", "left"),
    [
        # Something else reads the product.
        (lambda y: [F.relu(y), y], {"Conv": 1, "Relu": 1}),
        (lambda y: [F.add(F.relu(y), F.sigmoid(y))], {"Conv": 1, "Relu": 1, "Sigmoid": 1, "Add": 1}),
        # A sum that broadcasts the product, a vector along another axis, an activation that kernels lack.
        (lambda y: [F.add(y, np.ones((2, 1, 4, 3, 3), np.float32))], {"Conv": 1, "Add": 1}),
        (lambda y: [F.add(y, np.ones(3, np.float32))], {"Conv": 1, "Add": 1}),
        (lambda y: [F.softplus(y)], {"Conv": 1, "Softplus": 1}),
        (lambda y: [F.swish(y, alpha=2.0)], {"Conv": 1, "Swish": 1}),
        # A second activation, and a residual behind the sum with another.
        (lambda y: [F.tanh(F.relu(y))], {"FusedConv": 1, "Tanh": 1}),
        (lambda y: [F.relu(F.add(F.tanh(y), np.ones((2, 4, 3, 3), np.float32)))], {"FusedConv": 1, "Relu": 1}),
    ],
)
def test_what_a_convolution_leaves(apply: Any, build: Any, left: dict[str, int]) -> None:
    x, w = data(2, 3, 5, 5), parameter(4, 3, 3, 3)
    assert apply([x, w], build(F.conv(x, w)), fuse_conv) == left


def test_other_element_types_stay(apply: Any) -> None:
    x, w = data(2, 3, dtype="float64"), Value(TensorType("float64", (3, 4)), "w", role="parameter")
    assert apply([x, w], F.relu(F.mat_mul(x, w)), fuse_matmul) == {"MatMul": 1, "Relu": 1}


def test_the_later_product_takes_the_residual(apply: Any) -> None:
    x, w, v = data(1, 3, 4, 4), parameter(3, 3, 1, 1), parameter(3, 3, 1, 1, name="v")
    y = F.relu(F.add(F.conv(x, w, name="first"), F.conv(x, v, name="second")))
    kept: list[Graph] = []
    assert apply([x, w, v], y, fuse_conv, keep=kept) == {"Conv": 1, "FusedConv": 1}
    assert kept[0].nodes[-1].name == "second"
    assert kept[0].nodes[-1].inputs[3].node.name == "first"


def test_names_and_attributes_stay(apply: Any) -> None:
    x, w = data(1, 3, 4, 4), parameter(3, 3, 1, 1)
    y = F.relu(F.conv(x, w, name="conv1", meta={"stage": "1"}), name="relu1", meta={"block": "a"})
    kept: list[Graph] = []
    apply([x, w], [F.neg(y)], fuse_conv, keep=kept)
    fused = kept[0].nodes[0]
    assert fused.name == "conv1"
    assert fused.meta == {"stage": "1", "block": "a"}


# --- batch normalisation --------------------------------------------------------------------------


def norm(y: Value, channels: int, constant: bool) -> tuple[Value, list[Value]]:
    rng = np.random.default_rng(0)
    roles = ("parameter", "parameter", "state", "state")
    if constant:
        vectors = [F.constant(value=rng.uniform(0.5, 1.5, channels).astype(np.float32)) for _ in roles]
        return F.batch_normalization(y, *vectors), []
    inputs = [parameter(channels, name=f"v{i}", role=role) for i, role in enumerate(roles)]
    return F.batch_normalization(y, *inputs, name="bn"), inputs


PRODUCTS: list[tuple[Callable[..., Value], tuple[int, ...], tuple[int, ...], bool]] = [
    (lambda x, w, b: F.conv(x, w, b), (2, 3, 5, 5), (4, 3, 3, 3), True),
    (lambda x, w, b: F.conv(x, w), (2, 4, 5, 5), (4, 1, 3, 3), False),
    (lambda x, w, b: F.conv_transpose(x, w, b, strides=(2, 2)), (2, 3, 3, 3), (3, 4, 2, 2), True),
    (lambda x, w, b: F.gemm(x, w, b), (2, 3), (3, 4), True),
    (lambda x, w, b: F.gemm(x, w, b, transB=True, alpha=0.5), (2, 3), (4, 3), True),
    (lambda x, w, b: F.add(F.mat_mul(x, w), b), (2, 3), (3, 4), True),
]


@in_one_item()
@pytest.mark.parametrize("constant", [False, True], ids=["parameters", "constants"])
@pytest.mark.parametrize(("product", "x_shape", "w_shape", "bias"), PRODUCTS)
def test_batch_norm_in_weights(
    apply: Any, product: Any, x_shape: Any, w_shape: Any, bias: bool, constant: bool
) -> None:
    x = data(*x_shape)
    if constant:
        rng = np.random.default_rng(1)
        w = F.constant(value=rng.standard_normal(w_shape).astype(np.float32))
        b = F.constant(value=rng.standard_normal(4).astype(np.float32))
        inputs = [x]
    else:
        w, b = parameter(*w_shape), parameter(4, name="b")
        inputs = [x, w, b] if bias else [x, w]
    group = {"group": 4} if w_shape == (4, 1, 3, 3) else {}
    y = F.conv(x, w, **group) if group else product(x, w, b)
    y, vectors = norm(y, 4, constant)
    kept: list[Graph] = []
    found = apply([*inputs, *vectors], y, fold_batch_norm, *([fold] if constant else []), keep=kept)
    assert found["BatchNormalization"] == 0
    (run_always,) = (n for n in kept[0].nodes if n.op.name in ("Conv", "ConvTranspose", "Gemm", "MatMul"))
    if constant:
        assert found.total() == (2 if run_always.op.name == "MatMul" else 1)


def test_batch_norm_elsewhere_becomes_pointwise(apply: Any) -> None:
    x = data("N", 4, 3)
    y, vectors = norm(F.relu(x), 4, False)
    found = apply([x, *vectors], y, fold_batch_norm, N=2)
    assert found["BatchNormalization"] == 0
    assert found["Relu"] == 1


def test_lone_batch_norms_share_constants() -> None:
    x, vectors = data("N", 6, 4, 4), [parameter(6, name=n) for n in ("scale", "shift", "mean", "var")]
    norms = [F.batch_normalization(F.relu(x), *vectors, epsilon=e) for e in (1e-5, 1e-3)]
    graph = fold_batch_norm(Graph([x, *vectors], norms))
    found = Counter(node.op.name for node in graph.nodes)
    assert found == {"Constant": 2, "FoldedBatchNorm": 2, "Reshape": 2, "Relu": 2, "Mul": 2, "Add": 2}


def test_batch_norm_that_stays(apply: Any) -> None:
    x, w = data(2, 3, 5, 5), parameter(4, 3, 3, 3)
    scale, shift = parameter(4, name="s"), parameter(4, name="t")
    mean, var = parameter(4, name="m", role="state"), parameter(4, name="v", role="state")
    y, new_mean, new_var = F.batch_normalization(F.conv(x, w), scale, shift, mean, var, training_mode=True)
    inputs = [x, w, scale, shift, mean, var]
    found = apply(inputs, y, fold_batch_norm, updates=[(mean, new_mean), (var, new_var)])
    assert found == {"Conv": 1, "BatchNormalization": 1}
    # Statistics that a run updates are not constant during the run.
    y = F.batch_normalization(F.conv(x, w), scale, shift, mean, var)
    found = apply(inputs, y, fold_batch_norm, updates=[(mean, F.neg(mean))])
    assert found == {"Conv": 1, "BatchNormalization": 1, "Neg": 1}
    # Fed statistics are data.
    fed = [data(4, name=f"f{i}") for i in range(2)]
    y = F.batch_normalization(F.conv(x, w), scale, shift, fed[0], F.exp(fed[1]))
    assert apply([x, w, scale, shift, *fed], y, fold_batch_norm)["BatchNormalization"] == 1


def test_a_product_with_other_readers_keeps_its_weights(apply: Any) -> None:
    x, w = data(2, 3, 5, 5), parameter(4, 3, 3, 3)
    product = F.conv(x, w)
    y, vectors = norm(product, 4, False)
    kept: list[Graph] = []
    apply([x, w, *vectors], [y, product], fold_batch_norm, keep=kept)
    (conv,) = (n for n in kept[0].nodes if n.op.name == "Conv")
    assert conv.inputs[1] is w


def test_batch_norm_in_training_mode_stays(apply: Any) -> None:
    """Its statistics are those of the batch, also where nothing keeps the new ones."""
    x, w = data(2, 3, 5, 5), parameter(4, 3, 3, 3)
    vectors = [parameter(4, name=f"v{i}", role=role) for i, role in enumerate(("parameter",) * 2 + ("state",) * 2)]
    for product in (F.conv(x, w), F.relu(F.conv(x, w))):
        y = F.batch_normalization(product, *vectors, training_mode=True)[0]
        assert apply([x, w, *vectors], y, fold_batch_norm)["BatchNormalization"] == 1


def products_of(graph: Graph) -> list[Any]:
    return [n for n in graph.nodes if n.op.name in ("Conv", "MatMul", "Gemm")]


def test_a_sum_or_product_that_others_read_is_computed_once(apply: Any) -> None:
    """If something else reads the product, its weights stay and it is not computed a second time."""
    x, w, b, one = data("N", 6), parameter(6, 4), parameter(4, name="b"), parameter(1, name="one")
    kept: list[Graph] = []
    product = F.mat_mul(x, w)
    biased = F.add(product, b)
    flat = F.reshape(biased, ints(-1))
    for read in (biased, product):  # read in addition to the normalisation
        y, vectors = norm(biased, 4, False)
        apply([x, w, b, *vectors], [y, read], fold_batch_norm, N=2, keep=kept)
        assert [n.inputs[1] for n in products_of(kept[-1])] == [w]
        apply([x, w, b, one], [F.mul(biased, one), read], fold_batch_norm, N=2, keep=kept)
        assert [n.inputs[1] for n in products_of(kept[-1])] == [w]
    for read in (flat, biased, product):  # read in addition to a factor after a view
        apply([x, w, b, one], [F.mul(flat, one), read], fold_batch_norm, N=2, keep=kept)
        assert [n.inputs[1] for n in products_of(kept[-1])] == [w]
    channels = parameter(4, name="c")
    apply([x, w, channels], [F.mul(product, channels), product], fold_batch_norm, N=2, keep=kept)
    assert [n.inputs[1] for n in products_of(kept[-1])] == [w]


def test_factors_of_channels_and_of_everything(apply: Any) -> None:
    x, w, b = data("N", 6), parameter(6, 8), parameter(8, name="b")
    scale, one = parameter(8, name="s"), parameter(1, name="one")
    kept: list[Graph] = []
    apply([x, w, b, scale], F.mul(F.add(F.mat_mul(x, w), b), scale), fold_batch_norm, N=2, keep=kept)
    assert kept[0].nodes[-1].op.name == "Add"
    heads = F.transpose(F.reshape(F.add(F.mat_mul(x, w), b), ints(-1, 2, 4)), perm=(1, 0, 2))
    apply([x, w, b, one], F.mul(heads, one), fold_batch_norm, N=2, keep=kept)
    assert kept[1].nodes[-1].op.name == "Transpose"


def test_types_of_fused_convolutions_are_not_inferred_again(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = data(2, 3, 8, 8), parameter(4, 3, 3, 3)
    graph = Graph([x, w], [F.relu(F.conv(x, w))])
    monkeypatch.setattr(FusedConv, "infer", None)
    (fused,) = fuse_conv(graph).nodes
    assert (fused.op.name, fused.output.type) == ("FusedConv", graph.outputs[0].type)
