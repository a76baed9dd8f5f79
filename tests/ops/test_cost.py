"""Cost of graphs: matrix products by hand and by the conventions of torch and fvcore, bytes, loops, branches."""

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.checks.samples import make_case, samples_of
from graphkit.ir import dims
from graphkit.ir.types import TensorType
from graphkit.ops import F, cost, registry
from graphkit.ops.cost import Cost, costs, multiply_adds
from graphkit.passes.core.bind import bind

PRODUCTS = {
    "Conv": (lambda: F.conv(x(2, 4, 9, 9), x(6, 2, 3, 3), group=2, strides=(2, 2)), 2 * 6 * 4 * 4 * 2 * 9),
    "ConvTranspose": (lambda: F.conv_transpose(x(2, 3, 4, 4), x(3, 5, 2, 2)), 2 * 3 * 16 * 5 * 4),
    "MatMul": (lambda: F.mat_mul(x(7, 1, 2, 3), x(5, 3, 4)), 7 * 5 * 2 * 3 * 4),
    "vectors": (lambda: F.mat_mul(x(3), x(3)), 3),
    "Gemm": (lambda: F.gemm(x(3, 2), x(3, 4), transA=True), 2 * 3 * 4),
    "Einsum": (lambda: F.einsum(x(2, 3, 4), x(2, 4, 5), equation="bij,bjk->bik"), 2 * 3 * 4 * 5),
    "LSTM": (lambda: F.lstm(x(6, 3, 5), x(2, 16, 5), x(2, 16, 4), direction="bidirectional")[0], 6 * 3 * 2 * 16 * 9),
    "Attention": (lambda: F.attention(x(2, 3, 4, 8), x(2, 3, 5, 8), x(2, 3, 5, 6))[0], 2 * 3 * 4 * 5 * (8 + 6)),
}


def x(*shape):
    return gk.input("x", shape)


def cost_of(values, names=()):
    return costs(gk.Model(values, inputs=names or None).graph)


@in_one_item()
@pytest.mark.parametrize("name", PRODUCTS)
def test_multiply_adds_of_products(name):
    made, expected = PRODUCTS[name]
    assert multiply_adds(made().node) == expected


COUNTED = [cls for cls in registry if cls.multiply_adds is not gk.Op.multiply_adds]


@in_one_item()
@pytest.mark.parametrize("cls", COUNTED, ids=lambda cls: cls.name)
def test_products_are_counted_for_every_sample_and_in_names(cls):
    for number in range(len(samples_of(cls))):
        case = make_case(cls, number)
        in_sizes, in_names = (
            [multiply_adds(n) for n in case.graph(symbolic=names).nodes if type(n.op) is cls] for names in (False, True)
        )
        # Long expressions are named by numbers.
        told = {str(a): dims.evaluate(a, case.bindings) for a in in_names if "?" not in str(a)}
        assert set(told.values()) <= set(in_sizes)
        assert len(told) == len(in_names) or cls.name == "Conv"


def test_bytes_are_operands_and_results_once_each():
    a = gk.input("a", (4, 5))
    assert cost_of(a * a).operators["", "Mul"] == Cost(1, 0, 2 * 80)
    assert cost_of(F.reshape(a, np.array([20]))).operators["", "Reshape"] == Cost(1)
    table = gk.input("table", (1000, 8))
    rows = F.gather(table, gk.input("i", (3,), dtype="int64"))
    assert cost_of(rows).operators["", "Gather"].bytes == 2 * 3 * 8 * 4 + 3 * 8
    assert cost_of(F.shape(a)).operators["", "Shape"].bytes == 16


def test_names_stay_and_sizes_replace_them():
    net = gk.models.build("lenet")
    (name,) = net.inputs
    symbolic, bound = costs(net.graph).total, costs(bind(net.graph, {name: (3, 1, 28, 28)})).total
    assert not dims.is_static(symbolic.flops)
    assert dims.evaluate(symbolic.flops, {"N": 3}) == bound.flops
    assert dims.evaluate(symbolic.bytes, {"N": 3}) == bound.bytes


def test_resnet50_has_the_arithmetic_that_is_published_of_it():
    # 4.09 G multiply-adds for one image of 224 x 224 pixels (torchvision's table of models: 4.09 GFLOPS).
    net = gk.models.build("resnet", layers=50, classes=1000)
    total = costs(bind(net.graph, {net.inputs[0]: (1, 3, 224, 224)})).total
    assert total.flops / 2 == pytest.approx(4.09e9, rel=0.005)


def test_loops_count_as_often_as_they_go_round():
    w = gk.input("w", (5, 5))
    rows = gk.input("rows", (7, 2, 5))
    last, _ = gk.scan(lambda h, row: (F.mat_mul(h, w) + row, h), gk.input("h", (2, 5)), rows)
    found = cost_of(last)
    assert found.operators["", "MatMul"].flops == 7 * 2 * 2 * 5 * 5
    assert found.open_loops == ()


def test_of_a_loop_whose_end_is_data_one_iteration_counts_and_it_is_named():
    h = gk.input("h", (2, 5))
    w = gk.input("w", (5, 5))
    final = gk.while_loop(lambda h: F.reduce_max(h, keepdims=False) < 100.0, lambda h: F.mat_mul(h, w), h, name="grow")
    found = cost_of(final)
    assert found.operators["", "MatMul"].flops == 2 * 2 * 5 * 5
    assert len(found.open_loops) == 1
    assert "grow" in found.open_loops[0]


def test_of_a_branch_that_is_open_the_dearer_one_counts():
    p = gk.input("p", (), dtype="bool")
    a = gk.input("a", (4, 4))
    y = gk.cond(p, lambda a: a + 1.0, lambda a: F.mat_mul(a, a), a)
    assert cost_of(y).total.flops == 2 * 4 * 4 * 4


def test_what_a_run_tells_is_not_counted_but_told():
    a = gk.input("a", (4, 5))
    found = cost_of(F.cast(F.non_zero(a), to="float32") * 2.0)
    assert found.total.unknown == 3
    assert multiply_adds(F.mat_mul(gk.ops.F.relu(gk.input("u", None)), a).node) is None
    assert TensorType("float32").shape is None


def test_nested_branches_are_each_looked_at_once(monkeypatch):
    p, a = gk.input("p", (), dtype="bool"), gk.input("a", (4, 4))

    def nested(depth):
        return gk.cond(p, lambda: nested(depth - 1), lambda: a + 1.0) if depth else F.mat_mul(a, a)

    asked = []
    monkeypatch.setattr(cost, "multiply_adds", lambda node: asked.append(node) or multiply_adds(node))
    depth = 10
    found = cost_of(nested(depth))
    assert found.operators["", "If"].nodes == depth
    assert found.total.flops == 2 * 4 * 4 * 4
    assert len(asked) == depth + 1  # one Add for each level, one MatMul


def test_nested_loops_multiply_their_lengths():
    w, rows = gk.input("w", (5, 5)), gk.input("rows", (7, 2, 5))

    def outer(h, row):
        inner, _ = gk.scan(lambda g, _: (F.mat_mul(g, w), g), h, rows)
        return inner + row, h

    last, _ = gk.scan(outer, gk.input("h", (2, 5)), rows)
    assert cost_of(last).operators["", "MatMul"].flops == 7 * 7 * 2 * 2 * 5 * 5
